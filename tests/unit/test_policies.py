"""Who is next under each policy, on its own and by the machine; and that nobody starves."""

from collections import defaultdict
from dataclasses import dataclass, replace

import pytest

from claim_phases.events import ConditionKind, Lost, TimerKind
from claim_phases.jobs import CREDIT_S
from claim_phases.messages import Release, TurnLost, Wanted, Yield
from claim_phases.node import Membership
from claim_phases.phases import Phase
from claim_phases.policies import AGING_S, Claimant, Objectives, PolicyName, interrupts, order
from tests.unit.test_turns import LIMITS, Scene, member

PATIENCE_S = LIMITS.patience_s
FIFO, FAIR, PRIORITY, SLOWDOWN, HARVEST = PolicyName


def claimant(
    tenant: str, policy: PolicyName, priority: int = 0, slowdown: float = 1.2, **times_s: float
) -> Claimant:
    objectives = Objectives(policy, priority=priority, slowdown=slowdown)
    return Claimant(tenant, objectives, **times_s)


@pytest.mark.parametrize(
    ("waiting", "served"),
    [
        ([claimant("a", FIFO, share_s=9), claimant("b", FIFO)], "ab"),
        ([claimant("a", FAIR, share_s=9), claimant("b", FAIR, share_s=8)], "ba"),
        ([claimant("a", FAIR, share_s=9), claimant("b", FAIR, share_s=9)], "ab"),
        ([claimant("a", PRIORITY), claimant("b", PRIORITY, priority=1)], "ba"),
        ([claimant("a", PRIORITY, priority=1), claimant("b", PRIORITY, priority=1)], "ab"),
        (
            [claimant("a", PRIORITY, waited_s=AGING_S), claimant("b", PRIORITY, priority=1)],
            "ab",
        ),
        # 1.5 times as slow as alone against 2 times, of bounds of 1.2 and of 2.
        (
            [
                claimant("a", SLOWDOWN, alive_s=30, delayed_s=15, slowdown=2),
                claimant("b", SLOWDOWN, alive_s=30, delayed_s=10),
            ],
            "ba",
        ),
        ([claimant("a", HARVEST), claimant("b", FIFO)], "ba"),
        ([claimant("a", HARVEST, waited_s=PATIENCE_S), claimant("b", FIFO)], "ab"),
        # Each policy orders its own among the places that they have.
        (
            [
                claimant("a", FAIR, share_s=9),
                claimant("b", FIFO),
                claimant("c", FAIR, share_s=1),
                claimant("d", FIFO),
            ],
            "cbad",
        ),
    ],
)
def test_order(waiting: list[Claimant], served: str) -> None:
    assert order(waiting, PATIENCE_S) == list(served)


@pytest.mark.parametrize(
    ("waiting", "holder", "now"),
    [
        (claimant("a", FIFO), claimant("b", FIFO), True),
        (claimant("a", PRIORITY), claimant("b", PRIORITY, priority=1), False),
        (claimant("a", PRIORITY, priority=1), claimant("b", PRIORITY, priority=1), True),
        (claimant("a", PRIORITY, waited_s=AGING_S), claimant("b", PRIORITY, priority=1), True),
        (claimant("a", HARVEST), claimant("b", FIFO), False),
        (claimant("a", HARVEST), claimant("b", HARVEST), True),
        (claimant("a", FIFO), claimant("b", HARVEST), True),
        (claimant("a", HARVEST, waited_s=PATIENCE_S), claimant("b", FIFO), True),
    ],
)
def test_who_leaves_in_the_middle_of_its_work(
    waiting: Claimant, holder: Claimant, now: bool
) -> None:
    assert interrupts(waiting, holder, PATIENCE_S) is now


# -- by the machine -----------------------------------------------------------------------------


def tenant(name: str, objectives: Objectives, job: str = "") -> Membership:
    """One that fits beside no other."""
    return replace(member(name, 60, 5), objectives=objectives, job=job)


@dataclass
class Turn:
    tenant: str
    waited_s: float
    held_s: float


def turns(holds_s: dict[str, float], objectives: dict[str, Objectives], number: int) -> list[Turn]:
    """So many turns of tenants that each want one all the time."""
    it = Scene(*(tenant(name, objectives[name]) for name in holds_s))
    asked = {}
    for name in holds_s:
        it.hello(name)
        it.acquire(name)
        asked[name] = it.now
    del it.timers[TimerKind.WATCH, ""]  # nothing is to be seen, and each look takes its time
    done = []
    for _ in range(number):
        it.answer()
        (name,) = (one for one in holds_s if it.phase(one) is Phase.RESTORING)
        waited_s = it.now - asked[name]
        it.restored(name)
        it.wait(holds_s[name])
        it.leave(name)
        it.park(name, keeps=5)
        it.acquire(name)
        asked[name] = it.now
        done.append(Turn(name, waited_s, holds_s[name]))
    return done


EVIL = {
    FIFO: {"a": Objectives(), "b": Objectives(), "c": Objectives()},
    FAIR: {
        "a": Objectives(FAIR, weight=0.001),
        "b": Objectives(FAIR, weight=1000),
        "c": Objectives(FAIR, weight=1000),
    },
    PRIORITY: {
        "a": Objectives(PRIORITY, priority=-1000),
        "b": Objectives(PRIORITY, priority=1000),
        "c": Objectives(PRIORITY, priority=1000),
    },
    SLOWDOWN: {
        "a": Objectives(SLOWDOWN, slowdown=1e6),
        "b": Objectives(SLOWDOWN, slowdown=1.0),
        "c": Objectives(SLOWDOWN, slowdown=1.0),
    },
    HARVEST: {"a": Objectives(HARVEST), "b": Objectives(), "c": Objectives()},
}


@pytest.mark.parametrize("others", PolicyName)
@pytest.mark.parametrize("policy", PolicyName)
def test_nobody_starves(policy: PolicyName, others: PolicyName) -> None:
    """Though the others want a turn all the time and are as far ahead as can be."""
    holds_s = {"a": 12.0, "b": 12.0, "c": 12.0}
    done = turns(holds_s, {**EVIL[others], "a": EVIL[policy]["a"]}, 200)
    waited = [turn.waited_s for turn in done if turn.tenant == "a"]
    assert len(waited) >= 3
    assert max(waited) <= PATIENCE_S + sum(holds_s.values())


@pytest.mark.parametrize(
    ("holds_s", "bounds"),
    [
        ({"a": 12.0, "b": 12.0, "c": 12.0}, {"a": 2.0, "b": 4.0, "c": 4.0}),
        ({"a": 3.0, "b": 20.0, "c": 7.0}, {"a": 1.6, "b": 6.0, "c": 5.0}),
    ],
)
def test_a_slowdown_is_bounded_where_all_bounds_can_be_kept(
    holds_s: dict[str, float], bounds: dict[str, float]
) -> None:
    """Each wants a turn all the time, and the shares that the bounds ask for sum up to one."""
    objectives = {name: Objectives(SLOWDOWN, slowdown=bound) for name, bound in bounds.items()}
    assert sum(1 / bound for bound in bounds.values()) <= 1.0
    done = turns(holds_s, objectives, 600)
    time = sum(turn.held_s for turn in done)
    for name, bound in bounds.items():
        alone_s = sum(turn.held_s for turn in done if turn.tenant == name)
        assert time / alone_s <= bound * 1.05


def test_device_time_is_shared_by_weight_whatever_the_length_of_turns() -> None:
    objectives = {"a": Objectives(FAIR), "b": Objectives(FAIR, weight=3.0)}
    done = turns({"a": 1.0, "b": 7.0}, objectives, 200)
    time: dict[str, float] = defaultdict(float)
    for turn in done:
        time[turn.tenant] += turn.held_s
    assert time["b"] / time["a"] == pytest.approx(3.0, rel=0.08)


@pytest.mark.parametrize(("a_s", "b_s", "weight"), [(300.0, 30.0, 1.0), (100.0, 100.0, 4.0)])
def test_long_turns_are_shared_by_weight_too(a_s: float, b_s: float, weight: float) -> None:
    objectives = {"a": Objectives(FAIR), "b": Objectives(FAIR, weight=weight)}
    time: dict[str, float] = defaultdict(float)
    for turn in turns({"a": a_s, "b": b_s}, objectives, 150):
        time[turn.tenant] += turn.held_s
    assert time["b"] / time["a"] == pytest.approx(weight, rel=0.1)


def test_a_job_shares_as_a_whole() -> None:
    """One with two tenants has no more than one with a single tenant."""
    fair = Objectives(FAIR)
    it = Scene(tenant("a", fair, "x"), tenant("b", fair, "x"), tenant("c", fair, "y"))
    for name in "abc":
        it.hello(name)
        it.acquire(name)
    time: dict[str, float] = defaultdict(float)
    for _ in range(90):
        it.answer()
        (name,) = (one for one in "abc" if it.phase(one) is Phase.RESTORING)
        it.restored(name)
        it.wait(2.0)
        time[it.tenant(name).job] += 2
        it.leave(name)
        it.park(name, keeps=5)
        it.acquire(name)
    assert time["x"] == pytest.approx(time["y"], abs=4)


def test_who_comes_back_has_not_saved_up_for_the_time_that_it_wanted_nothing() -> None:
    fair = Objectives(FAIR)
    it = Scene(tenant("a", fair), tenant("b", fair), tenant("c", fair))
    for name in "abc":
        it.hello(name)
    it.run("c")
    it.leave("c")
    it.acquire("a")
    it.park("c", keeps=5)
    it.answer()
    it.restored("a")
    it.wait(300.0)
    it.acquire("b")
    it.acquire("c")
    jobs = it.node.jobs
    assert jobs["b"].share_s == jobs["a"].share_s == pytest.approx(300.0, abs=0.01)
    assert jobs["c"].share_s == jobs["a"].share_s - CREDIT_S


def test_a_restart_keeps_what_policies_go_by() -> None:
    fair = Objectives(FAIR, weight=2.0)
    it = Scene(tenant("a", fair), tenant("b", fair))
    for name in "ab":
        it.hello(name)
    it.run("a")
    it.acquire("b")
    it.wait(10.0)
    it.restart()
    it.now += 10.0
    it.hello("a", Phase.RUNNING, 1)
    assert it.node.jobs["a"].share_s == pytest.approx(10.0, abs=0.01)
    assert it.node.jobs["b"].delayed_s == pytest.approx(20.0)
    assert it.node.at - it.tenant("b").asked_at == pytest.approx(20.0)
    assert it.tenant("a").who.objectives == fair


def harvest(leave_s: float = 10.0) -> Scene:
    """The holder only harvests, and somebody waits for it."""
    it = Scene(tenant("h", Objectives(HARVEST, leave_s=leave_s)), tenant("a", Objectives()))
    for name in "ha":
        it.hello(name)
    it.run("h")
    it.acquire("a")
    it.heard("h")
    return it


def test_who_harvests_and_stays_loses_its_turn() -> None:
    it = harvest()
    it.wait(9.9)
    assert it.phase("h") is Phase.RUNNING
    it.wait(0.2)
    reason = "others waited, and it did not leave in 10 s"
    assert [told.kind for told in it.conditions()] == [ConditionKind.OVERSTAYED]
    assert it.heard("h") == [TurnLost(1, reason), Release(1)]
    assert it.phase("a") is Phase.WAITING  # until the memory is back
    it.park("h", keeps=5)
    it.answer()
    assert it.phase("a") is Phase.RESTORING


def test_who_stays_in_a_long_step_may_park_as_long_as_others_and_nobody_is_refused() -> None:
    it = harvest()
    it.heard("a")
    it.wait(10.1 + LIMITS.park_s - 1.0)
    assert it.phase("h") is Phase.QUIESCING
    assert it.phase("a") is Phase.WAITING
    assert it.heard("a") == []
    assert it.tenant("h").faulty == 0
    it.wait(1.0)
    assert (it.phase("h"), it.tenant("h").fault) == (Phase.FAULTED, "it did not park within 20 s")


def test_a_bound_to_leave_goes_on_over_broken_sessions_and_restarts() -> None:
    it = harvest()
    for number in range(4):
        it.wait(2.0)
        if number % 2:
            it.step(Lost("h"))
        else:
            it.restart()
            it.hello("a", Phase.WAITING, request=it.tenant("a").request)
        it.hello("h", Phase.RUNNING, 1)
    assert it.phase("h") is Phase.RUNNING
    it.wait(2.1)
    assert it.phase("h") is Phase.QUIESCING


def test_a_bound_to_leave_counts_only_while_somebody_waits() -> None:
    it = harvest()
    it.end("a")
    it.answer()
    it.wait(20.0)
    assert it.phase("h") is Phase.RUNNING


def test_a_bound_to_leave_is_that_of_its_turn() -> None:
    it = harvest()
    timer = it.timers[TimerKind.LEAVE, "h"][1]
    it.leave("h")
    it.park("h", keeps=5)
    it.answer()
    it.restored("a")
    it.acquire("h")
    it.leave("a")
    it.park("a", keeps=5)
    it.answer()
    it.restored("h")
    assert timer.mark == 1
    it.wait(20.0)
    assert (it.phase("h"), it.epoch("h")) == (Phase.RUNNING, 3)


def test_the_lower_waits_for_the_higher_to_be_idle_until_it_has_risen() -> None:
    high, low = Objectives(PRIORITY, priority=2), Objectives(PRIORITY)
    it = Scene(tenant("high", high), tenant("low", low))
    for name in ("high", "low"):
        it.hello(name)
    it.run("high")
    it.acquire("low")
    it.heard("low")
    assert it.heard("high")[-1] == Wanted(1, idle=True)
    it.wait(2 * AGING_S - 1)
    assert it.heard("high") == []
    it.wait(2)
    assert it.heard("high") == [Wanted(1)]


def test_who_harvests_leaves_a_resident_alone_that_is_back_soon() -> None:
    it = Scene(tenant("a", Objectives()), tenant("h", Objectives(HARVEST)))
    for name in "ah":
        it.hello(name)
    it.run("a")
    it.acquire("h")
    it.say("a", Yield(1, next_s=1.5))
    it.answer()
    assert it.phase("a") is Phase.YIELDED
    it.wait(2.5)  # it did not keep its word
    assert it.phase("a") is Phase.QUIESCING


@pytest.mark.parametrize("next_s", [None, -1.0, float("nan"), float("inf"), 3600.0])
def test_a_hint_of_no_use_is_none(next_s: float | None) -> None:
    it = Scene(tenant("a", Objectives()), tenant("h", Objectives(HARVEST)))
    for name in "ah":
        it.hello(name)
    it.run("a")
    it.acquire("h")
    it.say("a", Yield(1, next_s))
    assert it.phase("a") is Phase.QUIESCING
