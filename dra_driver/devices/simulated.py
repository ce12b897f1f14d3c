"""The simulated device, measured: a tmpfs, and who maps its files (hack/simdevice/simdevice.c)."""

import contextlib
import os
import re
from collections import defaultdict
from pathlib import Path

from dra_driver.devices import DeviceError, Reading


class SimulatedDevice:
    """The tmpfs mounted at `directory`: the first that it finds there, and no other after it."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self._directory = directory
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
        return Reading((fs.f_blocks - fs.f_bfree) * fs.f_frsize, fs.f_blocks * fs.f_frsize)

    def holders(self) -> dict[int, int]:
        """Walks /proc: about 2 microseconds a mapping, of which a vLLM process has a thousand."""
        number = self._number()
        # proc_pid_maps(5): address perms offset dev inode path.
        dev = b"%02x:%02x" % (os.major(number), os.minor(number))
        line = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) %b (\d+)" % dev, re.MULTILINE)
        held: dict[int, int] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (mapped := _mapped(entry, b" %b " % dev, line)):
                held[int(entry)] = mapped
        return held

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


def _mapped(pid: str, dev: bytes, line: "re.Pattern[bytes]") -> int:
    """Bytes; 0 for a process that ended meanwhile or may not be looked at."""
    try:
        maps = Path("/proc", pid, "maps").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    if dev not in maps:
        return 0
    ranges: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for start, end, offset, inode in line.findall(maps):
        first = int(offset, 16)
        ranges[inode].append((first, first + int(end, 16) - int(start, 16)))
    return sum(_union(of_file) for of_file in ranges.values())


def _union(ranges: list[tuple[int, int]]) -> int:
    """Bytes covered by half-open ranges that may overlap: a page mapped twice counts once."""
    covered = reached = 0
    for start, end in sorted(ranges):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered
