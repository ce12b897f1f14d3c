"""The demo's job with each party killed in the middle of a handover: no overlap, the same learning.

The verdict of each run is the demo's own: its observer reads only the kernel's figures.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.demo.running import Demo, demo

pytestmark = [pytest.mark.demo, pytest.mark.timeout(900)]


def killed(folder: Path, *kills: str, steps: int) -> Demo:
    arbiter = ["python", "-m", "tests.demo.killing_arbiter"]
    arbiter += [word for kill in kills for word in ("--kill", kill)]
    arguments = ["--steps", str(steps), "--arbiter", " ".join(arbiter)]
    return demo(folder / "out", *arguments, timeout_s=880)


def learned(done: Demo) -> list[tuple[Any, ...]]:
    return [(one["iteration"], one["reward"], one["loss"]) for one in lines(done, "progress.jsonl")]


def lines(done: Demo, name: str) -> list[dict[str, Any]]:
    text = (Path(done.told["folder"]) / name).read_text()
    return [json.loads(line) for line in text.splitlines()]


def epochs(done: Demo) -> Iterator[int]:
    for event in done.events:
        if event.get("kind") == "phase" and event["to"] == "Restoring" != event["from"]:
            yield event["epoch"]


def learns_as(done: Demo, undisturbed: Demo, steps: int) -> bool:
    """The same rewards and losses, to the last digit."""
    told: Sequence[tuple[Any, ...]] = learned(done)
    return len(told) == steps and told == learned(undisturbed)[:steps]


def test_each_party_killed_in_a_handover(tmp_path: Path, whole_demo: Demo) -> None:
    """The job goes on without the arbiter, in each phase, without engine and activator. The trainer
    keeps no checkpoint, so without that it cannot, and says why.
    """
    phases = ["Quiescing", "Releasing", "Verifying", "Restoring", "Running"]
    kills = [f"arbiter:trainer:{phase}" for phase in phases]
    kills += ["rollout:rollout:Restoring", "rollout.activator:rollout:Releasing"]
    done = killed(tmp_path, *kills, "trainer:trainer:Releasing", steps=14)
    starts = [event["t"] for event in done.events if event["kind"] == "start"]
    assert len(starts) == 1 + len(phases), done.shown
    dead = [one for one in lines(done, "children.jsonl") if one["status"] == 137]
    names = {one["child"] for one in dead}
    assert {"rollout", "rollout.activator", "trainer"} <= names, done.shown
    (told,) = done.serious
    assert "trainer ended with status 137" in told, done.shown
    assert (done.status, done.told["violations"]) == (1, []), done.shown
    granted = list(epochs(done))
    assert granted == sorted(set(granted))
    assert learns_as(done, whole_demo, done.told["iterations"])
    last = next(one["t"] for one in dead if one["child"] == "rollout.activator")
    assert lines(done, "progress.jsonl")[-1]["t"] > last
