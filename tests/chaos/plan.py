"""What is done to whom, and when: a pure function of the seed.

A moment is "so long after the nth event of this kind since the blow before", never a time of day,
so a seed strikes the same instants of the protocol however fast the machine is.
"""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from claim_phases.phases import Phase

TRAINERS: Final = ("trainer-a", "trainer-b")
WIDE: Final = "wide"
ROLLOUT: Final = "rollout-a"
ARBITER: Final = "arbiter"
CLOCK: Final = "clock"
PARTS: Final = {
    "activator": ROLLOUT,
    "engine": ROLLOUT,
    **{name: name for name in (*TRAINERS, WIDE)},
}
"""The processes that are struck, beside the arbiter, and the tenant that each is a part of."""

LEASE_S: Final = 2.0
LONG_S: Final = 3.0
"""How long a tenant that is to outlive its lease is stopped after the arbiter's start."""

HANG_S: Final = 10.0
"""After this time one that hangs is killed, if nobody else minds that it does."""

_SHORT_S: Final = (0.02, 0.4)
_STEPS_S: Final = (-86400.0, -3600.0, -1.0, 1.0, 3600.0, 86400.0)
_DELAY_MEAN_S: Final = 0.02
_DELAY_MAX_S: Final = 0.15
_NTH: Final = (1, 1, 1, 2, 3)
_PHASES: Final = tuple(phase for phase in Phase if phase is not Phase.FAULTED)


class Act(StrEnum):
    """What is done to a victim."""

    KILL = "kill"  # SIGKILL
    STOP = "stop"  # SIGSTOP, and SIGCONT later
    HANG = "hang"  # SIGSTOP, and whatever ends it is not ours to do
    STEP = "step"  # the wall clock that Python code reads jumps


@dataclass(frozen=True)
class Moment:
    """The `nth` time from now on that `who` enters `phase`; of the arbiter: that it starts."""

    who: str
    phase: Phase | None
    nth: int


@dataclass(frozen=True)
class Blow:
    """One thing that is done, `delay_s` after a moment (None: after the blow before it).

    A stop ends `lasts_s` later, counted from `until` if there is that. `by_s`: how far the clock is
    stepped.
    """

    act: Act
    victim: str
    after: Moment | None
    delay_s: float
    lasts_s: float = 0.0
    until: Moment | None = None
    by_s: float = 0.0


# Of a hundred: the arbiter is what all others hang on.
_MIX: Final = (
    (24, Act.KILL, ARBITER),
    (5, Act.KILL, "activator"),
    (5, Act.KILL, "engine"),
    (6, Act.KILL, "trainer-a"),
    (6, Act.KILL, "trainer-b"),
    (6, Act.KILL, WIDE),
    (9, Act.STOP, ARBITER),
    (6, Act.STOP, "activator"),
    (5, Act.STOP, "engine"),
    (6, Act.STOP, "trainer-a"),
    (6, Act.STOP, "trainer-b"),
    (6, Act.STOP, WIDE),
    (10, Act.STEP, CLOCK),
)
_AT_ONCE: Final = 0.15
_AS_IT_STARTS: Final = 0.25
_OUTLIVES_LEASE: Final = 0.02
_HANGS: Final = 0.08


def plan(seed: int, blows: int, *, hangs: bool = False) -> tuple[Blow, ...]:
    """The first `blows` blows of a seed; a longer plan begins like a shorter one.

    With `hangs` no stop outlives the lease: in place of it tenants hang until somebody ends that.
    """
    chance = random.Random(seed)
    made: list[Blow] = []
    while len(made) < blows:
        if chance.random() < (_HANGS if hangs else _OUTLIVES_LEASE):
            made += _hang(chance) if hangs else _lapse(chance)
        else:
            made.append(_blow(chance, made[-1] if made else None))
    return tuple(made[:blows])


def shard(whole: tuple[Blow, ...], number: int, of: int) -> tuple[Blow, ...]:
    """The `number`th of `of` consecutive parts, counted from 1: each is a plan by itself."""
    return whole[_cut(whole, number - 1, of) : _cut(whole, number, of)]


def _cut(whole: tuple[Blow, ...], number: int, of: int) -> int:
    """Where a part begins: not with a blow that hangs on the one before it."""
    at = number * len(whole) // of
    while 0 < at < len(whole) and ((after := whole[at].after) is None or after.who == ARBITER):
        at += 1
    return at


def _blow(chance: random.Random, before: Blow | None) -> Blow:
    weights = [weight for weight, _, _ in _MIX]
    _, act, victim = chance.choices(_MIX, weights)[0]
    lasts_s = chance.uniform(*_SHORT_S) if act is Act.STOP else 0.0
    by_s = chance.choice(_STEPS_S) if act is Act.STEP else 0.0
    moment = _moment(chance, before)
    return Blow(act, victim, moment, _delay(chance), lasts_s=lasts_s, by_s=by_s)


def _moment(chance: random.Random, before: Blow | None) -> Moment | None:
    if before is not None and chance.random() < _AT_ONCE:
        return None
    restarts = before is not None and (before.act, before.victim) == (Act.KILL, ARBITER)
    if restarts and chance.random() < _AS_IT_STARTS:
        return Moment(ARBITER, None, 1)
    tenant = chance.choice((*TRAINERS, WIDE, ROLLOUT))
    return Moment(tenant, chance.choice(_PHASES), chance.choice(_NTH))


def _delay(chance: random.Random) -> float:
    if chance.random() < 0.3:
        return 0.0
    return min(chance.expovariate(1 / _DELAY_MEAN_S), _DELAY_MAX_S)


def _lapse(chance: random.Random) -> tuple[Blow, Blow]:
    """A tenant that is stopped for longer than its lease, while its session is lost."""
    victim = chance.choice([part for part in PARTS if part != "engine"])
    moment = Moment(PARTS[victim], chance.choice(_PHASES), 1)
    return (
        Blow(Act.STOP, victim, moment, _delay(chance), LONG_S, until=Moment(ARBITER, None, 1)),
        Blow(Act.KILL, ARBITER, None, _delay(chance)),
    )


def _hang(chance: random.Random) -> tuple[Blow, ...]:
    """A tenant that hangs, half of them while the arbiter is killed: their session is lost too."""
    victim = chance.choice([*PARTS])
    moment = Moment(PARTS[victim], chance.choice(_PHASES), 1)
    hang = Blow(Act.HANG, victim, moment, _delay(chance))
    if chance.random() < 0.5:
        return (hang,)
    return hang, Blow(Act.KILL, ARBITER, None, _delay(chance))
