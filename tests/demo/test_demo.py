"""The demo as its user runs it: every check holds, and the figures are those of the run's files."""

import json
from pathlib import Path

import pytest

from tests.demo.running import Demo

pytestmark = [pytest.mark.demo, pytest.mark.timeout(600)]


def test_the_demo(whole_demo: Demo) -> None:
    done = whole_demo
    told = done.told
    assert (done.status, told["failures"], told["violations"]) == (0, [], []), done.shown
    progress = lines(Path(told["folder"]) / "progress.jsonl")
    rewards = [one["reward"] for one in progress]
    assert told["iterations"] == len(rewards) >= 20
    assert told["reward_first"] == pytest.approx(sum(rewards[:5]) / 5, abs=1e-6)
    assert told["reward_last"] == pytest.approx(sum(rewards[-5:]) / 5, abs=1e-6)
    assert told["weights_version"] == progress[-1]["weights_version"]
    assert told["weights_check_max"] <= told["weights_tolerance"]
    # Each iteration hands the turn over twice; the first ones are the tenants' starts.
    assert told["turns"] >= 2 * told["iterations"]
    assert told["handover_ms"]["n"] >= 2 * told["iterations"] - 2
    assert 0 < told["handover_ms"]["p50"] <= told["handover_ms"]["p99"]
    assert 0 < told["busy_share"] < 1
    assert told["wait_s"].keys() == {"rollout", "trainer"}
    device = told["device"]
    assert device["simulated"] is True
    assert device["residual"].keys() == {"rollout", "trainer"}
    peaks = peak_by_tenant(Path(told["folder"]) / "samples.jsonl")
    # Too small for both, and neither is small: what the demo is about.
    assert all(3 * peak >= device["capacity"] for peak in peaks.values()), peaks
    assert sum(peaks.values()) >= 1.5 * device["capacity"], peaks
    assert device["peak"] <= device["capacity"]


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def peak_by_tenant(samples: Path) -> dict[str, int]:
    peaks: dict[str, int] = {}
    for line in samples.read_text().splitlines():
        for tenant, held in json.loads(line)["tenants"].items():
            peaks[tenant] = max(peaks.get(tenant, 0), held.get("gpu0", 0))
    return peaks
