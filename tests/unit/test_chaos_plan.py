"""The schedule of blows is a function of the seed alone."""

import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from claim_phases.phases import Phase
from tests.chaos.plan import ARBITER, LEASE_S, LONG_S, PARTS, Act, Moment, plan, shard

ROOT = Path(__file__).resolve().parents[2]


def test_a_seed_gives_the_same_plan_in_another_process() -> None:
    show = "from tests.chaos.plan import plan; print(plan(7, 50))"
    run = [sys.executable, "-c", show]
    shown = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown == f"{plan(7, 50)}\n"


def test_other_seeds_give_other_plans() -> None:
    assert len({plan(seed, 20) for seed in range(50)}) == 50


def test_a_longer_plan_begins_like_a_shorter_one() -> None:
    assert plan(3, 400)[:100] == plan(3, 100)


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_the_shards_are_the_whole(of: int) -> None:
    whole = plan(5, 100)
    parts = [shard(whole, number, of) for number in range(1, of + 1)]
    assert sum(parts, start=()) == whole
    for first in (part[0] for part in parts):
        assert first.after is not None
        assert first.after.who != ARBITER


def test_a_thousand_blows_fall_on_everyone_in_every_phase() -> None:
    blows = plan(1, 1000)
    struck = Counter((blow.act, blow.victim) for blow in blows)
    for victim in (ARBITER, *PARTS):
        assert struck[Act.KILL, victim] > 20
        assert struck[Act.STOP, victim] > 20
    assert struck[Act.STEP, "clock"] > 20
    moments = Counter(blow.after for blow in blows)
    for tenant in set(PARTS.values()):
        for phase in set(Phase) - {Phase.FAULTED}:
            assert any(moments[Moment(tenant, phase, nth)] for nth in (1, 2, 3))
    assert moments[None] > 50  # at once after another


def test_with_a_ladder_tenants_hang_in_every_phase_and_none_outlives_its_lease_alone() -> None:
    blows = plan(1, 1000, hangs=True)
    hangs = [blow for blow in blows if blow.act is Act.HANG]
    assert {blow.victim for blow in hangs} == set(PARTS)
    assert {blow.after.phase for blow in hangs if blow.after} == set(Phase) - {Phase.FAULTED}
    assert all(blow.until is None for blow in blows)
    after = [then for blow, then in pairwise(blows) if blow.act is Act.HANG]
    at_once = [blow for blow in after if blow.after is None and blow.victim == ARBITER]
    assert 0.3 < len(at_once) / len(hangs) < 0.7  # their session is lost too


def test_an_arbiters_start_is_awaited_only_after_its_end() -> None:
    for seed in range(20):
        blows = plan(seed, 200)
        for before, blow in pairwise(blows):
            if blow.after is not None and blow.after.who == ARBITER:
                assert (before.act, before.victim) == (Act.KILL, ARBITER)


def test_some_stops_outlive_the_lease_while_the_session_is_lost() -> None:
    blows = plan(1, 1000)
    pairs = pairwise(blows)
    lapses = [after for blow, after in pairs if blow.until == Moment(ARBITER, None, 1)]
    assert LONG_S > LEASE_S
    assert len(lapses) > 5
    assert {(after.act, after.victim, after.after) for after in lapses} == {
        (Act.KILL, ARBITER, None)
    }
