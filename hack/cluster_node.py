"""A node's files, seen from outside its namespaces, and what the demo mounts there."""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hack.cluster_commands import ClusterError, localkube
from hack.kube import spaces
from hack.kube.layout import Layout

TANDEM: Final = "/run/tandem-gpu.io"
"""Where the driver keeps a node's state."""

LOCAL: Final = "/opt/tandem-local"
"""Where the example's pods find what no image holds.

On the machine it stays behind, empty: removing it would detach the mounts of another cluster.
"""

_STATE: Final = "/var/lib/tandem-localkube"
_MOUNTED_S: Final = 60.0
_LOOK_S: Final = 0.1
_EXEC_S: Final = 30.0

# Again after a change of the environment: the mounts of pods that run stay as they are.
_MOUNT: Final = """
set -eu
mkdir -p $0
mountpoint -q $0 || mount -t tmpfs -o mode=755 tandem-local $0
while [ $# -gt 0 ]; do
    mkdir -p $0/$1
    if ! [ $0/$1 -ef "$2" ]; then
        ! mountpoint -q $0/$1 || umount --lazy $0/$1
        mount --bind "$2" $0/$1
    fi
    shift 2
done
"""


class Node:
    """A node by its name in Kubernetes."""

    def __init__(self, name: str) -> None:
        state = Path(os.environ.get("TANDEM_LOCALKUBE") or _STATE).absolute()
        layout = Layout(state)
        self.number = next(one.number for one in layout.nodes() if one.name == name)
        self._process = Path(f"/proc/{spaces.inside(layout, self.number)}")

    def path(self, inside: str) -> Path:
        """The file that the node's processes have at this path."""
        return self._process / "root" / inside.lstrip("/")

    async def mounted(self, inside: str) -> None:
        """Return when something is mounted there. Raises ClusterError."""
        until = time.monotonic() + _MOUNTED_S
        while f" {inside} " not in (self._process / "mountinfo").read_text():
            if time.monotonic() > until:
                raise ClusterError(
                    f"{_MOUNTED_S:g} s went by without a mount on {inside} of node{self.number}:"
                    f" look at the log of the driver there"
                )
            await asyncio.sleep(_LOOK_S)


async def mount_environment(number: int, folders: Mapping[str, Path]) -> None:
    """Mount this machine's folders below LOCAL of the node, by name. Raises ClusterError."""
    pairs = [word for name, folder in folders.items() for word in (name, str(folder))]
    command = ("sh", "-c", _MOUNT, LOCAL, *pairs)
    await localkube("exec", f"--node={number}", "--", *command, within_s=_EXEC_S)
