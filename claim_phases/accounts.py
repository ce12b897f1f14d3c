"""Who had the devices for how long, who waited for whom, and what passing the turns on cost.

Pure: fed with what the arbiter tells, in order. Times come as seconds of CLOCK_MONOTONIC and are
kept in whole nanoseconds, so that a sum is the same in whatever order it was made: nothing is lost
or gained when the accounts are stored, read again or added up. A time that lies before the last one
counts as the last one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Self

from claim_phases.escalation import Step
from claim_phases.phases import HOLDING, Phase

VERSION: Final = 1
CAUSES_MAX: Final = 32
GROUPS_MAX: Final = 128


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """A job's tenants of one role. Tenants come and go, their groups stay."""

    job: str
    role: str


OTHERS: Final = Group("(others)", "(others)")
"""What is left of groups that were dropped because there were too many."""

_NOBODY: Final = Group("", "")


class Why(StrEnum):
    """What kept a tenant from running that wanted to."""

    TURN = "turn"  # another ran on its devices
    FAULT = "fault"  # another is Faulted and counts as holding
    START = "start"  # another started: its first grant since its processes began
    SWAP = "swap"  # memory was parked, measured or restored, its own or another's
    NOBODY = "nobody"  # no tenant had its devices: kept for who is ahead, or foreign memory


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """Why, and because of whom; swaps and Why.NOBODY are nobody's."""

    why: Why
    whose: Group = _NOBODY


_SWAP: Final = Cause(Why.SWAP)


@dataclass(slots=True)
class Account:
    """What a tenant, or all of a group's, spent. Nanoseconds.

    `spent` by phase; `device` the same, times the number of its devices. `lost` says where the time
    went in which it wanted to run and did not: all of Waiting, and Restoring but for its starts.
    `steps`: how often each was taken about it, when it was at fault.
    """

    spent: dict[Phase, int] = field(default_factory=dict)
    device: dict[Phase, int] = field(default_factory=dict)
    lost: dict[Cause, int] = field(default_factory=dict)
    turns: int = 0
    steps: dict[Step, int] = field(default_factory=dict)

    @property
    def running(self) -> int:
        return self.spent.get(Phase.RUNNING, 0)

    @property
    def swapped(self) -> int:
        return self.lost.get(_SWAP, 0)

    @property
    def waited(self) -> int:
        """What was lost beside swaps."""
        return sum(self.lost.values()) - self.swapped

    @property
    def slowdown(self) -> float | None:
        """Its time in turns with what it lost, by its time in turns; None before its first."""
        return (self.running + sum(self.lost.values())) / self.running if self.running else None

    def stay(self, phase: Phase, passed: int, devices: int) -> None:
        """It was in a phase for so long."""
        self.spent[phase] = self.spent.get(phase, 0) + passed
        self.device[phase] = self.device.get(phase, 0) + passed * devices

    def lose(self, cause: Cause, passed: int) -> None:
        """It wanted to run. Beyond CAUSES_MAX the least cause becomes one of OTHERS."""
        self.lost[cause] = self.lost.get(cause, 0) + passed
        while len(self.lost) > CAUSES_MAX:
            named = [one for one in self.lost if one.whose not in (OTHERS, _NOBODY)]
            least = min(named, key=lambda one: (self.lost[one], one))
            rest = Cause(least.why, OTHERS)
            self.lost[rest] = self.lost.get(rest, 0) + self.lost.pop(least)

    def add(self, other: "Account") -> None:
        """Take over what another spent."""
        for phase, passed in other.spent.items():
            self.spent[phase] = self.spent.get(phase, 0) + passed
        for phase, passed in other.device.items():
            self.device[phase] = self.device.get(phase, 0) + passed
        for cause, passed in other.lost.items():
            self.lose(cause, passed)
        for step, times in other.steps.items():
            self.steps[step] = self.steps.get(step, 0) + times
        self.turns += other.turns

    def copy(self) -> "Account":
        """One that goes its own way."""
        return Account(
            dict(self.spent), dict(self.device), dict(self.lost), self.turns, dict(self.steps)
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; `from_json` reads it back."""
        return {
            "spent": {phase.value: passed for phase, passed in self.spent.items()},
            "device": {phase.value: passed for phase, passed in self.device.items()},
            "lost": [[*_cause_to_json(cause), passed] for cause, passed in self.lost.items()],
            "turns": self.turns,
            "steps": {step.value: times for step, times in self.steps.items()},
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        return cls(
            {Phase(phase): passed for phase, passed in raw["spent"].items()},
            {Phase(phase): passed for phase, passed in raw["device"].items()},
            {_cause(*one): passed for *one, passed in raw["lost"]},
            raw["turns"],
            # Accounts from before there were any have none.
            {Step(step): times for step, times in raw.get("steps", {}).items()},
        )


@dataclass(slots=True)
class TenantAccount:
    """A tenant that is there. `since` is when its phase began, in nanoseconds.

    `life` differs between two lives of one tenant. `ran`: in this one it was Running before.
    `booked`: until when its time is in its account; what it loses since then is for `causes`.
    """

    group: Group
    since: int
    booked: int
    life: str = ""
    phase: Phase = Phase.PARKED
    devices: tuple[str, ...] = ()
    ran: bool = False
    causes: tuple[Cause, ...] = ()
    account: Account = field(default_factory=Account)

    @property
    def starting(self) -> bool:
        return self.phase is Phase.RESTORING and not self.ran

    @property
    def losing(self) -> bool:
        """It wants to run and does not."""
        return self.phase is Phase.WAITING or (self.phase is Phase.RESTORING and self.ran)

    def book(self, now: int) -> None:
        """Bring its account up to date."""
        passed, self.booked = now - self.booked, now
        if passed:
            self.account.stay(self.phase, passed, len(self.devices))
            share, rest = divmod(passed, len(self.causes) or 1)
            for number, cause in enumerate(self.causes):  # to the last nanosecond
                self.account.lose(cause, share + (number < rest))


class Use(StrEnum):
    """What a device does that is counted."""

    BUSY = "busy"  # a tenant runs on it, or starts
    EXPOSED = "exposed"  # none does, while one parks, is measured or restores, and one wants to run


@dataclass(slots=True)
class DeviceAccount:
    """A device's time in nanoseconds. `known`: since its first tenant.

    `booked`: until when it is in these sums; what comes after is for what it `does`.
    """

    booked: int
    known: int = 0
    busy: int = 0
    exposed: int = 0
    does: Use | None = None

    def book(self, now: int) -> None:
        """Bring the sums up to date."""
        passed, self.booked = now - self.booked, now
        self.known += passed
        if self.does is Use.BUSY:
            self.busy += passed
        elif self.does is Use.EXPOSED:
            self.exposed += passed


class Accounts:
    """A node's accounts. What has left is added up by group, so their size is bounded."""

    def __init__(self) -> None:
        self.tenants: dict[str, TenantAccount] = {}
        self.past: dict[Group, Account] = {}
        self.devices: dict[str, DeviceAccount] = {}
        self.conditions: dict[str, int] = {}
        self.now = 0
        self.boot_id = ""

    # -- what is told ---------------------------------------------------------------------------

    def started(self, t: float, boot_id: str, tenants: Collection[str] | None) -> None:
        """An arbiter took up the node with these tenants (None: it does not say)."""
        if self.boot_id and self.boot_id != boot_id:
            for name in list(self.tenants):  # the boot ended them, nobody knows when
                self._left(name)
            for device in self.devices.values():
                device.book(self.now)
                device.booked = _ns(t)
            self.now = _ns(t)
        self.boot_id = boot_id
        self._advance(t)
        for name in [name for name in self.tenants if tenants is not None and name not in tenants]:
            self._left(name)

    def joined(
        self, t: float, tenant: str, group: Group, life: str, devices: Iterable[str]
    ) -> None:
        """A tenant said hello."""
        self._advance(t)
        one = self._known(tenant, group)
        one.book(self.now)
        if one.group != group:
            self._keep(one)
            one.group, one.account = group, Account()
        if one.life != life:
            one.life, one.ran = life, False
        self._uses(one, devices)

    def changed(self, t: float, tenant: str, after: Phase | None, devices: Iterable[str]) -> None:
        """A tenant went to a phase; None: it ended."""
        self._advance(t)
        if after is None:
            self._left(tenant)
            return
        one = self._known(tenant, Group("", tenant))
        one.book(self.now)
        if after is Phase.RUNNING and one.phase is not Phase.RUNNING:
            one.ran = True
            one.account.turns += 1
        if one.phase is not after:
            one.phase, one.since = after, self.now
        self._uses(one, devices)

    def condition(self, kind: str, tenant: str | None = None, step: Step | None = None) -> None:
        """Something was wrong, maybe with a tenant, and this step was taken about it."""
        self.conditions[kind] = self.conditions.get(kind, 0) + 1
        one = self.tenants.get(tenant or "")
        if one is not None and step is not None:
            one.account.steps[step] = one.account.steps.get(step, 0) + 1

    # -- what comes of it -----------------------------------------------------------------------

    def at(self, t: float) -> "Accounts":
        """A copy that goes on until `t` as if nothing had happened meanwhile."""
        later = Accounts()
        later.tenants = {
            name: replace(one, account=one.account.copy()) for name, one in self.tenants.items()
        }
        later.past = {group: account.copy() for group, account in self.past.items()}
        later.devices = {name: replace(one) for name, one in self.devices.items()}
        later.conditions = dict(self.conditions)
        later.now, later.boot_id = self.now, self.boot_id
        later._advance(t)
        for tenant in later.tenants.values():
            tenant.book(later.now)
        for device in later.devices.values():
            device.book(later.now)
        return later

    def groups(self) -> dict[Group, Account]:
        """The sum of each group's tenants, those that left among them."""
        sums: dict[Group, Account] = {}
        for group, account in self.past.items():
            sums.setdefault(group, Account()).add(account)
        for tenant in self.tenants.values():
            sums.setdefault(tenant.group, Account()).add(tenant.account)
        return sums

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready snapshot that `from_json` reads back."""
        return {
            "version": VERSION,
            "boot_id": self.boot_id,
            "now": self.now,
            "tenants": {name: _tenant_to_json(one) for name, one in self.tenants.items()},
            "past": [[one.job, one.role, account.to_json()] for one, account in self.past.items()],
            "devices": {
                name: [one.booked, one.known, one.busy, one.exposed, one.does]
                for name, one in self.devices.items()
            },
            "conditions": self.conditions,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Read a snapshot. ValueError when it is of another version or not whole."""
        if raw.get("version") != VERSION:
            raise ValueError(f"accounts of version {raw.get('version')}, this is {VERSION}")
        accounts = cls()
        try:
            accounts.boot_id = raw["boot_id"]
            accounts.now = raw["now"]
            accounts.tenants = {name: _tenant(one) for name, one in raw["tenants"].items()}
            accounts.past = {Group(j, r): Account.from_json(one) for j, r, one in raw["past"]}
            accounts.devices = {name: _device(one) for name, one in raw["devices"].items()}
            accounts.conditions = dict(raw["conditions"])
        except (KeyError, TypeError, AttributeError) as exc:
            raise ValueError(f"not whole accounts: {exc!r}") from exc
        return accounts

    # -- time -----------------------------------------------------------------------------------

    def _advance(self, t: float) -> None:
        self.now = max(self.now, _ns(t))

    def _known(self, name: str, group: Group) -> TenantAccount:
        return self.tenants.setdefault(name, TenantAccount(group, self.now, self.now))

    def _uses(self, tenant: TenantAccount, devices: Iterable[str]) -> None:
        former, tenant.devices = tenant.devices, tuple(devices)
        for device in tenant.devices:
            self.devices.setdefault(device, DeviceAccount(self.now))
        self._look_again({*former, *tenant.devices})

    def _look_again(self, devices: AbstractSet[str]) -> None:
        """A tenant of these devices changed: who loses time to whom, and what do they do?

        What was until now is booked first, so that between two changes nothing needs to be.
        """
        for tenant in self.tenants.values():
            if not devices.isdisjoint(tenant.devices):
                causes = self._causes(tenant)
                if causes != tenant.causes:
                    tenant.book(self.now)
                    tenant.causes = causes
        for name in devices:
            device = self.devices[name]
            device.book(self.now)
            device.does = self._does(name)

    def _does(self, device: str) -> Use | None:
        on = [one for one in self.tenants.values() if device in one.devices]
        if any(one.phase is Phase.RUNNING or one.starting for one in on):
            return Use.BUSY
        phases = {one.phase for one in on} & HOLDING
        if phases and Phase.FAULTED not in phases and any(one.losing for one in on):
            return Use.EXPOSED
        return None

    def _causes(self, tenant: TenantAccount) -> tuple[Cause, ...]:
        """To whom it loses its time now; none when it does not want to run, or runs."""
        if not tenant.losing:
            return ()
        if tenant.phase is Phase.RESTORING:
            return (_SWAP,)
        beside = [
            one
            for one in self.tenants.values()
            if one.phase in HOLDING and not set(one.devices).isdisjoint(tenant.devices)
        ]
        for why, those in (
            (Why.TURN, [one.group for one in beside if one.phase is Phase.RUNNING]),
            (Why.FAULT, [one.group for one in beside if one.phase is Phase.FAULTED]),
            (Why.START, [one.group for one in beside if one.starting]),
        ):
            if those:
                return tuple(sorted(Cause(why, group) for group in those))
        return (_SWAP if beside else Cause(Why.NOBODY),)

    def _left(self, name: str) -> None:
        tenant = self.tenants.pop(name, None)
        if tenant is not None:
            tenant.book(self.now)
            self._keep(tenant)
            self._look_again(set(tenant.devices))

    def _keep(self, tenant: TenantAccount) -> None:
        """Add its account to its group's; beyond GROUPS_MAX the first to leave goes to OTHERS."""
        account = self.past.pop(tenant.group, Account())
        account.add(tenant.account)
        self.past[tenant.group] = account
        named = [group for group in self.past if group != OTHERS]
        if len(named) > GROUPS_MAX:
            self.past.setdefault(OTHERS, Account()).add(self.past.pop(named[0]))


def _ns(t: float) -> int:
    return round(t * 1e9)


def _tenant_to_json(one: TenantAccount) -> dict[str, Any]:
    return {
        "job": one.group.job,
        "role": one.group.role,
        "since": one.since,
        "booked": one.booked,
        "life": one.life,
        "phase": one.phase.value,
        "devices": list(one.devices),
        "ran": one.ran,
        "causes": [_cause_to_json(cause) for cause in one.causes],
        "account": one.account.to_json(),
    }


def _tenant(raw: Mapping[str, Any]) -> TenantAccount:
    return TenantAccount(
        Group(raw["job"], raw["role"]),
        raw["since"],
        raw["booked"],
        raw["life"],
        Phase(raw["phase"]),
        tuple(raw["devices"]),
        raw["ran"],
        tuple(_cause(*one) for one in raw["causes"]),
        Account.from_json(raw["account"]),
    )


def _device(raw: Sequence[Any]) -> DeviceAccount:
    booked, known, busy, exposed, does = raw
    return DeviceAccount(booked, known, busy, exposed, None if does is None else Use(does))


def _cause_to_json(cause: Cause) -> list[str]:
    return [cause.why.value, cause.whose.job, cause.whose.role]


def _cause(why: str, job: str, role: str) -> Cause:
    return Cause(Why(why), Group(job, role))
