"""How much more memory a pod may use: the kernel's account of its cgroup, of version 1 or 2."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NO_LIMIT: Final = 1 << 62
"""Version 1 says 2^63 less a page where there is none."""


@dataclass(frozen=True, slots=True)
class _Version:
    """How a version spells it. `reclaimable`: what of memory.stat the kernel takes back by itself.

    Shared memory and tmpfs are not among it, though they are counted as cache.
    """

    controller: str
    limit: str
    usage: str
    reclaimable: frozenset[str]


# Documentation/admin-guide of Linux: cgroup-v1/memory.rst and cgroup-v2.rst
_V1: Final = _Version(
    "memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    frozenset({"total_inactive_file", "total_active_file"}),
)
_V2: Final = _Version(
    "",
    "memory.max",
    "memory.current",
    frozenset({"inactive_file", "active_file", "slab_reclaimable"}),
)


@dataclass(frozen=True, slots=True)
class Account:
    """`left` of the `limit` when all is taken back that can be. Bytes; swap is not counted."""

    left: int
    limit: int


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where all cgroups of the node that account for memory are mounted."""

    mount: Path
    version: _Version

    def path(self, cgroups: str) -> str:
        """The cgroup of a process; `cgroups` is the content of /proc/PID/cgroup."""
        lines = (line.split(":", 2) for line in cgroups.splitlines())
        found = (path for _, names, path in lines if self.version.controller in names.split(","))
        return next(found, "")

    def account(self, path: str) -> Account | None:
        """The account of a cgroup; None when it has no limit, or is gone."""
        folder = self.mount / path.lstrip("/")
        try:
            limit = (folder / self.version.limit).read_text().strip()
            used = int((folder / self.version.usage).read_text())
            stat = (folder / "memory.stat").read_text()
        except OSError:
            return None
        if limit == "max" or int(limit) >= _NO_LIMIT:
            return None
        sizes = dict(line.split() for line in stat.splitlines())
        used -= sum(int(sizes.get(name, 0)) for name in self.version.reclaimable)
        return Account(max(0, int(limit) - max(0, used)), int(limit))


def hierarchy(mounts: str) -> Hierarchy | None:
    """The hierarchy of memory that is mounted whole; `mounts` is a mountinfo of /proc.

    A container that is not privileged, and with version 1 any, has a part of it as its own.
    """
    found: dict[str, Path] = {}
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        (_, _, _, root, mount), (kind, _, options) = left.split()[:5], right.split()[:3]
        if root == "/" and (kind != "cgroup" or _V1.controller in options.split(",")):
            found.setdefault(kind, Path(mount))
    # In the hybrid layout version 2 is mounted too, and accounts for no memory.
    for kind, version in (("cgroup", _V1), ("cgroup2", _V2)):
        if kind in found:
            return Hierarchy(found[kind], version)
    return None
