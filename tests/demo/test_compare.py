"""Taking turns, side by side, on two devices: the same job learns the same, to the last digit."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.demo.running import demo

pytestmark = [pytest.mark.demo, pytest.mark.timeout(1200)]

STEPS = 6
"""Weights are handed over, and the first of them are out of the store."""


def test_three_ways_learn_the_same(tmp_path: Path) -> None:
    done = demo(tmp_path / "out", "--compare", "--steps", str(STEPS), timeout_s=1180)
    assert (done.status, done.serious) == (int(bool(done.told["failures"])), []), done.shown
    ways = done.told["ways"]
    assert list(ways) == ["turns", "resident", "disaggregated"]
    assert [len(way["devices"]) for way in ways.values()] == [1, 1, 2]
    assert len({way["reward_last"] for way in ways.values()}) == 1
    learned = [json.loads(line)["loss"] for line in progress(ways["turns"]).splitlines()]
    assert len(set(learned)) == STEPS  # there was something to compare
    for way in ways.values():
        assert way["device_s"] == pytest.approx(len(way["devices"]) * way["wall_s"], abs=0.01)
    assert "devices x wall time (simulated devices" in done.shown


def progress(way: dict[str, Any]) -> str:
    return (Path(way["folder"]) / "progress.jsonl").read_text()
