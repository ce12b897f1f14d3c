"""A tenant at fault that is frozen: when it counts as gone, when it goes on, and when not."""

from dataclasses import replace

import pytest

from claim_phases.escalation import Rung, Step
from claim_phases.events import Condition, ConditionKind, Frozen, Lost, Thawed
from claim_phases.messages import Cancel, Failed, Quiesced, Refused, Released, Restored
from claim_phases.phases import Phase
from claim_phases.taints import tainted
from tests.unit.test_turns import LIMITS, MIB, ROLLOUT, TRAINER, Scene, scene

CHECKPOINT = Rung(Step.CHECKPOINT, 5.0)
LIFE = TRAINER.incarnation


def hung(*ladder: Rung) -> Scene:
    """The trainer did not leave its turn, nor did it park: its ladder has begun."""
    objectives = replace(TRAINER.objectives, leave_s=1.0)
    it = scene(ROLLOUT, replace(TRAINER, ladder=ladder or (CHECKPOINT,), objectives=objectives))
    it.run("trainer")
    hangs(it)
    return it


def hangs(it: Scene) -> None:
    it.acquire("rollout")
    it.answer()
    it.wait(1.0 + LIMITS.park_s)
    assert it.phase("trainer") is Phase.FAULTED


def freeze(it: Scene, held: int = 70) -> None:
    """What it is told to freeze is."""
    assert it.frozen.pop() == "trainer"
    if "rollout" not in it.node.queue:  # it waited too long
        it.acquire("rollout")
    it.hold("trainer", 0)
    it.step(Frozen("trainer", LIFE, held * MIB))
    it.answer()


def frozen(*ladder: Rung) -> Scene:
    """It is frozen, and the rollout has its turn."""
    it = hung(*ladder)
    while not it.frozen:
        it.wait(5.0)
    freeze(it)
    it.restored("rollout")
    return it


def granted(it: Scene) -> None:
    """The rollout leaves, and the trainer is to be thawed."""
    it.wait(LIMITS.watch_s)
    it.leave("rollout")
    it.park("rollout", keeps=5)
    it.answer()
    assert it.phase("trainer") is Phase.RESTORING
    assert it.thawed.pop() == "trainer"


def thaw(it: Scene) -> None:
    it.hold("trainer", 70)
    it.step(Thawed("trainer", LIFE))
    assert it.tenant("trainer").frozen is None
    it.say("trainer", Restored(it.epoch("trainer")))
    assert it.phase("trainer") is Phase.RUNNING


def fails(it: Scene, *, later: bool) -> None:
    it.step(Thawed("trainer", LIFE, "it cannot", later))
    it.answer()


def test_one_that_was_asked_once_more_is_gone_when_it_is_frozen() -> None:
    it = hung(Rung(Step.ASK, 5.0), CHECKPOINT, Rung(Step.EVICT, 30.0))
    it.wait(5.0)
    assert it.phase("trainer") is Phase.QUIESCING
    it.wait(5.0)
    freeze(it)
    assert it.phase("trainer") is Phase.PARKED
    assert it.phase("rollout") is Phase.RESTORING


def test_one_that_still_holds_some_is_at_fault() -> None:
    it = hung()
    it.wait(5.0)
    it.hold("trainer", 50)
    it.step(Frozen("trainer", LIFE, 20 * MIB))
    it.wait(LIMITS.verify_s)
    assert it.phase("trainer") is Phase.FAULTED
    assert it.phase("rollout") is not Phase.RESTORING


def test_a_taint_goes_with_the_fault() -> None:
    it = frozen(Rung(Step.TAINT_NO_SCHEDULE, 1.0), CHECKPOINT)
    assert not tainted(it.node)
    granted(it)
    thaw(it)
    assert not tainted(it.node)


def test_no_release_is_believed_before_the_thaw_is_over() -> None:
    it = frozen()
    granted(it)
    it.acquire("rollout")
    it.say("trainer", Failed(it.epoch("trainer"), "no answer"))
    it.say("trainer", Quiesced(it.epoch("trainer")))
    it.say("trainer", Released(it.epoch("trainer")))
    it.wait(LIMITS.verify_s)
    assert it.phase("trainer") is Phase.VERIFYING
    fails(it, later=True)  # its turn was over before it was thawed
    it.wait(1.0)
    assert it.phase("rollout") is Phase.RESTORING


def test_one_that_ends_while_it_is_thawed_is_discarded_before_another_has_its_devices() -> None:
    it = frozen()
    granted(it)
    it.acquire("rollout")
    it.end("trainer")
    it.wait(2 * LIMITS.verify_s)
    assert it.discarded == ["trainer"]
    assert it.phase("rollout") is Phase.WAITING
    fails(it, later=False)
    it.wait(1.0)
    assert it.phase("rollout") is Phase.RESTORING


def test_it_goes_on_only_where_all_that_it_held_has_room() -> None:
    it = hung()
    it.wait(5.0)
    freeze(it, held=97)  # more than its need, and than the other's residual leaves
    it.restored("rollout")
    it.wait(LIMITS.watch_s)
    it.heard("trainer")
    it.leave("rollout")
    it.park("rollout", keeps=5)
    it.wait(10 * LIMITS.watch_s)  # it is told once
    assert not it.thawed
    assert it.refusal("trainer").startswith("trainer needs 97.0 MiB of gpu0")
    it.hold("rollout", 0)
    it.end("rollout")
    it.wait(2 * LIMITS.watch_s)
    assert it.thawed == ["trainer"]


def test_one_that_never_asked_for_a_turn_is_not_answered() -> None:
    """A refusal of request 0 is one of the session, for good."""
    it = scene(ROLLOUT, replace(TRAINER, ladder=(CHECKPOINT,)))
    it.run("rollout")
    it.hold("trainer", 97)
    it.wait(LIMITS.watch_s + 5.0)
    it.heard("trainer")
    freeze(it, held=97)
    it.leave("rollout")
    it.wait(LIMITS.watch_s)
    it.park("rollout", keeps=5)
    it.wait(2 * LIMITS.watch_s)
    assert any(
        (what.kind, what.tenant) == (ConditionKind.REFUSED, "trainer")
        for what in it.told
        if isinstance(what, Condition)
    )
    assert it.heard("trainer") == []


def test_one_that_cannot_be_thawed_goes_up_the_ladder() -> None:
    it = frozen(CHECKPOINT, Rung(Step.KILL, 5.0))
    granted(it)
    fails(it, later=False)
    assert it.phase("trainer") is Phase.FAULTED
    it.wait(5.0)
    assert it.killed == ["trainer"]
    assert not it.thawed


def test_one_for_which_there_was_no_room_waits_for_a_later_turn() -> None:
    it = frozen()
    granted(it)
    it.acquire("rollout")
    fails(it, later=True)
    it.wait(1.0)
    it.restored("rollout")
    granted(it)
    thaw(it)


def test_one_that_hangs_again_is_frozen_again() -> None:
    it = frozen()
    granted(it)
    thaw(it)
    hangs(it)
    it.wait(5.0)
    it.step(Frozen("trainer", LIFE, problem="it did not stop"))
    it.frozen.clear()
    it.wait(5.0)
    freeze(it)
    assert it.phase("rollout") is Phase.RESTORING


def test_a_later_fault_has_steps_of_its_own() -> None:
    """What was done about the one before is not done again at once, nor after a restart."""
    it = frozen(Rung(Step.TAINT_NO_SCHEDULE, 1.0), CHECKPOINT, Rung(Step.EVICT, 30.0))
    granted(it)
    thaw(it)
    hangs(it)
    it.restart()
    assert it.tenant("trainer").steps == ()
    assert not tainted(it.node)
    assert it.frozen == []
    it.wait(30.0)
    assert it.tenant("trainer").steps == (Step.EVICT,)


@pytest.mark.parametrize("thawed", [True, False])
def test_one_that_left_by_itself_meanwhile_goes_on_at_once_or_is_at_fault(*, thawed: bool) -> None:
    it = hung()
    it.wait(5.0)
    it.park("trainer", keeps=3)
    it.answer()
    it.restored("rollout")
    it.leave("rollout")
    it.acquire("trainer")
    it.answer()
    it.park("rollout", keeps=5)
    it.answer()
    it.restored("trainer")
    it.leave("trainer")
    it.step(Frozen("trainer", LIFE, 70 * MIB))
    assert it.phase("trainer") is Phase.YIELDED
    assert it.thawed == ["trainer"]
    if thawed:
        it.frozen.clear()
        it.step(Thawed("trainer", LIFE))
        it.wait(100.0)
        assert (it.phase("trainer"), it.frozen) == (Phase.YIELDED, [])
    else:
        fails(it, later=False)
        assert it.phase("trainer") is Phase.FAULTED


def test_a_session_that_breaks_while_it_stands_still_costs_it_nothing() -> None:
    it = frozen()
    it.wait(LIMITS.watch_s)
    asked_at = it.tenant("trainer").asked_at
    it.step(Lost("trainer"))
    it.wait(2 * LIMITS.lease_s)
    assert it.node.queue == ["trainer"]
    assert it.tenant("trainer").asked_at == asked_at
    granted(it)
    it.wait(2 * LIMITS.lease_s)
    assert it.phase("trainer") is Phase.RESTORING
    it.step(Thawed("trainer", LIFE))
    it.wait(LIMITS.lease_s)
    assert it.phase("trainer") is Phase.FAULTED


@pytest.mark.parametrize("thawed", [True, False])
def test_a_thaw_that_the_arbiter_did_not_live_to_hear_of(*, thawed: bool) -> None:
    it = frozen()
    granted(it)
    it.restart()
    it.hello("trainer", Phase.RUNNING, epoch=1)
    if not thawed:
        it.step(Frozen("trainer", LIFE, 70 * MIB))
        assert it.thawed.pop() == "trainer"
    thaw(it)


def test_one_whose_turn_was_taken_for_a_failed_thaw_is_absolved_by_no_later_answer() -> None:
    """The arbiter began anew, and two thaws were ordered: by its grant, and when it learned that
    the trainer is frozen still.
    """
    it = frozen(CHECKPOINT, Rung(Step.KILL, 5.0))
    epoch = it.epoch("rollout")
    it.restart()
    it.hello("rollout", Phase.RUNNING, epoch, 0)
    granted(it)
    it.step(Frozen("trainer", LIFE, 70 * MIB))
    assert it.thawed.pop() == "trainer"
    fails(it, later=False)
    assert it.phase("trainer") is Phase.FAULTED
    fails(it, later=True)
    assert it.phase("trainer") is Phase.FAULTED


def test_an_acquire_on_behalf_of_one_that_was_thawed_waits_for_it_to_leave() -> None:
    """It did not ask for this turn; its user may have yielded before, and it says so next."""
    it = frozen()
    granted(it)
    it.heard("rollout")
    it.acquire("rollout", caller="trainer")
    thaw(it)
    assert it.heard("rollout") == []
    it.say("rollout", Cancel(it.tenant("rollout").request))
    it.acquire("rollout", caller="trainer")
    assert it.phase("rollout") is Phase.WAITING


def test_an_acquire_on_behalf_of_one_that_asked_again_since_it_was_thawed_is_refused() -> None:
    it = frozen()
    granted(it)
    thaw(it)
    it.leave("trainer")
    it.run("trainer")
    it.heard("rollout")
    request = it.acquire("rollout", caller="trainer")
    assert [type(one) for one in it.heard("rollout")] == [Refused]
    assert it.tenant("rollout").request == request
