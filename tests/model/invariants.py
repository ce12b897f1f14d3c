"""What must be true between any two steps of a world, in the design's words."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from claim_phases.node import Node
from claim_phases.phases import TURN, Phase
from claim_phases.taints import Reason, tainted

if TYPE_CHECKING:
    from tests.model.world import World

Key = tuple[object, ...]
Invariant = Callable[["World"], None]


class Violation(AssertionError):
    """Something that must always be true is not."""


def one_turn_on_a_device(world: "World") -> None:
    """Two tenants never hold a turn on one device, neither by the arbiter's record nor by their
    own account."""
    for device, _ in world.spec.devices:
        own = [
            agent.name
            for agent in world.agents.values()
            if agent.alive
            and agent.frozen is None
            and agent.tenancy.phase in TURN
            and device in agent.spec.devices
        ]
        if len(own) > 1:
            raise Violation(f"{own} each believe to have the turn on {device}")
        if world.turns is None:
            continue
        holders = [t.name for t in world.node.on(device) if t.phase in TURN]
        if len(holders) > 1:
            raise Violation(f"{holders} have turns on {device}")


def no_turn_on_a_failed_device(world: "World") -> None:
    """Whose device is known to have failed has no turn, and is told; nor does it wait to resume."""
    if world.turns is None:
        return
    for tenant in world.node.tenants.values():
        if tenant.phase in (*TURN, Phase.YIELDED) and world.node.failed(tenant):
            raise Violation(f"{tenant.name} is {tenant.phase} on a device that failed")


def resident_within_the_device(world: "World") -> None:
    """What is resident never exceeds the device."""
    for device, total in world.spec.devices:
        if world.used(device) - world.lagging.get(device, 0) > total:
            raise Violation(f"{world.used(device)} of {total} in use on {device}")


def aside_is_aside(world: "World") -> None:
    """Who is Parked or Waiting holds no more than its residual budget, and what it was let keep or
    given room for ahead of its turn, or it cheats."""
    if world.turns is None:
        return
    for tenant in world.node.tenants.values():
        agent = world.agents[tenant.name]
        same_life = str(agent.life) == tenant.who.incarnation
        if tenant.aside and agent.honest and same_life and agent.held > tenant.budget:
            raise Violation(f"{tenant.name} is {tenant.phase} and holds {agent.held}")


def samples_are_of_the_parked(world: "World") -> None:
    """The trend of a residual has what its tenant kept while parked, and nothing of its turns."""
    if world.turns is None:
        return
    for tenant in world.node.tenants.values():
        for trend in tenant.residuals.values():
            if max(trend.recent) > tenant.who.residual:
                raise Violation(f"{tenant.name} kept {trend.recent}, says its trend")


def stored_is_live(world: "World") -> None:
    """The journal has whatever tenants were or will be told of."""
    if world.turns is None:
        return
    if world.stored is world.node:
        return
    stored, live = promises(world.stored), promises(world.node)
    if stored != live:
        raise Violation(f"stored {stored[0]} {stored[1]}, live {live}")


def queue_is_sound(world: "World") -> None:
    """The queue has each tenant once, and only those that live and wait."""
    if world.turns is None:
        return
    node = world.node
    if len(set(node.queue)) != len(node.queue):
        raise Violation(f"twice in the queue: {node.queue}")
    for name in node.queue:
        tenant = node.tenants.get(name)
        if tenant is None or tenant.gone or tenant.phase in (*TURN, Phase.PARKED):
            raise Violation(f"{name} is in the queue and {tenant}")
    for tenant in node.tenants.values():
        if tenant.phase is Phase.WAITING and tenant.name not in node.queue:
            raise Violation(f"{tenant.name} waits outside of the queue")


def taints_have_a_cause(world: "World") -> None:
    """A device is tainted for a fault only while one of its tenants is at fault."""
    if world.turns is None:
        return
    for name, taints in tainted(world.node).items():
        faulted = any(tenant.fault for tenant in world.node.on(name))
        if not faulted and any(taint.reason is Reason.FAULTED for taint in taints):
            raise Violation(f"{name} is tainted, and no tenant of it is at fault")


INVARIANTS = (
    one_turn_on_a_device,
    no_turn_on_a_failed_device,
    resident_within_the_device,
    aside_is_aside,
    samples_are_of_the_parked,
    stored_is_live,
    queue_is_sound,
    taints_have_a_cause,
)

BEYOND_THE_KEY = (samples_are_of_the_parked, stored_is_live)
"""Those that look at something which states with equal keys need not have in common."""


def promises(node: Node) -> tuple[int, list[Key]]:
    """What tenants were or will be told of."""
    return (
        node.epoch,
        [
            (t.name, t.who.incarnation, t.phase, t.epoch, t.taken, t.ahead, t.kept, t.frozen)
            for t in node.tenants.values()
        ],
    )


def decisions(node: Node) -> object:
    """All that the arbiter decided."""
    return (node.queue, promises(node), [(t.request, t.fault) for t in node.tenants.values()])
