"""What a handover takes when both tenants have memory to copy, and the one restores while the other
parks, and when neither parks more than it must.

Two torch programs hold as much each in blocks of 16 MiB on a simulated device that has room for one
of them and a quarter of the other. They hand it to and fro: so that the next one waits until all is
parked; so that it restores into room as it is measured free, where both say that they need all of
the device; and where they say what they need, so that each keeps a quarter.

A handover takes at least the longer one of its two copies, and without overlap the sum of both:
what it takes beyond the longer one it waits. That is measured in each by itself, since a virtual
machine's host may take what has been free for some time, and then it lasts anything up to a second
a GiB to touch that again. That its copies are not slower for what goes on beside them is measured
by those of one that restores while another parks, each on a device of its own, where no turn
changes hands. Between rounds lower quartiles are compared: what a host does only makes them slower.
The host needs memory for about 8 times what one program holds.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from hack.benchmarks import _figures, _lab
from hack.benchmarks._figures import Bound, progress
from tests.contract import simdevice_env

NAME = "overlap"
MIB = 1 << 20
RESIDUAL_MIB = 8
IN_A_ROW = 4
OVERLAPPED_MAX = 1.15
WAITED_MAX = 0.4
SLOWER_MAX = 1.25
GAINED_MAX = 0.9
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


@dataclass(frozen=True)
class Copies:
    """Seconds of a park and of a restore of the same bytes."""

    park_s: float
    restore_s: float


@dataclass(frozen=True)
class Found:
    """`beside`: one parks while the other restores, in turns."""

    alone: list[Copies] = field(default_factory=list)
    beside: list[Copies] = field(default_factory=list)
    handovers: dict[str, list[_lab.Handover]] = field(
        default_factory=lambda: {way: [] for way in WAYS}
    )


@dataclass(frozen=True)
class Times:
    """Milliseconds: the lower quartile, and the median, of so many."""

    p25: float
    p50: float
    n: int

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Times":
        """Of at least two."""
        found = list(seconds)
        p25, p50, _ = quantiles(found, n=4, method="inclusive")
        return cls(p25 * 1e3, p50 * 1e3, len(found))

    def __str__(self) -> str:
        return f"{self.p25:5.0f} ms (median {self.p50:5.0f})"


def alone(tenant: _lab.Part) -> list[Copies]:
    """One that holds its memory parks and restores it, several times."""
    tenant.ask(["copy", 2 * IN_A_ROW, 0.0])
    times = iter(tenant.answer())
    return [Copies(park_s, restore_s) for park_s, restore_s in zip(times, times, strict=True)]


def beside(parks: _lab.Part, restores: _lab.Part) -> list[Copies]:
    """Both at once, each time the other way round; in the end it is as it was."""
    found = []
    for _ in range(IN_A_ROW):
        for tenant in (parks, restores):
            tenant.ask(["copy", 1, 0.0])
        found.append(Copies(*parks.answer(), *restores.answer()))
        parks, restores = restores, parks
    return found


def measure(folder: Path, mib: int, rounds: int) -> Found:
    """One node works at a time."""
    found = Found()
    apart = node(folder, mib, "after", "gpu0", "gpu1")
    with apart as here, node(folder, mib, "ahead", "gpu0", "gpu0") as pair:
        first, second = here.tenants
        second.ask(["copy", 1, 0.0])
        second.answer()
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            found.alone.extend(alone(first))
            found.beside.extend(beside(first, second))
            found.handovers["ahead"] += _lab.hand_over(pair, IN_A_ROW, 0.0)
    for way in ("after", "part"):
        progress(way)
        with node(folder, mib, way, "gpu0", "gpu0") as pair:
            for _ in range(rounds):
                found.handovers[way] += _lab.hand_over(pair, IN_A_ROW, 0.0)
    return found


def summary(mib: int, found: Found) -> dict[str, Any]:
    """The JSON output."""
    times = {
        "park_alone": Times.of(one.park_s for one in found.alone),
        "restore_alone": Times.of(one.restore_s for one in found.alone),
        "longer_beside": Times.of(map(longer, found.beside)),
    }
    for way, handovers in found.handovers.items():
        times[way] = Times.of(one.seconds for one in handovers)
        times[f"longer_{way}"] = Times.of(map(longer, handovers))
    ratio = {
        "after": median(
            one.seconds / (one.park_s + one.restore_s) for one in found.handovers["after"]
        ),
        "ahead": median(one.seconds / longer(one) for one in found.handovers["ahead"]),
        "waited": median(
            (one.seconds - longer(one)) / min(one.park_s, one.restore_s)
            for one in found.handovers["ahead"]
        ),
        "slower": times["longer_ahead"].p25 / times["longer_beside"].p25,
        "gained": times["ahead"].p25 / times["after"].p25,
        "part": times["part"].p25 / times["ahead"].p25,
    }
    return {
        "mib": mib,
        "ms": {what: vars(one) for what, one in times.items()},
        "ratio": ratio,
        "simulated": True,
    }


def longer(copies: Copies | _lab.Handover) -> float:
    """Seconds of the longer one of both."""
    return max(copies.park_s, copies.restore_s)


def table(result: dict[str, Any]) -> list[str]:
    """For people."""
    ms = {what: Times(**one) for what, one in result["ms"].items()}
    ratio = result["ratio"]
    return [
        f"{result['mib']} MiB each on a simulated device; lower quartiles",
        f"  park alone                                {ms['park_alone']}",
        f"  restore alone                             {ms['restore_alone']}",
        f"  the longer one, one beside the other      {ms['longer_beside']}",
        (
            f"  the longer one in overlapped handovers    {ms['longer_ahead']}: "
            f"{ratio['slower']:.2f} of that"
        ),
        (
            f"  handover, the next restores afterwards    {ms['after']}: "
            f"{ratio['after']:.2f} of the sum of its copies"
        ),
        (
            f"  handover, the next restores meanwhile     {ms['ahead']}: "
            f"{ratio['ahead']:.2f} of its longer copy, {ratio['gained']:.2f} of one without overlap"
        ),
        f"  handover, the same, each keeps a quarter  {ms['part']}: {ratio['part']:.2f} of that",
    ]


def bounds(result: dict[str, Any]) -> list[Bound]:
    """What a handover waits, and how much slower its copies are."""
    ratio = result["ratio"]
    return [
        Bound("overlapped handover by its longer copy", ratio["ahead"], OVERLAPPED_MAX),
        Bound("what it waits by its shorter copy", ratio["waited"], WAITED_MAX),
        Bound("its longer copy by that beside another", ratio["slower"], SLOWER_MAX),
        Bound("overlapped handover by one without overlap", ratio["gained"], GAINED_MAX),
        Bound("handover of three quarters by that of all", ratio["part"], PART_MAX),
    ]


def benchmark(folder: Path, mib: int, rounds: int, output: str) -> int:
    """Measure and tell."""
    result = summary(mib, measure(folder, mib, rounds))
    return _figures.report(result, table(result), bounds(result), output)


def main() -> int:
    """Parse and run."""
    parser = _lab.parser(NAME, __doc__)
    parser.add_argument("--mib", type=int, default=1024, help="of each, a multiple of 64 (1024)")
    parser.add_argument("-n", type=int, default=6, help="rounds (6)")
    asked = parser.parse_args()
    return _lab.apart(NAME, lambda folder: benchmark(folder, asked.mib, asked.n, asked.output))


if __name__ == "__main__":
    sys.exit(main())
