"""What the benchmarks decide by: the ideal timetable, spreads, bounds."""

import json
import math
from statistics import fmean, pstdev

import pytest

from hack.benchmarks import _interleaving, _lab, overlap
from hack.benchmarks._figures import Bound, Spread, as_json


def test_a_job_alone_keeps_each_device_busy_half_the_time() -> None:
    timetable = _interleaving.ideal(_interleaving.regular(1, 5, 2.0))
    assert (timetable.makespan, timetable.busy) == (20.0, 0.5)


def test_two_identical_jobs_fit_into_each_others_gaps() -> None:
    timetable = _interleaving.ideal(_interleaving.regular(2, 5, 2.0))
    assert timetable.makespan == 22.0
    assert timetable.busy == 20 / 22


def test_who_comes_first_is_served_first() -> None:
    # The second job rolls out from 1 to 4, the third from 4 to 5; the first trains from 1 to 11.
    timetable = _interleaving.ideal([[1.0, 10.0], [3.0, 1.0], [1.0, 5.0]])
    assert timetable.makespan == 11.0 + 1.0 + 5.0
    assert timetable.work == 21.0


def test_a_gap_that_nobody_can_fill_stays() -> None:
    assert _interleaving.ideal([[4.0, 1.0], [1.0, 1.0]]).makespan == 6.0
    assert _interleaving.ideal([[1.0, 1.0], [4.0, 1.0]]).makespan == 6.0


@pytest.mark.parametrize("jobs", [2, 3, 4])
def test_no_timetable_beats_its_bounds(jobs: int) -> None:
    for seed in range(20):
        made = _interleaving.lognormal(jobs, 10, 2.0, 0.4, seed)
        timetable = _interleaving.ideal(made)
        of_device = [sum(sum(phases[role::2]) for phases in made) for role in (0, 1)]
        assert max(*of_device, *map(sum, made)) < timetable.makespan < sum(map(sum, made))
        assert 0.5 < timetable.busy < 1


def test_lognormal_phases_have_the_mean_and_the_variation_asked_for() -> None:
    (phases,) = _interleaving.lognormal(1, 50_000, 2.0, 0.4, seed=1)
    assert fmean(phases) == pytest.approx(2.0, rel=0.01)
    assert pstdev(phases) / fmean(phases) == pytest.approx(0.4, rel=0.02)
    assert _interleaving.lognormal(1, 3, 2.0, 0.4, 1) == _interleaving.lognormal(1, 3, 2.0, 0.4, 1)


def test_a_spread_is_in_milliseconds_and_by_nearest_rank() -> None:
    spread = Spread.of([n / 1000 for n in range(100, 0, -1)])
    assert (spread.p50, spread.p99) == pytest.approx((50.5, 99.0))
    assert spread.n == 100
    assert Spread.of([0.002]).p99 == 2.0


@pytest.mark.parametrize(
    ("bound", "kept"),
    [
        (Bound("f", 6.0, at_most=6.0), True),
        (Bound("f", 6.1, at_most=6.0), False),
        (Bound("f", 0.9, at_least=0.9), True),
        (Bound("f", 0.89, at_least=0.9), False),
        (Bound("f", math.nan, at_most=6.0), False),
    ],
)
def test_a_bound_is_kept_or_missed(bound: Bound, kept: bool) -> None:
    assert bound.kept is kept
    assert str(bound).endswith("MISSED") is not kept


def test_json_names_each_bound_with_its_limit() -> None:
    told = json.loads(as_json({"n": 3}, [Bound("f", 2.0, at_most=1.0)]))
    assert told == {
        "n": 3,
        "bounds": [{"figure": "f", "value": 2.0, "at_most": 1.0, "kept": False}],
    }


@pytest.mark.parametrize(
    ("park_s", "restore_s", "overlapped_s", "missed"),
    [
        (0.16, 0.29, 0.31, []),
        (0.16, 0.29, 0.46, ["longer", "waits", "without"]),  # one after the other
        (0.28, 2.0, 2.29, ["waits", "without"]),  # the same where one copy is seven times the other
        (0.16, 0.40, 0.41, ["beside"]),  # copies that are slower for what goes on beside them
    ],
)
def test_no_bound_of_an_overlap_is_kept_where_nothing_overlaps(
    park_s: float, restore_s: float, overlapped_s: float, missed: list[str]
) -> None:
    undisturbed = overlap.Copies(park_s, min(restore_s, 0.29) if "beside" in missed else restore_s)
    after = _lab.Handover(park_s + restore_s + 0.01, park_s, restore_s)
    ahead = _lab.Handover(overlapped_s, park_s, restore_s)
    handovers = {"after": [after] * 4, "ahead": [ahead] * 4, "part": [ahead] * 4}
    found = overlap.Found([undisturbed] * 4, [undisturbed] * 4, handovers)
    told = [
        bound.figure for bound in overlap.bounds(overlap.summary(1024, found)) if not bound.kept
    ]
    assert len(told) == len(missed)
    assert all(word in figure for word, figure in zip(missed, told, strict=True))
