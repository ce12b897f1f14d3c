"""Did the run keep what Tandem promises? Joins what the observer saw with the turns. Pure.

The arbiter tells the phases; the bytes are the observer's, who knows no phases. Both write
CLOCK_MONOTONIC, and a sample takes from t0 to t1, so a rule speaks only of samples that lie wholly
in the phases that it is about.
"""

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Final

from claim_phases.phases import ASIDE, TURN, Phase
from tandem.figures import mib
from tandem.run_files import ArbiterStart, Condition, PhaseChange, Room, Run, Sample

BLIND_S: Final = 2.0
"""The longest time without a sample for which the observer can still vouch."""

_RESIDENT = frozenset({Phase.YIELDED, Phase.QUIESCING, Phase.RELEASING, Phase.VERIFYING})
"""Beside a tenant in one of these another may hold memory: in room that was measured free."""

_MOVING = (TURN | _RESIDENT | {Phase.FAULTED}) - {Phase.YIELDED}
"""In these a tenant's memory comes and goes; elsewhere it stands still."""

VOID: Final = ("Intruder", "ForeignMemory", "Faulted", "DeviceFailed")
"""A run in which one of these was told counts no more."""


@dataclass(frozen=True)
class Budget:
    """What a tenant may use: `residual` bytes on each of `devices` while it has no turn."""

    devices: Sequence[str]
    residual: int


@dataclass(frozen=True)
class Rules:
    """What was agreed on: bytes by device, and the tenants' budgets."""

    capacity: Mapping[str, int]
    budgets: Mapping[str, Budget]


def judge(run: Run, rules: Rules) -> tuple[str, ...]:
    """Return the violations, one sentence each; none means that every rule held.

    A rule that is broken in many samples is told once for each tenant and device, with the worst.
    """
    phases = {
        tenant: _Phases.of(
            [change for change in run.changes if change.tenant == tenant],
            [room for room in run.rooms if room.tenant == tenant],
        )
        for tenant in rules.budgets
    }
    begin = run.span[0]
    return (
        *_conditions(run.conditions, begin),
        *_turns(run.changes, begin),
        *_epochs(run, begin),
        *_blind(run, begin),
        *_memory(run.samples, rules, phases, begin),
    )


@dataclass(frozen=True)
class _Phases:
    """The phases of one tenant; None before its hello and after its end.

    `rooms` are the bytes that it may hold without a turn, from each of `made` on; `fills`: into
    that it restores. What it kept from its turn stands still: that is told with its phase.
    """

    times: Sequence[float]
    phases: Sequence[Phase | None]
    made: Sequence[float]
    rooms: Sequence[int]
    fills: Sequence[bool]

    @classmethod
    def of(cls, changes: Sequence[PhaseChange], rooms: Sequence[Room]) -> "_Phases":
        at = {change.t for change in changes}
        made = sorted(
            [
                *((room.t, room.size, room.t not in at) for room in rooms),
                *((t, 0, False) for t in at),
            ]
        )
        return cls(
            [change.t for change in changes],
            [None, *(None if change.after == "Gone" else change.after for change in changes)],
            [t for t, _, _ in made],
            [0, *(size for _, size, _ in made)],
            [False, *(fills for _, _, fills in made)],
        )

    def room(self, t0: float, t1: float) -> int:
        """The most that it may hold without a turn at any time in [t0, t1]."""
        first, last = bisect_right(self.made, t0), bisect_right(self.made, t1)
        return max(self.rooms[first : last + 1])

    def moves(self, t0: float, t1: float) -> bool:
        """Whether its memory may come or go in [t0, t1]."""
        first, last = bisect_right(self.made, t0), bisect_right(self.made, t1)
        return bool(self.within(t0, t1) & _MOVING) or any(self.fills[first : last + 1])

    def within(self, t0: float, t1: float) -> frozenset[Phase | None]:
        """Every phase that has a part in [t0, t1]."""
        first, last = bisect_right(self.times, t0), bisect_right(self.times, t1)
        return frozenset(self.phases[first : last + 1])


def _conditions(conditions: Sequence[Condition], begin: float) -> Iterator[str]:
    told = set()
    for condition in conditions:
        about = (condition.condition, condition.tenant, condition.device)
        if condition.condition in VOID and about not in told:
            told.add(about)
            yield f"{condition.condition}: {condition.message} (at {condition.t - begin:.2f} s)"


def _turns(changes: Sequence[PhaseChange], begin: float) -> Iterator[str]:
    holders: dict[str, PhaseChange] = {}
    for change in changes:
        holders.pop(change.tenant, None)
        if change.after not in TURN:
            continue
        for other in holders.values():
            for device in sorted(set(change.devices) & set(other.devices)):
                yield (
                    f"{change.tenant} became {change.after} (epoch {change.epoch}) on {device}"
                    f" while {other.tenant} was {other.after} (epoch {other.epoch}),"
                    f" at {change.t - begin:.2f} s: two turns at once"
                )
        holders[change.tenant] = change


def _epochs(run: Run, begin: float) -> Iterator[str]:
    newest, current = 0, dict[str, int]()
    events: list[ArbiterStart | PhaseChange] = [*run.starts, *run.changes]
    happened = sorted(events, key=lambda event: event.t)
    for event in happened:
        if not isinstance(event, PhaseChange):
            if event.epoch < newest:
                yield (
                    f"the arbiter started with epoch {event.epoch} at {event.t - begin:.2f} s"
                    f" although epoch {newest} had been granted"
                )
        elif event.after in TURN and event.epoch != current.get(event.tenant):
            if event.epoch <= newest:
                yield (
                    f"{event.tenant} was granted epoch {event.epoch} at {event.t - begin:.2f} s"
                    f" although epoch {newest} had been granted: epochs must grow"
                )
            current[event.tenant] = event.epoch
            newest = max(newest, event.epoch)


def _blind(run: Run, begin: float) -> Iterator[str]:
    turns = [change.t for change in run.changes]
    if not turns:
        yield "no tenant ever said hello: nothing was run that could be judged"
        return
    ends = [
        (turns[0], turns[0]),
        *((sample.t0, sample.t1) for sample in run.samples),
        (turns[-1], turns[-1]),
    ]
    for (_, before), (after, _) in pairwise(ends):
        if after - before > BLIND_S:
            yield (
                f"the observer took no sample from {before - begin:.2f} to {after - begin:.2f} s:"
                " it cannot vouch for that time"
            )


@dataclass
class _Breach:
    """One rule broken by the same ones in one or more samples; the sentence is the worst one's."""

    first: float
    last: float
    worst: int = -1
    count: int = 0
    sentence: str = ""

    def told(self, begin: float) -> str:
        when = f"at {self.first - begin:.2f} s"
        if self.count > 1:
            when = (
                f"in {self.count} samples from {self.first - begin:.2f}"
                f" to {self.last - begin:.2f} s"
            )
        return f"{self.sentence}, {when}"


@dataclass
class _Breaches:
    found: dict[tuple[object, ...], _Breach] = field(default_factory=dict)

    def add(self, key: tuple[object, ...], sample: Sample, amount: int, sentence: str) -> None:
        breach = self.found.setdefault(key, _Breach(first=sample.t0, last=sample.t1))
        breach.last = sample.t1
        breach.count += 1
        if amount > breach.worst:
            breach.worst, breach.sentence = amount, sentence


def _memory(
    samples: Sequence[Sample], rules: Rules, phases: Mapping[str, _Phases], begin: float
) -> Iterator[str]:
    breaches = _Breaches()
    for sample in samples:
        within = {name: one.within(sample.t0, sample.t1) for name, one in phases.items()}
        ahead = {name: one.room(sample.t0, sample.t1) for name, one in phases.items()}
        for device, capacity in rules.capacity.items():
            _residuals(breaches, sample, device, rules, within, ahead)
            _together(breaches, sample, device, rules, within)
            _capacity(breaches, sample, device, capacity, phases)
        for stranger in sample.strangers:
            breaches.add(
                ("stranger", stranger.pid, stranger.device),
                sample,
                stranger.bytes,
                f"process {stranger.pid} ({stranger.name}), which belongs to no tenant, held"
                f" {mib(stranger.bytes)} of {stranger.device}: foreign memory",
            )
    for breach in breaches.found.values():
        yield breach.told(begin)


_Within = Mapping[str, frozenset[Phase | None]]


def _residuals(
    breaches: _Breaches,
    sample: Sample,
    device: str,
    rules: Rules,
    within: _Within,
    ahead: Mapping[str, int],
) -> None:
    for tenant, by_device in sample.tenants.items():
        budget, held = rules.budgets[tenant], by_device.get(device, 0)
        allowed = budget.residual + ahead[tenant] if device in budget.devices else 0
        if held <= allowed or not within[tenant] <= ASIDE | {None}:
            continue
        phase = " or ".join(sorted(phase or "without a session" for phase in within[tenant]))
        breaches.add(
            ("residual", tenant, device),
            sample,
            held,
            f"{tenant} held {mib(held)} of {device} while it was {phase}"
            f" (its residual budget is {mib(budget.residual if device in budget.devices else 0)}"
            + (f", and {mib(ahead[tenant])} were free for it" if ahead[tenant] else "")
            + ")",
        )


def _together(
    breaches: _Breaches, sample: Sample, device: str, rules: Rules, within: _Within
) -> None:
    holding = {
        tenant: held
        for tenant, by_device in sorted(sample.tenants.items())
        if (held := by_device.get(device, 0)) > rules.budgets[tenant].residual
        and not within[tenant] & (_RESIDENT | ASIDE | {None})
    }
    for one, other in combinations(holding, 2):
        named = " and ".join(
            f"{tenant} ({', '.join(sorted(map(str, within[tenant])))}) {mib(holding[tenant])}"
            for tenant in (one, other)
        )
        breaches.add(
            ("together", one, other, device),
            sample,
            holding[one] + holding[other],
            f"two tenants held {device} at once: {named}",
        )


def _capacity(
    breaches: _Breaches,
    sample: Sample,
    device: str,
    capacity: int,
    phases: Mapping[str, _Phases],
) -> None:
    use = sample.devices.get(device)
    if use is None or not capacity <= use.total < capacity + mmap.PAGESIZE:
        size = "missing" if use is None else f"of {use.total} bytes"
        breaches.add(
            ("size", device), sample, 0, f"{device} was {size}, declared are {capacity} bytes"
        )
    # The processes are read one after the other, so a sum means something only if at most one
    # tenant's memory moves meanwhile.
    moving = [name for name, one in phases.items() if one.moves(sample.t0, sample.t1)]
    resident = sum(by_device.get(device, 0) for by_device in sample.tenants.values())
    if len(moving) <= 1 and resident > capacity:
        breaches.add(
            ("capacity", device),
            sample,
            resident,
            f"tenants held {mib(resident)} of {device}, which has {mib(capacity)}",
        )
