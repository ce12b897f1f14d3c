"""A node for tests: the real arbiter and its tenants, in processes of their own.

The arbiter sees its devices as tmpfs in a mount namespace of its own, so nothing is left behind.
Everything that happens is waited for as an event: what a process prints, what the arbiter tells.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from dra_driver.processes import process

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 20.0
DEVICE_SIZE = 16 << 20

# Holds a child until a line comes, so that it is registered before its first instruction.
_GATE = ["/bin/sh", "-c", 'read -r _ && exec "$@"', "gate"]
_USER_NAMESPACE = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
_ENTER_USER_NAMESPACE = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
_MOUNT = 'for d in $0; do mount -t tmpfs -o size=%d tandem "$d" || exit; done; exec "$@"'


class Lines:
    """Lines of JSON that come from somewhere, to be waited for. Lines of other text are kept."""

    def __init__(self, source: Any) -> None:
        self.seen: list[dict[str, Any]] = []
        self.text: list[str] = []
        self._more_text = threading.Condition()
        self._new: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._unread: list[dict[str, Any]] = []
        self._source = source
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for line in self._source:
            try:
                parsed = json.loads(line)
            except ValueError:
                with self._more_text:
                    self.text.append(line)
                    self._more_text.notify_all()
            else:
                self.seen.append(parsed)
                self._new.put(parsed)
        self._new.put(None)

    def wait(self, what: Callable[[dict[str, Any]], bool], within_s: float = WITHIN_S) -> Any:
        """The first line not yet waited for that `what` takes; those before it stay for others."""
        for number, line in enumerate(self._unread):
            if what(line):
                return self._unread.pop(number)
        while True:
            try:
                line_or_end = self._new.get(timeout=within_s)
            except queue.Empty:
                raise AssertionError(f"nothing like that within {within_s} s: {self}") from None
            if line_or_end is None:
                self._new.put(None)
                raise AssertionError(f"it ended without that: {self}")
            if what(line_or_end):
                return line_or_end
            self._unread.append(line_or_end)

    def wait_for(self, within_s: float = WITHIN_S, **values: Any) -> Any:
        """The first line not yet waited for that has these values."""
        return self.wait(
            lambda line: all(line.get(key) == value for key, value in values.items()), within_s
        )

    def wait_text(self, words: str) -> None:
        """Wait for a line of other text that holds these words."""
        with self._more_text:
            found = self._more_text.wait_for(
                lambda: any(words in line for line in self.text), WITHIN_S
            )
        assert found, self

    def end(self) -> None:
        """Read to the end."""
        self._thread.join(WITHIN_S)
        # Closing a pipe that is being read would wait for the reader, and no signal ends that wait.
        assert not self._thread.is_alive(), f"some process still has the other end: {self}"

    def close(self) -> None:
        """Read to the end, and close the source."""
        self.end()
        self._source.close()

    def __str__(self) -> str:
        return "\n".join([*map(json.dumps, self.seen[-30:]), *self.text[-30:]])


class Child:
    """A process of a test."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        self.out = Lines(popen.stdout)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def say(self, **command: Any) -> None:
        """Write a line of JSON to its stdin."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(command) + "\n")
        self.popen.stdin.flush()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        """End it; return its exit status."""
        self.popen.send_signal(number)
        return self.end()

    def end(self) -> int:
        """Wait for its end; return its exit status."""
        status = self.popen.wait(WITHIN_S)
        self.out.end()
        return status

    def close(self) -> None:
        """Close the pipes of a process that was killed."""
        self.popen.wait()
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):
            self.popen.stdin.close()  # an heir that waits for a line ends too
        self.out.close()


class Tenant(Child):
    """A scripted tenant (scripted_tenant.py)."""

    def acquire(self, **options: Any) -> int:
        """Acquire and wait for the turn; return its epoch."""
        self.say(do="acquire", **options)
        return self.acquired()

    def acquired(self) -> int:
        """Wait until an acquire succeeds; return the epoch."""
        return int(self.out.wait_for(did="acquire")["epoch"])

    def refused(self) -> dict[str, Any]:
        """Wait until an acquire fails."""
        failure = self.out.wait(lambda line: "failed" in line)
        assert isinstance(failure, dict)
        return failure

    def yield_turn(self) -> None:
        """Free the turn."""
        self.say(do="yield")
        self.out.wait_for(did="yield")


class Node:
    """The arbiter's files, and the processes of a test."""

    def __init__(self, folder: Path, devices: int = 1, **limits: float) -> None:
        self.folder = folder
        self.devices = {f"gpu{n}": folder / f"gpu{n}" for n in range(devices)}
        self.sockets: dict[str, Path] = {}
        self._claims: dict[str, Any] = {}
        self._limits = {"watch_s": 60.0} | limits
        self._children: list[Child] = []
        self._roots: dict[str, list[dict[str, int]]] = {}
        for device in self.devices.values():
            device.mkdir()
        self.told = folder / "events"
        """Where the arbiter tells: a pipe, so that reading it is waiting for what is told."""
        os.mkfifo(folder / "events")
        reading = os.open(folder / "events", os.O_RDONLY | os.O_NONBLOCK)
        self._events_end = (folder / "events").open("w")  # no arbiter's end is the pipe's end
        os.set_blocking(reading, True)
        self.events = Lines(os.fdopen(reading))

    def claim(
        self,
        name: str,
        *tenants: str,
        devices: list[str] | None = None,
        **options: Any,
    ) -> Path:
        """Add a claim whose tenants are all alike, with these options; return its socket."""
        directory = self.folder / name
        directory.mkdir()
        member = {
            "devices": devices or list(self.devices),
            "need": None,
            "residual": 0,
            **options,
        }
        self._claims[name] = {
            "socket_dir": str(directory),
            "tenants": dict.fromkeys(tenants, member),
        }
        self.sockets[name] = directory / "turns.sock"
        return self.sockets[name]

    @property
    def journal(self) -> Path:
        return self.folder / "state" / "turns.journal"

    def arbiter(
        self,
        *arguments: str,
        module: str = "dra_driver",
        ready: bool = True,
        absent: Collection[str] = (),
        **options: Any,
    ) -> Child:
        """Start the arbiter, without those devices, and wait until it arbitrates."""
        file = self.folder / "node.json"
        node = {
            "state_dir": str(self.folder / "state"),
            "events": str(self.told),
            "processes": str(self._processes),
            "devices": {name: {"simulated": str(path)} for name, path in self.devices.items()},
            "claims": self._claims,
            "limits": self._limits,
        }
        file.write_text(json.dumps(node))
        unshare = ["unshare", "--mount", *_USER_NAMESPACE, "/bin/sh", "-c", _MOUNT % DEVICE_SIZE]
        present = (path for name, path in self.devices.items() if name not in absent)
        devices = " ".join(map(str, present))
        command = [sys.executable, "-m", module, "--node", str(file), *arguments]
        child = self._start([*unshare, devices, *command], stderr=subprocess.STDOUT, **options)
        if ready:
            self.arbitrates(child)
        return child

    def break_device(self, arbiter: Child, name: str) -> None:
        """The arbiter sees another tmpfs where the device's was: it cannot be measured."""
        self._in_its_namespace(arbiter, "mount", "-t", "tmpfs", "broken", str(self.devices[name]))

    def mend_device(self, arbiter: Child, name: str) -> None:
        """The device's own tmpfs is back, with what it holds."""
        self._in_its_namespace(arbiter, "umount", str(self.devices[name]))

    def _in_its_namespace(self, arbiter: Child, *command: str) -> None:
        enter = ["nsenter", "--target", str(arbiter.pid), "--mount", *_ENTER_USER_NAMESPACE]
        subprocess.run([*enter, *command], check=True, timeout=WITHIN_S)

    def arbitrates(self, arbiter: Child) -> None:
        """Wait until an arbiter that was started serves."""
        self.events.wait_for(kind="start")

    def tenant(self, name: str, claim: str = "claim", **options: Any) -> Tenant:
        """Start a scripted tenant, registered, and wait until it has a session."""
        started = self.registered(
            name,
            ["-m", "tests.contract.scripted_tenant", name, str(self.sockets[claim])],
            **options,
        )
        tenant = Tenant.__new__(Tenant)
        tenant.__dict__ = started.__dict__
        tenant.out.wait_for(did="open")
        return tenant

    def registered(self, name: str, arguments: list[str], **options: Any) -> Child:
        """Start Python as a process of a tenant."""
        child = self._start([*_GATE, sys.executable, *arguments], **options)
        self.register(name, child.pid)
        assert child.popen.stdin is not None
        child.popen.stdin.write("\n")
        child.popen.stdin.flush()
        return child

    def stranger(self, arguments: list[str], **options: Any) -> Child:
        """Start Python as a process of no tenant."""
        return self._start([sys.executable, *arguments], **options)

    def register(self, name: str, pid: int) -> None:
        """Tell the arbiter of a tenant's process."""
        root = {"pid": pid, "start_time": process(pid).start_time}
        self._roots.setdefault(name, []).append(root)
        self._write_processes()

    def forget(self, name: str) -> None:
        """Tell the arbiter that a tenant's processes have ended."""
        del self._roots[name]
        self._write_processes()

    def _write_processes(self) -> None:
        fresh = self._processes.with_suffix(".new")
        fresh.write_text(json.dumps(self._roots))
        fresh.rename(self._processes)

    def turns(self) -> list[tuple[int, str]]:
        """The epochs that were told as Running, with their tenants, in order, each once."""
        found = {
            (event["epoch"], event["tenant"])
            for event in self.events.seen
            if event.get("kind") == "phase" and event["to"] == "Running"
        }
        return sorted(found)

    def phase(self, tenant: str, phase: str, **values: Any) -> None:
        """Wait until the arbiter tells that the tenant is in a phase."""
        self.events.wait_for(kind="phase", tenant=tenant, to=phase, **values)

    def close(self) -> None:
        """End all processes."""
        with ExitStack() as each:  # also after one that fails
            each.callback(self.events.close)
            each.callback(self._events_end.close)  # nobody writes any more, so its reader ends
            for child in self._children:
                each.callback(child.close)
                child.popen.kill()

    @property
    def _processes(self) -> Path:
        return self.folder / "processes.json"

    def _start(self, command: list[str], **options: Any) -> Child:
        env = {**os.environ, "PYTHONPATH": _python_path(), **options.pop("env", {})}
        popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=ROOT,
            env=env,
            **options,
        )
        child = Child(popen)
        self._children.append(child)
        return child


def _python_path() -> str:
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])


@contextmanager
def node(**options: Any) -> Iterator[Node]:
    """A node in a folder whose name is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-"))
    made = Node(folder, **options)
    try:
        yield made
    finally:
        try:
            made.close()
        finally:
            shutil.rmtree(folder)
