"""Who is next, and who may keep its turn meanwhile: pure functions over those that wait.

Each policy orders those that wait, who come in the order of asking. A node has one queue: where
tenants of several policies wait in it, each policy orders its own among the places that they have
there, and those that harvest come last. Nobody waits longer than a node's patience for the sake of
a policy: then asking first counts alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

AGING_S = 60.0
"""Waiting so long is worth one level of priority."""

SOLO_LEAST_S = 0.001


class PolicyName(StrEnum):
    """What an admin chooses by the DeviceClass, and a claim within its limits."""

    FIFO = "fifo"  # in the order of asking
    FAIR = "fair"  # the job first whose turns took the least time for its weight
    PRIORITY = "priority"  # the highest first, which rises with waiting
    SLOWDOWN = "slowdown"  # the job first whose slowdown exceeds its objective most (Weave)
    HARVEST = "harvest"  # only when nobody else wants the devices


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a claim asks for of the turns of its tenants.

    `weight`: its share of the time of turns under `fair`. `priority`: higher is sooner.
    `slowdown`: the bound that it aims at, its time over the time that it would take alone.
    `leave_s`: from being told that others wait until the turn is taken, None: never. `lease_s`: how
    long a session may be lost until the turn is taken, None: as long as the node says.
    """

    policy: PolicyName = PolicyName.FIFO
    weight: float = 1.0
    priority: int = 0
    slowdown: float = 1.2
    leave_s: float | None = None
    lease_s: float | None = None

    @property
    def harvests(self) -> bool:
        """Whether it takes only what nobody else wants."""
        return self.policy is PolicyName.HARVEST


@dataclass(frozen=True, slots=True)
class Claimant:
    """A tenant, and what policies go by.

    `waited_s`: since it asked. Of its job: `share_s` is the time of turns that counts under `fair`,
    in seconds by weight; `alive_s` and `delayed_s` are its time on the node and how much of that
    one of its tenants waited while none had a turn.
    """

    tenant: str
    objectives: Objectives = Objectives()
    waited_s: float = 0.0
    share_s: float = 0.0
    alive_s: float = 0.0
    delayed_s: float = 0.0

    @property
    def rank(self) -> int:
        """Its priority, risen by waiting."""
        return self.objectives.priority + int(self.waited_s / AGING_S)

    @property
    def excess(self) -> float:
        """Its slowdown against its objective: above 1 is too slow. Grows while it waits."""
        alone_s = max(self.alive_s - self.delayed_s, SOLO_LEAST_S)
        return max(self.alive_s, SOLO_LEAST_S) / alone_s / self.objectives.slowdown


Policy = Callable[[Sequence[Claimant]], Sequence[Claimant]]


def fifo(waiting: Sequence[Claimant]) -> Sequence[Claimant]:
    """Serve in the order of asking."""
    return waiting


def fair(waiting: Sequence[Claimant]) -> Sequence[Claimant]:
    """Serve the job whose turns took the least time for its weight."""
    return sorted(waiting, key=lambda one: one.share_s)


def priority(waiting: Sequence[Claimant]) -> Sequence[Claimant]:
    """Serve the highest priority; equals in the order of asking."""
    return sorted(waiting, key=lambda one: -one.rank)


def slowdown(waiting: Sequence[Claimant]) -> Sequence[Claimant]:
    """Serve the job that is furthest beyond its bound, or nearest to it (Weave, OSDI '26)."""
    return sorted(waiting, key=lambda one: -one.excess)


POLICIES: Mapping[PolicyName, Policy] = {
    PolicyName.FIFO: fifo,
    PolicyName.FAIR: fair,
    PolicyName.PRIORITY: priority,
    PolicyName.SLOWDOWN: slowdown,
    PolicyName.HARVEST: fifo,
}


def order(queue: Iterable[Claimant], patience_s: float) -> list[str]:
    """The tenants in the order of service."""
    waiting = list(queue)
    overdue = [one for one in waiting if one.waited_s >= patience_s]
    ahead = [one for one in waiting if one.waited_s < patience_s and not one.objectives.harvests]
    harvest = [one for one in waiting if one.waited_s < patience_s and one.objectives.harvests]
    served = {
        name: iter(policy([one for one in ahead if one.objectives.policy is name]))
        for name, policy in POLICIES.items()
    }
    merged = [next(served[one.objectives.policy]) for one in ahead]
    return [one.tenant for one in (*overdue, *merged, *harvest)]


def interrupts(waiting: Claimant, holder: Claimant, patience_s: float) -> bool:
    """Whether the holder should leave at its next step, in the middle of its work.

    If not, it should as soon as it has nothing to do.
    """
    if waiting.waited_s >= patience_s:
        return True
    if waiting.objectives.harvests is not holder.objectives.harvests:
        return holder.objectives.harvests
    both = {waiting.objectives.policy, holder.objectives.policy}
    return both != {PolicyName.PRIORITY} or waiting.rank >= holder.objectives.priority
