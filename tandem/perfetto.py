"""A run as a trace for ui.perfetto.dev or chrome://tracing.

The Trace Event Format (Google, "Trace Event Format", 2016): `X` a slice, `b`/`e` the two ends of a
slice that may overlap others, `C` counters, `i` an instant, `M` a name. Times are microseconds.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tandem.handovers import SPLIT
from tandem.report import SIMULATED, Report
from tandem.run_files import Run
from tandem.timeline import weights_marks

TRACE: Final = "timeline.perfetto.json"

_TENANTS, _HANDOVERS, _DEVICES, _TRAINER = 1, 2, 3, 4
"""Tracks are grouped by process; these stand for processes, and are no pids."""

Entry = dict[str, Any]


def trace(title: str, run: Run, report: Report) -> dict[str, Any]:
    """The trace as one JSON object; its times are from the run's begin."""
    begin, _ = run.span
    return {
        "displayTimeUnit": "ms",
        "otherData": {"job": title, "device": "simulated" if SIMULATED else "real"},
        "traceEvents": [
            *_names(report),
            *_tenants(run, report, begin),
            *_handovers(report, begin),
            *_devices(run, report, begin),
            *_progress(run, begin),
        ],
    }


def text(title: str, run: Run, report: Report) -> str:
    """The trace as the content of a file."""
    return json.dumps(trace(title, run, report), separators=(",", ":"))


def save(folder: Path, title: str, run: Run, report: Report) -> Path:
    """Write the trace into the run's folder and return its path."""
    path = folder / TRACE
    path.write_text(text(title, run, report), encoding="utf-8")
    return path


def _names(report: Report) -> Iterator[Entry]:
    device = "Devices (simulated)" if SIMULATED else "Devices"
    groups = {_TENANTS: "Tenants", _HANDOVERS: "Handovers", _DEVICES: device, _TRAINER: "Trainer"}
    for pid, name in groups.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for tid, tenant in enumerate(report.phases_s, start=1):
        about = {"pid": _TENANTS, "tid": tid}
        yield {"ph": "M", "name": "thread_name", **about, "args": {"name": tenant}}
        yield {"ph": "M", "name": "thread_sort_index", **about, "args": {"sort_index": tid}}


def _tenants(run: Run, report: Report, begin: float) -> Iterator[Entry]:
    tids = {tenant: tid for tid, tenant in enumerate(report.phases_s, start=1)}
    for stay in report.stays:
        yield {
            "ph": "X",
            "cat": "phase",
            "name": stay.phase.value,
            "pid": _TENANTS,
            "tid": tids[stay.tenant],
            "ts": _us(stay.start - begin),
            "dur": _us(stay.duration_s),
            "args": {
                "epoch": stay.epoch,
                "devices": ", ".join(stay.devices),
                "weights": stay.weights,
            },
        }
    for t, tenant, version in weights_marks(run.changes, run.since):
        yield {
            "ph": "i",
            "cat": "weights",
            "name": f"weights v{version}",
            "s": "t",
            "pid": _TENANTS,
            "tid": tids[tenant],
            "ts": _us(t - begin),
        }
    for one in run.conditions:
        known = one.tenant is not None and one.tenant in tids
        track = {"s": "t", "tid": tids[one.tenant]} if known and one.tenant else {"s": "g"}
        yield {
            "ph": "i",
            "cat": "condition",
            "name": one.condition,
            "pid": _TENANTS,
            **track,
            "ts": _us(one.t - begin),
            "args": {
                "message": one.message,
                "tenant": one.tenant,
                "device": one.device,
                "bytes": one.bytes,
            },
        }


def _handovers(report: Report, begin: float) -> Iterator[Entry]:
    for number, one in enumerate(report.handovers, start=1):
        about = {
            "cat": "handover",
            "name": f"{one.giver} to {one.taker}",
            "pid": _HANDOVERS,
            "tid": 0,
            "id": number,
        }
        split = {f"{phase.value} ms": round(one.time_in(phase) * 1e3, 3) for phase in SPLIT}
        args = {"epoch": one.epoch, **split, "other ms": round(one.other_s * 1e3, 3)}
        yield {"ph": "b", **about, "ts": _us(one.start - begin), "args": args}
        yield {"ph": "e", **about, "ts": _us(one.end - begin)}


def _devices(run: Run, report: Report, begin: float) -> Iterator[Entry]:
    told: dict[str, Entry] = {}
    for sample in run.samples:
        for device, use in sample.devices.items():
            held = {
                tenant: sample.tenants.get(tenant, {}).get(device, 0) for tenant in report.phases_s
            }
            strangers = sum(one.bytes for one in sample.strangers if one.device == device)
            args = {"used": use.used, **held, "strangers": strangers}
            if told.get(device) == args:
                continue
            told[device] = args
            for what, amount in args.items():
                yield {
                    "ph": "C",
                    "name": f"{device} {what}",
                    "pid": _DEVICES,
                    "ts": _us(sample.t1 - begin),
                    "args": {"bytes": amount},
                }


def _progress(run: Run, begin: float) -> Iterator[Entry]:
    for one in run.progress:
        figures = {"reward": one.reward, "loss": one.loss, "weights_check": one.weights_check}
        for name, value in figures.items():
            if value is not None and math.isfinite(value):
                yield {
                    "ph": "C",
                    "name": name,
                    "pid": _TRAINER,
                    "ts": _us(one.t - begin),
                    "args": {name: value},
                }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
