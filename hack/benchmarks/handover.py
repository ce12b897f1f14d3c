"""What a turn's change of hands costs by itself, beside a bare gRPC round trip in the same run.

Two tenants in processes of their own that hold nothing hand one device to and fro. The baseline is
a unary grpc.aio call over a unix socket between two processes. Bare calls, handovers and
re-acquires that nobody contests take turns in short rounds, so that whatever else the machine does
meets all three. Then the same again with a process that computes on every core.
"""

import sys
from pathlib import Path
from statistics import median
from typing import Any

from hack.benchmarks import _figures, _lab
from hack.benchmarks._figures import Bound, Spread, progress

NAME = "handover"
IN_A_ROUND = 50
PAUSE_S = 0.02
"""Before each thing that is timed, bare calls too. Devices change hands every few seconds, not 300
times a second: a scheduler serves at once who wakes from a sleep, and others when it can.
"""

MEDIAN_MAX = 6.0
P99_MAX = 6.0
REACQUIRE_MAX = 2.0


def measure(here: _lab.Node, handovers: int, load: str) -> dict[str, Any]:
    """One part of the JSON output: at least that many handovers, after a round to warm up."""
    bare, first = here.bare(), here.tenants[0]
    times: tuple[list[float], list[float], list[float]] = ([], [], [])
    in_a_round = min(IN_A_ROUND, handovers + handovers % 2)
    rounds = -(-handovers // in_a_round)
    for number in range(rounds + 1):
        bare.ask([in_a_round, PAUSE_S])
        round_trips = bare.answer()
        handed = [one.seconds for one in _lab.hand_over(here, in_a_round, PAUSE_S)]
        first.ask(["again", in_a_round, PAUSE_S])
        measured = (round_trips, handed, first.answer())
        if number:
            for all_times, of_round in zip(times, measured, strict=True):
                all_times.extend(of_round)
            progress(f"[{number}/{rounds}] {median(handed) * 1e3:.2f} ms a handover, {load}")
    baseline, handover, reacquire = map(Spread.of, times)
    return {
        "baseline_ms": {"p50": baseline.p50, "p99": baseline.p99},
        "handover_ms": {"p50": handover.p50, "p99": handover.p99, "n": handover.n},
        "reacquire_ms": {"p50": reacquire.p50, "p99": reacquire.p99},
        "ratio": {"p50": handover.p50 / baseline.p50, "p99": handover.p99 / baseline.p99},
        "reacquire_ratio": reacquire.p50 / baseline.p50,
    }


def bounds(result: dict[str, Any]) -> list[Bound]:
    """The control overhead that a handover may have, in bare round trips under the same load."""
    return [
        bound
        for load, of_load in (("", result), (", all cores busy", result["busy"]))
        for bound in (
            Bound(f"handover, median{load}", of_load["ratio"]["p50"], at_most=MEDIAN_MAX),
            Bound(f"handover, p99 / bare p99{load}", of_load["ratio"]["p99"], at_most=P99_MAX),
            Bound(f"re-acquire, median{load}", of_load["reacquire_ratio"], at_most=REACQUIRE_MAX),
        )
    ]


def table(result: dict[str, Any]) -> list[str]:
    """Milliseconds, for people."""
    return [
        f"{what:20}{load:18}p50 {of_load[key]['p50']:8.3f} ms   p99 {of_load[key]['p99']:8.3f} ms"
        for load, of_load in (("", result), ("all cores busy", result["busy"]))
        for what, key in (
            ("bare round trip", "baseline_ms"),
            ("handover", "handover_ms"),
            ("re-acquire", "reacquire_ms"),
        )
    ]


def benchmark(folder: Path, handovers: int, output: str) -> int:
    """Idle first, then with all cores busy."""
    with _lab.node(folder) as here:
        result = measure(here, handovers, "idle")
    with _lab.node(folder) as here, _lab.busy_cores():
        result["busy"] = measure(here, handovers, "all cores busy")
    return _figures.report(result, table(result), bounds(result), output)


def main() -> int:
    """Parse and run."""
    parser = _lab.parser(NAME, __doc__)
    parser.add_argument("-n", type=int, default=1000, help="handovers for each load (1000)")
    arguments = parser.parse_args()
    return _lab.apart(NAME, lambda folder: benchmark(folder, arguments.n, arguments.output))


if __name__ == "__main__":
    sys.exit(main())
