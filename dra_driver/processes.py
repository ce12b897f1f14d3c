"""Whose process is this? In a local run a tenant is the process trees that a runner registered."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PF_EXITING: Final = 0x4  # linux/sched.h


class RegistryError(Exception):
    """The file of registered processes cannot be read: nobody is taken for somebody."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this boot. `start_time`, in the kernel's ticks, guards against a reused pid."""

    pid: int
    start_time: int

    @property
    def alive(self) -> bool:
        """Whether this very process runs (a zombie does not)."""
        found = _stat(self.pid)
        return found is not None and found.start_time == self.start_time and found.runs


def process(pid: int) -> Process:
    """Return the process that has this pid now. ProcessLookupError if there is none."""
    found = _stat(pid)
    if found is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return Process(pid, found.start_time)


def all_pids() -> list[int]:
    """Of all processes that can be seen now."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended (a zombie has)."""
    found = _stat(pid)
    return found is not None and found.runs


def ending() -> Iterator[int]:
    """The processes that have begun to end, and whose last thread has not ended yet."""
    for pid in all_pids():
        found = _stat(pid)
        if found is not None and found.ends:
            yield pid


def watch(process: Process) -> int | None:
    """A pidfd that becomes readable when the process ends; None when it has ended already."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if process.alive:
        return fd
    os.close(fd)
    return None


class Registry:
    """Reads the runner's file anew each time: it changes while the arbiter lives."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def roots(self, tenant: str) -> tuple[Process, ...]:
        """The tenant's registered processes, oldest first."""
        return self._read().get(tenant, ())

    def incarnation(self, tenant: str) -> str:
        """Names one life of the tenant: its first process. Empty when it has none."""
        roots = self.roots(tenant)
        return f"{roots[0].pid}:{roots[0].start_time}" if roots else ""

    def owners(self, pids: Iterable[int]) -> dict[int, str]:
        """Which tenant each process belongs to; those of no tenant are left out."""
        roots = {
            root.pid: (root, tenant) for tenant, roots in self._read().items() for root in roots
        }
        found = {}
        for pid in pids:
            tenant = _climb(pid, roots)
            if tenant is not None:
                found[pid] = tenant
        return found

    def _read(self) -> dict[str, tuple[Process, ...]]:
        try:
            raw = json.loads(self._path.read_bytes())
            return {
                tenant: tuple(Process(root["pid"], root["start_time"]) for root in roots)
                for tenant, roots in raw.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
            raise RegistryError(
                f"{self._path}: not a list of registered processes ({exc!r}): whoever starts the "
                f"tenants must write it whole, by a rename"
            ) from exc


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    session: int
    flags: int
    threads: int
    start_time: int

    @property
    def runs(self) -> bool:
        return self.state not in "ZX"

    @property
    def ends(self) -> bool:
        return bool(self.flags & _PF_EXITING) and (self.runs or self.threads > 1)


def _climb(pid: int, roots: Mapping[int, tuple[Process, str]]) -> str | None:
    """The tenant of the nearest ancestor that is a root, or is in a root's session.

    Each root leads a session, which an engine's worker does not lose when its parent is killed.
    """
    seen = set()
    while pid > 0 and pid not in seen and (found := _stat(pid)) is not None:
        for leader in (pid, found.session):
            root, tenant = roots.get(leader, (None, None))
            # A pid is not given away while its session has a process; afterwards it is another's.
            if root is not None and _is_or_was(root):
                return tenant
        seen.add(pid)
        pid = found.parent
    return None


def _is_or_was(root: Process) -> bool:
    found = _stat(root.pid)
    return found is None or found.start_time == root.start_time


def _stat(pid: int) -> _Stat | None:
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # proc(5): the command's name, in parentheses, may hold spaces, parentheses and any other byte
    after_name = content[content.rindex(b")") + 2 :].split()
    numbers = [int(after_name[index]) for index in (1, 3, 6, 17, 19)]
    return _Stat(after_name[0].decode(), *numbers)
