"""What a run amounts to: its files are read, judged, summarised and drawn, in its own folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from tandem import perfetto, run_files, timeline
from tandem.report import Report, summarise
from tandem.run_files import RunFileError
from tandem.verdict import Budget, Rules, judge

CONFIG: Final = "config.json"
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


def evaluate(out: Path) -> Report:
    """Judge the run in `out`; write report.json, timeline.html and the Perfetto trace there.

    Raises:
        RunFileError: a file of the run is missing or malformed.
    """
    agreed = _agreement(out / CONFIG)
    run = run_files.read_run(out)
    report = summarise(
        run,
        residual_budget={name: tenant.residual for name, tenant in agreed.tenants.items()},
        violations=judge(run, _rules(agreed)),
    )
    (out / REPORT).write_text(json.dumps(report.to_json(), indent=2) + "\n")
    timeline.save(out, agreed.job, run, report)
    perfetto.save(out, agreed.job, run, report)
    return report


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
