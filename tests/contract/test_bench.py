"""The benchmarks: the shape of what they say, and that a bound which is missed is told.

The bounds themselves want a machine that does only that, and longer runs than these.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, *arguments: str, bounds: str = "", status: tuple[int, ...] = (0, 1)) -> Any:
    """The JSON that a benchmark prints; `bounds` sets its constants to other values before."""
    source = f"import sys; from hack.benchmarks import {name}; {bounds}; sys.exit({name}.main())"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", source, *arguments, "-o", "json"],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in status, ended.stderr
    result = json.loads(ended.stdout)
    kept = all(bound["kept"] for bound in result["bounds"])
    assert ended.returncode == (0 if kept else 1)
    return result


def figures(result: Any, *, kept: bool) -> list[str]:
    """The bounds that were kept, or those that were not."""
    return [bound["figure"] for bound in result["bounds"] if bound["kept"] is kept]


def test_handover_tells_of_both_loads_what_it_measured() -> None:
    loose = "handover.P99_MAX = handover.MEDIAN_MAX = 1e9; handover.REACQUIRE_MAX = 0"
    result = run("handover", "-n", "20", bounds=loose, status=(1,))
    for of_load in (result, result["busy"]):
        assert of_load["handover_ms"]["n"] == 20
        for spread in ("baseline_ms", "handover_ms", "reacquire_ms"):
            assert 0 < of_load[spread]["p50"] <= of_load[spread]["p99"]
        for p in ("p50", "p99"):
            assert of_load["ratio"][p] == of_load["handover_ms"][p] / of_load["baseline_ms"][p]
        assert of_load["reacquire_ratio"] == (
            of_load["reacquire_ms"]["p50"] / of_load["baseline_ms"]["p50"]
        )
    missed = figures(result, kept=False)
    assert missed == ["re-acquire, median", "re-acquire, median, all cores busy"]
    assert len(figures(result, kept=True)) == 4


def test_copy_compares_with_the_same_by_hand() -> None:
    result = run("copy", "--mib", "32", bounds="copy.BANDWIDTH_MIN = 1e9", status=(1,))
    seconds = result["seconds"]["cpu"]
    assert result["mib"] == 32
    assert result["simulated"]
    assert all(value > 0 for value in seconds.values())
    assert seconds.keys() == result["seconds"]["wall"].keys()
    by_hand = seconds["copy_out_and_give_back"] / seconds["park"]
    assert result["ratio"]["park"]["copy_out_and_give_back"] == by_hand
    assert len(figures(result, kept=False)) == 2


def test_overlap_compares_handovers_with_the_copies_that_they_are_made_of() -> None:
    names = ("OVERLAPPED", "WAITED", "SLOWER", "GAINED", "PART")
    loose = "; ".join(f"overlap.{name}_MAX = 0" for name in names)
    result = run("overlap", "--mib", "64", "-n", "2", bounds=loose, status=(1,))
    assert result["simulated"]
    ms, ratio = result["ms"], result["ratio"]
    assert all(0 < times["p25"] <= times["p50"] for times in ms.values())
    for way in ("after", "ahead", "part"):
        assert ms[way]["n"] == ms[f"longer_{way}"]["n"] == 8
        assert ms[way]["p50"] > ms[f"longer_{way}"]["p50"]
    assert min(ratio["after"], ratio["ahead"]) > 1, "it lasts at least as long as its copies"
    assert ratio["slower"] == ms["longer_ahead"]["p25"] / ms["longer_beside"]["p25"]
    assert ratio["gained"] == ms["ahead"]["p25"] / ms["after"]["p25"]
    assert ratio["part"] == ms["part"]["p25"] / ms["ahead"]["p25"]
    assert figures(result, kept=False) == [
        "overlapped handover by its longer copy",
        "what it waits by its shorter copy",
        "its longer copy by that beside another",
        "overlapped handover by one without overlap",
        "handover of three quarters by that of all",
    ]


def test_makespan_compares_real_turns_with_ideal_ones() -> None:
    result = run("makespan", "-n", "2", "--scale", "0.05", bounds="makespan.SEEDS = (1,)")
    identical, random = result["worlds"].values()
    assert identical["ideal_makespan_s"] == pytest.approx((2 * 2 + 1) * 0.1)
    assert identical["makespan_s"] >= identical["ideal_makespan_s"]
    assert (random["jobs"], random["rounds"]) == (3, 8)
    assert 0 < random["busy"] < 1
    assert [bound["value"] for bound in result["bounds"]] == [
        identical["makespan_s"] / identical["ideal_makespan_s"],
        random["busy"] / random["ideal_busy"],
    ]


def test_makespan_misses_a_bound_that_none_can_keep() -> None:
    wrong = "makespan.SEEDS = (); makespan.MAKESPAN_MAX = 0.9"
    run("makespan", "-n", "1", "--scale", "0.01", bounds=wrong, status=(1,))


def test_soak_compares_its_first_tenth_with_its_last() -> None:
    loose = "soak.DRIFT_MAX = 1e9; soak.COMPACT_AT = 1"
    result = run("soak", "-n", "40", bounds=loose, status=(1,))
    assert result["n"] == 40
    for tenth in ("first", "last"):
        assert all(value > 0 for value in result[tenth].values())
    assert result["bounds"][0]["value"] == result["last"]["ratio"] / result["first"]["ratio"]
    assert figures(result, kept=False) == ["journal, largest in MiB"]
