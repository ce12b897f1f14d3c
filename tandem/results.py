"""What a run amounts to: its files are read, judged, summarised and drawn, in its own folder."""

import json
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tandem import perfetto, run_files, timeline
from tandem.config import LocalConfig
from tandem.report import Report, summarise
from tandem.run_files import RunFileError
from tandem.verdict import Budget, Rules, judge

CONFIG: Final = "config.json"
REPORT: Final = "report.json"


def evaluate(out: Path) -> Report:
    """Judge the run in `out`; write report.json, timeline.html and the Perfetto trace there.

    Raises:
        RunFileError: a file of the run is missing or malformed.
    """
    config = _config(out / CONFIG)
    run = run_files.read_run(out)
    report = summarise(
        run,
        residual_budget={name: tenant.residual for name, tenant in config.tenants.items()},
        violations=judge(run, rules(config)),
    )
    (out / REPORT).write_text(json.dumps(report.to_json(), indent=2) + "\n")
    timeline.save(out, config.job, run, report)
    perfetto.save(out, config.job, run, report)
    return report


def rules(config: LocalConfig) -> Rules:
    """What the run's YAML promises, for the verdict."""
    return Rules(
        capacity=config.devices,
        budgets={
            name: Budget(tenant.devices, tenant.residual) for name, tenant in config.tenants.items()
        },
    )


def _config(path: Path) -> LocalConfig:
    try:
        return LocalConfig.model_validate_json(path.read_text())
    except OSError as exc:
        raise RunFileError(f"{path}: cannot be read: {exc.strerror}: name a run's folder") from exc
    except ValidationError as exc:
        raise RunFileError(f"{path}: is not what a run writes: {exc.errors()[0]['msg']}") from exc
