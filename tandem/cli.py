"""The `tandem` command. Exit status: 0 all held, 1 something did not, 2 not started."""

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Final, Literal, assert_never

import click
from rich.console import Console
from rich.live import Live

from claim_phases.accounts import Accounts
from dra_driver.layout import node_layout
from tandem import accounts_view, local, results
from tandem.books import Books, Changes
from tandem.config import ConfigError, load
from tandem.local import RunError, RunResult
from tandem.report import Report
from tandem.run_files import RunFileError

Output = Literal["table", "json"]

NODE: Final = node_layout().run
"""The folder of a node's driver, in its pod too."""

_REDRAW_S: Final = 0.1
_TICK_S: Final = 1.0
_WIDE: Final = 200

_FOLDER = click.argument("folder", type=click.Path(path_type=Path), default=NODE)
_OUTPUT = click.option(
    "-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True
)


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
@_OUTPUT
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
@_FOLDER
@click.option(
    "--last",
    "last_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Show only the last seconds.",
)
@click.option(
    "-o",
    "output",
    type=click.Choice(["files", "html", "perfetto"]),
    default="files",
    show_default=True,
    help="Files in FOLDER, or one of them printed.",
)
def draw_timeline(
    folder: Path, last_s: float | None, output: Literal["files", "html", "perfetto"]
) -> None:
    """Draw a local run or a node: a page for a browser, and a trace for Perfetto.

    FOLDER is a local run's, or that of a node's driver.
    """
    try:
        drawing = results.draw(folder, last_s)
        match output:
            case "html":
                click.echo(drawing.page())
            case "perfetto":
                click.echo(drawing.trace())
            case "files":
                for path in drawing.save(folder):
                    click.echo(path)
            case _:
                assert_never(output)
    except RunFileError as exc:
        raise NotStarted(str(exc)) from exc


@main.command("top")
@_FOLDER
@click.option("--once", is_flag=True, help="Print it once; so does a stdout that is no terminal.")
@_OUTPUT
def show_top(folder: Path, once: bool, output: Output) -> None:
    """Show who has the devices, who waits for whom, and what sharing costs each.

    FOLDER is a local run's, or that of a node's driver.
    """
    console = Console()
    try:
        if output == "json":
            click.echo(json.dumps(accounts_view.to_json(_accounts(folder))))
        elif once or not console.is_terminal:
            _wide(console).print(accounts_view.top(_accounts(folder)))
        else:
            with contextlib.suppress(KeyboardInterrupt):
                _follow(folder, console)
    except RunFileError as exc:
        raise NotStarted(str(exc)) from exc


def _accounts(folder: Path) -> Accounts:
    with contextlib.closing(Books(folder)) as books:
        return books.at(time.monotonic())


def _follow(folder: Path, console: Console) -> None:
    """Redraw at each event, at most every _REDRAW_S; between events time goes on too."""
    with (
        contextlib.closing(Books(folder)) as books,
        Changes(folder) as changes,
        Live(console=console, auto_refresh=False) as live,
    ):
        while True:
            live.update(accounts_view.top(books.at(time.monotonic())), refresh=True)
            time.sleep(_REDRAW_S)
            due = time.monotonic() + _TICK_S
            while not books.read() and (left := due - time.monotonic()) > 0:
                changes.wait(left)


@main.command("explain")
@click.argument("tenant")
@_FOLDER
@_OUTPUT
def explain_tenant(tenant: str, folder: Path, output: Output) -> None:
    """Say how much slower TENANT is than alone, and why.

    TENANT is a tenant's or its pod's name, or the job/role of one that has left. FOLDER is a local
    run's, or that of a node's driver.
    """
    try:
        row = accounts_view.find(_accounts(folder), tenant)
    except (RunFileError, accounts_view.UnknownTenant) as exc:
        raise NotStarted(str(exc)) from exc
    if output == "json":
        click.echo(json.dumps(row.to_json()))
    else:
        _wide(Console()).print(accounts_view.explain(row))


def _wide(console: Console) -> Console:
    """What is no terminal has no width: lines stay whole there."""
    return console if console.is_terminal else Console(width=_WIDE)


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
