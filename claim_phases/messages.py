"""What a tenant and the arbiter say to each other, each message with the epoch that it is about."""

from dataclasses import dataclass

from claim_phases.phases import Phase

PROTOCOL = "0.2"
"""This protocol's version: major.minor. The arbiter serves this minor and the one before."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a session: who speaks, and what it holds.

    `epoch` is the newest epoch that the speaker knows, 0 when it has just begun; `phase` is its own
    view; `request` is the acquire that it still waits for, 0 when there is none, and `caller` says
    on whose behalf, as in `Acquire`. `pieces`: it can park and restore in pieces, so keep some, and
    restore ahead of its turn; `ahead`: it holds some so. Both since 0.2.
    """

    role: str
    phase: Phase = Phase.PARKED
    epoch: int = 0
    request: int = 0
    protocol: str = PROTOCOL
    caller: str = ""
    pieces: bool = False
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Acquire:
    """Asks for a turn. `request` only grows, over restarts of the speaker too.

    `caller` says on whose behalf ("pid:12", "ip:10.0.0.7"), "" when it is the speaker's own wish.
    """

    request: int
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The acquire is no longer wanted."""

    request: int


@dataclass(frozen=True, slots=True)
class Yield:
    """The turn is free; the tenant stays resident until it is told to release.

    `next_s`: in how many seconds it will want a turn again, None: unknown. Since 0.2.
    """

    epoch: int
    next_s: float | None = None


@dataclass(frozen=True, slots=True)
class Quiesced:
    """Work is finished or paused; the memory is about to be parked."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Freed:
    """Some of the memory is parked; the rest follows. Said where the release asks for it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Released:
    """The memory is parked, says the tenant; the arbiter measures.

    `kept`: bytes on each device, beyond the residual budget, that are not, as `Release` allowed.
    Since 0.2.
    """

    epoch: int
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """The memory is back: the tenant runs. `weights` is the version that an engine serves."""

    epoch: int
    weights: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Parking or restoring did not work, and why. A tenant that fails to park tries again."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answers the hello with what the arbiter has on record of this tenant."""

    phase: Phase
    epoch: int
    protocol: str = PROTOCOL


@dataclass(frozen=True, slots=True)
class Granted:
    """The turn: restore, then run. `request` is the newest acquire that this answers."""

    epoch: int
    request: int


@dataclass(frozen=True, slots=True)
class Noted:
    """The yield of this epoch is on record: whoever acquires from now on finds the turn free."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Release:
    """Somebody needs the room: quiesce, park, say so.

    `pieces`: that one restores in pieces meanwhile, so say how it goes on. `keep`: bytes on each
    device, beyond the residual budget, for which it has no use: they may stay. Both since 0.2.
    """

    epoch: int
    pieces: bool = False
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """Restore so much ahead of the turn: bytes on each device, beyond the residual budget.

    The epoch is no turn: it is the fence of this, and a grant has a newer one. Since 0.2.
    """

    epoch: int
    size: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Somebody waits for the turn of this epoch; yield at the next good moment.

    `idle`: that is when there is nothing to do, not in the middle of work. Since 0.2.
    """

    epoch: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The acquire will not be granted, and why; request 0: the session itself is refused.

    `holder` names the tenant that holds the turn when the acquire is on its own behalf.
    """

    request: int
    reason: str
    holder: str = ""


@dataclass(frozen=True, slots=True)
class TurnLost:
    """The turn of this epoch was taken away, and why."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Warned:
    """The tenant uses a device without a turn (Intruder), with the bytes."""

    reason: str


TenantMessage = Hello | Acquire | Cancel | Yield | Quiesced | Freed | Released | Restored | Failed
ArbiterMessage = Welcome | Granted | Noted | Release | Room | Wanted | Refused | TurnLost | Warned
