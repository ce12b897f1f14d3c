"""The simulated device, measured: a tmpfs, and who maps its files (hack/simdevice/simdevice.c)."""

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from dra_driver.devices import Blocks, DeviceError, NoRoom, Reading, covered, freezing
from dra_driver.processes import all_pids


class SimulatedDevice:
    """The tmpfs mounted at `directory`: the first that it finds there, and no other after it.

    `reserve`: bytes of it that are to stay free; what is given to tenants is the rest.
    """

    def __init__(self, name: str, directory: Path, reserve: int = 0) -> None:
        self.name = name
        self._directory = directory
        self._reserve = reserve
        # The filesystem's number and not the path, which differs between mount namespaces.
        self._dev: int | None = None
        with contextlib.suppress(DeviceError):
            self._number()

    def read(self) -> Reading:
        """Exact at once after each allocation and release: two system calls, microseconds."""
        known = self._number()
        try:
            dev, fs = self._directory.stat().st_dev, os.statvfs(self._directory)
        except OSError as exc:
            raise DeviceError(f"device {self.name}: {exc}") from exc
        if dev != known:
            raise DeviceError(
                f"device {self.name}: the tmpfs at {self._directory} was unmounted or replaced: "
                "restart the driver once it is back"
            )
        total = fs.f_blocks * fs.f_frsize - self._reserve
        return Reading((fs.f_blocks - fs.f_bfree) * fs.f_frsize, total)

    def holders(self) -> dict[int, Blocks]:
        """Walks /proc: a millisecond or two for a vLLM process, which has a thousand mappings."""
        number = self._number()
        dev = b"%02x:%02x" % (os.major(number), os.minor(number))
        held: dict[int, Blocks] = {}
        for pid in all_pids():
            if mapped := _mapped(pid, dev):
                held[pid] = mapped
        return held

    def freeze(self, of_tenant: Callable[[], Collection[int]], folder: Path) -> int:
        """By SIGSTOP, and files in the folder; root's alone (proc_pid_map_files(5))."""
        try:
            return freezing.freeze(of_tenant, self._number(), folder)
        except (OSError, ValueError) as exc:
            raise DeviceError(f"device {self.name}: processes cannot be frozen: {exc}") from exc

    def settle(self, folder: Path) -> int | None:
        """Those that were only stopped go on also while the device cannot be found."""
        try:
            if freezing.is_frozen(folder):
                return freezing.settle(self._number(), folder)
            freezing.go_on(folder)
        except (OSError, ValueError) as exc:
            raise DeviceError(f"device {self.name}: {folder} cannot be taken up: {exc}") from exc
        return None

    def thaw(self, lives: Callable[[], bool], folder: Path) -> None:
        """Bring back what is in the folder, and SIGCONT."""
        try:
            freezing.thaw(lives, self._number(), folder)
        except (OSError, ValueError) as exc:
            kind = NoRoom if getattr(exc, "errno", None) == errno.ENOSPC else DeviceError
            raise kind(f"device {self.name}: processes cannot be thawed: {exc}") from exc

    def discard(self, folder: Path) -> None:
        """SIGKILL."""
        try:
            freezing.discard(folder)
        except (OSError, ValueError) as exc:
            raise DeviceError(f"device {self.name}: {folder} cannot be read: {exc}") from exc

    def _number(self) -> int:
        if self._dev is None:
            if not self._directory.is_mount():
                raise DeviceError(
                    f"device {self.name}: nothing is mounted at {self._directory}: mount the "
                    "device's tmpfs there"
                )
            try:
                self._dev = self._directory.stat().st_dev
            except OSError as exc:
                raise DeviceError(f"device {self.name}: {exc}") from exc
        return self._dev


def _mapped(pid: int, dev: bytes) -> Blocks:
    """By inode; nothing of a process that ended meanwhile or may not be looked at."""
    try:
        maps = Path("/proc", str(pid), "maps").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    mark = b" %b " % dev
    if mark not in maps:
        return {}
    ranges: dict[bytes, list[tuple[int, int]]] = {}
    links: dict[bytes, str] = {}
    for line in _lines_with(mark, maps):
        # proc_pid_maps(5): address perms offset dev inode path.
        addresses, _, offset, of, inode, *_ = line.split(maxsplit=5)
        if of != dev:
            continue  # it is in the path
        start, end = (int(address, 16) for address in addresses.split(b"-"))
        first = int(offset, 16)
        ranges.setdefault(inode, []).append((first, first + end - start))
        links[inode] = f"{start:x}-{end:x}"
    if freezing.stands_still(pid):  # what was taken from it meanwhile is mapped all the same
        with contextlib.suppress(OSError):
            there = {inode: freezing.allocated(pid, link) for inode, link in links.items()}
            ranges = {
                inode: [(0, min(covered(of_file), there[inode]))]
                for inode, of_file in ranges.items()
                if there[inode]
            }
    return {int(inode): of_file for inode, of_file in ranges.items()}


def _lines_with(mark: bytes, text: bytes) -> Iterator[bytes]:
    """Those of thousands, most of which are not looked at."""
    found = text.find(mark)
    while found >= 0:
        end = text.index(b"\n", found)
        yield text[text.rfind(b"\n", 0, found) + 1 : end]
        found = text.find(mark, end)
