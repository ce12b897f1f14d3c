"""A witness apart from the arbiter: samples devices and processes, and knows nothing of turns.

It reads only statvfs and /proc. It shares no code with what it judges, so that a mistake there
cannot hide itself here. `tandem.verdict` joins its samples with the turns afterwards.
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

_START_TIME = 19
"""Index of the start time among the fields that follow the command's name: proc_pid_stat(5)."""

# A folder of a cgroup's path: pod<uid>, or ...-pod<uid, _ for ->.slice where systemd made it.
_POD = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?[/\n]")


@dataclass(frozen=True)
class Process:
    """`start_time` is in clock ticks since boot: with the pid it names a process for good.

    `stopped`: by a signal. It may be frozen then, and the files that it maps empty.
    """

    pid: int
    parent: int
    start_time: int
    name: str
    stopped: bool


@dataclass(frozen=True)
class Device:
    """A simulated device: a tmpfs, known in /proc/PID/maps by its device number."""

    name: str
    directory: Path
    marker: bytes

    @classmethod
    def of(cls, name: str, directory: Path) -> "Device":
        """Look the mount's device number up. Raises OSError."""
        number = directory.stat().st_dev
        return cls(name, directory, f" {os.major(number):02x}:{os.minor(number):02x} ".encode())

    def use(self) -> dict[str, int]:
        """Bytes used and in total."""
        stat = os.statvfs(self.directory)
        return {
            "used": (stat.f_blocks - stat.f_bfree) * stat.f_frsize,
            "total": stat.f_blocks * stat.f_frsize,
        }


TenantOf = Callable[[int], str | None]
"""The tenant of the process with this pid; None for a stranger's, or one that has ended."""


class Tenancy(Protocol):
    """Knows whose a process is."""

    def look(self, processes: Mapping[int, Process]) -> TenantOf:
        """For one sample, which begins with these processes."""


@dataclass(frozen=True)
class Trees:
    """Tenants of a local run: the processes that descend from those that the file lists."""

    listed: Path

    def look(self, processes: Mapping[int, Process]) -> TenantOf:
        """Read the file, and follow each process up to a root."""
        return _owners(_roots(self.listed), processes).get


@dataclass(frozen=True)
class Pods:
    """Tenants of a cluster: the processes in cgroups of the pods whose UIDs the file lists."""

    listed: Path

    def look(self, processes: Mapping[int, Process]) -> TenantOf:
        """Read the file; of the processes only those that are asked about are looked at."""
        listed = json.loads(self.listed.read_text())
        tenants = {uid: tenant for tenant, uids in listed.items() for uid in uids}
        return lambda pid: tenants.get(_pod_uid(_cgroups(pid)))


@dataclass
class Observer:
    """Takes samples. A process stays its tenant's once it was seen holding as the tenant's.

    Without that, an engine's process whose parent was killed would count as a stranger until it
    dies too.
    """

    devices: Sequence[Device]
    tenancy: Tenancy
    _holders: dict[tuple[int, int], str] = field(default_factory=dict)

    def sample(self) -> dict[str, object]:
        """One sample, as it goes into the file."""
        t0 = time.monotonic()
        use = {device.name: device.use() for device in self.devices}
        processes = {process.pid: process for process in _processes()}
        tenant_of = self.tenancy.look(processes)
        blocks: dict[str, dict[str, set[_Block]]] = {}
        strangers: list[dict[str, object]] = []
        holders: dict[tuple[int, int], str] = {}
        for process in processes.values():
            identity = (process.pid, process.start_time)
            for device, held in _held(process, self.devices):
                owner = self._holders.get(identity) or tenant_of(process.pid)
                if owner is None:
                    if not any(_held(process, [device])):
                        continue  # it ended since: whose it was cannot be said any more
                    size = sum(block.size for block in held)
                    strangers.append(
                        {
                            "pid": process.pid,
                            "name": process.name,
                            "device": device.name,
                            "bytes": size,
                        }
                    )
                else:
                    holders[identity] = owner
                    # A set, since a block that a fork shares is there once.
                    blocks.setdefault(owner, {}).setdefault(device.name, set()).update(held)
        self._holders = holders
        return {
            "t0": t0,
            "t1": time.monotonic(),
            "devices": use,
            "tenants": {
                tenant: {device: sum(block.size for block in held) for device, held in by.items()}
                for tenant, by in blocks.items()
            },
            "strangers": strangers,
        }


class _Block(NamedTuple):  # cheaper than a dataclass: there are hundreds in each sample
    inode: int
    offset: int
    size: int


def _held(process: Process, devices: Sequence[Device]) -> Iterable[tuple[Device, list[_Block]]]:
    try:
        with open(f"/proc/{process.pid}/maps", "rb") as file:  # noqa: PTH123
            maps = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return
    for device in devices:
        held = []
        found = maps.find(device.marker)
        while found >= 0:
            start, end = maps.rfind(b"\n", 0, found) + 1, maps.find(b"\n", found)
            line = maps[start:end]
            if not (process.stopped and _is_empty(process.pid, line)):
                held.append(_block(line))
            found = maps.find(device.marker, end)
        if held:
            yield device, held


def _block(line: bytes) -> _Block:
    """A line of proc_pid_maps(5): `start-end perms offset major:minor inode path`."""
    addresses, _, offset, _, inode, *_ = line.split(maxsplit=5)
    start, end = addresses.split(b"-")
    return _Block(int(inode), int(offset, 16), int(end, 16) - int(start, 16))


def _is_empty(pid: int, line: bytes) -> bool:
    """Whether the file behind a mapping has no pages; only root may look."""
    start, end = (int(address, 16) for address in line.split(maxsplit=1)[0].split(b"-"))
    try:
        return os.stat(f"/proc/{pid}/map_files/{start:x}-{end:x}").st_blocks == 0  # noqa: PTH116
    except OSError:
        return False


def _processes() -> Iterable[Process]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123
                stat = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        state, parent, start_time = fields[0], int(fields[1]), int(fields[_START_TIME])
        yield Process(int(pid), parent, start_time, name, stopped=state == "T")


def _roots(path: Path) -> dict[tuple[int, int], str]:
    listed = json.loads(path.read_text())
    return {
        (root["pid"], root["start_time"]): tenant
        for tenant, processes in listed.items()
        for root in processes
    }


def _owners(
    roots: Mapping[tuple[int, int], str], processes: Mapping[int, Process]
) -> dict[int, str]:
    """The tenant of each process that descends from a tenant's root."""
    owners: dict[int, str] = {}
    for process in processes.values():
        line: list[int] = []
        at: Process | None = process
        while at is not None and at.pid not in owners and at.pid not in line:
            line.append(at.pid)
            if (tenant := roots.get((at.pid, at.start_time))) is not None:
                owners[at.pid] = tenant
                break
            at = processes.get(at.parent)
        if at is not None and (tenant := owners.get(at.pid)) is not None:
            owners.update(dict.fromkeys(line, tenant))
    return owners


def _cgroups(pid: int) -> str:
    """What proc_pid_cgroup(5) tells; empty when the process has ended."""
    try:
        with open(f"/proc/{pid}/cgroup", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _pod_uid(cgroups: str) -> str:
    """The UID of the pod in whose cgroup, of version 1 or 2, the process is; empty without one."""
    found = _POD.search(cgroups)
    return "" if found is None else found[1].replace("_", "-")


def main(arguments: Sequence[str]) -> int:
    """Sample until SIGTERM or SIGINT; the last sample is taken after it."""
    parser = argparse.ArgumentParser(prog="python -m tandem.observer", description=__doc__)
    parser.add_argument("--node", type=Path, required=True, help="the devices, and whose is what")
    parser.add_argument("--out", type=Path, required=True, help="where to write samples")
    parser.add_argument("--interval-ms", type=int, required=True)
    options = parser.parse_args(arguments)
    node = json.loads(options.node.read_text())
    devices = [
        Device.of(name, Path(device["simulated"])) for name, device in node["devices"].items()
    ]
    pods = node.get("pods")
    tenancy = Trees(Path(node["processes"])) if pods is None else Pods(Path(pods))
    observer = Observer(devices, tenancy)
    interval_s = options.interval_ms / 1000
    end = (signal.SIGTERM, signal.SIGINT)
    # Blocked, and taken by sigtimedwait: it is the timer too.
    signal.pthread_sigmask(signal.SIG_BLOCK, end)
    with options.out.open("a", buffering=1, encoding="utf-8") as out:
        ended = False
        due = time.monotonic()
        while True:
            out.write(json.dumps(observer.sample(), separators=(",", ":")) + "\n")
            if ended:
                return 0
            # What was missed (a machine that was suspended, say) is not made up for.
            due = max(due + interval_s, time.monotonic())
            wait_s = max(0.0, due - time.monotonic())
            ended = signal.sigtimedwait(end, wait_s) is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
