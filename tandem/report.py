"""From the files of a run to the figures about it. Pure, but for `Report.render`, which prints."""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from claim_phases.phases import ASIDE, Phase
from tandem import figures
from tandem.handovers import SPLIT, Handover, Start, Stay, Turns, covered, turns
from tandem.run_files import Progress, Run, Sample

SIMULATED = True
"""The one kind of device that there is so far; whoever shows figures says so."""

_ENDS = 5
"""Iterations at each end of a run whose rewards are averaged."""


@dataclass(frozen=True)
class Percentiles:
    """Median, 99th percentile and largest of `n` values, None when there are none.

    By nearest rank: the smallest value that at least p percent of the values do not exceed. It is
    always one that was measured; p99 of fewer than 100 values is therefore the largest.
    """

    p50: float | None
    p99: float | None
    max: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles":
        """The percentiles of `values`, in their unit."""
        ranked = sorted(values)

        def rank(part: float) -> float | None:
            return ranked[math.ceil(part * len(ranked)) - 1] if ranked else None

        return cls(rank(0.50), rank(0.99), rank(1.0), len(ranked))

    def to_json(self) -> dict[str, Any]:
        """p50, p99 and n, rounded to a thousandth of the unit."""
        return {"p50": _rounded(self.p50, 3), "p99": _rounded(self.p99, 3), "n": self.n}


@dataclass(frozen=True)
class DeviceFigures:
    """A device as the observer saw it, in bytes; None where no sample says it.

    `residual` is the most that a tenant held in a sample that lies wholly in Parked or Waiting,
    before it was given room to restore ahead of its turn, without what it was let keep from one.
    """

    capacity: int | None
    peak: int | None
    residual: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """The figures as the issue's JSON has them."""
        return {
            "capacity": self.capacity,
            "peak": self.peak,
            "residual": dict(self.residual),
            "simulated": SIMULATED,
        }


@dataclass(frozen=True)
class Report:
    """The figures of a run. Seconds and bytes unless a name says otherwise; unknown is None.

    Attributes:
        rewards: by iteration; an iteration that was told twice (a restart) counts as last told.
        reward_first: mean of the first five iterations that have a reward; `reward_last` likewise.
        wall_s: from the first to the last thing in any of the run's files, engine start included.
        device: all devices together, sample by sample; with one device, that device.
        busy_share: device time in Running by device time of the run: with disjoint devices, the
            mean over devices of the part of the wall time in which one of its tenants was Running.
        wait_s: time in Waiting, by tenant. Restoring is not in it: it is the tenant's own work.
        stays: every tenant's time in every phase, in the order of time.
        phases_s: the sum of that, by tenant and phase.
        weights_version: the last that the trainer told.
        weights_check_max: the worst iteration's; not a number if any iteration's was not.
        sampling_ms: from the end of one of the observer's samples to the end of the next.
        residual_budget: bytes that a tenant may keep while it has no turn.
        judged: whether there is a verdict.
        violations: sentences of the verdict; none means that all of its rules held.
    """

    iterations: int
    rewards: tuple[float, ...]
    reward_first: float | None
    reward_last: float | None
    wall_s: float
    turns: int
    stays: tuple[Stay, ...]
    starts: tuple[Start, ...]
    handovers: tuple[Handover, ...]
    handover_ms: Percentiles
    split_ms: Mapping[Phase, Percentiles]
    device: DeviceFigures
    devices: Mapping[str, DeviceFigures]
    busy_share: float
    wait_s: Mapping[str, float]
    phases_s: Mapping[str, Mapping[Phase, float]]
    weights_version: int | None
    weights_check_max: float | None
    sampling_ms: Percentiles
    residual_budget: Mapping[str, int]
    judged: bool
    violations: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object; figures that are unknown or not finite are null."""
        return {
            "iterations": self.iterations,
            "reward_first": _rounded(self.reward_first, 6),
            "reward_last": _rounded(self.reward_last, 6),
            "wall_s": _rounded(self.wall_s, 3),
            "turns": self.turns,
            "handover_ms": self.handover_ms.to_json(),
            "handover_split_ms": {
                phase.value: figure.to_json() for phase, figure in self.split_ms.items()
            },
            "start_s": [
                {"tenant": start.tenant, "s": _rounded(start.duration_s, 3)}
                for start in self.starts
            ],
            "device": self.device.to_json(),
            "devices": {name: figures.to_json() for name, figures in self.devices.items()},
            "residual_budget": dict(self.residual_budget),
            "busy_share": _rounded(self.busy_share, 4),
            "wait_s": {tenant: _rounded(s, 3) for tenant, s in self.wait_s.items()},
            "phases_s": {
                tenant: {phase.value: _rounded(s, 3) for phase, s in by_phase.items()}
                for tenant, by_phase in self.phases_s.items()
            },
            "weights_version": self.weights_version,
            "weights_check_max": _rounded(self.weights_check_max, 9),
            "sampling_ms": self.sampling_ms.to_json(),
            "violations": list(self.violations),
            "notes": list(self.notes),
        }

    def render(self, console: Console) -> None:
        """Print the figures as tables, and the reward as a curve."""
        console.print(_figures_table(self))
        console.print(_tenants_table(self))
        if self.handovers:
            console.print(_split_table(self))
        for line in _reward_curve(self):
            console.print(line)
        for note in self.notes:
            console.print(Text(f"note: {note}", style="yellow"))
        for violation in self.violations:
            console.print(Text(f"violation: {violation}", style="bold red"))


def summarise(
    run: Run, *, residual_budget: Mapping[str, int], violations: Sequence[str] | None
) -> Report:
    """Compute the figures of a run that has ended.

    Args:
        run: what its files say.
        residual_budget: bytes that each tenant may keep while it has no turn; shown, not judged.
        violations: the verdict's sentences, to be shown with the figures; None: nobody judged.
    """
    begin, end = run.span
    passed = turns(run.changes, run.measured, end, begin)
    told = {progress.iteration: progress for progress in run.progress}
    iterations = [told[iteration] for iteration in sorted(told)]
    rewards = tuple(one.reward for one in iterations if one.reward is not None)
    names = sorted({name for sample in run.samples for name in sample.devices})
    phases_s = _phases_s(passed.stays)
    return Report(
        iterations=len(iterations),
        rewards=rewards,
        reward_first=_mean(rewards[:_ENDS]),
        reward_last=_mean(rewards[-_ENDS:]),
        wall_s=end - begin,
        turns=passed.grants,
        stays=passed.stays,
        starts=passed.starts,
        handovers=passed.handovers,
        handover_ms=Percentiles.of([one.duration_s * 1e3 for one in passed.handovers]),
        split_ms={
            phase: Percentiles.of([one.time_in(phase) * 1e3 for one in passed.handovers])
            for phase in SPLIT
        },
        device=_device(run, passed, names),
        devices={name: _device(run, passed, [name]) for name in names},
        busy_share=_busy_share(passed.stays, end - begin),
        wait_s={tenant: spent.get(Phase.WAITING, 0.0) for tenant, spent in phases_s.items()},
        phases_s=phases_s,
        weights_version=_last_version(iterations),
        weights_check_max=_worst([one.weights_check for one in iterations]),
        sampling_ms=Percentiles.of(
            [(after.t1 - before.t1) * 1e3 for before, after in pairwise(run.samples)]
        ),
        residual_budget=dict(residual_budget),
        judged=violations is not None,
        violations=tuple(violations or ()),
        notes=run.notes,
    )


def _device(run: Run, passed: Turns, names: Sequence[str]) -> DeviceFigures:
    """The figures of the devices `names`, taken as one."""
    samples = run.samples
    residual: dict[str, int] = {}
    aside: dict[str, list[Stay]] = defaultdict(list)
    for stay in passed.stays:
        if stay.phase in ASIDE and set(stay.devices) & set(names):
            aside[stay.tenant].append(stay)
    for tenant, stays in sorted(aside.items()):
        rooms = [room for room in run.rooms if room.tenant == tenant]
        starts = [stay.start for stay in stays]
        kept = {
            room.t: room.size * len(set(names) & set(room.devices))
            for room in rooms
            if room.t in starts
        }
        ahead = [room.t for room in rooms if room.t not in kept]
        held = [
            sum(sample.tenants.get(tenant, {}).get(name, 0) for name in names)
            - kept.get(starts[bisect_right(starts, sample.t0) - 1], 0)
            for sample in _within(samples, _until(ahead, _joined(stays)))
        ]
        if held:
            residual[tenant] = max(0, *held)
    uses = [
        [sample.devices[name] for name in names if name in sample.devices] for sample in samples
    ]
    return DeviceFigures(
        capacity=max((sum(use.total for use in one) for one in uses if one), default=None),
        peak=max((sum(use.used for use in one) for one in uses if one), default=None),
        residual=residual,
    )


def _joined(stays: Sequence[Stay]) -> list[tuple[float, float]]:
    """Spans of stays, one where they touch: Parked that becomes Waiting is one time aside."""
    spans: list[tuple[float, float]] = []
    for stay in stays:
        if spans and spans[-1][1] == stay.start:
            spans[-1] = (spans[-1][0], stay.end)
        else:
            spans.append((stay.start, stay.end))
    return spans


def _until(
    made: Sequence[float], spans: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """The spans up to the first of these moments in each, if there is one."""
    return [
        (start, next((t for t in made[bisect_left(made, start) :] if t < end), end))
        for start, end in spans
    ]


def _within(samples: Sequence[Sample], spans: Sequence[tuple[float, float]]) -> list[Sample]:
    """The samples that lie wholly in one of the spans; both are in the order of time."""
    found: list[Sample] = []
    remaining = iter(spans)
    span = next(remaining, None)
    for sample in samples:
        while span and span[1] < sample.t1:
            span = next(remaining, None)
        if span and span[0] <= sample.t0:
            found.append(sample)
    return found


def _busy_share(stays: Sequence[Stay], wall_s: float) -> float:
    running: dict[str, list[tuple[float, float]]] = {
        device: [] for stay in stays for device in stay.devices
    }
    for stay in stays:
        if stay.phase is Phase.RUNNING:
            for device in stay.devices:
                running[device].append((stay.start, stay.end))
    if not running or wall_s <= 0:
        return 0.0
    return sum(covered(spans) for spans in running.values()) / (len(running) * wall_s)


def _phases_s(stays: Sequence[Stay]) -> dict[str, dict[Phase, float]]:
    spent: dict[str, dict[Phase, float]] = {
        tenant: {} for tenant in sorted({s.tenant for s in stays})
    }
    for stay in stays:
        by_phase = spent[stay.tenant]
        by_phase[stay.phase] = by_phase.get(stay.phase, 0.0) + stay.duration_s
    return spent


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _worst(values: Sequence[float | None]) -> float | None:
    """The largest; not a number as soon as one is not, which `max` alone would lose."""
    known = [value for value in values if value is not None]
    if any(math.isnan(value) for value in known):
        return math.nan
    return max(known, default=None)


def _last_version(iterations: Sequence[Progress]) -> int | None:
    versions = [one.weights_version for one in iterations if one.weights_version is not None]
    return versions[-1] if versions else None


def _rounded(value: float | None, digits: int) -> float | None:
    return round(value, digits) if value is not None and math.isfinite(value) else None


# What a person sees in a terminal.

_UNKNOWN = "unknown"


def _figures_table(report: Report) -> Table:
    table = Table(title="The run", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in _figures(report):
        table.add_row(name, Text(value))
    return table


def _figures(report: Report) -> list[tuple[str, str]]:
    device = report.device
    capacity = _UNKNOWN if device.capacity is None else figures.mib(device.capacity)
    peak = _UNKNOWN if device.peak is None else figures.mib(device.peak)
    many = f"{len(report.devices)} devices, simulated" if len(report.devices) > 1 else "simulated"
    rows = [
        ("iterations", f"{report.iterations} in {figures.duration(report.wall_s)}"),
        ("reward", f"{_number(report.reward_first)} -> {_number(report.reward_last)}"),
        ("turns", str(report.turns)),
        ("handovers", _milliseconds(report.handover_ms)),
        ("device", f"{capacity}, peak {peak} ({many})"),
        ("busy", f"{report.busy_share:.1%} of the wall time in Running"),
        ("weights", f"version {report.weights_version or _UNKNOWN}"),
        ("weights check", f"{_number(report.weights_check_max)} at worst"),
        ("observer interval", _milliseconds(report.sampling_ms)),
    ]
    rows += [
        ("start", f"{start.tenant} in {figures.duration(start.duration_s)}")
        for start in report.starts
    ]
    return rows


def _tenants_table(report: Report) -> Table:
    table = Table(title="Tenants", title_justify="left")
    for name in ("tenant", "Running", "waited", "residual (simulated)", "budget"):
        table.add_column(name, justify="left" if name == "tenant" else "right")
    for tenant, spent in report.phases_s.items():
        kept = report.device.residual.get(tenant)
        budget = report.residual_budget.get(tenant)
        table.add_row(
            Text(tenant),
            figures.duration(spent.get(Phase.RUNNING, 0.0)),
            figures.duration(report.wait_s[tenant]),
            _UNKNOWN if kept is None else figures.mib(kept),
            _UNKNOWN if budget is None else figures.mib(budget),
        )
    return table


def _split_table(report: Report) -> Table:
    table = Table(title="Handovers, split (ms; simulated device)", title_justify="left")
    table.add_column("")
    for name in ("p50", "p99", "max"):
        table.add_column(name, justify="right")
    rows = {phase.value: figure for phase, figure in report.split_ms.items()}
    rows["other"] = Percentiles.of([one.other_s * 1e3 for one in report.handovers])
    rows["whole"] = report.handover_ms
    for name, figure in rows.items():
        style = "bold" if name == "whole" else None
        table.add_row(
            name, *(f"{value or 0.0:.1f}" for value in (figure.p50, figure.p99, figure.max)),
            style=style,
        )  # fmt: skip
    return table


def _reward_curve(report: Report) -> list[Text]:
    lines = figures.curve(report.rewards, width=64, height=8)
    if not lines:
        return []
    finite = [reward for reward in report.rewards if math.isfinite(reward)]
    ends = {0: f"{max(finite):.3g}", len(lines) - 1: f"{min(finite):.3g}"}
    title = Text(f"Reward by iteration, 1 to {len(report.rewards)}", style="italic")
    return [title] + [
        Text(f"{ends.get(row, ''):>8} ", style="dim") + Text(line, style="green")
        for row, line in enumerate(lines)
    ]


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.4g}"


def _milliseconds(figure: Percentiles) -> str:
    if figure.p50 is None or figure.p99 is None:
        return "none"
    return f"p50 {figure.p50:.1f} ms, p99 {figure.p99:.1f} ms, n {figure.n}"
