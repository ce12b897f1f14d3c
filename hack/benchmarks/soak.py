"""Whether anything grows over 10,000 handovers: the arbiter's journal, its memory, the time.

Two tenants that hold nothing hand one device to and fro without a pause. The time of a handover is
taken in bare round trips of the same round, so that what else the machine does is no drift; the
last tenth of the handovers is compared with the first.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dra_driver.journal import COMPACT_AT
from hack.benchmarks import _figures, _lab
from hack.benchmarks._figures import Bound, progress

NAME = "soak"
IN_A_ROUND = 50
MIB = 1 << 20
DRIFT_MAX = 1.2
GROWTH_MAX_MIB = 2.0


@dataclass(frozen=True)
class Sample:
    """One round: its median handover, in seconds and in bare round trips; the arbiter after it."""

    handover_s: float
    round_trips: float
    memory: int  # bytes, resident
    journal: int  # bytes
    files: int  # open


def sample(here: _lab.Node, bare: _lab.Part, handovers: int) -> Sample:
    """Measure a round."""
    bare.ask([handovers, 0.0])
    round_trip_s = median(bare.answer())
    handover_s = median(one.seconds for one in _lab.hand_over(here, handovers, 0.0))
    return Sample(
        handover_s,
        handover_s / round_trip_s,
        here.arbiter_bytes,
        here.journal_bytes,
        here.arbiter_files,
    )


def measure(here: _lab.Node, handovers: int) -> dict[str, Any]:
    """Rounds of handovers, after one to warm up."""
    bare = here.bare()
    in_a_round = max(2, min(IN_A_ROUND, handovers // 20 * 2))
    rounds = -(-handovers // in_a_round)
    sample(here, bare, in_a_round)
    samples = []
    for number in range(1, rounds + 1):
        samples.append(sample(here, bare, in_a_round))
        if number % -(-rounds // 10) == 0:
            progress(f"[{number * in_a_round}/{handovers}] {samples[-1].handover_s * 1e3:.2f} ms")
    tenth = max(1, rounds // 10)
    return {
        "n": rounds * in_a_round,
        "first": _summary(samples[:tenth]),
        "last": _summary(samples[-tenth:]),
        "journal_bytes": max(one.journal for one in samples),
    }


def _summary(samples: Sequence[Sample]) -> dict[str, float]:
    """The medians of a tenth."""
    return {
        "handover_ms": median(one.handover_s for one in samples) * 1e3,
        "ratio": median(one.round_trips for one in samples),
        "memory_bytes": median(one.memory for one in samples),
        "files": median(one.files for one in samples),
    }


def bounds(result: dict[str, Any]) -> list[Bound]:
    """What may not grow, and by how much it may seem to."""
    first, last = result["first"], result["last"]
    grown_mib = (last["memory_bytes"] - first["memory_bytes"]) / MIB
    return [
        Bound("handover, last tenth / first tenth", last["ratio"] / first["ratio"], DRIFT_MAX),
        Bound("arbiter's memory, growth in MiB", grown_mib, GROWTH_MAX_MIB),
        Bound("journal, largest in MiB", result["journal_bytes"] / MIB, COMPACT_AT / MIB),
        Bound("arbiter's open files, growth", last["files"] - first["files"], 0),
    ]


def table(result: dict[str, Any]) -> list[str]:
    """For people."""
    return [
        f"{tenth:6}tenth: handover {of_tenth['handover_ms']:6.3f} ms = {of_tenth['ratio']:.2f} "
        f"bare round trips, arbiter {of_tenth['memory_bytes'] / MIB:.1f} MiB"
        for tenth, of_tenth in (("first", result["first"]), ("last", result["last"]))
    ]


def benchmark(folder: Path, handovers: int, output: str) -> int:
    """Measure and tell."""
    with _lab.node(folder) as here:
        result = measure(here, handovers)
    return _figures.report(result, table(result), bounds(result), output)


def main() -> int:
    """Parse and run."""
    parser = _lab.parser(NAME, __doc__)
    parser.add_argument("-n", type=int, default=10_000, help="handovers (10000)")
    asked = parser.parse_args()
    return _lab.apart(NAME, lambda folder: benchmark(folder, asked.n, asked.output))


if __name__ == "__main__":
    sys.exit(main())
