"""Accounts in words: what a tenant lost, and to whom. Pure."""

from dataclasses import dataclass
from typing import Final

from claim_phases.accounts import OTHERS, Account, Cause, Group, Why

_WORK: Final = {"trainer": "training steps", "rollout": "rollouts"}


@dataclass(frozen=True)
class Reason:
    """A part of what was lost. `share`: of all that was lost, 0 to 1; `seconds`: its own."""

    cause: Cause
    share: float
    seconds: float
    words: str

    def __str__(self) -> str:
        return f"{self.share:.0%} {self.words}".replace("%", " %", 1)


def reasons(account: Account, own: Group) -> list[Reason]:
    """Where the time went in which it wanted to run and did not, the largest part first."""
    whole = sum(account.lost.values())
    parts = sorted(account.lost.items(), key=lambda part: (-part[1], part[0]))
    return [
        Reason(cause, lost / whole, lost / 1e9, words(cause, own)) for cause, lost in parts if lost
    ]


def words(cause: Cause, own: Group) -> str:
    """What the time went into, said to a tenant of the group `own`."""
    whose, role = _whose(cause.whose, own), cause.whose.role
    match cause.why:
        case Why.TURN if cause.whose == OTHERS:
            return "waiting for turns of other jobs"
        case Why.TURN:
            return f"waiting for {whose}{_WORK.get(role, f'turns of {role}')}"
        case Why.FAULT:
            return f"waiting behind a fault of {whose}{role}"
        case Why.START:
            return f"waiting for {whose}{role} to start"
        case Why.SWAP:
            return "swapping memory"
        case Why.NOBODY:
            return "waiting while no tenant had the devices"


def _whose(group: Group, own: Group) -> str:
    if group == OTHERS or not group.job:
        return ""
    return "its own job's " if group.job == own.job else f"job {group.job}'s "
