"""What parking and restoring cost beside a plain memcpy of the same pages in the same run.

A torch program on a simulated device holds 1 GiB in blocks of 16 MiB. It parks (copies out, gives
the device's pages back) and restores (takes pages, copies in); in between it does the same by hand,
with torch's allocator and memcpy alone. All use one thread. The kernel clears each page that the
device gives, which takes longer than the copy: the copy between pages that are there already is
shown too. What counts is the process's CPU time, which is that of a core to itself, and of each
thing the fastest round: what else the machine does only adds to it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from hack.benchmarks import _figures, _lab
from hack.benchmarks._figures import Bound, progress
from tandem.namespace import mount_tmpfs
from tests.contract import simdevice_env

NAME = "copy"
BLOCK_MIB = 16
ROUNDS = 15
BANDWIDTH_MIN = 0.9

Round: TypeAlias = dict[str, dict[str, float]]
"""What was done, by "cpu" and "wall", in seconds."""

COMPARED = {
    "park": ("copy_out_and_give_back", "copy_out"),
    "restore": ("take_and_copy_in", "copy_in"),
}
"""Each with the same by hand, and with the copy alone."""


def rounds(folder: Path, mib: int) -> Iterator[Round]:
    """Seconds of each thing, a round after the other; the first has the arena's pages to take."""
    device = folder / "gpu0"
    device.mkdir()
    mount_tmpfs(device, mib + BLOCK_MIB << 20)
    library = simdevice_env.library(folder)
    program = subprocess.Popen(
        [sys.executable, "-P", "-m", "hack.benchmarks._copying", str(mib), str(ROUNDS + 1)],
        env=simdevice_env.environment(device, preload=library),
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout is not None
        for line in program.stdout:
            yield json.loads(line)
    if program.returncode:
        raise RuntimeError(f"the program on the device ended with {program.returncode}")


def summary(mib: int, first: Round, others: list[Round]) -> dict[str, Any]:
    """The JSON output; a ratio is of bandwidths: the baseline's seconds by the product's."""
    seconds = {
        clock: {what: min(one[what][clock] for one in others) for what in first}
        for clock in ("cpu", "wall")
    }
    return {
        "mib": mib,
        "rounds": len(others),
        "seconds": seconds,
        "first_park": first["park"],
        "ratio": {
            what: {
                baseline: seconds["cpu"][baseline] / seconds["cpu"][what] for baseline in baselines
            }
            for what, baselines in COMPARED.items()
        },
        "simulated": True,
    }


def bounds(result: dict[str, Any]) -> list[Bound]:
    """The bandwidth, in that of the same by hand."""
    return [
        Bound(
            f"{what}, bandwidth by that of the same by hand",
            result["ratio"][what][by_hand],
            at_least=BANDWIDTH_MIN,
        )
        for what, (by_hand, _) in COMPARED.items()
    ]


def table(result: dict[str, Any]) -> list[str]:
    """For people."""
    cpu, wall = result["seconds"]["cpu"], result["seconds"]["wall"]
    lines = [
        f"{result['mib']} MiB on a simulated device, {result['rounds']} rounds",
        f"{'':26}{'CPU time':>11}{'by the clock':>18}",
    ]
    for what, baselines in COMPARED.items():
        for name in (what, *baselines):
            rate = result["mib"] / 1024 / cpu[name]
            lines.append(
                f"  {name.replace('_', ' '):24}{cpu[name] * 1e3:8.0f} ms{wall[name] * 1e3:15.0f} ms"
                f"{rate:8.2f} GiB/s"
            )
    first = result["first_park"]
    lines.append(f"  {'first park':24}{first['cpu'] * 1e3:8.0f} ms{first['wall'] * 1e3:15.0f} ms")
    return lines


def benchmark(folder: Path, mib: int, output: str) -> int:
    """Measure and tell."""
    measured = []
    for one in rounds(folder, mib):
        measured.append(one)
        done = f"[{len(measured)}/{ROUNDS + 1}]"
        progress(f"{done} park {one['park']['wall']:.2f} s, restore {one['restore']['wall']:.2f} s")
    result = summary(mib, measured[0], measured[1:])
    return _figures.report(result, table(result), bounds(result), output)


def main() -> int:
    """Parse and run."""
    parser = _lab.parser(NAME, __doc__)
    parser.add_argument("--mib", type=int, default=1024, help=f"a multiple of {BLOCK_MIB} (1024)")
    asked = parser.parse_args()
    return _lab.apart(NAME, lambda folder: benchmark(folder, asked.mib, asked.output))


if __name__ == "__main__":
    sys.exit(main())
