"""`hack/demo --cluster` as its user runs it, on a cluster of its own that is gone afterwards."""

import os
from pathlib import Path

import pytest

from tests.demo.running import demo

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.demo,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(os.geteuid() != 0, reason="hack/localkube needs root"),
]


STEPS = 20
"""Enough for the reward to rise by what the demo demands."""


@pytest.fixture(name="state")
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo's cluster will be."""
    state = tmp_path / "kube"
    monkeypatch.setenv("TANDEM_LOCALKUBE", str(state))
    return state


def test_the_job_as_pods(tmp_path: Path, state: Path) -> None:
    done = demo(tmp_path / "out", "--cluster", "--steps", str(STEPS), timeout_s=1400)
    told = done.told
    assert (done.status, told["failures"], told["violations"]) == (0, [], []), done.shown
    assert told["iterations"] == STEPS
    assert told["turns"] >= 2 * told["iterations"]
    assert told["handover_ms"]["n"] >= 2 * told["iterations"] - 2
    assert told["device"]["residual"].keys() == told["wait_s"].keys() == {"rollout", "trainer"}
    folder = Path(told["folder"])
    assert {"timeline.html", "timeline.perfetto.json"} <= {path.name for path in folder.iterdir()}

    kubernetes = told["kubernetes"]
    pods = kubernetes["pods"]
    assert {name: pod["phase"] for name, pod in pods.items()} == {
        "rollout": "Running",
        "trainer": "Succeeded",
    }
    assert {pod["node"] for pod in pods.values()} == {"node1"}
    (device,) = kubernetes["claim"]["devices"]
    assert device["data"]["kind"] == "Turns"
    reasons = {(event["regarding"], event["reason"]) for event in kubernetes["events"]}
    assert {
        ("pod/rollout", "WaitingForPartner"),
        ("pod/rollout", "Paired"),
        ("pod/trainer", "Paired"),
    } <= reasons

    waiting, trainer, rollout = (Path(path).read_text() for path in kubernetes["describes"])
    assert "WaitingForPartner" in waiting
    assert "Name:         trainer" not in waiting
    for text, holder in ((trainer, "default/trainer"), (rollout, "default/rollout")):
        assert f"Holder:       {holder}\n" in text
        assert f"{holder} " in done.shown

    logs = {path.name for path in (folder / "logs").iterdir()}
    assert {"rollout.engine.1.log", "rollout.tandem-agent.1.log", "trainer.trainer.1.log"} <= logs
    assert not state.exists()
