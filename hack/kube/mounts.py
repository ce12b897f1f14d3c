"""What the processes of a node find at the standard paths: its own files, not the machine's."""

import os
import shlex
from pathlib import Path
from typing import Final

from hack.kube.configs import SYSCTLS
from hack.kube.layout import KUBELET_ROOT, Layout, Node

CNI_STATE: Final = "/var/lib/cni"
MOUNT_POINTS: Final = (KUBELET_ROOT, CNI_STATE)
"""Made on the machine if they are missing; they stay, empty."""

HIDDEN: Final = ("/run", "/var/run", "/var/log", *MOUNT_POINTS, "/proc", "/sys", "/dev")
"""Nothing of the machine's below these is for a node."""

_PARTS: Final = {
    "kubelet": KUBELET_ROOT,
    "cni-state": CNI_STATE,
    "log": "/var/log",
    "cdi": "/run/cdi",
}
"""The parts of a node's folder, and where its processes find them."""


def make_parts(node: Node) -> None:
    """Make what will be mounted."""
    for name in _PARTS:
        (node.folder / name).mkdir(parents=True, exist_ok=True)
    for path in MOUNT_POINTS:
        Path(path).mkdir(parents=True, exist_ok=True)


def holding(node: Node) -> tuple[str, ...]:
    """The command that mounts all in a mount namespace of its own, and holds that."""
    commands = [
        # What lies there vanishes with the namespace: sockets, network namespaces, locks.
        "mount -t tmpfs -o mode=755,nosuid,nodev tandem /run",
        "mkdir -p /run/lock /run/cdi",
        *(_bind(node.folder / name, path) for name, path in _PARTS.items()),
        *_resolv_conf(node.cluster),
        # So that it changes none of the machine's.
        *(
            _bind(node.cluster.sysctl(name), f"/proc/sys/{name}")
            for name in SYSCTLS
            if Path("/proc/sys", name).exists()
        ),
        "mount --make-rshared /",
        f"touch {shlex.quote(str(mounted(node)))}",
        "exec sleep infinity",
    ]
    script = " && ".join(commands)
    return ("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script)


def mounted(node: Node) -> Path:
    """Exists when all is mounted."""
    return node.folder / "mounted"


def _bind(source: Path, target: str) -> str:
    return f"mount --bind {shlex.quote(str(source))} {target}"


def _resolv_conf(layout: Layout) -> list[str]:
    """Names are asked of the cluster's DNS; there is no other network."""
    target = os.path.realpath("/etc/resolv.conf")
    bind = _bind(layout.resolv_conf, shlex.quote(target))
    if target.startswith("/run/"):  # now an empty folder
        return [f"mkdir -p {shlex.quote(str(Path(target).parent))}", f"touch {target}", bind]
    return [bind] if Path(target).exists() else []
