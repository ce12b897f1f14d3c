"""What is read of Kubernetes' objects: raw dicts in, frozen views of them out.

What is not known is passed over. `Malformed` means that the object is none that an API server of
Kubernetes has validated.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeVar

from scheduler_extender import claim_config
from scheduler_extender.claim_config import ConfigError
from scheduler_extender.names import DEVICE_CLASS, DRIVER, ROLE, TURN

Raw = Mapping[str, Any]
Amounts = Mapping[str, int]
"""Resource to amount: cpu in thousandths of a core, everything else in its own unit (bytes)."""

_QUANTITY: Final = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+))([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+|)", re.ASCII
)
_UNITS: Final[Mapping[str, Decimal]] = {
    "": Decimal(1),
    **{f"{letter}i": Decimal(1024) ** n for n, letter in enumerate("KMGTPE", start=1)},
    **{letter: Decimal(1000) ** -n for n, letter in enumerate("mun", start=1)},
    **{letter: Decimal(1000) ** n for n, letter in enumerate("kMGTPE", start=1)},
}


class Malformed(Exception):
    """Not what it claims to be; says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of a pod's resourceClaims. `claim` is None while none was made from the template."""

    claim: str | None
    template: str | None


@dataclass(frozen=True, slots=True)
class Toleration:
    """An empty key or effect, and a value of None, stand for any."""

    key: str
    value: str | None
    effect: str


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a node selector. `field` is true when it asks for a field, not a label."""

    key: str
    operator: str
    values: tuple[str, ...]
    field: bool


Term = tuple[Requirement, ...]
"""All of its requirements must hold; of several terms one is enough."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, as far as placing it goes. `role` is None for a pod that is none of ours."""

    uid: str
    namespace: str
    name: str
    created: str
    node: str
    role: str | None
    gates: tuple[str, ...]
    claims: tuple[PodClaim, ...]
    requests: Amounts
    node_selector: Mapping[str, str]
    affinity: tuple[Term, ...] | None
    tolerations: tuple[Toleration, ...]
    ending: bool
    finished: bool

    @property
    def claim_keys(self) -> tuple[str, ...]:
        """Keys of the claims that it refers to and that were made."""
        return tuple(
            f"{self.namespace}/{entry.claim}" for entry in self.claims if entry.claim is not None
        )


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    taints: tuple[Taint, ...]
    unschedulable: bool


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a device has of something, and what a request takes that does not say how much."""

    value: int
    default: int


@dataclass(frozen=True, slots=True)
class Device:
    """A device of our driver. `shared`: several allocations may take of its capacity."""

    pool: str
    name: str
    shared: bool
    capacity: Mapping[str, Capacity]
    tainted: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """A node's ResourceSlice. Of a pool only the slices of its newest generation count."""

    name: str
    node: str
    pool: str
    generation: int
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A claim's request for devices of ours. `count` is None when it asks for all of a node's."""

    count: int | None
    capacity: Amounts


@dataclass(frozen=True, slots=True)
class Allocated:
    """A device that an allocation takes, or a part of it."""

    pool: str
    device: str
    consumed: Amounts


@dataclass(frozen=True, slots=True)
class Allocation:
    """Where a claim was allocated. `nodes` is None when that is everywhere."""

    devices: tuple[Allocated, ...]
    nodes: tuple[Term, ...] | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim. `roles` is empty when it names none: then any one pod is complete.

    `fault` says why its configuration cannot be read. `evict` are the UIDs of its pods that its
    node's driver wants to be evicted: they are at fault, and do not leave.
    """

    namespace: str
    name: str
    roles: frozenset[str]
    fault: str
    asks: tuple[Ask, ...]
    allocation: Allocation | None
    ending: bool
    evict: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


_View = TypeVar("_View")


def _reader(read: Callable[[Raw], _View]) -> Callable[[Raw], _View]:
    def guarded(raw: Raw) -> _View:
        try:
            return read(raw)
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise Malformed(f"not a {read.__name__.capitalize()} of Kubernetes: {exc!r}") from exc

    return guarded


@_reader
def pod(raw: Raw) -> Pod:
    """Read a pod."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return Pod(
        uid=metadata.get("uid", ""),
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        node=spec.get("nodeName", ""),
        role=metadata.get("annotations", {}).get(ROLE),
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates", ())),
        claims=tuple(_pod_claims(spec, status)),
        requests=_requests(spec),
        node_selector=dict(spec.get("nodeSelector", {})),
        affinity=None if required is None else _terms(required),
        tolerations=tuple(map(_toleration, spec.get("tolerations", ()))),
        ending="deletionTimestamp" in metadata,
        finished=status.get("phase") in ("Succeeded", "Failed"),
    )


@_reader
def node(raw: Raw) -> Node:
    """Read a node."""
    spec = raw.get("spec", {})
    return Node(
        name=raw["metadata"]["name"],
        labels=dict(raw["metadata"].get("labels", {})),
        allocatable=_amounts(raw.get("status", {}).get("allocatable", {})),
        taints=tuple(
            Taint(taint["key"], taint.get("value", ""), taint["effect"])
            for taint in spec.get("taints", ())
        ),
        unschedulable=bool(spec.get("unschedulable", False)),
    )


@_reader
def slice(raw: Raw) -> Slice:  # noqa: A001 - read as objects.slice
    """Read a ResourceSlice of our driver."""
    spec = raw["spec"]
    pool = spec["pool"]
    return Slice(
        name=raw["metadata"]["name"],
        node=spec.get("nodeName", ""),
        pool=pool["name"],
        generation=pool["generation"],
        devices=tuple(_device(pool["name"], device) for device in spec.get("devices") or ()),
    )


@_reader
def claim(raw: Raw) -> Claim:
    """Read a ResourceClaim."""
    metadata, devices = raw["metadata"], raw["spec"].get("devices", {})
    try:
        roles, fault = claim_config.roles(devices.get("config", ())), ""
    except ConfigError as exc:
        roles, fault = frozenset(), str(exc)
    status = raw.get("status", {})
    allocation = status.get("allocation")
    return Claim(
        namespace=metadata["namespace"],
        name=metadata["name"],
        roles=roles,
        fault=fault,
        asks=tuple(_asks(devices.get("requests", ()))),
        allocation=None if allocation is None else _allocation(allocation),
        ending="deletionTimestamp" in metadata,
        evict=frozenset(_evict(status)),
    )


def _evict(status: Raw) -> Iterator[str]:
    """Only of pods that the claim is reserved for: a status is no word about others."""
    consumers = {one["uid"] for one in status.get("reservedFor", ())}
    for device in status.get("devices", ()):
        data = device.get("data")
        if device["driver"] != DRIVER or not isinstance(data, dict):
            continue  # an API server takes any JSON for it
        tenants = data.get("tenants")
        for tenant in tenants if isinstance(tenants, list) else ():
            uid = tenant.get("evict") if isinstance(tenant, dict) else None
            if isinstance(uid, str) and uid in consumers:
                yield uid


def quantity(text: str | float) -> Decimal:
    """The number behind a quantity of Kubernetes: `1500m`, `1.5Gi`, `1e3`. ValueError if none."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    number, unit = match.groups()
    if unit in _UNITS:
        return Decimal(number) * _UNITS[unit]
    return Decimal(number + unit)


def _amount(resource: str, text: str) -> int:
    return math.ceil(quantity(text) * (1000 if resource == "cpu" else 1))


def _amounts(raw: Raw) -> Counter[str]:
    return Counter({resource: _amount(resource, text) for resource, text in raw.items()})


def _requests(spec: Raw) -> Amounts:
    """What the scheduler counts for a pod. KEP-753: a sidecar is counted with all that runs after
    it; an ordinary init container only at its time.
    """
    sidecars: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in spec.get("initContainers", ()):
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            sidecars += asked
            most |= sidecars
        else:
            most |= sidecars + asked
    running = sum(map(_asked, spec["containers"]), sidecars)
    total = dict(most | running)
    total.update(_asked(spec))  # KEP-2837: what the pod says as a whole
    counted = Counter(total) + _amounts(spec.get("overhead", {})) + Counter(pods=1)
    del counted[TURN]
    return dict(counted)


def _asked(raw: Raw) -> Counter[str]:
    resources = raw.get("resources") or {}
    # The API server has filled in a request where there is only a limit.
    return _amounts(resources.get("requests") or {})


def _pod_claims(spec: Raw, status: Raw) -> Iterator[PodClaim]:
    made = {
        entry["name"]: entry.get("resourceClaimName")
        for entry in status.get("resourceClaimStatuses", ())
    }
    for entry in spec.get("resourceClaims", ()):
        name, template = entry["name"], entry.get("resourceClaimTemplateName")
        if template is None:
            yield PodClaim(entry["resourceClaimName"], None)
        elif name not in made:
            yield PodClaim(None, template)
        elif made[name] is not None:  # else it turned out that no claim is needed
            yield PodClaim(made[name], template)


def _toleration(raw: Raw) -> Toleration:
    value = None if raw.get("operator") == "Exists" else raw.get("value", "")
    return Toleration(raw.get("key", ""), value, raw.get("effect", ""))


def _terms(selector: Raw) -> tuple[Term, ...]:
    return tuple(
        tuple(
            Requirement(one["key"], one["operator"], tuple(one.get("values", ())), field)
            for part, field in (("matchExpressions", False), ("matchFields", True))
            for one in term.get(part) or ()
        )
        for term in selector["nodeSelectorTerms"]
    )


def _device(pool: str, raw: Raw) -> Device:
    capacity = {}
    for name, has in raw.get("capacity", {}).items():
        value = _amount(name, has["value"])
        # Without a policy a request that does not say how much takes the whole.
        default = has.get("requestPolicy", {}).get("default", has["value"])
        capacity[name] = Capacity(value, _amount(name, default))
    return Device(
        pool=pool,
        name=raw["name"],
        shared=bool(raw.get("allowMultipleAllocations", False)),
        capacity=capacity,
        tainted=any(taint["effect"] != "None" for taint in raw.get("taints", ())),
    )


def _asks(requests: Any) -> Iterator[Ask]:
    for request in requests:
        exactly, alternatives = request.get("exactly"), request.get("firstAvailable", ())
        if exactly is None:
            # Which one it will be is the scheduler's to find; a device it is in any case.
            if all(one["deviceClassName"] == DEVICE_CLASS for one in alternatives):
                yield Ask(count=1, capacity={})
        elif exactly["deviceClassName"] == DEVICE_CLASS and not exactly.get("adminAccess", False):
            every = exactly.get("allocationMode") == "All"
            yield Ask(
                count=None if every else exactly.get("count", 1),
                capacity=_amounts(exactly.get("capacity", {}).get("requests", {})),
            )


def _allocation(raw: Raw) -> Allocation:
    selector = raw.get("nodeSelector")
    return Allocation(
        devices=tuple(
            Allocated(
                result["pool"], result["device"], _amounts(result.get("consumedCapacity", {}))
            )
            for result in raw.get("devices", {}).get("results", ())
            if result["driver"] == DRIVER and not result.get("adminAccess", False)
        ),
        nodes=None if selector is None else _terms(selector),
    )
