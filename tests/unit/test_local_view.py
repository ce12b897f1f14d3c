"""The live view of a local run, fed with the records of a synthetic run."""

import io
from pathlib import Path

from rich.console import Console

from tandem import run_files
from tandem.local_view import LocalView
from tandem.run_files import Condition
from tests.unit.synthetic_run import SyntheticRun


def test_without_a_terminal_each_iteration_is_one_line(tmp_path: Path) -> None:
    told = io.StringIO()
    view = LocalView("grpo", Console(file=told, width=200), began=1000.0)
    _feed(view, tmp_path)
    lines = told.getvalue().splitlines()
    assert len(lines) == 3
    assert "iteration 3  reward " in lines[2]
    assert "turn trainer (running, epoch 8)" in lines[2]
    assert "gpu0 216.0 MiB of 256.0 MiB (simulated)" in lines[2]


def test_on_a_terminal_the_panel_shows_turn_memory_and_time(tmp_path: Path) -> None:
    told = io.StringIO()
    console = Console(file=told, width=100, force_terminal=True, color_system=None)
    with LocalView("grpo", console, began=1000.0) as view:
        _feed(view, tmp_path, until_iteration=2)
        view.update(now=1065.0)
        view.say("rollout: [started], output in x.log")
    panel = told.getvalue()
    for shown in ("grpo, 1 min 05 s", "iteration 2", "turn, epoch 6", "simulated device"):
        assert shown in panel
    assert "216.0 MiB of 256.0 MiB" in panel
    assert "65.0 s  rollout: [started], output in x.log" in panel


def test_a_condition_is_told_at_once() -> None:
    told = io.StringIO()
    view = LocalView("grpo", Console(file=told, width=200), began=1.0)
    view.feed(Condition(3.5, "ForeignMemory", None, "gpu0", 9, "process 7 [x] holds 9 B"))
    assert told.getvalue() == "    2.5 s  ForeignMemory: process 7 [x] holds 9 B\n"


def test_nothing_is_shown_as_known_before_the_first_record() -> None:
    told = io.StringIO()
    console = Console(file=told, width=100)
    console.print(LocalView("grpo", console, began=0.0))
    assert "no iteration yet: the tenants are starting" in told.getvalue()


def _feed(view: LocalView, folder: Path, until_iteration: int = 3) -> None:
    """Feed in the order of time, as a runner that reads often would."""
    run = SyntheticRun(seed=1)
    run.iterate(3)
    run.write(folder, sample_every_s=0.1)
    records: list[tuple[float, run_files.Record]] = [
        *((event.t, event) for event in run_files.events(folder).read()),
        *((sample.t1, sample) for sample in run_files.samples(folder).read()),
        *((one.t, one) for one in run_files.progress(folder).read()),
    ]
    for _, record in sorted(records, key=lambda pair: pair[0]):
        view.feed(record)
        if isinstance(record, run_files.Progress) and record.iteration == until_iteration:
            return
