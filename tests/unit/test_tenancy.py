"""The tenant's machine: what it says, parks and restores, and what its user is told."""

from collections.abc import Callable

import pytest

from claim_phases.messages import (
    Acquire,
    ArbiterMessage,
    Cancel,
    Failed,
    Freed,
    Granted,
    Hello,
    Noted,
    Quiesced,
    Refused,
    Release,
    Released,
    Restored,
    Room,
    TurnLost,
    Wanted,
    Warned,
    Welcome,
    Yield,
)
from claim_phases.phases import TURN, Phase
from claim_phases.tenancy import (
    Answer,
    Left,
    Park,
    Restore,
    RestoreAhead,
    Say,
    Shut,
    Tenancy,
    WantedByOther,
    Warn,
)


def fresh() -> Tenancy:
    """A tenant that the arbiter has met for the first time."""
    tenancy = Tenancy("trainer")
    assert tenancy.opened() == [Say(Hello("trainer"))]
    assert tenancy.heard(Welcome(Phase.PARKED, 0)) == []
    return tenancy


def restoring(epoch: int = 3, request: int = 10) -> Tenancy:
    tenancy = fresh()
    assert tenancy.want(request) == [Say(Acquire(request))]
    assert tenancy.heard(Granted(epoch, request)) == [Restore(epoch)]
    assert phase_of(tenancy) is Phase.RESTORING
    assert not tenancy.holds
    return tenancy


def running(epoch: int = 3) -> Tenancy:
    tenancy = restoring(epoch)
    assert tenancy.restored(epoch, None) == [Say(Restored(epoch)), Answer(epoch)]
    assert tenancy.holds
    return tenancy


def leaving(epoch: int = 3) -> Tenancy:
    tenancy = running(epoch)
    assert tenancy.leave() == [Say(Yield(epoch))]
    assert tenancy.leaving
    assert not tenancy.holds
    return tenancy


def yielded(epoch: int = 3) -> Tenancy:
    tenancy = leaving(epoch)
    assert tenancy.heard(Noted(epoch)) == [Left()]
    assert not tenancy.leaving
    return tenancy


def releasing(epoch: int = 3) -> Tenancy:
    tenancy = yielded(epoch)
    assert tenancy.heard(Release(epoch)) == [Say(Quiesced(epoch)), Park(epoch)]
    assert phase_of(tenancy) is Phase.RELEASING
    return tenancy


def parked(epoch: int = 3) -> Tenancy:
    tenancy = releasing(epoch)
    assert tenancy.parked(epoch) == [Say(Released(epoch))]
    assert phase_of(tenancy) is Phase.PARKED
    return tenancy


def phase_of(tenancy: Tenancy) -> Phase:
    """Its phase now; a type checker would take that of an earlier assert for it."""
    return tenancy.phase


def state(tenancy: Tenancy) -> dict[str, object]:
    return dict(vars(tenancy))


# -- turns ------------------------------------------------------------------------------------


def test_a_turn_from_the_first_wish_to_the_parked_memory() -> None:
    tenancy = parked()
    assert (tenancy.epoch, tenancy.request, tenancy.taken) == (3, 0, None)


def test_the_version_of_the_weights_is_told_with_the_restored_memory() -> None:
    assert restoring().restored(3, 8) == [Say(Restored(3, 8)), Answer(3)]


def test_a_resident_tenant_runs_again_without_a_restore() -> None:
    tenancy = yielded()
    assert tenancy.want(11) == [Say(Acquire(11))]
    assert phase_of(tenancy) is Phase.YIELDED
    assert tenancy.heard(Granted(4, 11)) == [Say(Restored(4)), Answer(4)]
    assert tenancy.holds


def test_a_resident_engine_tells_the_version_of_the_weights_that_it_had() -> None:
    tenancy = restoring()
    tenancy.restored(3, 8)
    tenancy.leave()
    tenancy.want(11)
    assert tenancy.heard(Granted(4, 11)) == [Say(Restored(4, 8)), Answer(4), Left()]


def test_parked_while_the_user_waits_for_its_next_turn() -> None:
    tenancy = releasing()
    assert tenancy.want(11) == [Say(Acquire(11))]
    assert phase_of(tenancy) is Phase.RELEASING
    assert tenancy.parked(3) == [Say(Released(3))]
    assert phase_of(tenancy) is Phase.WAITING
    assert tenancy.heard(Granted(4, 11)) == [Restore(4)]
    assert tenancy.restored(4, None) == [Say(Restored(4)), Answer(4)]


def test_only_who_runs_can_leave() -> None:
    for tenancy in (fresh(), restoring(), yielded(), releasing(), parked()):
        before = state(tenancy)
        assert tenancy.leave() == []
        assert state(tenancy) == before


def test_somebody_waits_is_passed_on_once_per_turn() -> None:
    tenancy = running()
    assert tenancy.heard(Wanted(2)) == []
    assert tenancy.heard(Wanted(3)) == [WantedByOther()]
    assert tenancy.wanted
    assert tenancy.heard(Wanted(3)) == []
    tenancy.leave()
    assert tenancy.heard(Wanted(3)) == []
    assert not tenancy.wanted


# -- an acquire that is cancelled or refused --------------------------------------------------


def test_a_cancelled_acquire_that_is_granted_all_the_same_is_yielded() -> None:
    tenancy = fresh()
    tenancy.want(10)
    assert tenancy.unwant() == [Say(Cancel(10))]
    assert phase_of(tenancy) is Phase.PARKED
    assert tenancy.heard(Granted(3, 10)) == [Restore(3)]
    assert tenancy.restored(3, None) == [Say(Restored(3)), Say(Yield(3))]
    assert phase_of(tenancy) is Phase.YIELDED
    assert tenancy.heard(Noted(3)) == [Left()]


def test_an_acquire_cancelled_during_the_restore_is_yielded() -> None:
    tenancy = restoring()
    assert tenancy.unwant() == [Say(Cancel(10))]
    assert phase_of(tenancy) is Phase.RESTORING
    assert tenancy.restored(3, None) == [Say(Restored(3)), Say(Yield(3))]


def test_a_cancelled_resume_that_is_granted_all_the_same_is_yielded() -> None:
    tenancy = yielded()
    tenancy.want(11)
    assert tenancy.unwant() == [Say(Cancel(11))]
    assert tenancy.heard(Granted(4, 11)) == [Say(Restored(4)), Say(Yield(4))]
    assert phase_of(tenancy) is Phase.YIELDED


def test_asking_again_during_the_restore_of_a_cancelled_acquire() -> None:
    tenancy = restoring()
    tenancy.unwant()
    tenancy.want(11)
    assert tenancy.heard(Granted(3, 11)) == []
    assert tenancy.restored(3, None) == [Say(Restored(3)), Answer(3)]


def test_nothing_to_cancel_says_nothing() -> None:
    assert fresh().unwant() == []
    assert running().unwant() == []


def test_a_refusal_answers_the_newest_acquire_only() -> None:
    tenancy = fresh()
    tenancy.want(10)
    assert tenancy.heard(Refused(9, "that was another one")) == []
    assert phase_of(tenancy) is Phase.WAITING
    assert tenancy.heard(Refused(10, "rollout is at fault")) == [
        Answer(0, refusal="rollout is at fault")
    ]
    assert (tenancy.phase, tenancy.request) == (Phase.PARKED, 0)
    assert tenancy.heard(Refused(10, "rollout is at fault")) == []


def test_a_refusal_names_the_holder() -> None:
    tenancy = yielded()
    assert tenancy.want(11, "pid:12") == [Say(Acquire(11, "pid:12"))]
    assert tenancy.heard(Refused(11, "it waits for itself", "rollout")) == [
        Answer(3, refusal="it waits for itself", holder="rollout", request=11)
    ]
    assert phase_of(tenancy) is Phase.YIELDED


def test_a_refused_session_shuts_in_any_phase() -> None:
    for tenancy in (fresh(), restoring(), running(), yielded(), releasing(), parked()):
        assert tenancy.heard(Refused(0, "the journal knows no epoch 3")) == [
            Shut("the journal knows no epoch 3")
        ]


# -- release ----------------------------------------------------------------------------------


def test_a_release_during_the_restore_parks_when_that_has_come_to_its_end() -> None:
    tenancy = restoring()
    failure = "it was taken to make room"
    assert tenancy.heard(Release(3)) == [Say(Cancel(10)), Answer(3, failure=failure)]
    assert phase_of(tenancy) is Phase.RESTORING
    assert tenancy.restored(3, None) == [Say(Quiesced(3)), Park(3)]
    assert tenancy.parked(3) == [Say(Released(3))]
    assert tenancy.taken is None  # the user has its answer


def test_a_turn_taken_during_the_restore_is_answered_once_with_its_reason() -> None:
    tenancy = restoring()
    late = "it did not restore within 600 s"
    assert tenancy.heard(TurnLost(3, late)) == [Say(Cancel(10)), Answer(3, failure=late)]
    assert tenancy.heard(Release(3)) == []
    assert tenancy.restore_failed(3, "no room") == [Say(Quiesced(3)), Park(3)]


def test_a_turn_taken_while_it_runs_is_kept_for_the_users_next_call() -> None:
    tenancy = running()
    assert tenancy.heard(TurnLost(3, "the lease is over")) == [Say(Quiesced(3)), Park(3)]
    assert tenancy.taken == "the lease is over"
    assert not tenancy.holds
    assert tenancy.heard(Release(3)) == []
    tenancy.parked(3)
    tenancy.want(11)
    tenancy.heard(Granted(4, 11))
    assert tenancy.taken is None  # a new turn has nothing of the one that was taken


def test_a_turn_lost_while_parked_has_nothing_to_park() -> None:
    assert parked().heard(TurnLost(3, "the lease is over")) == []


def test_a_failed_park_is_told_and_tried_again_and_never_restored() -> None:
    tenancy = releasing()
    tenancy.want(11)
    for reason in ("requests in flight", "still"):
        assert tenancy.park_failed(3, reason) == [Say(Failed(3, reason)), Park(3, again=True)]
        assert phase_of(tenancy) is Phase.FAULTED
        assert not tenancy.holds
    assert tenancy.parked(3) == [Say(Released(3))]
    assert phase_of(tenancy) is Phase.WAITING


def test_a_release_told_again_during_a_failed_park_parks() -> None:
    tenancy = releasing()
    tenancy.park_failed(3, "requests in flight")
    assert tenancy.heard(Release(3)) == [Say(Quiesced(3)), Park(3)]
    assert phase_of(tenancy) is Phase.RELEASING


def test_a_failed_restore_is_told_and_answered_and_what_there_is_gets_parked() -> None:
    tenancy = restoring()
    assert tenancy.restore_failed(3, "no room") == [
        Say(Failed(3, "no room")),
        Answer(3, failure="no room"),
    ]
    assert (tenancy.phase, tenancy.request) == (Phase.FAULTED, 0)
    assert tenancy.heard(Release(3)) == [Say(Quiesced(3)), Park(3)]
    assert tenancy.parked(3) == [Say(Released(3))]


def test_a_failed_restore_of_a_cancelled_acquire_has_nobody_to_answer() -> None:
    tenancy = restoring()
    tenancy.unwant()
    assert tenancy.restore_failed(3, "no room") == [Say(Failed(3, "no room"))]


def test_a_failed_restore_is_in_the_next_hello() -> None:
    tenancy = restoring()
    tenancy.restore_failed(3, "no room")
    assert tenancy.opened() == [Say(Hello("trainer", Phase.FAULTED, 3, 0))]


def test_after_a_failed_restore_the_next_turn_restores_again() -> None:
    tenancy = restoring()
    tenancy.restore_failed(3, "no room")
    tenancy.heard(Release(3))
    tenancy.parked(3)
    tenancy.want(11)
    assert tenancy.heard(Granted(4, 11)) == [Restore(4)]


def test_a_command_of_an_older_epoch_says_nothing_when_it_ends() -> None:
    tenancy = parked()
    tenancy.want(11)
    tenancy.heard(Granted(4, 11))
    assert tenancy.parked(3) == []
    assert tenancy.park_failed(3, "late") == []
    assert tenancy.restored(3, None) == []
    assert tenancy.restore_failed(3, "late") == []
    assert (tenancy.phase, tenancy.epoch, tenancy.request) == (Phase.RESTORING, 4, 11)


# -- said twice -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [restoring, running, yielded, releasing, parked])
@pytest.mark.parametrize("epoch", [2, 3])
def test_a_grant_said_twice_changes_nothing(make: Callable[[int], Tenancy], epoch: int) -> None:
    tenancy = make(3)
    before = state(tenancy)
    assert tenancy.heard(Granted(epoch, 10)) == []
    assert state(tenancy) == before


def test_a_release_said_twice_changes_nothing() -> None:
    tenancy = releasing()
    before = state(tenancy)
    assert tenancy.heard(Release(3)) == []
    assert state(tenancy) == before


def test_a_release_said_twice_during_the_restore_changes_nothing() -> None:
    tenancy = restoring()
    tenancy.heard(Release(3))
    before = state(tenancy)
    assert tenancy.heard(Release(3)) == []
    assert state(tenancy) == before


def test_a_release_of_what_is_parked_parks_it_again() -> None:
    """The answer was lost with a stream, or the device shows that something is there again."""
    tenancy = parked()
    assert tenancy.heard(Release(3)) == [Say(Quiesced(3)), Park(3)]
    assert tenancy.parked(3) == [Say(Released(3))]
    assert phase_of(tenancy) is Phase.PARKED


@pytest.mark.parametrize("message", [Release(2), TurnLost(2, "late"), Wanted(2), Noted(2)])
def test_a_message_of_an_older_epoch_changes_nothing(message: ArbiterMessage) -> None:
    for tenancy in (restoring(), running(), leaving(), releasing(), parked()):
        before = state(tenancy)
        assert tenancy.heard(message) == []
        assert state(tenancy) == before


def test_a_warning_is_for_people() -> None:
    tenancy = parked()
    before = state(tenancy)
    assert tenancy.heard(Warned("Intruder: 40 MiB")) == [Warn("Intruder: 40 MiB")]
    assert state(tenancy) == before


# -- an agent that begins anew ----------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.RESTORING, Phase.RUNNING])
def test_a_fresh_agent_restores_in_the_turn_that_it_finds(phase: Phase) -> None:
    tenancy = Tenancy("rollout")
    tenancy.opened()
    assert tenancy.heard(Welcome(phase, 7)) == []
    assert not tenancy.holds
    assert tenancy.heard(Granted(7, 0)) == [Restore(7)]
    # Nobody waits for it in this life: it is told to be restored, and yielded.
    assert tenancy.restored(7, 4) == [Say(Restored(7, 4)), Say(Yield(7))]
    assert phase_of(tenancy) is Phase.YIELDED


def test_a_fresh_agent_that_is_wanted_uses_the_turn_that_it_finds() -> None:
    tenancy = Tenancy("rollout")
    tenancy.want(20, "ip:10.0.0.7")
    assert tenancy.opened() == [
        Say(Hello("rollout", Phase.WAITING, 0, 20, caller="ip:10.0.0.7")),
    ]
    tenancy.heard(Welcome(Phase.RUNNING, 7))
    assert tenancy.heard(Granted(7, 20)) == [Restore(7)]
    assert tenancy.restored(7, None) == [Say(Restored(7)), Answer(7)]


def test_a_fresh_agent_is_yielded_as_the_one_before_it_and_checks_what_is_there() -> None:
    tenancy = Tenancy("rollout")
    tenancy.opened()
    assert tenancy.heard(Welcome(Phase.YIELDED, 7)) == []
    assert (tenancy.phase, tenancy.epoch) == (Phase.YIELDED, 7)
    tenancy.want(20)
    assert tenancy.heard(Granted(8, 20)) == [Restore(8)]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in TURN])
def test_a_fresh_agent_parks_what_it_finds_when_told_to(phase: Phase) -> None:
    """Also where the arbiter knew of nothing yet when it welcomed it."""
    tenancy = Tenancy("rollout")
    tenancy.opened()
    assert tenancy.heard(Welcome(phase, 7)) == []
    assert tenancy.heard(Release(7)) == [Say(Quiesced(7)), Park(7)]
    assert tenancy.parked(7) == [Say(Released(7))]
    assert phase_of(tenancy) is Phase.PARKED


@pytest.mark.parametrize("phase", list(Phase))
def test_a_later_welcome_changes_nothing(phase: Phase) -> None:
    for tenancy in (restoring(), running(), yielded(), releasing(), parked()):
        before = state(tenancy)
        assert tenancy.heard(Welcome(phase, 9)) == []
        assert state(tenancy) == before


@pytest.mark.parametrize(
    ("make", "phase", "waits_for"),
    [
        (restoring, Phase.RESTORING, 10),
        (running, Phase.RUNNING, 0),
        (yielded, Phase.YIELDED, 0),
        (releasing, Phase.RELEASING, 0),
        (parked, Phase.PARKED, 0),
    ],
)
def test_a_hello_says_what_it_holds(
    make: Callable[[int], Tenancy], phase: Phase, waits_for: int
) -> None:
    assert make(3).opened() == [Say(Hello("trainer", phase, 3, waits_for))]


# -- the arbiter knows of the yield -----------------------------------------------------------


@pytest.mark.parametrize(
    "message", [Noted(3), Noted(4), Release(3), TurnLost(3, "the lease is over"), Granted(4, 0)]
)
def test_it_is_leaving_until_the_arbiter_knows(message: ArbiterMessage) -> None:
    tenancy = leaving()
    tenancy.want(11)
    assert tenancy.leaving
    assert tenancy.heard(message)[-1] == Left()
    assert not tenancy.leaving


def test_left_is_said_once() -> None:
    tenancy = leaving()
    assert tenancy.heard(Noted(3)) == [Left()]
    assert tenancy.heard(Noted(3)) == []


@pytest.mark.parametrize(
    "message",
    [
        Noted(2),
        Release(2),
        TurnLost(2, "late"),
        Granted(2, 9),
        Wanted(3),
        Refused(11, "no turn"),
        Warned("Intruder"),
    ],
)
def test_it_is_still_leaving_after_what_does_not_answer_the_yield(message: ArbiterMessage) -> None:
    tenancy = leaving()
    tenancy.want(11)
    assert Left() not in tenancy.heard(message)
    assert tenancy.leaving


def test_a_yield_without_an_arbiter_is_in_the_next_hello_and_its_answer_tells() -> None:
    tenancy = leaving()
    assert tenancy.opened() == [Say(Hello("trainer", Phase.YIELDED, 3))]
    assert tenancy.leaving
    assert tenancy.heard(Welcome(Phase.RUNNING, 3)) == [Left()]  # what was on record before it
    assert not tenancy.leaving


def test_a_welcome_that_answers_an_older_hello_does_not_know_of_the_yield() -> None:
    tenancy = Tenancy("trainer")
    tenancy.want(1)
    tenancy.heard(Granted(1, 1))
    tenancy.restored(1, None)
    tenancy.opened()  # the hello says Running
    tenancy.leave()
    assert tenancy.heard(Welcome(Phase.RUNNING, 1)) == []
    assert tenancy.leaving
    tenancy.opened()  # and this one Yielded
    assert tenancy.heard(Welcome(Phase.RUNNING, 1)) == [Left()]


def test_a_grant_that_is_said_twice_does_not_know_of_the_yield() -> None:
    tenancy = Tenancy("trainer")
    tenancy.want(1)
    tenancy.heard(Granted(1, 1))
    tenancy.restored(1, None)
    tenancy.leave()
    assert tenancy.heard(Granted(1, 2)) == []
    assert tenancy.leaving


# -- restoring ahead of the turn -------------------------------------------------------------------


def ahead() -> Tenancy:
    """A tenant that waits, and was given room for some of its memory under epoch 4."""
    tenancy = Tenancy("trainer", pieces=True)
    assert tenancy.opened() == [Say(Hello("trainer", pieces=True))]
    assert tenancy.heard(Welcome(Phase.PARKED, 3)) == []
    tenancy.want(10)
    assert tenancy.heard(Room(4, 30)) == [RestoreAhead(30)]
    return tenancy


def test_room_is_no_turn() -> None:
    tenancy = ahead()
    assert phase_of(tenancy) is Phase.WAITING
    assert not tenancy.holds
    assert tenancy.heard(Room(4, 50)) == [RestoreAhead(50)]
    assert tenancy.heard(Granted(5, 10)) == [Restore(5)]
    assert tenancy.restored(5, None) == [Say(Restored(5)), Answer(5)]


def test_a_session_that_breaks_says_what_was_restored_ahead() -> None:
    tenancy = ahead()
    hello = Hello("trainer", Phase.WAITING, 4, 10, pieces=True, ahead=True)
    assert tenancy.opened() == [Say(hello)]


def test_who_gives_up_its_wait_parks_what_was_restored_ahead() -> None:
    tenancy = ahead()
    assert tenancy.unwant() == [Say(Cancel(10))]
    assert tenancy.heard(Release(4)) == [Say(Quiesced(4)), Park(4)]
    assert tenancy.parked(4) == [Say(Released(4))]
    assert tenancy.opened() == [Say(Hello("trainer", Phase.PARKED, 4, pieces=True))]


def test_who_still_waits_does_so_after_it_parked_what_was_restored_ahead() -> None:
    tenancy = ahead()
    tenancy.heard(Release(4))
    assert tenancy.parked(4) == [Say(Released(4))]
    assert phase_of(tenancy) is Phase.WAITING
    assert tenancy.request == 10


@pytest.mark.parametrize("room", [Room(4, 30), Room(3, 30)])
def test_room_that_is_told_again_after_the_park_is_not_taken(room: Room) -> None:
    tenancy = ahead()
    tenancy.heard(Release(4))
    tenancy.parked(4)
    assert tenancy.heard(room) == []
    assert tenancy.heard(Room(6, 20)) == [RestoreAhead(20)]


def test_room_for_one_that_does_not_wait_is_not_taken() -> None:
    tenancy = fresh()
    assert tenancy.heard(Room(4, 30)) == []
    assert running().heard(Room(4, 30)) == []


def test_a_park_tells_how_it_goes_on_where_that_is_asked_for() -> None:
    tenancy = running()
    tenancy.leave()
    acts = [Say(Quiesced(3)), Park(3, pieces=True), Left()]
    assert tenancy.heard(Release(3, pieces=True)) == acts
    assert tenancy.freed(3) == [Say(Freed(3))]
    assert tenancy.freed(2) == []
    tenancy.parked(3)
    assert tenancy.freed(3) == []


# -- parking in part ------------------------------------------------------------------------------


def keeping() -> Tenancy:
    """A tenant that parked in turn 3, all but 20 bytes."""
    tenancy = running()
    tenancy.leave()
    acts = [Say(Quiesced(3)), Park(3, pieces=True, keep=30), Left()]
    assert tenancy.heard(Release(3, pieces=True, keep=30)) == acts
    assert tenancy.parked(3, 20) == [Say(Released(3, 20))]
    assert phase_of(tenancy) is Phase.PARKED
    return tenancy


def test_who_kept_some_says_so_in_a_new_session() -> None:
    hello = keeping().opened()[0]
    assert isinstance(hello, Say)
    assert isinstance(hello.message, Hello)
    assert (hello.message.phase, hello.message.ahead) == (Phase.PARKED, True)


def test_who_kept_some_is_told_to_park_the_rest_under_a_new_epoch() -> None:
    tenancy = keeping()
    assert tenancy.heard(Release(4, keep=5)) == [Say(Quiesced(4)), Park(4, keep=5)]
    assert tenancy.parked(4) == [Say(Released(4))]
    assert tenancy.heard(Release(5)) == [Say(Quiesced(5)), Park(5)]


def test_a_turn_begins_with_what_was_kept() -> None:
    tenancy = keeping()
    tenancy.want(10)
    assert tenancy.heard(Granted(4, 10)) == [Restore(4)]
    assert tenancy.restored(4, None) == [Say(Restored(4)), Answer(4)]


def test_a_park_that_failed_is_tried_again_with_all_of_it() -> None:
    tenancy = running()
    tenancy.leave()
    tenancy.heard(Release(3, keep=30))
    assert tenancy.park_failed(3, "busy") == [Say(Failed(3, "busy")), Park(3, again=True)]


# -- a turn that goes on where it stood still ---------------------------------------------------


def test_a_turn_that_stood_still_goes_on_in_the_next_epoch() -> None:
    """Its processes were frozen, and thawed as it was granted again: its user is in it still."""
    tenancy = running(3)
    assert tenancy.heard(Granted(5, 10)) == [Restore(5)]
    assert tenancy.restored(5, None) == [Say(Restored(5))]
    assert tenancy.holds
    assert tenancy.leave() == [Say(Yield(5))]


def test_a_turn_that_was_known_to_be_taken_is_not_gone_on_with() -> None:
    tenancy = running(3)
    tenancy.heard(TurnLost(3, "late"))
    assert tenancy.heard(Granted(5, 10)) == [Restore(5)]
    assert tenancy.parked(3) == []
    assert tenancy.restored(5, None) == [Say(Restored(5)), Say(Yield(5))]
