"""The tenant's side of the protocol: what it holds, what it waits for, what it says. Pure.

The session feeds it and carries out its acts: messages are said in order while a stream is open
(what is lost with a stream is made up for by the next hello), memory commands run one at a time.
"""

from dataclasses import dataclass
from typing import assert_never

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
    TenantMessage,
    TurnLost,
    Wanted,
    Warned,
    Welcome,
    Yield,
)
from claim_phases.phases import ASIDE, TURN, Phase


@dataclass(frozen=True, slots=True)
class Say:
    """Send to the arbiter; dropped when no stream is open."""

    message: TenantMessage


@dataclass(frozen=True, slots=True)
class Park:
    """Park the memory, then call `parked` or `park_failed` with the epoch.

    `pieces`: call `freed` as it goes on. `keep`: so many bytes on each device may stay.
    """

    epoch: int
    again: bool = False
    pieces: bool = False
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore the memory, then call `restored` or `restore_failed` with the epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RestoreAhead:
    """Restore up to so many bytes of the memory on each device; nobody is to be told."""

    size: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The acquire is answered: granted when `refusal` and `failure` are None.

    `refusal`: the arbiter gives no turn, and why (`holder`: because this tenant has it, and asks on
    its own behalf). `failure`: the memory could not be restored.
    """

    epoch: int
    refusal: str | None = None
    holder: str | None = None
    failure: str | None = None
    request: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """The arbiter knows that the turn is free."""


@dataclass(frozen=True, slots=True)
class WantedByOther:
    """Another tenant waits for this turn."""


@dataclass(frozen=True, slots=True)
class Warn:
    """The arbiter has something to say to people."""

    message: str


@dataclass(frozen=True, slots=True)
class Shut:
    """The arbiter refuses this session for good, and why."""

    reason: str


Act = Say | Park | Restore | RestoreAhead | Answer | Left | WantedByOther | Warn | Shut


class Tenancy:
    """One tenant's state. Each method takes in one thing that happened and returns the acts."""

    def __init__(self, role: str, *, pieces: bool = False) -> None:
        self.role = role
        self.pieces = pieces  # the memory can be parked and restored in pieces
        self.phase = Phase.PARKED
        self.epoch = 0
        self.request = 0
        self.wanted = False  # somebody waits for this turn
        self.urgent = False  # and not only until there is nothing to do
        self.taken: str | None = None  # why the turn that the user is in was taken
        self.leaving = False  # the turn is yielded, and the arbiter has not said that it knows
        self._hello_left = False  # this stream's hello said so already
        self._caller = ""
        self._welcomed = False
        self._restored = False  # the memory is whole
        self._weights: int | None = None  # of its newest restore
        self._held = False  # there may be something of it
        self._ahead = False  # room was made for some of it, under this epoch
        self._abandoned = False  # the turn was taken during the restore that goes on
        self._continues = False  # this turn is the rest of one in which the user still is

    @property
    def holds(self) -> bool:
        """Whether the tenant has the turn and its memory."""
        return self.phase is Phase.RUNNING

    # -- the stream -----------------------------------------------------------------------------

    def opened(self) -> list[Act]:
        """A stream to the arbiter is open."""
        self._hello_left = self.leaving
        hello = Hello(
            self.role,
            self.phase,
            self.epoch,
            self.request,
            caller=self._caller,
            pieces=self.pieces,
            ahead=self.aside and self._held,
        )
        return [Say(hello)]

    def heard(self, message: ArbiterMessage) -> list[Act]:
        """The arbiter said something."""
        knows = self.leaving and self._knows_of_the_yield(message)
        acts = self._heard(message)
        if knows:
            self.leaving = False
            acts.append(Left())
        return acts

    def _knows_of_the_yield(self, message: ArbiterMessage) -> bool:
        match message:
            case Noted(epoch) | Release(epoch) | TurnLost(epoch):
                return epoch >= self.epoch
            case Granted(epoch):
                return epoch > self.epoch
            case Welcome():  # it answers this stream's hello
                return self._hello_left
            case Wanted() | Refused() | Warned() | Room():
                return False
            case _:
                assert_never(message)

    def _heard(self, message: ArbiterMessage) -> list[Act]:
        match message:
            case Noted():
                return []
            case Welcome(phase, epoch):
                if not self._welcomed:
                    self._attach(phase, epoch)
                return []
            case Granted(epoch):
                return self._granted(epoch)
            case Release(epoch, pieces, keep):
                return self._release(epoch, "it was taken to make room", pieces, keep)
            case Room(epoch, size):
                return self._room(epoch, size)
            case TurnLost(epoch, reason):
                return [] if self.aside else self._release(epoch, reason)
            case Wanted(epoch, idle):
                if epoch != self.epoch or self.phase not in TURN:
                    return []
                before = self.wanted, self.urgent
                self.wanted, self.urgent = True, self.urgent or not idle
                return [WantedByOther()] if (self.wanted, self.urgent) != before else []
            case Refused(request, reason, holder):
                return [Shut(reason)] if request == 0 else self._refused(request, reason, holder)
            case Warned(reason):
                return [Warn(reason)]
            case _:
                assert_never(message)

    def _attach(self, phase: Phase, epoch: int) -> None:
        """An agent that began anew takes over what the one before it left in the device."""
        self._welcomed = True
        self._held = phase not in ASIDE
        if phase not in TURN:  # a turn is granted again, and that says its epoch
            self.epoch = epoch
        if phase is Phase.YIELDED:
            self.phase = Phase.YIELDED

    def _granted(self, epoch: int) -> list[Act]:
        if epoch <= self.epoch:  # said twice: it must not begin a turn that is over
            return []
        resident = self.phase is Phase.YIELDED and self._restored
        self._continues = self.phase is Phase.RUNNING  # it stood still, and knew nothing of that
        self.epoch, self.taken, self._abandoned, self._ahead = epoch, None, False, False
        self.wanted = self.urgent = False
        if resident:
            # The arbiter may have taken it for displaced: it was frozen, and knew nothing of that.
            return [Say(Restored(epoch, self._weights)), *self._run()]
        self.phase = Phase.RESTORING
        self._held = True
        return [Restore(epoch)]

    def _run(self) -> list[Act]:
        self.phase = Phase.RUNNING
        if self.request == 0:  # nobody waits for it any more
            return [] if self._continues else self.leave()
        self.request = 0
        return [Answer(self.epoch)]

    def _room(self, epoch: int, size: int) -> list[Act]:
        known = epoch == self.epoch and self._ahead
        if self.phase is not Phase.WAITING or not (epoch > self.epoch or known):
            return []  # it came late: what was restored so is parked, or will be
        self.epoch, self._ahead, self._held = epoch, True, True
        return [RestoreAhead(size)]

    def _release(self, epoch: int, reason: str, pieces: bool = False, keep: int = 0) -> list[Act]:
        if epoch < self.epoch or (epoch == self.epoch and self.phase is Phase.RELEASING):
            return []
        self.epoch = epoch  # of a grant that was never heard, maybe: it is over now
        if self.phase is Phase.RESTORING:
            return self._abandon(reason)
        if self.phase is Phase.RUNNING:
            self.taken = reason
        # Also with nothing left by its own account: it is asked for what the device shows.
        return self._park(pieces, keep)

    def _abandon(self, reason: str) -> list[Act]:
        """Park when the restore has come to its end; who waits for it need not wait that long."""
        self._abandoned = True
        request, self.request = self.request, 0
        if not request:
            return []
        return [Say(Cancel(request)), Answer(self.epoch, failure=reason)]

    def _park(self, pieces: bool = False, keep: int = 0) -> list[Act]:
        self.phase = Phase.RELEASING
        self.wanted = self.urgent = False
        return [Say(Quiesced(self.epoch)), Park(self.epoch, pieces=pieces, keep=keep)]

    def _refused(self, request: int, reason: str, holder: str) -> list[Act]:
        if request == self.request:
            self.request = 0
            if self.phase is Phase.WAITING:
                self.phase = Phase.PARKED
        elif not holder:  # that acquire was followed by another, which stands
            return []
        if not holder:
            return [Answer(self.epoch, refusal=reason)]
        return [Answer(self.epoch, refusal=reason, holder=holder, request=request)]

    # -- the user -------------------------------------------------------------------------------

    def want(self, request: int, caller: str = "") -> list[Act]:
        """Ask for a turn. `request` grows with each call, and over lives of the process."""
        self.request, self._caller = request, caller
        if self.phase is Phase.PARKED:
            self.phase = Phase.WAITING
        return [Say(Acquire(request, caller))]

    def unwant(self) -> list[Act]:
        """Ask no longer; a grant that comes all the same is yielded."""
        request, self.request = self.request, 0
        if self.phase is Phase.WAITING:
            self.phase = Phase.PARKED
        return [Say(Cancel(request))] if request else []

    def leave(self, next_s: float | None = None) -> list[Act]:
        """The turn is free: nothing is parked yet. `next_s`: when it will be wanted again."""
        if self.phase is not Phase.RUNNING:
            return []
        self.phase = Phase.YIELDED
        self.wanted = self.urgent = False
        self.leaving = True
        return [Say(Yield(self.epoch, next_s))]

    # -- the memory -----------------------------------------------------------------------------

    def freed(self, epoch: int) -> list[Act]:
        """Some of the memory is parked."""
        if epoch != self.epoch or self.phase is not Phase.RELEASING:
            return []
        return [Say(Freed(epoch))]

    def parked(self, epoch: int, kept: int = 0) -> list[Act]:
        """The memory is parked, all but so many bytes on each device."""
        self._restored = self._ahead = False
        self._held = kept > 0
        if epoch != self.epoch or self.phase not in (Phase.RELEASING, Phase.FAULTED):
            return []
        self.phase = Phase.WAITING if self.request else Phase.PARKED
        return [Say(Released(epoch, kept))]

    def park_failed(self, epoch: int, reason: str) -> list[Act]:
        """The memory could not be parked: told, then tried again; never restored instead."""
        if epoch != self.epoch or self.phase not in (Phase.RELEASING, Phase.FAULTED):
            return []
        self.phase = Phase.FAULTED
        return [Say(Failed(epoch, reason)), Park(epoch, again=True)]

    def restored(self, epoch: int, weights: int | None) -> list[Act]:
        """The memory is back."""
        self._restored = self._held = True
        self._weights = weights
        if epoch != self.epoch or self.phase is not Phase.RESTORING:
            return []
        if self._abandoned:
            return self._park()
        return [Say(Restored(epoch, weights)), *self._run()]

    def restore_failed(self, epoch: int, reason: str) -> list[Act]:
        """The memory could not be restored; the arbiter will ask for what there is of it."""
        self._restored, self._held = False, True
        if epoch != self.epoch or self.phase is not Phase.RESTORING:
            return []
        if self._abandoned:
            return self._park()
        self.phase = Phase.FAULTED
        acts: list[Act] = [Say(Failed(epoch, reason))]
        if self.request:
            self.request = 0
            acts.append(Answer(epoch, failure=reason))
        return acts

    @property
    def aside(self) -> bool:
        """Whether the tenant has no turn, and holds no more than it may, by its own account."""
        return self.phase in ASIDE
