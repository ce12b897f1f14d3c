"""Whose process is it, when its parents die before it?"""

import json
import signal
import subprocess
from pathlib import Path

from dra_driver.processes import Registry, process


def test_a_process_stays_its_tenant_s_when_those_above_it_are_killed(tmp_path: Path) -> None:
    """vLLM's EngineCore, say, in the second after its API server was killed."""
    registered = tmp_path / "processes.json"
    registry = Registry(registered)
    # Both end with the stdin that they share.
    tenant = subprocess.Popen(
        ["sh", "-c", "exec 3<&0; sh -c 'echo $$; read -r line' <&3 & read -r line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with tenant:
        assert tenant.stdout is not None
        worker = int(tenant.stdout.readline())
        root = process(tenant.pid)
        roots = {"rollout": [{"pid": root.pid, "start_time": root.start_time}]}
        registered.write_text(json.dumps(roots))
        assert registry.owners([worker]) == {worker: "rollout"}
        tenant.send_signal(signal.SIGKILL)
        tenant.wait()
        assert registry.owners([worker]) == {worker: "rollout"}
        registered.write_text(json.dumps({}))
        assert registry.owners([worker]) == {}


def test_a_pid_that_was_given_to_another_process_is_nobody_s(tmp_path: Path) -> None:
    registered = tmp_path / "processes.json"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as stranger:
        found = process(stranger.pid)
        former = {"pid": found.pid, "start_time": found.start_time - 1}
        registered.write_text(json.dumps({"rollout": [former]}))
        assert Registry(registered).owners([stranger.pid]) == {}
        assert stranger.stdin is not None
        stranger.stdin.close()
