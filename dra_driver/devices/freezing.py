"""Processes of the simulated device, frozen as cuda-checkpoint freezes those of a GPU: what they
hold of the device moves to the host, and they stand still until it is back.

    FOLDER/stopped.json   which processes are stopped, or about to be
    FOLDER/frozen.json    and which mappings each saved file is behind: from here on they are frozen
    FOLDER/NUMBER         what was ever written of one file of the device, each byte at its place

A crash at any moment leaves either all that was frozen in the folder, or all of it in the device.
While they are frozen the device's files are empty: whoever has a process go on all the same sees it
die (SIGBUS), and not compute with zeros.
"""

import errno
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import astuple, dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

from dra_driver.processes import Process, all_pids, process

STOPS_WITHIN_S: Final = 5.0
"""All of a tenant's processes: one that starts others without end is not stopped for ever."""

DISK_RESERVE: Final = 1 << 30
"""Bytes of the folder's file system that stay free."""

_LOOK_EVERY_S: Final = 0.001
_STOPPED: Final = "stopped.json"
_FROZEN: Final = "frozen.json"
_COPY_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the device, and where the frozen processes map it.

    `held`: bytes that the device has given for it; less than its size where it has holes.
    """

    inode: int
    size: int
    held: int
    mappings: Sequence[tuple[int, str]]

    def open(self, dev: int, frozen: Iterable[Process]) -> FileIO | None:
        """By a mapping of a process that lives; None where none is left.

        Raises OSError where the process runs, or the mapping is of another file: whoever may signal
        a process can make it go on, and what it maps then would be opened with root's rights.
        """
        pids = {one.pid for one in frozen}
        for pid, addresses in self.mappings:
            if pid not in pids:
                continue
            try:
                found = os.open(_link(pid, addresses), os.O_PATH | os.O_CLOEXEC)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            try:
                status = os.fstat(found)
                if (status.st_dev, status.st_ino) == (dev, self.inode) and stands_still(pid):
                    return FileIO(f"/proc/self/fd/{found}", "r+b")
            finally:
                os.close(found)
            raise OSError(errno.ESTALE, f"process {pid} did not stand still")
        return None


def freeze(of_tenant: Callable[[], Collection[int]], dev: int, folder: Path) -> int:
    """Stop the processes of a tenant, and move into the folder what they hold of the file system
    `dev`: so many bytes.

    `of_tenant` is asked until it names nobody new. Nothing changes where they are frozen already.
    Raises OSError: they go on as before.
    """
    if (held := settle(dev, folder)) is not None:
        known = {one.pid for one in _processes(folder / _STOPPED)}
        mapping = {pid for mappings in _mappings(dev).values() for pid, _, _ in mappings}
        for pid in mapping.difference(known).intersection(of_tenant()):
            raise OSError(errno.EBUSY, f"process {pid} began later, and holds memory of it")
        return held
    try:
        folder.mkdir(exist_ok=True, mode=0o700)
        stopped = _stop_all(of_tenant, folder)
        files = _files(stopped, dev)
        _save(stopped, files, dev, folder)
        for one in stopped:
            if one.alive and not stands_still(one.pid):
                raise OSError(errno.ESTALE, f"process {one.pid} did not stand still")
        stopped = _stop_all(of_tenant, folder)
        if _files(stopped, dev) != files:
            raise OSError(errno.ESTALE, "its memory changed while it was saved")
        raw = {"processes": _plain(stopped), "files": [astuple(each) for each in files]}
        _write(folder / _FROZEN, raw)
        _empty(dev, folder)
    except BaseException:
        thaw(lambda: True, dev, folder)
        raise
    return _held(files)


def settle(dev: int, folder: Path) -> int | None:
    """After a crash: the bytes in the folder of those that are frozen, whole again; None where none
    is, and those that were only stopped go on.
    """
    if not is_frozen(folder):
        go_on(folder)
        return None
    _empty(dev, folder)
    return _held(_read(folder)[1])


def is_frozen(folder: Path) -> bool:
    """Whether there is a process that would go on only with what is in the folder."""
    return bool(_processes(folder / _FROZEN))


def thaw(lives: Callable[[], bool], dev: int, folder: Path) -> None:
    """Bring back what is in the folder, and let the processes go on that still live, or end them
    where their life is over by then.

    Raises OSError, where the device has no room: then they stand still as before.
    """
    frozen, files = _read(folder)
    try:
        for number, each in enumerate(files):
            if (file := each.open(dev, frozen)) is not None:
                with file, FileIO(folder / str(number)) as saved:
                    file.truncate(each.size)
                    if each.size and each.held >= each.size:
                        os.posix_fallocate(file.fileno(), 0, each.size)
                    _copy(saved, file)
    except OSError:
        _empty(dev, folder)
        raise
    if lives():
        go_on(folder)
    else:
        discard(folder)


def go_on(folder: Path) -> None:
    """Let those in the folder go on: all that they hold is in the device."""
    (folder / _FROZEN).unlink(missing_ok=True)  # from here on
    for one in _processes(folder / _STOPPED):
        _signal(one, signal.SIGCONT)
    shutil.rmtree(folder, ignore_errors=True)


def discard(folder: Path) -> None:
    """End what is left of the processes in the folder: nobody has a turn for them any more."""
    for one in _processes(folder / _STOPPED):
        _signal(one, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def stands_still(pid: int) -> bool:
    """Whether all threads of a process are stopped, or have ended."""
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            state = (thread / "status").read_bytes().partition(b"\nState:\t")[2][:1]
            if state not in b"TZX":
                return False
    except (FileNotFoundError, ProcessLookupError):
        pass
    return True


def allocated(pid: int, addresses: str) -> int:
    """Bytes of the file behind a mapping that the device has given. Raises OSError."""
    return _link(pid, addresses).stat().st_blocks * 512


def _stop_all(of_tenant: Callable[[], Collection[int]], folder: Path) -> list[Process]:
    """Stop whoever is not stopped yet. Raises OSError, also where they are too many or too slow."""
    until = time.monotonic() + STOPS_WITHIN_S
    stopped = {one.pid: one for one in _processes(folder / _STOPPED)}
    while new := _named_twice(of_tenant, stopped):
        stopped |= new
        _write(folder / _STOPPED, {"processes": _plain(stopped.values())})
        for one in new.values():
            _signal(one, signal.SIGSTOP)
        for one in new.values():
            while one.alive and not stands_still(one.pid):
                if time.monotonic() > until:
                    raise TimeoutError(f"process {one.pid} did not stop in {STOPS_WITHIN_S:g} s")
                time.sleep(_LOOK_EVERY_S)
        if time.monotonic() > until:
            raise TimeoutError(f"its processes did not stop in {STOPS_WITHIN_S:g} s")
        stopped = {pid: one for pid, one in stopped.items() if one.alive}
    if not stopped:
        raise ProcessLookupError(errno.ESRCH, "its processes have ended")
    return list(stopped.values())


def _named_twice(
    of_tenant: Callable[[], Collection[int]], but: Collection[int]
) -> dict[int, Process]:
    """Those that it names; of a pid that became another's in between nothing is touched."""
    found = {}
    for pid in set(of_tenant()).difference(but):
        try:
            found[pid] = process(pid)
        except ProcessLookupError:
            continue
    again = set(of_tenant()) if found else ()
    return {pid: one for pid, one in found.items() if pid in again and one.alive}


def _files(frozen: Sequence[Process], dev: int) -> list[_File]:
    """Each file of the device that they map, once.

    Raises OSError where another process maps it too, or one has pages of it that are its own.
    """
    pids = {one.pid for one in frozen}
    found = []
    for inode, mappings in _mappings(dev).items():
        mine = [(pid, addresses) for pid, addresses, _ in mappings if pid in pids]
        if not mine:
            continue
        for pid, _, shared in mappings:
            if pid not in pids:
                raise OSError(errno.EBUSY, f"process {pid} maps some of its memory too")
            if not shared:
                raise OSError(errno.ENOTSUP, f"process {pid} maps some of its memory privately")
        status = _link(*mine[0]).stat()
        found.append(_File(inode, status.st_size, status.st_blocks * 512, mine))
    return found


def _mappings(dev: int) -> dict[int, list[tuple[int, str, bool]]]:
    """For each file of the device where it is mapped: process, addresses, whether it is shared."""
    # proc_pid_maps(5): address perms offset dev inode path.
    name = b" %02x:%02x " % (os.major(dev), os.minor(dev))
    line = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) ...(.) \S+%b(\d+)" % name)
    found: dict[int, list[tuple[int, str, bool]]] = {}
    for pid in all_pids():
        try:
            with Path(f"/proc/{pid}/maps").open("rb") as maps:  # whole it may be large
                matches = [line.match(text) for text in maps if name in text]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        for first, last, kind, inode in (match.groups() for match in matches if match):
            addresses = f"{int(first, 16):x}-{int(last, 16):x}"
            found.setdefault(int(inode), []).append((pid, addresses, kind == b"s"))
    return found


def _link(pid: int, addresses: str) -> Path:
    return Path(f"/proc/{pid}/map_files/{addresses}")


def _save(frozen: Sequence[Process], files: Sequence[_File], dev: int, folder: Path) -> None:
    fs = os.statvfs(folder)
    if _held(files) > fs.f_bavail * fs.f_frsize - DISK_RESERVE:
        raise OSError(errno.ENOSPC, f"the disk of {folder} has no room for what they hold")
    for number, each in enumerate(files):
        if (file := each.open(dev, frozen)) is not None:
            with file, FileIO(folder / str(number), "wb") as saved:
                _copy(file, saved)
                os.fsync(saved.fileno())  # which tells whether it was written


def _held(files: Iterable[_File]) -> int:
    return sum(each.held for each in files)


def _copy(source: FileIO, target: FileIO) -> None:
    """What was ever written of it, each byte to its place."""
    at, end = 0, os.fstat(source.fileno()).st_size
    while at < end:
        try:
            at = os.lseek(source.fileno(), at, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                return  # none after that
            raise
        hole = os.lseek(source.fileno(), at, os.SEEK_HOLE)
        os.lseek(target.fileno(), at, os.SEEK_SET)
        while at < hole:
            sent = os.sendfile(target.fileno(), source.fileno(), at, min(hole - at, _COPY_BYTES))
            if not sent:
                raise OSError(errno.EIO, "it became shorter while it was copied")
            at += sent


def _empty(dev: int, folder: Path) -> None:
    frozen, files = _read(folder)
    for each in files:
        if (file := each.open(dev, frozen)) is not None:
            with file:
                file.truncate(0)


def _read(folder: Path) -> tuple[list[Process], list[_File]]:
    """The processes in the folder that live, and the files; none where none is frozen."""
    frozen = _processes(folder / _FROZEN)
    if not frozen:
        return [], []
    raw = json.loads((folder / _FROZEN).read_bytes())
    return frozen, [_File(*one) for one in raw["files"]]


def _processes(path: Path) -> list[Process]:
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    return [one for one in (Process(*each) for each in raw["processes"]) if one.alive]


def _plain(processes: Iterable[Process]) -> list[tuple[int, int]]:
    return [(one.pid, one.start_time) for one in processes]


def _write(path: Path, raw: dict[str, Any]) -> None:
    part = path.with_suffix(".partial")
    part.write_text(json.dumps(raw))
    part.rename(path)


def _signal(one: Process, number: signal.Signals) -> None:
    """To this very process; nothing if it has ended."""
    try:
        pidfd = os.pidfd_open(one.pid)
    except ProcessLookupError:
        return
    try:
        if one.alive:
            signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)
