"""The node's mounts: a tmpfs of a fixed size for each simulated device and each claim's weights."""

import ctypes
import errno
import os
import secrets
import subprocess
from pathlib import Path
from typing import Final

# <linux/mount.h>
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH: Final = 2

_libc = ctypes.CDLL(None, use_errno=True)


def mount_tmpfs(directory: Path, size: int, *, part: Path, executable: bool = False) -> None:
    """Mount a tmpfs of `size` bytes, unless one is there; make `part`, which anybody may write to.

    A mount that is there keeps what it holds, and its size. Raises OSError.
    """
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not directory.is_mount():
        flags = _MS_NOSUID | _MS_NODEV | (0 if executable else _MS_NOEXEC)
        options = f"mode=0755,size={size}".encode()
        if _libc.mount(b"tandem", bytes(directory), b"tmpfs", ctypes.c_ulong(flags), options) != 0:
            raise _os_error(directory)
    part.mkdir(exist_ok=True)
    part.chmod(0o1777)


def emptied(directory: Path) -> None:
    """Replace the folder by an empty one, whatever is in it. Raises OSError."""
    trash = directory.with_name(f".{directory.name}.trash")
    if directory.exists():
        directory.rename(trash / secrets.token_hex(8) if trash.exists() else trash)
    directory.mkdir()
    directory.chmod(0o1777)
    # Not by Python's rmtree, which gives up in a tree that is deep enough.
    done = subprocess.run(["rm", "-rf", str(trash)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(errno.EIO, done.stderr.strip().replace("\n", "; "), str(trash))


def unmount(directory: Path) -> None:
    """Unmount whatever is mounted there, also while somebody uses it. Raises OSError."""
    while directory.is_mount():
        if _libc.umount2(bytes(directory), _MNT_DETACH) != 0:
            raise _os_error(directory)


def _os_error(directory: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(directory))
