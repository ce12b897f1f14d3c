"""A run as one HTML page that needs nothing else: no network, no other file."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jinja2

from claim_phases.phases import Phase
from tandem import figures
from tandem.handovers import SPLIT
from tandem.report import SIMULATED, Percentiles, Report
from tandem.run_files import PhaseChange, Run, Sample

PAGE: Final = "timeline.html"

_SHOWN: Final = (
    Phase.RUNNING,
    Phase.YIELDED,
    Phase.QUIESCING,
    Phase.RELEASING,
    Phase.VERIFYING,
    Phase.PARKED,
    Phase.WAITING,
    Phase.RESTORING,
    Phase.FAULTED,
)
"""The phases in the order of the legend: round the cycle that a tenant goes."""


def page(title: str, run: Run, report: Report) -> str:
    """Render the page of a run.

    Args:
        title: the job's name.
        run: what the run's files say.
        report: the figures of the same run; its violations and residual budgets are shown.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tandem"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["mib"] = figures.mib
    environment.filters["duration"] = figures.duration
    begin, end = run.span
    return environment.get_template("timeline.html.j2").render(
        title=title,
        report=report,
        run=run,
        begin=begin,
        simulated=SIMULATED,
        phases=_SHOWN,
        phases_of_split=SPLIT,
        split=_split_rows(report),
        data=_data(run, report, begin, end),
    )


def save(folder: Path, title: str, run: Run, report: Report) -> Path:
    """Write the page into the run's folder and return its path."""
    path = folder / PAGE
    path.write_text(page(title, run, report), encoding="utf-8")
    return path


def weights_marks(
    changes: Sequence[PhaseChange], since: float = -math.inf
) -> list[tuple[float, str, int]]:
    """When (t) which tenant was first seen to serve which version of the weights, since then."""
    served: dict[str, int | None] = {}
    marks: list[tuple[float, str, int]] = []
    for change in changes:
        if change.weights is not None and change.weights != served.get(change.tenant):
            marks.append((change.t, change.tenant, change.weights))
        served[change.tenant] = change.weights
    return [mark for mark in marks if mark[0] >= since]


def _split_rows(report: Report) -> list[tuple[str, Percentiles]]:
    rows = [(phase.value, report.split_ms[phase]) for phase in SPLIT]
    rows.append(("other", Percentiles.of([one.other_s * 1e3 for one in report.handovers])))
    return [*rows, ("whole", report.handover_ms)]


def _data(run: Run, report: Report, begin: float, end: float) -> dict[str, Any]:
    """What the page's script draws: plain lists, times in seconds from the run's begin."""
    tenants = {name: number for number, name in enumerate(report.phases_s)}
    numbers = {phase: number for number, phase in enumerate(_SHOWN)}

    def at(t: float) -> float:
        return round(t - begin, 6)

    return {
        "end": at(end),
        "p50": report.handover_ms.p50,
        "p99": report.handover_ms.p99,
        "phases": [phase.value for phase in _SHOWN],
        "tenants": [
            {
                "name": name,
                "stays": [
                    [at(stay.start), at(stay.end), numbers[stay.phase], stay.epoch, stay.weights]
                    for stay in report.stays
                    if stay.tenant == name
                ],
            }
            for name in tenants
        ],
        "handovers": [
            {
                "start": at(one.start),
                "end": at(one.end),
                "giver": tenants[one.giver],
                "taker": tenants[one.taker],
                "epoch": one.epoch,
                "reads": one.reads,
                "parts": [
                    [numbers[part.phase], tenants[part.tenant], at(part.start), at(part.end)]
                    for part in one.parts
                ],
                "split": [[numbers[phase], round(one.time_in(phase) * 1e3, 3)] for phase in SPLIT],
                "other": round(one.other_s * 1e3, 3),
            }
            for one in report.handovers
        ],
        "devices": [
            {
                "name": name,
                "capacity": use.capacity,
                "peak": use.peak,
                "budget": _budget_on(name, report),
                "samples": _memory(run.samples, name, list(tenants), begin),
            }
            for name, use in report.devices.items()
        ],
        "weights": [
            [at(t), tenants[tenant], version]
            for t, tenant, version in weights_marks(run.changes, run.since)
        ],
        "progress": [
            [at(one.t), one.iteration, _finite(one.reward), _finite(one.weights_check)]
            for one in run.progress
        ],
        "conditions": [
            [at(one.t), one.condition, one.tenant, one.device, one.bytes, one.message]
            for one in run.conditions
        ],
        "restarts": [at(start.t) for start in run.starts[1:] if start.t >= begin],
    }


def _budget_on(device: str, report: Report) -> int | None:
    """The residual budgets of a device's tenants together; None where none is known."""
    tenants = {stay.tenant for stay in report.stays if device in stay.devices}
    known = [report.residual_budget[name] for name in tenants if name in report.residual_budget]
    return sum(known) if known else None


def _memory(
    samples: Sequence[Sample], device: str, tenants: Sequence[str], begin: float
) -> list[list[int | float]]:
    """Rows of [t, used, strangers, *bytes by tenant], without those equal to both neighbours."""
    rows: list[list[int | float]] = []
    for sample in samples:
        if device not in sample.devices:
            continue
        row: list[int | float] = [
            round((sample.t0 + sample.t1) / 2 - begin, 6),
            sample.devices[device].used,
            sum(one.bytes for one in sample.strangers if one.device == device),
            *(_held(sample.tenants, tenant, device) for tenant in tenants),
        ]
        if len(rows) > 1 and rows[-1][1:] == row[1:] == rows[-2][1:]:
            rows[-1] = row
        else:
            rows.append(row)
    return rows


def _held(tenants: Mapping[str, Mapping[str, int]], tenant: str, device: str) -> int:
    return tenants.get(tenant, {}).get(device, 0)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
