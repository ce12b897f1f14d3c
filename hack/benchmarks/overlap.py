"""What a handover takes when both tenants have memory to copy, and the one restores while the other
parks, and when neither parks more than it must.

Two torch programs hold as much each in blocks of 16 MiB on a simulated device that has room for one
of them and a quarter of the other. They hand it to and fro: so that the next one waits until all is
parked; so that it restores into room as it is measured free, where both say that they need all of
the device; and where they say what they need, so that each keeps a quarter. Baselines of the same
run: how long each takes to park and to restore all alone, and while another one does the same on a
device of its own: cores share the memory. Without overlap a handover takes at least the sum of both
alone, with it at least the longer one beside another.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from hack.benchmarks import _figures, _lab
from hack.benchmarks._figures import Bound, Spread, progress
from tests.contract import simdevice_env

NAME = "overlap"
MIB = 1 << 20
RESIDUAL_MIB = 8
COPIES = 6
OVERLAPPED_MAX = 1.15
PART_MAX = 1.0
WAYS = {"after": "after", "ahead": "ahead", "part": "ahead"}
"""Ways of handing over, and how the tenants restore."""


@contextmanager
def node(folder: Path, mib: int, way: str, *devices: str) -> Iterator[_lab.Node]:
    """A node of two tenants that are alike, on these devices."""
    device_size = (mib + mib // 4 + 2 * RESIDUAL_MIB) * MIB
    need = device_size - RESIDUAL_MIB * MIB if way == "ahead" else (mib + RESIDUAL_MIB) * MIB
    tenants = [
        _lab.Tenant(
            *(name, device, "blocks", (mib, WAYS[way])), need=need, residual=RESIDUAL_MIB * MIB
        )
        for name, device in zip("ab", devices, strict=True)
    ]
    library = simdevice_env.library(folder)
    with _lab.node(folder, tenants, device_size=device_size, library=library) as here:
        yield here


def copies(*tenants: _lab.Part) -> dict[str, float]:
    """Seconds that these take to park and to restore, all at once."""
    for tenant in tenants:
        tenant.ask(["alone", COPIES, 0.0])
    # The first has the arena's pages to take.
    times = [times for tenant in tenants for times in tenant.answer()[1:]]
    return {
        "park_s": median(out for out, _ in times),
        "restore_s": median(back for _, back in times),
    }


def measure(folder: Path, mib: int, handovers: int) -> dict[str, Any]:
    """Seconds of parking and restoring, and of handovers."""
    with node(folder, mib, "after", "gpu0", "gpu1") as here:
        beside = copies(*here.tenants)
    found: dict[str, Any] = {"beside_another": beside}
    for way in WAYS:
        with node(folder, mib, way, "gpu0", "gpu0") as here:
            found["alone"] = [copies(tenant) for tenant in here.tenants][1]
            _lab.hand_over(here, 2, 0.0)
            progress(f"{way}: {handovers} handovers")
            found[way] = vars(Spread.of(_lab.hand_over(here, handovers, 0.0)))
    return found


def summary(mib: int, found: dict[str, Any]) -> dict[str, Any]:
    """The JSON output; ratios are of the medians of one run."""
    ratio = {
        "ahead": found["ahead"]["p50"] / 1e3 / max(found["beside_another"].values()),
        "after": found["after"]["p50"] / 1e3 / sum(found["alone"].values()),
        "part": found["part"]["p50"] / found["ahead"]["p50"],
    }
    return {"mib": mib, **found, "ratio": ratio, "simulated": True}


def table(result: dict[str, Any]) -> list[str]:
    """For people."""
    return [
        f"{result['mib']} MiB each on a simulated device",
        *(
            f"  {words:16} park {times['park_s'] * 1e3:5.0f} ms, restore "
            f"{times['restore_s'] * 1e3:5.0f} ms"
            for words, times in (
                ("alone:", result["alone"]),
                ("beside another:", result["beside_another"]),
            )
        ),
        (
            f"  handover, restoring when the other has parked: {result['after']['p50']:5.0f} ms = "
            f"{result['ratio']['after']:.2f} of the sum alone"
        ),
        (
            f"  handover, restoring while the other parks:     {result['ahead']['p50']:5.0f} ms = "
            f"{result['ratio']['ahead']:.2f} of the longer one beside another"
        ),
        (
            f"  handover, the same, and each keeps a quarter:  {result['part']['p50']:5.0f} ms = "
            f"{result['ratio']['part']:.2f} of that"
        ),
    ]


def bounds(result: dict[str, Any]) -> list[Bound]:
    """The overlapped handover, in the longer one of parking and restoring; that of a part in it."""
    ratio = result["ratio"]
    return [
        Bound("overlapped handover by the longer copy", ratio["ahead"], OVERLAPPED_MAX),
        Bound("handover of three quarters by that of all", ratio["part"], PART_MAX),
    ]


def benchmark(folder: Path, mib: int, handovers: int, output: str) -> int:
    """Measure and tell."""
    result = summary(mib, measure(folder, mib, handovers))
    return _figures.report(result, table(result), bounds(result), output)


def main() -> int:
    """Parse and run."""
    parser = _lab.parser(NAME, __doc__)
    parser.add_argument("--mib", type=int, default=1024, help="of each, a multiple of 64 (1024)")
    parser.add_argument("-n", type=int, default=20, help="handovers, an even number (20)")
    asked = parser.parse_args()
    return _lab.apart(NAME, lambda folder: benchmark(folder, asked.mib, asked.n, asked.output))


if __name__ == "__main__":
    sys.exit(main())
