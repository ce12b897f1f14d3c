"""What a run's node is like: devices, tenants, limits, and how long anybody may wait there."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from claim_phases.escalation import Step
from tests.chaos.plan import HANG_S, LEASE_S, LONG_S, ROLLOUT, TRAINERS, WIDE

MIB: Final = 1 << 20
BLOCK: Final = 12 * MIB
"""What engine and wide hold; a trainer holds 8 MiB, and some more while it computes."""

MOST: Final = 15 * MIB
"""No tenant holds more on a device, and any two together do."""

DEVICES: Final = {
    "trainer-a": ("gpu0",),
    "trainer-b": ("gpu1",),
    WIDE: ("gpu0", "gpu1"),
    ROLLOUT: ("gpu0",),
}

TURN_S: Final = 1.0
"""Far more than any tenant here computes in a turn."""

START_S: Final = 10.0
"""An arbiter serves within this time after the end of the one before it, on a busy machine too."""

_LIMITS: Final = {
    "lease_s": LEASE_S,
    "verify_s": 2.0,
    "park_s": 3.0,
    "restore_s": 8.0,
    "blocked_s": 3.0,
    "watch_s": 0.5,
}

_LONGEST_TURN_S: Final = _LIMITS["restore_s"] + TURN_S + 2 * _LIMITS["park_s"] + _LIMITS["verify_s"]

Ladder = tuple[tuple[Step, float], ...]
"""Steps, and how many seconds after the one before each is taken."""


@dataclass(frozen=True)
class Setting:
    """Sizes are bytes.

    How large devices are, what tenants declare to need of one, and the `most` that is in use of one
    while nobody restores ahead. `ladders`: each tenant's, if tenants at fault are dealt with here.
    """

    devices: Mapping[str, int]
    needs: Mapping[str, int]
    most: int
    ladders: Mapping[str, Ladder]
    limits: Mapping[str, float]
    bound_s: float

    def tenant(self, name: str) -> dict[str, Any]:
        """As the node file has it."""
        return {
            "devices": list(DEVICES[name]),
            "need": self.needs[name],
            "residual": 0,
            "escalation": [
                {"step": step, "after_s": after_s} for step, after_s in self.ladders.get(name, ())
            ],
        }


ALONE: Final = Setting(
    {"gpu0": 31 * MIB, "gpu1": 31 * MIB},
    dict.fromkeys(DEVICES, 30 * MIB),
    most=MOST,
    ladders={},
    limits=_LIMITS,
    bound_s=(len(DEVICES) - 1) * _LONGEST_TURN_S
    + _LIMITS["lease_s"]
    + _LIMITS["blocked_s"]
    + START_S
    + LONG_S,
)
"""No two are resident together, and nobody keeps a part. Two would find room: it would be seen.

The longest wait: all hang together by wide, so each other tenant may go before, once, and use up
every limit; then a lease, a fault that lasts until whoever waits is refused, a long stop.
"""

_FREEZES: Final[Ladder] = ((Step.CHECKPOINT, 0.5), (Step.KILL, 3.0))
_KILLS: Final[Ladder] = ((Step.ASK, 0.2), (Step.KILL, 0.5))
_LADDERS: Final = {
    "trainer-a": _FREEZES,
    "trainer-b": _KILLS,
    WIDE: _KILLS,
    ROLLOUT: _FREEZES,
}
_LADDER_S: Final = max(sum(after_s for _, after_s in ladder) for ladder in _LADDERS.values())


def beside(setting: Setting) -> Setting:
    """What tenants really need: two find room on gpu0, and of a trainer some beside whoever works.

    All of a device's tenants together do not: one of them would end by that.
    """
    return replace(
        setting,
        devices={"gpu0": 31 * MIB, "gpu1": 20 * MIB},
        needs={name: MOST if name in TRAINERS else BLOCK + MIB for name in DEVICES},
        most=31 * MIB,
    )


def with_ladders(setting: Setting) -> Setting:
    """Whoever is at fault is frozen, or killed: nobody else is refused for that.

    The longest wait: each of the others goes before, uses up every limit, hangs, and is made to
    leave by the last step of its ladder; or it hangs where nobody minds until it is struck.
    """
    bound_s = (len(DEVICES) - 1) * (_LONGEST_TURN_S + _LADDER_S)
    bound_s += _LIMITS["lease_s"] + START_S + HANG_S
    return replace(
        setting,
        ladders=_LADDERS,
        limits={**_LIMITS, "blocked_s": 2 * bound_s},
        bound_s=bound_s,
    )
