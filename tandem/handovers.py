"""From phase changes to what they mean: stays in a phase, grants, starts and handovers. Pure."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from claim_phases.phases import Phase
from tandem.run_files import Measured, PhaseChange

SPLIT = (Phase.QUIESCING, Phase.RELEASING, Phase.VERIFYING, Phase.RESTORING)
"""The phases that a handover is made of: three of the former holder's, one of the next one's."""

_USING = frozenset({Phase.RESTORING, Phase.RUNNING, Phase.FAULTED})
"""While a tenant is in one of these, nobody else could start on its devices."""


@dataclass(frozen=True)
class Stay:
    """A tenant's time in one phase, in seconds of CLOCK_MONOTONIC; `open`: the run's end cut it."""

    tenant: str
    phase: Phase
    start: float
    end: float
    epoch: int
    devices: tuple[str, ...]
    weights: int | None
    open: bool

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start


@dataclass(frozen=True)
class Part:
    """The part of a handover that a tenant spent in one phase of `SPLIT`."""

    phase: Phase
    tenant: str
    start: float
    end: float


@dataclass(frozen=True)
class Handover:
    """A turn that passed from one tenant to another.

    It starts when the next tenant could start: the later of its becoming Waiting and of the former
    holder's no longer needing the turn (a yield; also its death, or a fault that ended). It ends
    when the next tenant is Running. With several former holders (a tenant on several devices),
    `giver` is the last one to let go. Parts may overlap: the next one may restore into room that
    is measured free while the former still releases the rest.
    """

    giver: str
    taker: str
    epoch: int
    start: float
    end: float
    parts: tuple[Part, ...]
    reads: int
    """How often the device was read to verify the release."""

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start

    def time_in(self, phase: Phase) -> float:
        """Seconds of the handover that were spent in `phase`."""
        return covered((part.start, part.end) for part in self.parts if part.phase is phase)

    @property
    def other_s(self) -> float:
        """Seconds in none of the parts: messages under way and the arbiter's own work."""
        return self.duration_s - covered((part.start, part.end) for part in self.parts)


@dataclass(frozen=True)
class Start:
    """A tenant's first grant since its processes began: an engine's start, a model's building.

    It is no handover: nothing was parked that could be restored, and its length is the engine's.
    """

    tenant: str
    epoch: int
    start: float
    end: float

    @property
    def duration_s(self) -> float:
        """Seconds from the grant until Running."""
        return self.end - self.start


@dataclass(frozen=True)
class Turns:
    """What the phase changes of a run amount to.

    `grants` counts the (tenant, epoch) pairs that reached Running: a tenant that is resumed while
    nobody else came in between counts again only if the arbiter gave it a new epoch.
    """

    stays: tuple[Stay, ...]
    grants: int
    starts: tuple[Start, ...]
    handovers: tuple[Handover, ...]


def turns(
    changes: Sequence[PhaseChange],
    measured: Sequence[Measured],
    end: float,
    begin: float = -math.inf,
) -> Turns:
    """Join phase changes, in the order of time, into stays and handovers.

    Args:
        changes: of every tenant, as the arbiter told them.
        measured: the reads of the devices, for `Handover.reads`.
        end: the moment at which stays that nothing ended are cut, in seconds.
        begin: what ended before is left out, and stays are cut there, in seconds.
    """
    stays = _stays(changes, end)
    by_tenant: dict[str, list[Stay]] = defaultdict(list)
    for stay in stays:
        by_tenant[stay.tenant].append(stay)
    follower = _Follower()
    for change in changes:
        follower.see(change)
    return Turns(
        stays=tuple(
            replace(stay, start=max(stay.start, begin)) for stay in stays if stay.end >= begin
        ),
        grants=sum(t >= begin for t in follower.granted.values()),
        starts=tuple(start for start in follower.starts if start.end >= begin),
        handovers=tuple(
            _split(passed, by_tenant, measured)
            for passed in follower.passed
            if passed.start >= begin
        ),
    )


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that are in at least one of the spans (start, end)."""
    total = 0.0
    reached = float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _stays(changes: Sequence[PhaseChange], end: float) -> tuple[Stay, ...]:
    current: dict[str, PhaseChange] = {}
    stays: list[Stay] = []

    def close(begun: PhaseChange, until: float, cut: bool) -> None:
        if begun.after == "Gone":
            return
        stays.append(
            Stay(
                begun.tenant,
                begun.after,
                begun.t,
                until,
                begun.epoch,
                begun.devices,
                begun.weights,
                cut,
            )
        )

    for change in changes:
        if begun := current.get(change.tenant):
            close(begun, change.t, cut=False)
        current[change.tenant] = change
    for begun in current.values():
        close(begun, end, cut=True)
    return tuple(sorted(stays, key=lambda stay: stay.start))


@dataclass(frozen=True)
class _Passed:
    """A handover before its time is split."""

    givers: tuple[str, ...]
    giver: str
    taker: str
    epoch: int
    start: float
    end: float


class _Follower:
    """Follows the changes one by one and notes each grant, start and handover."""

    def __init__(self) -> None:
        self.granted: dict[tuple[str, int], float] = {}
        self.starts: list[Start] = []
        self.passed: list[_Passed] = []
        self._waiting: dict[str, float] = {}
        self._restoring: dict[str, float] = {}
        self._let_go: dict[str, float] = {}
        self._has_run: set[str] = set()
        self._phase: dict[str, Phase] = {}
        self._holder: dict[str, str] = {}
        self._givers: dict[str, tuple[str, ...]] = {}

    def see(self, change: PhaseChange) -> None:
        tenant, phase = change.tenant, change.after
        before = self._phase.pop(tenant, None)
        if before in _USING and phase not in _USING:
            self._let_go[tenant] = change.t
        if phase == "Gone":
            self._waiting.pop(tenant, None)
            self._has_run.discard(tenant)
            return
        self._phase[tenant] = phase
        if phase is Phase.WAITING:
            self._waiting[tenant] = change.t
        if phase in _USING and before not in _USING:
            self._restoring[tenant] = change.t
            self._take(change)
        if phase is Phase.RUNNING and before is not Phase.RUNNING:
            self._run(change)

    def _take(self, change: PhaseChange) -> None:
        former = {self._holder.get(device) for device in change.devices} - {change.tenant, None}
        self._givers[change.tenant] = tuple(sorted(name for name in former if name))
        self._holder.update(dict.fromkeys(change.devices, change.tenant))

    def _run(self, change: PhaseChange) -> None:
        tenant = change.tenant
        self.granted.setdefault((tenant, change.epoch), change.t)
        waiting = self._waiting.pop(tenant, None)
        if tenant not in self._has_run:
            self._has_run.add(tenant)
            self.starts.append(Start(tenant, change.epoch, self._restoring[tenant], change.t))
            return
        givers = self._givers.pop(tenant, ())
        if waiting is None or not givers:
            return
        giver = max(givers, key=lambda name: self._let_go.get(name, float("-inf")))
        start = max(waiting, self._let_go.get(giver, waiting))
        self.passed.append(_Passed(givers, giver, tenant, change.epoch, start, change.t))


def _split(passed: _Passed, stays: dict[str, list[Stay]], measured: Sequence[Measured]) -> Handover:
    parts = [
        Part(stay.phase, stay.tenant, max(stay.start, passed.start), min(stay.end, passed.end))
        for tenant in (*passed.givers, passed.taker)
        for stay in _between(stays[tenant], passed.start, passed.end)
        if stay.phase in SPLIT and (stay.phase is Phase.RESTORING) == (tenant == passed.taker)
    ]
    first = bisect_right(measured, passed.start, key=lambda read: read.t)
    last = bisect_right(measured, passed.end, key=lambda read: read.t)
    return Handover(
        giver=passed.giver,
        taker=passed.taker,
        epoch=passed.epoch,
        start=passed.start,
        end=passed.end,
        parts=tuple(sorted(parts, key=lambda part: part.start)),
        reads=sum(read.tenant in passed.givers for read in measured[first:last]),
    )


def _between(stays: list[Stay], start: float, end: float) -> Iterable[Stay]:
    """The stays of one tenant, which follow each other, that have a part between start and end."""
    first = max(0, bisect_right(stays, start, key=lambda stay: stay.start) - 1)
    for stay in stays[first:]:
        if stay.start >= end:
            return
        if stay.end > start:
            yield stay
