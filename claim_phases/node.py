"""What the arbiter knows of its node: tenants, devices, the queue, the epoch. Plain data."""

from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from claim_phases.escalation import Rung, Step
from claim_phases.phases import ASIDE, Phase
from claim_phases.policies import Objectives, PolicyName
from claim_phases.residuals import Trend

STATE_VERSION = 7
READ_VERSIONS = (1, 2, 3, 4, 5, 6, 7)
"""Version 1 has no times and no objectives, 2 nothing of restoring ahead, no failed devices and no
trends of residuals, 3 nothing of what is kept, 4 of what is frozen, 5 no leases of tenants, and it
does not tell the steps about the present fault from those before, 6 not which turn was unasked:
what one lacks is as at the beginning. Version 2 does not know what parking takes of the host:
nothing is asked of who was there before."""

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Membership:
    """Who a session's peer is, as the node knows it (never as the peer says it).

    `incarnation` differs between two lives of one tenant (a pod's UID, a process's start);
    `need` is what the tenant holds on each device while it runs, None when nobody declared it;
    `residual` is what it may keep on each device while parked. Bytes. `job` names those with which
    it shares turns and delay; its own name where nobody said. `ladder` is what the admin has
    done about it when it is at fault. `host`: bytes that parking moves from all its devices
    together into its own host memory, None when that is not known.
    """

    tenant: str
    role: str
    incarnation: str
    devices: tuple[str, ...]
    need: int | None
    residual: int
    job: str = ""
    objectives: Objectives = Objectives()
    ladder: tuple[Rung, ...] = ()
    host: int | None = None


@dataclass(slots=True)
class Job:
    """A job's times on the node, in seconds.

    `share_s` is what its turns count under the policy `fair`, by its weight. `alive_s`: since it
    first asked; `delayed_s`: of that, while one of its tenants waited and none had a turn.
    `behind_s`: how far its share was behind that of the others when it last wanted a turn.
    """

    share_s: float = 0.0
    alive_s: float = 0.0
    delayed_s: float = 0.0
    behind_s: float = 0.0


@dataclass(slots=True)
class Tenant:
    """A tenant on record.

    Steps (`Node.seq`): `since` is that of its last phase change, `lost` that of the loss of its
    session, `asked` that of its newest measurement for a grant, `blocked` the one since which a
    fault keeps it waiting, `refused` that of the newest refusal for want of room, `faulty` the one
    since which it is at fault itself, `freed` that of its newest word that some of its memory is
    parked. `attempts` and `overdue` are about the measurements of its present phase, `attempts`
    about such words while it releases. `parked`: it gave back its newest turn by its own word.
    `frozen`: its processes stand still, and so many bytes that they held are on the host (None:
    they run); `thawing`: the life of it that is being thawed, empty when none is. `fault` stays
    until its memory is measured to be back; `steps`: those of its ladder that were taken about it;
    `rung`: how many were, with those before it was frozen and went on. `taken` is the newest epoch
    that was taken from it, `unasked` that of a turn that it did not ask for, since it was frozen,
    until it asks again. CLOCK_MONOTONIC: `asked_at` is when it began to wait, `wanted_at` when
    it was first told to leave its present turn (0.0: it was not), `back_at` when it will want a
    turn again, by its own word. `pieces`: it can park and restore in pieces. Bytes on each device,
    beyond its residual budget: `ahead` is what it was given room for ahead of its turn, `kept` what
    it may keep from the one before. `ran`: it had a turn in this life, or room, or was frozen.

    `residuals` is the trend of what it keeps on each device while parked, in this life; `sampled`
    is the epoch of the newest turn whose park is in it; `growing`: it was told that it grows.
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
    told_idle: int = 0
    asked_at: float = 0.0
    wanted_at: float = 0.0
    back_at: float = 0.0
    parked: bool = True
    frozen: int | None = None
    thawing: str = ""
    refused: int = 0
    ran: bool = False
    fault: str = ""
    faulty: int = 0
    rung: int = 0
    steps: tuple[Step, ...] = ()
    taken: int = 0
    taken_why: str = ""
    unasked: int = 0
    pieces: bool = False
    ahead: int = 0
    kept: int = 0
    freed: int = 0
    sampled: int = 0
    growing: bool = False
    residuals: dict[str, Trend] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.who.tenant

    @property
    def job(self) -> str:
        return self.who.job or self.who.tenant

    @property
    def next_rung(self) -> Rung | None:
        """What is done next about its fault; to kill, or else to freeze, is repeated at the end."""
        ladder = self.who.ladder
        if self.rung < len(ladder):
            return ladder[self.rung]
        again = [rung for rung in reversed(ladder) if rung.step in (Step.CHECKPOINT, Step.KILL)]
        return max(again, key=lambda rung: rung.step is Step.KILL, default=None)

    @property
    def takes(self) -> int:
        """Bytes that a turn gives it on each device, as far as that is known."""
        return max(self.who.need or 0, self.frozen or 0)

    @property
    def aside(self) -> bool:
        return self.phase in ASIDE

    @property
    def unproven(self) -> bool:
        """Whether its host memory is to be read before it may have a turn: this life's first.

        Afterwards what it parked is in that memory, and leaves it when it is restored: what it
        needs for the next time cannot be told from what it uses now.
        """
        return not self.ran and self.who.host is not None

    @property
    def residual(self) -> int:
        """Bytes that it may keep on each device while parked; a dead tenant keeps nothing."""
        return 0 if self.gone else self.who.residual

    @property
    def budget(self) -> int:
        """Bytes that it may hold on each device without a turn."""
        return self.residual + self.beyond

    @property
    def beyond(self) -> int:
        """What of its budget is not for good: what it restores ahead begins with what it kept."""
        return max(self.ahead, self.kept)


@dataclass(slots=True)
class Device:
    """A device's size and what foreigners held at the beginning, in bytes.

    `foreign` and `whose`: what is held beyond that, and by whom; `unseen` and `early`: bytes of
    nobody, and of tenants before their hello, in the newest reading; `failed`: why it could not be
    read since then, empty while it is well; `changed`: the step of the last phase change of one of
    its tenants, or of its failure.
    """

    name: str
    total: int
    baseline: int = 0
    foreign: int = 0
    unseen: int = 0
    early: int = 0
    whose: str = ""
    failed: str = ""
    changed: int = 0


@dataclass(slots=True)
class Node:
    """All that must survive the arbiter. `epoch` only grows while `boot_id` stays.

    `at`: until when the jobs' times are counted, CLOCK_MONOTONIC.
    """

    boot_id: str
    devices: dict[str, Device]
    epoch: int = 0
    seq: int = 0
    queue: list[str] = field(default_factory=list)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    at: float = 0.0

    def life(self, who: Membership) -> Tenant | None:
        """What is on record of this life of the tenant; None when it is over."""
        tenant = self.tenants.get(who.tenant)
        if tenant is None or tenant.gone or tenant.who.incarnation != who.incarnation:
            return None
        return tenant

    def on(self, device: str) -> list[Tenant]:
        """The tenants of a device."""
        return [t for t in self.tenants.values() if device in t.who.devices]

    def failed(self, tenant: Tenant) -> list[Device]:
        """Those of the tenant's devices that cannot be read: nothing on them can be measured."""
        devices = (self.devices[name] for name in tenant.who.devices)
        return [device for device in devices if device.failed]

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
                name: {
                    **_plain(tenant),
                    "who": _who(tenant.who),
                    "residuals": {on: _plain(trend) for on, trend in tenant.residuals.items()},
                }
                for name, tenant in self.tenants.items()
            },
            "jobs": {name: _plain(job) for name, job in self.jobs.items()},
            "at": self.at,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read a snapshot; ValueError when it is of another version or not whole."""
        version = data.get("state_version")
        if version not in READ_VERSIONS:
            raise ValueError(f"state version {version}, this arbiter reads {STATE_VERSION}")
        try:
            if version == 1:
                data = _of_version_1(data)
            if version < 6:
                data = _of_version_5(data)
            if version < STATE_VERSION:
                data = _of_version_6(data)
            node = cls(
                boot_id=data["boot_id"],
                devices={name: _record(Device, raw) for name, raw in data["devices"].items()},
                epoch=data["epoch"],
                seq=data["seq"],
                queue=list(data["queue"]),
                tenants={name: _tenant(raw) for name, raw in data["tenants"].items()},
                jobs={name: _record(Job, raw) for name, raw in data["jobs"].items()},
                at=data["at"],
            )
        except (KeyError, TypeError, AttributeError) as exc:
            raise ValueError(f"not a whole snapshot: {exc}") from exc
        if strangers := set(node.queue) - node.tenants.keys():
            raise ValueError(f"not a whole snapshot: no tenant {min(strangers)}, which waits")
        return node


def _plain(record: Membership | Tenant | Device | Job | Objectives | Trend) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _who(who: Membership) -> dict[str, Any]:
    ladder = [[rung.step, rung.after_s] for rung in who.ladder]
    return {**_plain(who), "objectives": _plain(who.objectives), "ladder": ladder}


def _of_version_1(data: dict[str, Any]) -> dict[str, Any]:
    tenants = {
        name: {
            "told_idle": 0,
            "asked_at": 0.0,
            "wanted_at": 0.0,
            "back_at": 0.0,
            "faulty": 0,
            "rung": 0,
        }
        | raw
        | {"who": {"job": "", "objectives": _plain(Objectives()), "ladder": []} | raw["who"]}
        for name, raw in data["tenants"].items()
    }
    return {"jobs": {}, "at": 0.0} | data | {"tenants": tenants}


def _of_version_5(data: dict[str, Any]) -> dict[str, Any]:
    """Of that version or one of the three before it."""
    lacks: dict[str, Any] = {"pieces": False, "ahead": 0, "kept": 0, "freed": 0, "ran": True}
    lacks |= {"sampled": 0, "growing": False, "residuals": {}, "frozen": None, "thawing": ""}
    lacks |= {"refused": 0}
    tenants = {
        name: lacks
        | raw
        | {
            "who": {"host": None}
            | raw["who"]
            | {"objectives": {"lease_s": None} | raw["who"]["objectives"]},
            "steps": [step for step, _ in raw["who"]["ladder"][: raw["rung"]] if raw["faulty"]],
        }
        for name, raw in data["tenants"].items()
    }
    devices = {name: {"failed": ""} | raw for name, raw in data["devices"].items()}
    return data | {"tenants": tenants, "devices": devices}


def _of_version_6(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"tenants": {name: {"unasked": 0} | raw for name, raw in data["tenants"].items()}}


def _record(kind: type[_R], raw: dict[str, Any]) -> _R:
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if missing := known - raw.keys():
        raise KeyError(f"{kind.__name__} has no {min(missing)}")
    return kind(**raw)


def _tenant(raw: dict[str, Any]) -> Tenant:
    who = raw["who"]
    objectives = _record(
        Objectives, {**who["objectives"], "policy": PolicyName(who["objectives"]["policy"])}
    )
    ladder = tuple(Rung(Step(step), after_s) for step, after_s in who["ladder"])
    parsed = {"devices": tuple(who["devices"]), "objectives": objectives, "ladder": ladder}
    membership = _record(Membership, {**who, **parsed})
    residuals = {
        name: _record(Trend, {**one, "recent": tuple(one["recent"]), "life": tuple(one["life"])})
        for name, one in raw["residuals"].items()
    }
    parsed = {
        "who": membership,
        "phase": Phase(raw["phase"]),
        "steps": tuple(map(Step, raw["steps"])),
        "residuals": residuals,
    }
    return _record(Tenant, {**raw, **parsed})
