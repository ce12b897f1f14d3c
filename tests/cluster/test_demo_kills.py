"""The job as pods, with each of its parts killed as a turn changes hands: it goes on.

The verdict is the demo's own: its observer reads only the kernel's figures. An interrupt ends it.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.kube import ROOT, UP_S, Kube
from tests.demo.running import REWARD

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.demo,
    pytest.mark.timeout(UP_S + 900),
    pytest.mark.skipif(os.geteuid() != 0, reason="hack/localkube needs root"),
]

INTERRUPTED = 128 + signal.SIGINT
LAST = 10
"""The iteration at which the demo is interrupted."""

# A line for an iteration is printed as the trainer gives the turn to the engine.
KILLS = {
    2: ("exec", "--", "pkill", "-KILL", "-f", "dra_driver --config"),
    4: ("restart", "kubelet"),
    6: ("exec", "--", "pkill", "-KILL", "-f", "workload_agents --role"),
    9: ("exec", "--", "pkill", "-KILL", "-f", "vllm.entrypoints.openai"),
}


def test_the_job_goes_on_while_each_part_is_killed_until_an_interrupt_takes_all_of_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube = Kube(tmp_path / "kube")
    monkeypatch.setenv("TANDEM_LOCALKUBE", str(kube.state))
    command = [sys.executable, str(ROOT / "hack" / "demo.py"), "--cluster", "-o", "json"]
    command += ["--out", str(tmp_path / "out")]
    demo = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    assert demo.stderr is not None
    kills, shown = dict(KILLS), []
    with demo:
        for line in demo.stderr:
            shown.append(line)
            _, _, iteration = line.partition(" iteration ")
            if not iteration:
                continue
            if kill := kills.pop(int(iteration.split()[0]), None):
                kube(*kill)
            elif iteration.split()[0] == str(LAST):
                demo.send_signal(signal.SIGINT)
        told = json.loads(demo.stdout.read())
    assert kills == {}, "".join(shown)
    assert demo.returncode == INTERRUPTED, "".join(shown)
    serious = [one for one in told["failures"] if not one.startswith(REWARD)]
    assert serious == ["ended by SIGINT"], "".join(shown)
    assert told["iterations"] >= LAST
    assert not kube.state.exists()
    starts = (Path(told["folder"]) / "events.jsonl").read_text().count('"kind": "start"')
    assert starts == 1, "".join(shown)
    assert told["kubernetes"]["pods"]["rollout"]["restarts"] >= 2
