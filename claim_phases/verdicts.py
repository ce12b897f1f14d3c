"""What a measurement means: pure functions over the node's record and what was read."""

from collections.abc import Mapping
from dataclasses import dataclass

from claim_phases.events import Headroom, Usage
from claim_phases.node import Device, Node, Tenant
from claim_phases.phases import TURN, Phase

MIB = 1 << 20

WHOLE = TURN | {Phase.YIELDED}
"""The phases in which a tenant holds all that it needs, or will."""


def mib(size: int) -> str:
    """A size for people."""
    return f"{size / MIB:.1f} MiB"


@dataclass(frozen=True, slots=True)
class Excess:
    """Bytes of a device that belong to none of its tenants, beyond what was there at first.

    `seen` is False when no process could be found for any of it. `intruder` names a tenant of the
    node that holds more than it may before its hello, or on a device that is not its own, and
    `held` what it holds. `early`: what others hold within their budgets before their hello.
    """

    size: int
    whose: str
    seen: bool
    intruder: str = ""
    held: int = 0
    early: int = 0


def allowed(node: Node, device: Device, *, grants_to: Tenant | None = None) -> int | None:
    """How many bytes all that have no turn on a device may hold together: Tandem's "free".

    None when that cannot be said of the sum: a release could hide in the room of another that
    restores ahead, or kept some. `grants_to`: for its grant, tenants that yielded and stay count
    with their declared need, and what of this sum is held in such room (`held_beyond`) does not.
    """
    total = device.baseline + device.early
    for tenant in node.on(device.name):
        if tenant.beyond and grants_to is None:
            return None
        if tenant.beyond and tenant.aside:
            continue
        if tenant.aside or tenant.phase is Phase.VERIFYING:
            total += tenant.budget
        elif grants_to and tenant.phase is Phase.YIELDED and tenant.who.need is not None:
            total += max(tenant.who.need, tenant.who.residual)
        else:
            return None
    return total


def held_beyond(node: Node, usage: Usage) -> int:
    """What tenants hold of a device that may hold more than their residual budgets. Attributed."""
    present = node.on(usage.device)
    return sum(usage.of(one.name) or 0 for one in present if one.aside and one.beyond)


def is_back(node: Node, tenant: Tenant, usage: Usage) -> bool:
    """Whether the memory of a tenant that released is back on a device."""
    own = usage.of(tenant.name)
    if own is not None:
        return own <= tenant.budget
    limit = allowed(node, node.devices[usage.device])
    return limit is not None and usage.used <= limit


def over_budget(tenant: Tenant, usages: Mapping[str, Usage]) -> tuple[str, int] | None:
    """The device on which a tenant holds most beyond its budget, with the bytes; None: nowhere."""
    held = (
        (usages[name].of(tenant.name) or 0, name) for name in tenant.who.devices if name in usages
    )
    size, worst = max(held, default=(0, ""))
    return (worst, size) if size > tenant.budget else None


def excess(node: Node, device: Device, usage: Usage) -> Excess:
    """What of an attributed reading belongs to none of the device's tenants."""
    on_record = {tenant.name for tenant in node.on(device.name)}
    budgets = dict(usage.budgets)
    others = {name: size for name, size in usage.tenants or () if name not in on_record}
    intruders = {name: size for name, size in others.items() if size > budgets.get(name, 0)}
    early = sum(others.values()) - sum(intruders.values())
    foreign = usage.foreign or 0
    ending = (one for one in node.on(device.name) if one.name in usage.ending)
    may_be = sum(max(0, one.budget - (usage.of(one.name) or 0)) for one in ending)
    nobodys = max(0, usage.unknown - may_be)
    size = max(0, foreign + nobodys + sum(intruders.values()) - device.baseline)
    if intruders:
        name = max(intruders, key=intruders.__getitem__)
        whose = f"{name}, which has no turn (Intruder)"
        return Excess(size, whose, True, name, intruders[name], early)
    whose = "processes of no tenant" if foreign else "nobody that can be seen"
    return Excess(size, f"{whose} (ForeignMemory)", bool(foreign), early=early)


def fit(node: Node, tenant: Tenant, residents: list[Tenant]) -> bool:
    """Whether the declared needs of all leave everybody resident: then nobody is displaced."""
    together = [tenant, *residents]
    for name in tenant.who.devices:
        device, total = node.devices[name], 0
        for other in node.on(name):
            if other not in together:
                total += other.budget
            elif other.who.need is None:
                return False
            else:
                total += max(other.who.need, other.who.residual)
        if device.baseline + total > device.total:
            return False
    return True


def crowds_out(node: Node, tenant: Tenant) -> str:
    """Why this tenant's residual budget leaves one too little that came before it; else empty.

    Parked, all others may keep their budgets beside one that runs: the sum must fit the device.
    """
    for name in tenant.who.devices:
        device, present = node.devices[name], node.on(name)
        formers = present[: present.index(tenant)]
        budgets = tenant.residual + sum(former.residual for former in formers)
        for former in formers:
            need = former.who.need or 0
            others = budgets - former.residual
            could_run = device.baseline + need <= device.total and not former.gone
            if need and could_run and device.baseline + others + need > device.total:
                return (
                    f"its residual budget of {mib(tenant.residual)} leaves {former.name} too "
                    f"little: that needs {mib(need)} of {name}, the others may keep {mib(others)}, "
                    f"{mib(device.baseline)} are foreign, and all is {mib(device.total)}: lower "
                    f"the residual budget"
                )
    return ""


def short_of_room(node: Node, tenant: Tenant, usages: Mapping[str, Usage]) -> Usage | None:
    """The reading that has not the room that the tenant needs; None when all have.

    What the tenant itself still holds is part of its need; only an attributed reading tells it.
    """
    for name in tenant.who.devices:
        usage = usages[name]
        room = node.devices[name].total - usage.used + (usage.of(tenant.name) or 0)
        if room < tenant.takes:
            return usage
    return None


def room_ahead(node: Node, tenant: Tenant, usages: Mapping[str, Usage]) -> int:
    """Bytes on each device that a tenant can restore ahead, beyond its residual budget.

    The readings are attributed, and the others are those that keep their memory or give it back:
    each may still take what it is promised.
    """
    rooms = []
    for name in tenant.who.devices:
        device, usage = node.devices[name], usages[name]
        present = {other.name: other for other in node.on(name)}
        kept = max(device.baseline, usage.foreign or 0) + usage.unknown
        kept += sum(size for whose, size in usage.tenants or () if whose not in present)
        for other in present.values():
            if other is tenant:
                continue
            promised = other.budget
            if other.phase is Phase.YIELDED:
                if other.who.need is None:
                    return 0
                promised = max(other.who.need, other.residual)
            kept += max(promised, usage.of(other.name) or 0)
        room = device.total - kept
        rooms.append(room if tenant.who.need is None else min(room, tenant.who.need))
    return max(0, min(rooms) - tenant.residual)


def room_to_keep(node: Node, tenant: Tenant, waiting: Tenant | None = None) -> int:
    """Bytes on each device, beyond its residual budget, that a tenant need not park for the sake of
    those that have a turn, or wait for it: each of the others may have what it is promised.
    """
    if not tenant.pieces:
        return 0
    rooms = []
    for name in tenant.who.devices:
        device = node.devices[name]
        room = device.total - device.baseline - device.foreign - tenant.residual
        for other in node.on(name):
            if other is tenant:
                continue
            if not (other is waiting or other.phase in WHOLE):
                room -= other.budget
            elif other.who.need is None:
                return 0
            else:
                room -= max(other.who.need, other.residual)
        rooms.append(room)
    return max(0, min(rooms))


def cannot_park(tenant: Tenant, headroom: Headroom) -> str:
    """Why the tenant could not park what its turn would bring to its devices; else empty."""
    moves = tenant.who.host or 0
    lacks = moves - headroom.left
    if lacks <= 0:
        return ""
    return (
        f"it could not park: that moves {mib(moves)} into its pod's memory, which has "
        f"{mib(headroom.left)} left within its limit of {mib(headroom.limit)}: raise the limit by "
        f"at least {-(-lacks // MIB)} MiB, or say in the claim how much parking moves (`host`)"
    )


def causes(node: Node, tenant: Tenant) -> list[str]:
    """The faults that keep a waiting tenant from its devices, a sentence each."""
    if broken := node.failed(tenant):  # whatever else there is, this comes first
        return [f"{device.name} failed ({device.failed})" for device in broken]
    found = [
        f"{other.name} is at fault: {other.fault}"
        for other in (tenant, *node.beside(tenant))
        if other.fault
    ]
    found += [
        f"{other.name} cannot be measured to have left: {device.name} failed ({device.failed})"
        for other in node.beside(tenant)
        if other.phase is Phase.VERIFYING
        for device in node.failed(other)
    ]
    devices = [node.devices[name] for name in tenant.who.devices]
    return found + [
        f"{mib(device.foreign)} of {device.name} belong to {device.whose}"
        for device in devices
        if device.foreign
    ]
