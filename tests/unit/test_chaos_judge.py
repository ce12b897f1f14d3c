"""The verdict on a run of chaos, on small made-up ones: each rule sees what it is for."""

from dataclasses import replace

import pytest

from claim_phases.escalation import Step
from claim_phases.phases import Phase
from tandem.run_files import (
    ArbiterStart,
    Condition,
    DeviceUse,
    PhaseChange,
    Room,
    Run,
    Sample,
)
from tandem.verdict import Budget, Rules
from tests.chaos.judge import (
    Above,
    ArbiterEnd,
    Chaos,
    Hang,
    Struck,
    TenantEnd,
    Word,
    judge,
    known,
    waits,
)

MIB = 1 << 20
RULES = Rules({"gpu0": 31 * MIB}, {"a": Budget(("gpu0",), 0), "b": Budget(("gpu0",), 0)})
NOTHING = Run((), (), (), (), (), (), ())


def change(t: float, tenant: str, before: Phase, after: Phase, epoch: int) -> PhaseChange:
    return PhaseChange(t, tenant, before, after, epoch, ("gpu0",), None)


def stated(t: float, tenant: str, phase: Phase, epoch: int) -> PhaseChange:
    return change(t, tenant, phase, phase, epoch)


def sample(t: float, **held: int) -> Sample:
    use = {"gpu0": DeviceUse(used=sum(held.values()), total=31 * MIB)}
    return Sample(t, t, use, {who: {"gpu0": size} for who, size in held.items()}, ())


def word(t: float, who: str, says: str, epoch: int = 0, why: str = "") -> Word:
    return Word(t, who, says, epoch, why, 0)


START = ArbiterStart(0.0, "boot", 0)
AGAIN = ArbiterStart(2.0, "boot", 1)
QUIET = Chaos(
    run=replace(
        NOTHING,
        starts=(START,),
        changes=(
            change(1.0, "a", Phase.PARKED, Phase.WAITING, 0),
            change(1.1, "a", Phase.WAITING, Phase.RESTORING, 1),
            change(1.2, "a", Phase.RESTORING, Phase.RUNNING, 1),
        ),
        samples=(sample(1.3, a=8 * MIB),),
    ),
    rules=RULES,
    words=(word(1.0, "a", "waits"), word(1.2, "a", "turn", 1), word(1.3, "a", "left", 1)),
    blows=(),
    arbiter_ends=(),
    tenant_ends=(),
    above=(),
    digests={},
    bound_s=10.0,
    lease_s=0.2,
    cancelling=frozenset(),
)


FROZEN = replace(
    QUIET,
    run=replace(
        QUIET.run,
        conditions=(
            Condition(1.5, "Escalated", "a", None, None, "a is to be frozen", Step.CHECKPOINT),
        ),
    ),
    words=(word(1.2, "a", "turn", 1), word(1.6, "b", "turn", 2)),
    blows=(Struck(1.3, "hang", "a", "a"),),
    hangs=(Hang(1.3, 2.0, "a", "thawed"),),
    refusing=False,
)
AHEAD = replace(QUIET, run=replace(QUIET.run, rooms=(Room(1.05, "a", 1, 15 * MIB, ("gpu0",)),)))


def test_a_run_in_order_has_no_violations() -> None:
    assert judge(QUIET) == ()


def test_one_that_hangs_is_made_to_leave_and_then_told_so() -> None:
    assert judge(FROZEN) == ()
    lost = word(2.1, "a", "failed", why="TurnLost: it did not park within 3 s")
    assert judge(replace(FROZEN, words=(*FROZEN.words, lost))) == ()
    late = word(2.1, "a", "failed", why="RestoreFailed: it did not restore within 8 s")
    assert judge(replace(FROZEN, words=(*FROZEN.words, late))) == ()


def test_two_may_hold_a_device_where_one_was_given_room_while_it_waited() -> None:
    assert judge(replace(AHEAD, above=(Above(1.06, 1.09, "gpu0", 20 * MIB),))) == ()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            replace(
                QUIET,
                above=(Above(1.0, 1.1, "gpu0", 20 * MIB), Above(1.2, 1.3, "gpu0", 24 * MIB)),
            ),
            "24.0 MiB of gpu0 were in use",
        ),
        (
            replace(AHEAD, above=(Above(1.06, 1.11, "gpu0", 20 * MIB),)),  # beyond its wait
            "20.0 MiB of gpu0 were in use",
        ),
        (
            replace(QUIET, words=(*QUIET.words, word(1.4, "b", "turn", 1))),
            "epoch 1 was granted to a and to b",
        ),
        (
            replace(QUIET, words=(word(1.2, "a", "turn", 1), word(1.25, "b", "turn", 2))),
            "b was in its turn (epoch 2)",
        ),
        (
            replace(QUIET, words=(word(0.0, "a", "waits"), word(11.0, "a", "turn", 1))),
            "a waited for 11.0 s",
        ),
        (
            replace(QUIET, words=(word(1.0, "a", "failed", why="TurnRefused: no such journal"),)),
            "a got no turn",
        ),
        (
            replace(QUIET, words=(word(1.0, "a", "broken", why="other bytes"),)),
            "other bytes",
        ),
        (
            replace(QUIET, words=(word(1.0, "a", "done", why="beef"),), digests={"a": "cafe"}),
            "the state of a",
        ),
        (
            replace(QUIET, digests={"a": "cafe"}),
            "a did not come to its end",
        ),
        (
            replace(QUIET, tenant_ends=(TenantEnd(1.5, "a", struck=False),), digests={"a": ""}),
            "a ended by itself",
        ),
        (
            replace(FROZEN, hangs=(Hang(1.6, 2.0, "a", "thawed"),)),
            "a did not hang at 1.50 s, and yet: a is to be frozen",
        ),
        (
            replace(FROZEN, hangs=(Hang(1.3, 2.0, "b", "thawed"),)),
            "a did not hang at 1.50 s, and yet: a is to be frozen",
        ),
        (
            replace(
                FROZEN, words=(word(1.25, "a", "failed", why="TurnRefused: a is at fault: x"),)
            ),
            "a got no turn at 1.25 s",
        ),
        (
            replace(FROZEN, words=(word(1.7, "b", "failed", why="TurnRefused: a is at fault: x"),)),
            "b got no turn at 1.70 s: TurnRefused: a is at fault: x",
        ),
        (
            replace(
                QUIET,
                run=replace(
                    QUIET.run,
                    conditions=(Condition(1.5, "Intruder", "a", "gpu0", 8, "it holds 8"),),
                ),
            ),
            "Intruder",
        ),
        (
            replace(
                QUIET,
                run=replace(QUIET.run, samples=(sample(1.05, a=8 * MIB),)),
            ),
            "a held 8.0 MiB of gpu0 while it was Waiting",
        ),
    ],
)
def test_each_rule_sees_what_it_is_for(wrong: Chaos, told: str) -> None:
    assert told in "\n".join(judge(wrong))


def granted(first: str, second: str) -> Chaos:
    """An arbiter ends while a waits before b; then turns are granted in this order."""
    run = replace(
        NOTHING,
        starts=(START, AGAIN),
        changes=(
            stated(2.0, "a", Phase.WAITING, 0),
            stated(2.0, "b", Phase.WAITING, 0),
            change(2.1, first, Phase.WAITING, Phase.RESTORING, 2),
            change(2.5, first, Phase.RESTORING, Phase.FAULTED, 2),
            change(2.6, second, Phase.WAITING, Phase.RESTORING, 3),
        ),
    )
    end = ArbiterEnd(1.5, struck=True, queue=("a", "b"), epochs={"a": 0, "b": 0})
    return replace(QUIET, run=run, words=(), arbiter_ends=(end,))


def test_whoever_waited_first_is_granted_first() -> None:
    assert judge(granted("a", "b")) == ()
    (told,) = judge(granted("b", "a"))
    assert told.startswith("a lost its place")


@pytest.mark.parametrize(
    ("t", "cancelling", "violations"), [(2.05, "", 2), (2.05, "a", 0), (2.3, "", 0)]
)
def test_a_wait_is_given_up_by_who_may_or_when_a_lease_is_over(
    t: float, cancelling: str, violations: int
) -> None:
    whole = granted("b", "a")
    *first, grant, end, other = whole.run.changes
    left = change(t, "a", Phase.WAITING, Phase.PARKED, 0)
    later = [replace(one, t=one.t + 0.5) for one in (grant, end, other)]
    run = replace(whole.run, changes=(*first, left, *later))
    assert len(judge(replace(whole, run=run, cancelling=frozenset({cancelling})))) == violations


def test_a_tenant_that_died_has_no_place() -> None:
    died = replace(granted("b", "a"), blows=(Struck(1.8, "kill", "a", "a"),))
    assert judge(died) == ()


@pytest.mark.parametrize(("killed", "violations"), [(1.4, 0), (0.9, 1)])
def test_a_death_that_the_arbiter_did_not_live_to_see_counts(
    killed: float, violations: int
) -> None:
    whole = granted("b", "a")
    asked = change(1.0, "a", Phase.PARKED, Phase.WAITING, 0)
    other = change(1.1, "b", Phase.PARKED, Phase.WAITING, 0)
    run = replace(whole.run, changes=(asked, other, *whole.run.changes))
    died = replace(whole, run=run, blows=(Struck(killed, "kill", "a", "a"),))
    assert len(judge(died)) == violations


def test_what_an_arbiter_did_not_live_to_tell_is_not_held_against_a_tenant() -> None:
    """It granted b, which restored; killed before its line was written, it says so at its start."""
    changes = (
        change(1.0, "a", Phase.RESTORING, Phase.RUNNING, 1),
        stated(2.0, "b", Phase.RUNNING, 2),
        stated(2.0, "a", Phase.PARKED, 1),
    )
    run = replace(
        NOTHING, starts=(START, AGAIN), changes=changes, samples=(sample(1.5, b=8 * MIB),)
    )
    assert judge(replace(QUIET, run=run, words=())) == ()
    assert known(run)[1] == 1


def test_two_turns_that_an_arbiter_tells_as_it_starts_are_seen() -> None:
    changes = (stated(2.0, "a", Phase.RUNNING, 1), stated(2.0, "b", Phase.RUNNING, 2))
    run = replace(NOTHING, starts=(START, AGAIN), changes=changes)
    assert "two turns at once" in "\n".join(judge(replace(QUIET, run=run, words=())))


def test_a_wait_ends_with_the_life_of_who_waits() -> None:
    words = (word(0.0, "a", "waits"), word(5.0, "a", "waits"), word(6.0, "a", "turn", 1))
    ends = (TenantEnd(4.0, "a", struck=True),)
    assert waits(replace(QUIET, words=words, tenant_ends=ends)) == {"a": 1.0}
