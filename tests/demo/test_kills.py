"""The demo's job with each party killed in the middle of a handover: no overlap, the same learning.

The verdict of each run is the demo's own: its observer reads only the kernel's figures.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.demo.running import Demo, demo

pytestmark = [pytest.mark.demo, pytest.mark.timeout(600)]


def killed(folder: Path, *kills: str, steps: int) -> Demo:
    arbiter = ["python", "-m", "tests.demo.killing_arbiter"]
    arbiter += [word for kill in kills for word in ("--kill", kill)]
    arguments = ["--steps", str(steps), "--arbiter", " ".join(arbiter)]
    return demo(folder / "out", *arguments, timeout_s=580)


def learned(done: Demo) -> list[tuple[Any, ...]]:
    return [(one["iteration"], one["reward"], one["loss"]) for one in progress(done)]


def progress(done: Demo) -> list[dict[str, Any]]:
    lines = (Path(done.told["folder"]) / "progress.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def epochs(done: Demo) -> Iterator[int]:
    for event in done.events:
        if event.get("kind") == "phase" and event["to"] == "Restoring" != event["from"]:
            yield event["epoch"]


def learns_as(done: Demo, undisturbed: Demo, steps: int) -> bool:
    """The same rewards and losses, to the last digit."""
    told: Sequence[tuple[Any, ...]] = learned(done)
    return len(told) == steps and told == learned(undisturbed)[:steps]


def test_the_arbiter_killed_in_each_phase_and_then_the_trainer(
    tmp_path: Path, whole_demo: Demo
) -> None:
    """The job goes on without the arbiter. The trainer keeps no checkpoint, so without that it
    cannot, and says why.
    """
    phases = ["Quiescing", "Releasing", "Verifying", "Restoring", "Running"]
    kills = [f"arbiter:trainer:{phase}" for phase in phases]
    done = killed(tmp_path, *kills, "trainer:trainer:Releasing", steps=10)
    starts = [event["t"] for event in done.events if event["kind"] == "start"]
    assert len(starts) == 1 + len(phases), done.shown
    (told,) = done.serious
    assert "trainer ended with status 137" in told, done.shown
    assert (done.status, done.told["violations"]) == (1, []), done.shown
    granted = list(epochs(done))
    assert granted == sorted(set(granted))
    assert learns_as(done, whole_demo, done.told["iterations"])
    assert progress(done)[-1]["t"] > starts[-1]


def test_engine_and_activator_killed_in_a_handover(tmp_path: Path, whole_demo: Demo) -> None:
    kills = ["rollout:rollout:Restoring", "rollout.activator:rollout:Releasing"]
    done = killed(tmp_path, *kills, steps=7)
    lines = (Path(done.told["folder"]) / "children.jsonl").read_text().splitlines()
    ended = [json.loads(line) for line in lines]
    dead = {one["child"] for one in ended if one["event"] == "ended" and one["status"] == 137}
    assert {"rollout", "rollout.activator"} <= dead, done.shown
    assert done.serious == [], done.shown
    assert learns_as(done, whole_demo, 7)
