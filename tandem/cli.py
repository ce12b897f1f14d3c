"""The `tandem` command. Exit status: 0 all held, 1 something did not, 2 not started."""

import json
import sys
import time
from pathlib import Path
from typing import Literal

import click
from rich.console import Console

from tandem import local, perfetto, results, timeline
from tandem.config import ConfigError, load
from tandem.local import RunError, RunResult
from tandem.report import Report
from tandem.run_files import RunFileError

Output = Literal["table", "json"]


class NotStarted(click.ClickException):
    """What the user gave cannot be used."""

    exit_code = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Rollout and trainer take turns on the same GPUs."""


@main.command("local")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The run's folder, new or empty; tandem-JOB-DATE here, if not given.",
)
@click.option(
    "-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def run_local(file: Path, out: Path | None, output: Output) -> None:
    """Run the job of FILE on simulated devices of this machine, and judge the run."""
    try:
        config = load(file)
        out = out or Path(time.strftime(f"tandem-{config.job}-%Y%m%d-%H%M%S"))
        result = local.run(config, out, folder=file.parent, console=Console(stderr=True))
    except (ConfigError, RunError) as exc:
        raise NotStarted(str(exc)) from exc
    try:
        report = results.evaluate(out)
    except RunFileError as exc:
        report, result = None, result.failing(str(exc))
    _print(out, result, report, output)
    if result.signal is not None:
        sys.exit(128 + result.signal)
    sys.exit(1 if report is None or result.failures or report.violations else 0)


@main.command("timeline")
@click.argument("run", type=click.Path(path_type=Path))
def draw_timeline(run: Path) -> None:
    """Draw the run in the folder RUN again: a page for a browser, and a trace for Perfetto."""
    try:
        results.evaluate(run)
    except RunFileError as exc:
        raise NotStarted(str(exc)) from exc
    click.echo(run / timeline.PAGE)
    click.echo(run / perfetto.TRACE)


def _print(out: Path, result: RunResult, report: Report | None, output: Output) -> None:
    console = Console(stderr=output == "json")
    if report is not None:
        report.render(console)
    for failure in result.failures:
        console.print(f"failed: {failure}", style="bold red", markup=False, highlight=False)
    console.print(f"{out}: timeline.html, report.json, logs", markup=False, highlight=False)
    if output == "json":
        figures = {} if report is None else report.to_json()
        click.echo(json.dumps(figures | {"failures": result.failures, "folder": str(out)}))
