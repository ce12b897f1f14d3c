"""The claim phases of a tenant, and every transition between them."""

from enum import StrEnum


class Phase(StrEnum):
    """What a tenant is doing with its devices."""

    PARKED = "Parked"
    WAITING = "Waiting"
    RESTORING = "Restoring"
    RUNNING = "Running"
    YIELDED = "Yielded"
    QUIESCING = "Quiescing"
    RELEASING = "Releasing"
    VERIFYING = "Verifying"
    FAULTED = "Faulted"


class Signal(StrEnum):
    """What can happen to a tenant. The arbiter decides on some, the tenant reports the others."""

    ACQUIRE = "acquire"  # it asks for a turn
    CANCEL = "cancel"  # it no longer asks
    GRANT = "grant"  # its devices are measured free: it may restore
    RESTORED = "restored"  # its memory is back
    YIELD = "yield"  # it needs no turn now, and stays resident
    RESUME = "resume"  # it asks again, and nobody came in between
    DISPLACE = "displace"  # somebody needs the room: it is told to release
    QUIESCED = "quiesced"  # its work is finished or paused
    RELEASED = "released"  # it says that its memory is parked
    FREE = "free"  # its memory is measured to be no more than its budget
    HELD = "held"  # it said released, and the device says otherwise
    FAIL = "fail"  # it could not park or restore, or took longer than its deadline
    LAPSE = "lapse"  # its turn is taken: its session or its device is lost, or it overstayed
    INTRUDE = "intrude"  # it uses a device without a turn
    GONE = "gone"  # its processes ended


class IllegalTransition(Exception):
    """A signal that has no meaning in the tenant's phase; nothing was changed."""

    def __init__(self, phase: Phase, signal: Signal) -> None:
        super().__init__(f"a tenant that is {phase} cannot take the signal {signal!s}")
        self.phase = phase
        self.signal = signal


TRANSITIONS: dict[Phase, dict[Signal, Phase]] = {
    Phase.PARKED: {
        Signal.ACQUIRE: Phase.WAITING,
        Signal.DISPLACE: Phase.QUIESCING,  # it kept some at its last release
        Signal.INTRUDE: Phase.FAULTED,
        Signal.GONE: Phase.VERIFYING,
    },
    Phase.WAITING: {
        Signal.CANCEL: Phase.PARKED,
        Signal.GRANT: Phase.RESTORING,
        Signal.DISPLACE: Phase.QUIESCING,  # that, or it restored some ahead of a turn
        Signal.INTRUDE: Phase.FAULTED,
        Signal.GONE: Phase.VERIFYING,
    },
    Phase.RESTORING: {
        Signal.RESTORED: Phase.RUNNING,
        Signal.FAIL: Phase.FAULTED,
        Signal.LAPSE: Phase.FAULTED,
        Signal.GONE: Phase.VERIFYING,
    },
    Phase.RUNNING: {
        Signal.YIELD: Phase.YIELDED,
        Signal.FAIL: Phase.FAULTED,  # an agent that began anew restores in the turn that it found
        Signal.LAPSE: Phase.FAULTED,
        Signal.GONE: Phase.VERIFYING,
    },
    Phase.YIELDED: {
        Signal.RESUME: Phase.RUNNING,
        Signal.DISPLACE: Phase.QUIESCING,
        Signal.LAPSE: Phase.FAULTED,
        Signal.GONE: Phase.VERIFYING,
    },
    Phase.QUIESCING: {
        Signal.QUIESCED: Phase.RELEASING,
        Signal.FAIL: Phase.FAULTED,
        Signal.LAPSE: Phase.FAULTED,
        Signal.GONE: Phase.VERIFYING,
    },
    Phase.RELEASING: {
        Signal.RELEASED: Phase.VERIFYING,
        Signal.FAIL: Phase.FAULTED,
        Signal.LAPSE: Phase.FAULTED,
        Signal.GONE: Phase.VERIFYING,
    },
    Phase.VERIFYING: {
        Signal.FREE: Phase.PARKED,
        Signal.HELD: Phase.FAULTED,
        Signal.GONE: Phase.VERIFYING,
    },
    # A faulted tenant counts as holding. It leaves by parking after all (a release that is late, or
    # that it is told again), by being measured free, or by ending.
    Phase.FAULTED: {
        Signal.DISPLACE: Phase.QUIESCING,
        Signal.RELEASED: Phase.VERIFYING,
        Signal.FREE: Phase.PARKED,
        Signal.GONE: Phase.VERIFYING,
    },
}

TURN = frozenset({Phase.RESTORING, Phase.RUNNING})
"""The phases in which a tenant has the turn: exclusive on each of its devices."""

HOLDING = frozenset(
    {
        Phase.RESTORING,
        Phase.RUNNING,
        Phase.QUIESCING,
        Phase.RELEASING,
        Phase.VERIFYING,
        Phase.FAULTED,
    }
)
"""The phases in which nobody else may be granted a device of the tenant."""

ASIDE = frozenset({Phase.PARKED, Phase.WAITING})
"""The phases in which a tenant holds no more than its residual budget, and what it was let keep
there or given room for ahead of its turn."""


def after(phase: Phase, signal: Signal) -> Phase:
    """Return the phase that follows, or raise `IllegalTransition`."""
    try:
        return TRANSITIONS[phase][signal]
    except KeyError:
        raise IllegalTransition(phase, signal) from None
