"""A node for the benchmarks: the real arbiter and its tenants, in processes of their own."""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dra_driver.processes import process
from tandem.namespace import NamespaceError, contained, mount_tmpfs
from tests.contract import simdevice_env

DEVICE_SIZE = 1 << 20
_PYTHON = [sys.executable, "-P", "-m"]  # -P: hack/bench says why


class Part:
    """A process of `_parts`."""

    def __init__(
        self,
        *arguments: object,
        gate: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; behind a gate it waits for `open_gate`."""
        command = [*_PYTHON, "hack.benchmarks._parts", *map(str, arguments)]
        if gate:
            command = ["/bin/sh", "-c", 'read -r _ && exec "$@"', "part", *command]
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._name = " ".join(map(str, arguments))

    @property
    def pid(self) -> int:
        return self._popen.pid

    def open_gate(self) -> None:
        """Let it begin."""
        self.ask(None)

    def ask(self, what: object) -> None:
        """Write a line to it; `answer` is to follow."""
        assert self._popen.stdin is not None
        print(json.dumps(what), file=self._popen.stdin, flush=True)

    def answer(self) -> Any:
        """Wait for its next line."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with {self._popen.wait()}: see its words above")
        return json.loads(line)

    def kill(self) -> None:
        """End it."""
        self._popen.kill()
        self._popen.wait()


@dataclass(frozen=True)
class Tenant:
    """A tenant of a node: its name, its device, the part that it plays, and that part's arguments
    after name and socket. What it needs and may keep of the device, in bytes.
    """

    name: str
    device: str
    part: str
    arguments: tuple[object, ...] = ()
    need: int | None = None
    residual: int = 0


PAIR = (Tenant("a", "gpu0", "tenant"), Tenant("b", "gpu0", "tenant"))


class Node:
    """A node whose devices hold nothing, its arbiter, and the tenants of one claim.

    `library`: preloaded into tenants whose torch memory is to be their device's.
    """

    def __init__(
        self,
        folder: Path,
        tenants: Sequence[Tenant],
        device_size: int = DEVICE_SIZE,
        library: Path | None = None,
    ) -> None:
        """Start the arbiter and each tenant's process; wait for their sessions."""
        self._folder = folder
        self._device_size = device_size
        self._parts: list[Part] = []
        self._socket = folder / "sockets" / "turns.sock"
        self._socket.parent.mkdir()
        self._arbiter = self._start_arbiter(tenants)
        self.tenants = [
            self._part(
                *(one.part, one.name, self._socket, *one.arguments),
                gate=True,
                environment=self._environment(one, library),
            )
            for one in tenants
        ]
        roots = {
            one.name: [{"pid": part.pid, "start_time": process(part.pid).start_time}]
            for one, part in zip(tenants, self.tenants, strict=True)
        }
        (folder / "processes.json").write_text(json.dumps(roots))
        for part in self.tenants:
            part.open_gate()
        for part in self.tenants:
            part.answer()

    def bare(self) -> Part:
        """Start the baseline, server and client; the client is ready."""
        socket = self._socket.with_name("bare.sock")
        self._part("bare-server", socket).answer()
        client = self._part("bare-client", socket)
        client.answer()
        return client

    @property
    def journal_bytes(self) -> int:
        """Size of the arbiter's journal."""
        return (self._folder / "state" / "turns.journal").stat().st_size

    @property
    def arbiter_bytes(self) -> int:
        """The arbiter's resident memory (VmRSS)."""
        status = Path(f"/proc/{self._arbiter.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) << 10

    @property
    def arbiter_files(self) -> int:
        """How many descriptors the arbiter has open."""
        return len(os.listdir(f"/proc/{self._arbiter.pid}/fd"))

    def close(self) -> None:
        """End all processes."""
        for part in self._parts:
            part.kill()
        self._arbiter.kill()
        self._arbiter.wait()

    def _environment(self, tenant: Tenant, library: Path | None) -> Mapping[str, str] | None:
        if library is None:
            return None
        return simdevice_env.environment(self._folder / tenant.device, preload=library)

    def _part(
        self,
        *arguments: object,
        gate: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Part:
        started = Part(*arguments, gate=gate, environment=environment)
        self._parts.append(started)
        return started

    def _start_arbiter(self, tenants: Sequence[Tenant]) -> "subprocess.Popen[bytes]":
        devices = {one.device: self._folder / one.device for one in tenants}
        for device in devices.values():
            device.mkdir()
            mount_tmpfs(device, self._device_size)
        members = {
            one.name: {"devices": [one.device], "need": one.need, "residual": one.residual}
            for one in tenants
        }
        node = {
            "state_dir": str(self._folder / "state"),
            "events": str(self._folder / "events.jsonl"),
            "processes": str(self._folder / "processes.json"),
            "devices": {name: {"simulated": str(device)} for name, device in devices.items()},
            "claims": {"bench": {"socket_dir": str(self._socket.parent), "tenants": members}},
            "limits": {},
        }
        file = self._folder / "node.json"
        file.write_text(json.dumps(node))
        with (self._folder / "arbiter.log").open("w") as log:
            return subprocess.Popen([*_PYTHON, "dra_driver", "--node", file], stderr=log)


@contextmanager
def node(folder: Path, tenants: Sequence[Tenant] = PAIR, **options: Any) -> Iterator[Node]:
    """A node in a folder of its own."""
    made = Node(Path(tempfile.mkdtemp(dir=folder)), tenants, **options)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def busy_cores() -> Iterator[None]:
    """One process on each core that does nothing but compute."""
    spinners = [Part("spinner") for _ in os.sched_getaffinity(0)]
    try:
        for one in spinners:
            one.answer()
        yield
    finally:
        for one in spinners:
            one.kill()


@dataclass(frozen=True)
class Handover:
    """Seconds from the one's yield, while the other waits, to the other's return from acquire, and
    those in which it copied: the one to park and the other to restore.
    """

    seconds: float
    park_s: float
    restore_s: float


class _Turn(NamedTuple):
    """As a part tells it: `park_s` is of the turn before this one of the same tenant."""

    tenant: int
    epoch: int
    waited: bool
    began: float
    ended: float
    restore_s: float
    park_s: float


def hand_over(here: Node, handovers: int, pause_s: float) -> list[Handover]:
    """An even number of handovers between the node's two tenants, with a pause before each."""
    for tenant in here.tenants:
        tenant.ask(["hand", handovers // 2 + 1, pause_s])
    turns = [
        _Turn(number, *turn) for number, one in enumerate(here.tenants) for turn in one.answer()
    ]
    turns.sort(key=lambda turn: turn.epoch)
    found = []
    for index, (one, after) in enumerate(itertools.pairwise(turns), start=1):
        if one.waited:
            assert after.tenant != one.tenant
            again = next(turn for turn in turns[index:] if turn.tenant == one.tenant)
            found.append(Handover(after.began - one.ended, again.park_s, after.restore_s))
    if len(found) != handovers:
        raise RuntimeError(f"{len(found)} handovers were seen where {handovers} were asked for")
    return found


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """What all benchmarks are called with."""
    made = argparse.ArgumentParser(
        prog=f"hack/bench {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("-o", choices=["table", "json"], default="table", dest="output")
    return made


def apart(name: str, benchmark: Callable[[Path], int]) -> int:
    """Run in a namespace of its own: whatever ends this ends its processes and mounts too.

    The folder given is a tmpfs, as /run is one, where an arbiter's state lies.
    """

    def body() -> int:
        mount_tmpfs(Path(folder))
        return benchmark(Path(folder))

    try:
        with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
            return contained(body)
    except NamespaceError as exc:
        print(f"hack/bench {name}: {exc}", file=sys.stderr)
        return 2
