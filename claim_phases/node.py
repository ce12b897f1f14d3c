"""What the arbiter knows of its node: tenants, devices, the queue, the epoch. Plain data."""

from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from claim_phases.phases import ASIDE, Phase

STATE_VERSION = 1

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Membership:
    """Who a session's peer is, as the node knows it (never as the peer says it).

    `incarnation` differs between two lives of one tenant (a pod's UID, a process's start);
    `need` is what the tenant holds on each device while it runs, None when nobody declared it;
    `residual` is what it may keep on each device while parked. Bytes.
    """

    tenant: str
    role: str
    incarnation: str
    devices: tuple[str, ...]
    need: int | None
    residual: int


@dataclass(slots=True)
class Tenant:
    """A tenant on record.

    Steps (`Node.seq`): `since` is that of its last phase change, `lost` that of the loss of its
    session, `asked` that of its newest measurement for a grant, `blocked` the one since which a
    fault keeps it waiting. `attempts` and `overdue` are about the measurements of its present
    phase. `parked`: it gave back its newest turn by its own word. `fault` stays until its memory
    is measured to be back; `taken` is the newest epoch that was taken from it.
    """

    who: Membership
    phase: Phase = Phase.PARKED
    epoch: int = 0
    request: int = 0
    connected: bool = False
    gone: bool = False
    since: int = 0
    lost: int = 0
    asked: int = 0
    blocked: int = 0
    attempts: int = 0
    overdue: bool = False
    told_wanted: int = 0
    parked: bool = True
    fault: str = ""
    taken: int = 0
    taken_why: str = ""

    @property
    def name(self) -> str:
        return self.who.tenant

    @property
    def aside(self) -> bool:
        return self.phase in ASIDE

    @property
    def budget(self) -> int:
        """Bytes that it may keep on each device without a turn; a dead tenant keeps nothing."""
        return 0 if self.gone else self.who.residual


@dataclass(slots=True)
class Device:
    """A device's size and what foreigners held at the beginning, in bytes.

    `foreign` and `whose`: what is held beyond that, and by whom; `unseen` and `early`: bytes of
    nobody, and of tenants before their hello, in the newest reading; `changed`: the step of the
    last phase change of one of its tenants.
    """

    name: str
    total: int
    baseline: int = 0
    foreign: int = 0
    unseen: int = 0
    early: int = 0
    whose: str = ""
    changed: int = 0


@dataclass(slots=True)
class Node:
    """All that must survive the arbiter. `epoch` only grows while `boot_id` stays."""

    boot_id: str
    devices: dict[str, Device]
    epoch: int = 0
    seq: int = 0
    queue: list[str] = field(default_factory=list)
    tenants: dict[str, Tenant] = field(default_factory=dict)

    def on(self, device: str) -> list[Tenant]:
        """The tenants of a device."""
        return [t for t in self.tenants.values() if device in t.who.devices]

    def beside(self, tenant: Tenant) -> list[Tenant]:
        """The other tenants with a device in common."""
        mine = set(tenant.who.devices)
        return [t for t in self.tenants.values() if t is not tenant and mine & set(t.who.devices)]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready snapshot that `from_json` reads back."""
        return {
            "state_version": STATE_VERSION,
            "boot_id": self.boot_id,
            "epoch": self.epoch,
            "seq": self.seq,
            "queue": list(self.queue),
            "devices": {name: _plain(device) for name, device in self.devices.items()},
            "tenants": {
                name: {**_plain(tenant), "who": _plain(tenant.who)}
                for name, tenant in self.tenants.items()
            },
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read a snapshot; ValueError when it is of another version or not whole."""
        version = data.get("state_version")
        if version != STATE_VERSION:
            raise ValueError(f"state version {version}, this arbiter reads {STATE_VERSION}")
        try:
            node = cls(
                boot_id=data["boot_id"],
                devices={name: _record(Device, raw) for name, raw in data["devices"].items()},
                epoch=data["epoch"],
                seq=data["seq"],
                queue=list(data["queue"]),
                tenants={name: _tenant(raw) for name, raw in data["tenants"].items()},
            )
        except (KeyError, TypeError, AttributeError) as exc:
            raise ValueError(f"not a whole snapshot: {exc}") from exc
        if strangers := set(node.queue) - node.tenants.keys():
            raise ValueError(f"not a whole snapshot: no tenant {min(strangers)}, which waits")
        return node


def _plain(record: Membership | Tenant | Device) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _record(kind: type[_R], raw: dict[str, Any]) -> _R:
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if missing := known - raw.keys():
        raise KeyError(f"{kind.__name__} has no {min(missing)}")
    return kind(**raw)


def _tenant(raw: dict[str, Any]) -> Tenant:
    who = raw["who"]
    membership = _record(Membership, {**who, "devices": tuple(who["devices"])})
    return _record(Tenant, {**raw, "who": membership, "phase": Phase(raw["phase"])})
