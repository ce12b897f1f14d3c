"""What is done about a tenant at fault: step by step, and no further than its memory is back."""

from dataclasses import replace

from claim_phases.escalation import Rung, Step
from claim_phases.events import Condition, ConditionKind, Lost
from claim_phases.messages import Release
from claim_phases.phases import Phase
from claim_phases.taints import Reason, Taint, TaintEffect, tainted
from tests.unit.test_turns import LIMITS, ROLLOUT, TRAINER, Scene

LADDER = (Rung(Step.ASK, 10.0), Rung(Step.EVICT, 20.0), Rung(Step.KILL, 30.0))
TAINTS = (
    Rung(Step.KILL, 10.0),
    Rung(Step.TAINT_NO_SCHEDULE, 20.0),
    Rung(Step.TAINT_NO_EXECUTE, 30.0),
)
NO_SCHEDULE = Taint(Reason.FAULTED, TaintEffect.NO_SCHEDULE)
NO_EXECUTE = Taint(Reason.FAULTED, TaintEffect.NO_EXECUTE)


def lapsed(ladder: tuple[Rung, ...] = LADDER) -> Scene:
    """The trainer's session is lost for longer than its lease, and the rollout waits."""
    it = Scene(ROLLOUT, replace(TRAINER, ladder=ladder))
    for name in it.members:
        it.hello(name)
    it.run("trainer")
    it.acquire("rollout")
    it.step(Lost("trainer"))
    it.wait(LIMITS.lease_s)
    assert it.phase("trainer") is Phase.FAULTED
    it.told.clear()
    return it


def steps(it: Scene) -> list[str]:
    """What was told that was done since the last look."""
    told = [what for what in it.told if isinstance(what, Condition)]
    it.told.clear()
    return [what.message for what in told if what.kind is ConditionKind.ESCALATED]


def test_each_step_comes_at_its_time_and_is_told() -> None:
    it = lapsed()
    fault = "its session was lost for longer than the lease"
    it.wait(9.9)
    assert steps(it) == []
    it.wait(0.2)
    assert steps(it) == [f"trainer is at fault ({fault}): it has no session in which to ask it"]
    it.wait(20.0)
    assert steps(it) == [f"trainer is at fault ({fault}): its pod is to be evicted"]
    assert it.tenant("trainer").steps == (Step.ASK, Step.EVICT)
    assert it.killed == []
    it.wait(30.0)
    assert steps(it) == [f"trainer is at fault ({fault}): its processes are killed"]
    assert it.killed == ["trainer"]
    assert it.phase("trainer") is Phase.FAULTED  # its memory alone ends it
    it.end("trainer")
    it.answer()
    it.wait(1000.0)
    assert steps(it) == []


def test_which_step_it_is_does_not_stand_in_the_sentence_alone() -> None:
    it = lapsed()
    it.wait(61.0)
    taken = [what.step for what in it.told if isinstance(what, Condition) and what.step]
    assert taken == [Step.ASK, Step.EVICT, Step.KILL]


def test_it_ends_as_soon_as_the_memory_is_measured_to_be_back() -> None:
    it = lapsed()
    it.wait(11.0)
    it.hello("trainer", Phase.RUNNING, 1)
    it.park("trainer", keeps=3)
    it.answer()
    assert it.phase("trainer") is Phase.PARKED
    assert it.tenant("trainer").steps == ()
    steps(it)
    it.wait(1000.0)
    assert (steps(it), it.killed) == ([], [])


def test_who_is_asked_and_does_not_park_is_not_asked_for_ever() -> None:
    it = lapsed()
    it.hello("trainer", Phase.RUNNING, 1)  # it is told to release at once
    assert Release(1) in it.heard("trainer")
    it.wait(LIMITS.park_s + 60.0)
    assert it.killed == ["trainer"]


def test_a_restart_goes_on_from_the_step_that_was_taken() -> None:
    it = lapsed()
    it.wait(11.0)
    it.told.clear()
    it.restart()
    it.wait(21.0)
    assert [told.split(": ")[-1] for told in steps(it)] == ["its pod is to be evicted"]
    it.wait(31.0)
    assert it.killed == ["trainer"]


def test_a_new_life_does_not_answer_for_the_old_one() -> None:
    it = lapsed()
    it.wait(11.0)
    it.members["trainer"] = replace(it.members["trainer"], incarnation="trainer, life 2")
    it.hold("trainer", 0)
    it.hello("trainer")
    it.answer()
    steps(it)
    it.wait(1000.0)
    assert (steps(it), it.killed) == ([], [])


def test_who_is_not_dead_is_killed_again_also_by_the_next_arbiter() -> None:
    it = lapsed()
    it.wait(61.0)
    assert it.killed == ["trainer"]
    it.wait(30.0)
    assert it.killed == ["trainer"] * 2
    it.restart()
    assert it.killed == ["trainer"] * 3


def test_what_cannot_be_asked_is_not_said_to_be() -> None:
    it = lapsed()
    it.wait(11.0)
    assert [told.rpartition(": ")[2] for told in steps(it)] == [
        "it has no session in which to ask it"
    ]


def test_the_device_is_tainted_a_step_at_a_time_until_the_memory_is_back() -> None:
    it = lapsed(TAINTS)
    it.wait(11.0)
    assert tainted(it.node) == {}
    steps(it)
    it.wait(20.0)
    (told,) = steps(it)
    assert told.endswith(": a NoSchedule taint is to be set on gpu0")
    assert tainted(it.node) == {"gpu0": (NO_SCHEDULE,)}
    it.wait(30.0)
    (told,) = steps(it)
    assert told.endswith(": a NoExecute taint is to be set on gpu0")
    assert set(tainted(it.node)["gpu0"]) == {NO_SCHEDULE, NO_EXECUTE}
    it.hello("trainer", Phase.RUNNING, 1)
    it.park("trainer", keeps=20)  # too much
    it.answer()
    it.wait(LIMITS.verify_s + 1.0)
    assert set(tainted(it.node)["gpu0"]) == {NO_SCHEDULE, NO_EXECUTE}
    it.hold("trainer", 3)
    it.wait(2.0)
    assert it.phase("trainer") is Phase.PARKED
    assert tainted(it.node) == {}


def test_the_next_arbiter_finds_the_same_taints() -> None:
    it = lapsed(TAINTS)
    it.wait(31.0)
    it.restart()
    assert tainted(it.node) == {"gpu0": (NO_SCHEDULE,)}
    it.end("trainer")
    assert tainted(it.node) == {}


def test_all_devices_of_the_tenant_are_tainted_and_no_other() -> None:
    wide = replace(TRAINER, ladder=TAINTS, devices=("gpu0", "gpu1"))
    it = Scene(wide, replace(ROLLOUT, devices=("gpu2",)))
    it.hello("trainer")
    it.hello("rollout")
    it.run("trainer")
    it.step(Lost("trainer"))
    it.wait(LIMITS.lease_s + 31.0)
    assert tainted(it.node) == {"gpu0": (NO_SCHEDULE,), "gpu1": (NO_SCHEDULE,)}


def test_to_kill_is_repeated_when_all_else_was_done() -> None:
    it = lapsed(TAINTS)
    it.wait(61.0)
    assert it.killed == ["trainer"]
    it.wait(10.0)
    assert it.killed == ["trainer"] * 2
