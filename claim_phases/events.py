"""What goes into the node's machine of turns, and what comes out of it."""

from dataclasses import dataclass
from enum import StrEnum

from claim_phases.escalation import Step
from claim_phases.messages import ArbiterMessage, Hello, TenantMessage
from claim_phases.node import Membership
from claim_phases.phases import Phase


class TimerKind(StrEnum):
    """One timer of each kind runs per subject; arming it again replaces it."""

    LEASE = "lease"  # a tenant's session is lost
    PHASE = "phase"  # a tenant is in a phase that has a deadline
    REREAD = "reread"  # the device's accounting may lag: look again (1 to 50 ms)
    VERDICT = "verdict"  # a waiting tenant's devices stay occupied: find out by whom
    BLOCKED = "blocked"  # a waiting tenant is blocked by a fault: refuse it
    LADDER = "ladder"  # a tenant is at fault: the next step is due
    LEAVE = "leave"  # a tenant was told that others wait, and has a bound to leave
    WATCH = "watch"  # the node's look for intruders, strangers and devices that fail


@dataclass(frozen=True, slots=True)
class Timer:
    """`mark` tells a timer that was overtaken by events from one that still counts."""

    kind: TimerKind
    subject: str
    mark: int


@dataclass(frozen=True, slots=True)
class Usage:
    """A device's memory at one moment, in bytes.

    `tenants` and `foreign` say who holds it: None when only the sum was read. What no process
    could be found for is in `used` alone: it may be of tenants of which a process is `ending`.
    `budgets` says what each of these tenants may hold on the device without a turn: one that has
    not said hello yet is not on the node's record.
    """

    device: str
    used: int
    tenants: tuple[tuple[str, int], ...] | None = None
    foreign: int | None = None
    budgets: tuple[tuple[str, int], ...] = ()
    ending: frozenset[str] = frozenset()

    def of(self, tenant: str) -> int | None:
        """What the tenant's processes hold; None when only the sum was read."""
        if self.tenants is None:
            return None
        return sum(size for name, size in self.tenants if name == tenant)

    @property
    def unknown(self) -> int:
        """Bytes in use that belong to no process that could be seen."""
        if self.tenants is None or self.foreign is None:
            return 0
        return max(0, self.used - sum(size for _, size in self.tenants) - self.foreign)


@dataclass(frozen=True, slots=True)
class Headroom:
    """A tenant's host memory at one moment, in bytes.

    `left`: what it may still use of its `limit`; what can be taken back from it, as page cache, is
    left too.
    """

    tenant: str
    left: int
    limit: int


@dataclass(frozen=True, slots=True)
class Connected:
    """A session's hello, with who its peer is; `caller` is the tenant that its acquire is for."""

    who: Membership
    hello: Hello
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a connected tenant; `caller` is the tenant on whose behalf it acquires."""

    tenant: str
    message: TenantMessage
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """A tenant's session broke."""

    tenant: str


@dataclass(frozen=True, slots=True)
class Gone:
    """All processes of one life of a tenant ended."""

    tenant: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A device that could not be read, and why."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The answer to `Measure`, with the step at which it was asked.

    Each device is in `usages` or `unread`: what could not be read has no usage that could look
    free. `headrooms` has those of the tenants asked about whose host memory has a limit that is
    known.
    """

    asked: int
    usages: tuple[Usage, ...]
    unread: tuple[Unread, ...] = ()
    headrooms: tuple[Headroom, ...] = ()


@dataclass(frozen=True, slots=True)
class Fired:
    """A timer ran out."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Resumed:
    """The arbiter started, with this node read from its journal (or a new one)."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """The tenant's processes stand still until they are thawed, and `held` bytes that they held of
    their device are on the host; with a `problem` they are as they were.
    """

    tenant: str
    incarnation: str
    held: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Thawed:
    """The tenant's processes go on with what they held; with a `problem` they stand still, and a
    later turn may be tried when that was want of room or of a turn alone.
    """

    tenant: str
    incarnation: str
    problem: str = ""
    later: bool = False


Event = Connected | Said | Lost | Gone | Measured | Fired | Resumed | Frozen | Thawed


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the tenant's session. Only after the state that it follows from is stored."""

    tenant: str
    message: ArbiterMessage


@dataclass(frozen=True, slots=True)
class Measure:
    """Read these devices; with `attribute`, find out whose each byte is.

    `headrooms` names the tenants whose host memory is to be read at the same moment.
    """

    devices: tuple[str, ...]
    attribute: bool
    asked: int
    headrooms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arm:
    """Run a timer."""

    timer: Timer
    delay_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the tenant's processes, and whichever of its own hold memory of these devices."""

    tenant: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Freeze:
    """Freeze the tenant's processes, with what they hold of these devices; answer with Frozen."""

    tenant: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Thaw:
    """Let them go on, with what they held, and answer with Thawed."""

    tenant: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """A life is over: end those of it that stand still, and forget what they held."""

    tenant: str
    incarnation: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """For people: a tenant went from one phase to another; `after` None: it ended."""

    tenant: str
    before: Phase
    after: Phase | None
    epoch: int
    devices: tuple[str, ...]
    weights: int | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """For people: a device was measured to see whether `tenant` left it."""

    tenant: str
    device: str
    used: int
    total: int
    free: bool


@dataclass(frozen=True, slots=True)
class RoomMade:
    """For people: a tenant may hold so much on each device without a turn, in bytes.

    Beyond its residual budget, until its next phase: it waits and restores ahead of its turn, or
    is parked but for that.
    """

    tenant: str
    epoch: int
    size: int
    devices: tuple[str, ...]


class ConditionKind(StrEnum):
    """What can be wrong with a tenant or a device."""

    FAULTED = "Faulted"
    INTRUDER = "Intruder"
    FOREIGN_MEMORY = "ForeignMemory"
    DEVICE_FAILED = "DeviceFailed"
    OVERSTAYED = "Overstayed"
    ESCALATED = "Escalated"
    NOT_TAINTED = "NotTainted"
    SESSION_LOST = "SessionLost"
    NO_ROOM = "NoRoom"
    RESIDUAL_GROWING = "ResidualGrowing"
    REFUSED = "Refused"
    RESTORE_FAILED = "RestoreFailed"
    CLEARED = "Cleared"


@dataclass(frozen=True, slots=True)
class Condition:
    """For people: something is wrong (or no longer is), in one sentence.

    `step` is the one that was taken, where the kind is ESCALATED.
    """

    kind: ConditionKind
    message: str
    tenant: str | None = None
    device: str | None = None
    size: int | None = None
    step: Step | None = None


Told = PhaseChanged | Judged | RoomMade | Condition


@dataclass(frozen=True, slots=True)
class Tell:
    """Write to the node's event log; `at` is CLOCK_MONOTONIC seconds."""

    at: float
    what: Told


Effect = Send | Measure | Arm | Kill | Freeze | Thaw | Discard | Tell
