"""Does a set of pods fit one node? By the same arithmetic as the scheduler's, as far as it goes.

What is left to the scheduler (host ports, affinity between pods, volumes, selectors of devices)
may still keep a pod from a node that fits here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler_extender.names import DEVICE_CLASS
from scheduler_extender.objects import (
    Allocated,
    Ask,
    Claim,
    Device,
    Node,
    Pod,
    Requirement,
    Taint,
    Term,
    Toleration,
)

_KEEPS_AWAY: Final = ("NoSchedule", "NoExecute")
_UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_BYTES: Final = ("memory", "ephemeral-storage", "hugepages-")


@dataclass(frozen=True, slots=True)
class Room:
    """A node with all that is on it or will be: pods, and what of its devices is allocated."""

    node: Node
    pods: tuple[Pod, ...] = ()
    devices: tuple[Device, ...] = ()
    allocated: tuple[Allocated, ...] = ()
    promised: tuple[Claim, ...] = ()
    """Claims of pods on their way there that are not allocated yet."""


def obstacle(pods: Sequence[Pod], claims: Sequence[Claim], room: Room) -> str | None:
    """Why these pods, with their claims, do not fit the node together; None when they do."""
    return (  # the cheapest first: most nodes of a large cluster have no device of ours
        _by_taint(pods, room.node)
        or _by_selector(pods, room.node)
        or _by_devices(claims, room)
        or _by_requests(pods, room)
    )


def reaches(claims: Iterable[Claim], node: Node) -> bool:
    """Whether the devices of those claims that are allocated can be used on the node."""
    return all(
        claim.allocation is None or _selected(claim.allocation.nodes, node) for claim in claims
    )


def free_devices(room: Room) -> int:
    """How many devices of the node nobody has, and may be had."""
    taken = {(one.pool, one.device) for one in room.allocated}
    return sum(
        (device.pool, device.name) not in taken and not device.tainted for device in room.devices
    )


def readable(resource: str, amount: int) -> str:
    """An amount as people write it: `1500m`, `2.5Gi`, `3`."""
    if resource == "cpu":
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if resource.startswith(_BYTES):
        for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if abs(amount) >= size:
                return f"{amount / size:.1f}".removesuffix(".0") + unit
    return str(amount)


def _by_taint(pods: Sequence[Pod], node: Node) -> str | None:
    taints = [taint for taint in node.taints if taint.effect in _KEEPS_AWAY]
    if node.unschedulable and _UNSCHEDULABLE.key not in {taint.key for taint in taints}:
        taints.append(_UNSCHEDULABLE)
    for pod in pods:
        for taint in taints:
            if not any(_tolerates(toleration, taint) for toleration in pod.tolerations):
                value = f"={taint.value}" if taint.value else ""
                return f"pod {pod.name} does not tolerate taint {taint.key}{value}:{taint.effect}"
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    return (
        toleration.key in ("", taint.key)
        and toleration.value in (None, taint.value)
        and toleration.effect in ("", taint.effect)
    )


def _by_selector(pods: Sequence[Pod], node: Node) -> str | None:
    for pod in pods:
        wanted = pod.node_selector.items()
        if not wanted <= node.labels.items() or not _selected(pod.affinity, node):
            return f"it is not a node that pod {pod.name} selects"
    return None


def _selected(terms: tuple[Term, ...] | None, node: Node) -> bool:
    return terms is None or any(
        term and all(_holds(requirement, node) for requirement in term) for term in terms
    )


def _holds(requirement: Requirement, node: Node) -> bool:
    labels: Mapping[str, str] = node.labels
    if requirement.field:
        labels = {"metadata.name": node.name}
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return value is not None and _compares(value, operator, requirement.values[0])
        case _:
            return False


def _compares(value: str, operator: str, bound: str) -> bool:
    try:
        return int(value) > int(bound) if operator == "Gt" else int(value) < int(bound)
    except ValueError:
        return False


def _by_devices(claims: Sequence[Claim], room: Room) -> str | None:
    bench = _Bench(room)
    # What was promised and does not fit any more is not these pods' fault: the scheduler tells.
    for claim in room.promised:
        for ask in claim.asks:
            bench.take(ask)
    for claim in claims:
        if claim.allocation is None and not all(bench.take(ask) for ask in claim.asks):
            wanted = sum(ask.count or 1 for ask in claim.asks)
            tainted = sum(device.tainted for device in room.devices)
            return (
                f"ResourceClaim {claim.name} asks {wanted} device(s) of class {DEVICE_CLASS}, "
                f"{free_devices(room)} of {len(room.devices)} free"
                f"{f', {tainted} tainted' if tainted else ''}"
            )
    return None


class _Bench:
    """A node's devices, taken one after the other."""

    def __init__(self, room: Room) -> None:
        self._devices = [device for device in room.devices if not device.tainted]
        self._taken: dict[tuple[str, str], Counter[str]] = {}
        for one in room.allocated:
            self._taken.setdefault((one.pool, one.device), Counter()).update(one.consumed)

    def take(self, ask: Ask) -> bool:
        """Take what is asked, and say whether all of it was there."""
        if ask.count is None:
            return bool(self._devices) and all(self._take(one, ask) for one in self._devices)
        return all(any(self._take(one, ask) for one in self._devices) for _ in range(ask.count))

    def _take(self, device: Device, ask: Ask) -> bool:
        key = (device.pool, device.name)
        taken = self._taken.get(key)
        if not device.shared:
            if taken is not None:
                return False
            self._taken[key] = Counter()
            return True
        wanted = {
            name: ask.capacity.get(name, capacity.default)
            for name, capacity in device.capacity.items()
        }
        has = taken or Counter()
        if not ask.capacity.keys() <= wanted.keys() or any(
            has[name] + amount > device.capacity[name].value for name, amount in wanted.items()
        ):
            return False
        self._taken[key] = Counter(has) + Counter(wanted)
        return True


def _by_requests(pods: Iterable[Pod], room: Room) -> str | None:
    asked, used = _sum(pods), _sum(room.pods)
    short = []
    for resource, amount in sorted(asked.items()):
        has = room.node.allocatable.get(resource, 0)
        free = has - used[resource]
        if amount > max(free, 0) and amount > 0:
            short.append(
                f"{resource}: {readable(resource, amount)} asked, "
                f"{readable(resource, max(free, 0))} of {readable(resource, has)} free"
            )
    return "; ".join(short) or None


def _sum(pods: Iterable[Pod]) -> Counter[str]:
    total: Counter[str] = Counter()
    for pod in pods:
        total.update(pod.requests)
    return total
