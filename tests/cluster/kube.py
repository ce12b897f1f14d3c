"""hack/localkube as a test uses it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60
UP_S = 1500  # it builds what is not in the cache

_CONNECTS = """
import socket, sys, time
host, port, within_s = sys.argv[1:]
until = time.monotonic() + float(within_s)
while True:
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        break
    except OSError:
        if time.monotonic() > until:
            raise
"""


class Kube:
    """A cluster whose state is in a folder of its own."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def run(
        self, *arguments: str, stdin: str | None = None, within_s: float = WITHIN_S
    ) -> subprocess.CompletedProcess[str]:
        """hack/localkube with these arguments, however it ends."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "hack.kube", *arguments],
            env=os.environ | {"TANDEM_LOCALKUBE": str(self.state), "PYTHONPATH": str(ROOT)},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )

    def __call__(self, *arguments: str, **options: Any) -> str:
        """The same, which must succeed; what it printed."""
        done = self.run(*arguments, **options)
        assert done.returncode == 0, f"{arguments}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def follow(self, *arguments: str, within_s: float = WITHIN_S) -> Generator[str, None, None]:
        """The lines that it prints, as they come, until it ends or this long is over."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hack.kube", *arguments],
            env=os.environ | {"TANDEM_LOCALKUBE": str(self.state), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        # With what it started: nsenter's child would hold the pipe open.
        deadline = threading.Timer(within_s, os.killpg, (process.pid, signal.SIGKILL))
        deadline.start()
        try:
            assert process.stdout is not None
            while line := process.stdout.readline():  # `yield from` would close what it reads
                yield line
        finally:
            deadline.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def up(self, nodes: int = 1) -> None:
        """Start it."""
        self("up", f"--nodes={nodes}", within_s=UP_S)

    def status(self) -> dict[str, Any]:
        """What `status` tells, all well or not."""
        told: dict[str, Any] = json.loads(self.run("status", "-o", "json").stdout)
        return told

    def component(self, name: str) -> dict[str, Any]:
        """What `status` tells of a component."""
        (found,) = [one for one in self.status()["components"] if one["name"] == name]
        assert isinstance(found, dict)
        return found

    def get(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get`, parsed."""
        found: dict[str, Any] = json.loads(self("kubectl", "get", *arguments, "-o", "json"))
        return found

    def apply(self, *objects: dict[str, Any]) -> None:
        """Make these objects, or change them."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("kubectl", "apply", "-f", "-", stdin=json.dumps(listed))

    def wait(self, what: str, *objects: str) -> None:
        """`kubectl wait --for`."""
        self("kubectl", "wait", f"--for={what}", f"--timeout={WITHIN_S}s", *objects)

    def reaches(self, host: str, port: int) -> None:
        """Wait until a Service can be reached from a node.

        kube-proxy learns of it some time after its pod is ready, and a connection that was begun
        before that hangs until it is given up.
        """
        connects = ("python3", "-c", _CONNECTS, host, str(port), str(WITHIN_S))
        self("exec", "--", *connects, within_s=2 * WITHIN_S)

    def output(self, pod: str) -> str:
        """What a pod printed that has succeeded, or will soon."""
        try:
            self.wait("jsonpath={.status.phase}=Succeeded", f"pod/{pod}")
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self('kubectl', 'describe', f'pod/{pod}')}") from exc
        return self("kubectl", "logs", pod)

    def log(self, component: str) -> str:
        """What a component said."""
        return Path(self.component(component)["log"]).read_text()

    def down(self) -> None:
        """End it, also one that is not well."""
        self("down")


def pod(name: str, *command: str, image: str = "localhost/python:local", **spec: Any) -> Any:
    """A pod that runs a command once."""
    container = spec.pop("container", {})
    main = {"name": "main", "image": image, "command": list(command)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [main | container],
            **spec,
        },
    }


def service(name: str, port: int) -> Any:
    """A Service for the pod of this name."""
    ports = [{"port": 80 if port == 8080 else port, "targetPort": port}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": ports},
    }
