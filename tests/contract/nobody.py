"""Runs a command as a user who is not root, also where the environment lies in a folder of root's.

In a mount namespace of its own each folder that is closed to others is replaced by one that holds
only what the command needs of it.
"""

import os
import shlex
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


def as_nobody(command: Sequence[str]) -> list[str]:
    """The command to start as root (with util-linux's unshare and setpriv) in its place."""
    needed = {Path(sys.prefix), Path(sys.base_prefix), ROOT}
    if "TANDEM_SIMDEVICE_LIBRARY" in os.environ:
        needed.add(Path(os.environ["TANDEM_SIMDEVICE_LIBRARY"]).parent)
    closed = {folder for path in needed if (folder := _closed_above(path)) is not None}
    lines = ["set -e", "mount -t tmpfs none /mnt"]
    for number, folder in enumerate(sorted(closed)):
        lines += [
            f"mkdir /mnt/{number}",
            f"mount --bind {shlex.quote(str(folder))} /mnt/{number}",
            f"mount -t tmpfs -o mode=0755 none {shlex.quote(str(folder))}",
        ]
        for path in sorted(path for path in needed if _closed_above(path) == folder):
            inside, outside = f"/mnt/{number}/{path.relative_to(folder)}", shlex.quote(str(path))
            lines += [f"mkdir -p {outside}", f"mount --bind {shlex.quote(inside)} {outside}"]
    lines.append(f'exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups -- "$@"')
    return ["unshare", "--mount", "sh", "-c", "\n".join(lines), "sh", *command]


def _closed_above(path: Path) -> Path | None:
    """The topmost folder on the way to `path` that others may not pass."""
    for folder in reversed([path, *path.parents]):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None
