"""What a run amounts to: its files are read, judged, summarised and drawn, in its own folder."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from tandem import perfetto, run_files, timeline
from tandem.report import Report, summarise
from tandem.run_files import Run, RunFileError
from tandem.verdict import Budget, Rules, judge

CONFIG: Final = "config.json"
RUN: Final = "run.json"
"""How a local run ended; written at its end."""

REPORT: Final = "report.json"


class _Part(BaseModel):
    """A part of what was run; whatever else is told of it is not judged."""

    model_config = ConfigDict(frozen=True, strict=True)


class AgreedTenant(_Part):
    """A tenant: it may keep `residual` bytes on each of its devices while it has no turn."""

    devices: tuple[str, ...]
    residual: int


class Agreement(_Part):
    """What a run must keep to, wherever it ran: the part of CONFIG by which it is judged.

    `devices`: their sizes in bytes.
    """

    job: str
    devices: Mapping[str, int]
    tenants: Mapping[str, AgreedTenant]


@dataclass(frozen=True)
class Drawing:
    """What a timeline shows: of a run, or of a node."""

    title: str
    run: Run
    report: Report

    def page(self) -> str:
        """As a page for a browser."""
        return timeline.page(self.title, self.run, self.report)

    def trace(self) -> str:
        """As a trace for Perfetto."""
        return perfetto.text(self.title, self.run, self.report)

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write both into the folder; return their paths. Raises RunFileError."""
        try:
            return (
                timeline.save(folder, self.title, self.run, self.report),
                perfetto.save(folder, self.title, self.run, self.report),
            )
        except OSError as exc:
            raise RunFileError(
                f"{folder}: the timeline cannot be written there ({exc.strerror}): print it with "
                f"-o html or -o perfetto"
            ) from exc


def evaluate(out: Path) -> Report:
    """Judge the run in `out`; write report.json, timeline.html and the Perfetto trace there.

    Raises:
        RunFileError: a file of the run is missing or malformed.
    """
    run = run_files.read_run(out)
    judged = _judged(out, run, run)
    (out / REPORT).write_text(json.dumps(judged.report.to_json(), indent=2) + "\n")
    judged.save(out)
    return judged.report


def draw(folder: Path, last_s: float | None) -> Drawing:
    """What there is of a run, judged, or of a node, of which nobody sampled the memory.

    Args:
        folder: a run's, or that of a node's driver.
        last_s: how much is shown, up to the last event; None: all that there is.

    Raises:
        RunFileError: a file is missing or malformed.
    """
    run = run_files.read_run(folder)
    shown = run if last_s is None else run.last(last_s)
    if (folder / CONFIG).is_file():
        return _judged(folder, run, shown)
    node = os.environ.get("NODE_NAME") or platform.node()
    return Drawing(f"node {node}", shown, summarise(shown, residual_budget={}, violations=None))


def _judged(out: Path, run: Run, shown: Run) -> Drawing:
    agreed = _agreement(out / CONFIG)
    budgets = {name: tenant.residual for name, tenant in agreed.tenants.items()}
    violations = judge(run, _rules(agreed))
    report = summarise(shown, residual_budget=budgets, violations=violations)
    return Drawing(agreed.job, shown, report)


def _rules(agreed: Agreement) -> Rules:
    return Rules(
        capacity=agreed.devices,
        budgets={
            name: Budget(tenant.devices, tenant.residual) for name, tenant in agreed.tenants.items()
        },
    )


def _agreement(path: Path) -> Agreement:
    try:
        return Agreement.model_validate_json(path.read_text())
    except OSError as exc:
        raise RunFileError(f"{path}: cannot be read: {exc.strerror}: name a run's folder") from exc
    except ValidationError as exc:
        raise RunFileError(f"{path}: is not what a run writes: {exc.errors()[0]['msg']}") from exc
