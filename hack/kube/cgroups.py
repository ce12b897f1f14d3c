"""The cluster's folder in every cgroup hierarchy, v1 or v2."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from hack.kube.errors import LocalkubeError

_ENDING_S = 20.0
_RETRY_S = 0.02


def hierarchies() -> list[Path]:
    """Where the hierarchies are mounted, each once."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, *_) = left.split(), right.split()
        if kind in {"cgroup", "cgroup2"} and fields[3] == "/":
            found.setdefault(fields[2], Path(fields[4]))
    return [*found.values()]


def make(name: str) -> None:
    """Make the folder in each hierarchy. Raises LocalkubeError."""
    for hierarchy in hierarchies():
        folder = hierarchy
        try:
            for part in name.strip("/").split("/"):
                _delegate(folder)
                folder /= part
                folder.mkdir(exist_ok=True)
        except OSError as exc:
            raise LocalkubeError(
                f"the cgroup {folder} cannot be made: {exc.strerror}: run as root, where"
                f" {hierarchy} is writable"
            ) from exc


def remove(name: str) -> None:
    """End what runs below the folder and remove it everywhere. Raises LocalkubeError."""
    until = time.monotonic() + _ENDING_S
    for hierarchy in hierarchies():
        root = hierarchy / name.strip("/")
        while root.exists():
            for pid in _pids(root):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for folder in _bottom_up(root):
                with contextlib.suppress(OSError):  # a process in it has not ended yet
                    folder.rmdir()
            if root.exists():
                if time.monotonic() > until:
                    raise LocalkubeError(
                        f"{root} cannot be removed: its processes do not end: {_pids(root)}"
                    )
                time.sleep(_RETRY_S)


def _delegate(folder: Path) -> None:
    """Let the children of a v2 cgroup use its controllers; in v1 each hierarchy is one."""
    with contextlib.suppress(FileNotFoundError):
        controllers = (folder / "cgroup.controllers").read_text().split()
        if controllers:
            enabled = " ".join(f"+{controller}" for controller in controllers)
            (folder / "cgroup.subtree_control").write_text(enabled)


def _bottom_up(root: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(root, topdown=False):
        yield Path(folder)


def _pids(root: Path) -> list[int]:
    found = []
    for folder in _bottom_up(root):
        with contextlib.suppress(OSError):  # it went meanwhile
            found += [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    return found
