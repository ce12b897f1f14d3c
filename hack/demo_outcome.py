"""What a run of the demo's job amounts to, on one machine or in a cluster: checks and figures."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tandem import local, results, run_files
from tandem.report import Report
from tandem.run_files import Run, RunFileError

REWARD_MARGIN: Final = 0.4
"""How much the mean reward of the last five iterations must exceed that of the first five."""

WEIGHTS_TOLERANCE: Final = 1e-4
"""The largest weights_check: nats a token. Weights one update older were seen to differ by more."""


@dataclass(frozen=True)
class Done:
    """A run, and each check that failed as one sentence. `report`: None if there was no run.

    Attributes:
        name: of the way in which the job was run.
        devices: their sizes in bytes.
        signal: the one that ended it.
        beside: further keys of its JSON.
    """

    name: str
    devices: Mapping[str, int]
    folder: Path
    run: Run | None
    report: Report | None
    failures: tuple[str, ...]
    signal: int | None
    beside: Mapping[str, Any] = field(default_factory=dict)

    @property
    def wall_s(self) -> float:
        """Seconds from the run's first record to its last; not a number without a report."""
        return math.nan if self.report is None else self.report.wall_s

    @property
    def device_s(self) -> float:
        """Devices x wall time, in seconds."""
        return len(self.devices) * self.wall_s

    def to_json(self) -> dict[str, Any]:
        """The report's figures, the failures and the folder."""
        told = {} if self.report is None else self.report.to_json()
        if self.report is not None:
            told["device_s"] = round(self.device_s, 3)
        return told | {
            "sampling_interval_ms": local.SAMPLING_MS,
            "weights_tolerance": WEIGHTS_TOLERANCE,
            "failures": list(self.failures),
            "folder": str(self.folder),
            **self.beside,
        }

    def show(self, console: Console) -> None:
        """The figures and where they lie."""
        if self.report is not None:
            self.report.render(console)
        console.print(
            f"observer: a sample every {local.SAMPLING_MS} ms; weights check: at most"
            f" {WEIGHTS_TOLERANCE} nats a token",
            highlight=False,
        )
        console.print(f"{self.folder}: timeline.html, timeline.perfetto.json, report.json, logs")


def judged(
    name: str,
    devices: Mapping[str, int],
    folder: Path,
    failures: Sequence[str],
    signal: int | None,
    beside: Mapping[str, Any] | None = None,
) -> Done:
    """Judge the run in `folder`, which ended with these failures."""
    beside = beside or {}
    try:
        report = results.evaluate(folder)
        run = run_files.read_run(folder)
    except RunFileError as exc:
        return Done(name, devices, folder, None, None, (*failures, str(exc)), signal, beside)
    found = (*failures, *report.violations, *_learning(run, report))
    return Done(name, devices, folder, run, report, found, signal, beside)


def _learning(run: Run, report: Report) -> Iterator[str]:
    """What must hold beside the verdict, wherever it runs."""
    first, last = report.reward_first, report.reward_last
    if first is None or last is None:
        yield "no iteration ended: there is no reward"
    elif not last - first >= REWARD_MARGIN:
        yield f"the reward rose by {last - first:.3f}, less than {REWARD_MARGIN}"
    for one in run.progress:
        difference = one.weights_check
        if difference is None or not difference <= WEIGHTS_TOLERANCE:
            yield (
                f"in iteration {one.iteration} the engine did not serve the published weights"
                f" (version {one.weights_version}): its log-probabilities differ from the"
                f" trainer's by {difference} a token, more than {WEIGHTS_TOLERANCE}"
            )
            break
