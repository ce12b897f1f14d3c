"""The simulated device, measured: a tmpfs, and who maps its files (hack/simdevice/simdevice.c)."""

import os
import re
from collections import defaultdict
from pathlib import Path

from dra_driver.devices import DeviceError, Reading


class SimulatedDevice:
    """The tmpfs mounted at `directory`. Raises DeviceError when there is none."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self._directory = directory
        if not directory.is_mount():
            raise DeviceError(
                f"device {name}: nothing is mounted at {directory}: mount the device's tmpfs there"
            )
        self._dev = directory.stat().st_dev
        # proc_pid_maps(5): address perms offset dev inode path. The filesystem's number and not the
        # path, which differs between mount namespaces.
        dev = f"{os.major(self._dev):02x}:{os.minor(self._dev):02x}".encode()
        self._dev_field = b" %b " % dev
        self._line = re.compile(
            rb"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) %b (\d+)" % dev, re.MULTILINE
        )

    def read(self) -> Reading:
        """Exact at once after each allocation and release: two system calls, microseconds."""
        try:
            dev, fs = self._directory.stat().st_dev, os.statvfs(self._directory)
        except OSError as exc:
            raise DeviceError(f"device {self.name}: {exc}") from exc
        if dev != self._dev:
            raise DeviceError(
                f"device {self.name}: the tmpfs at {self._directory} was unmounted or replaced: "
                "restart the driver once it is back"
            )
        return Reading((fs.f_blocks - fs.f_bfree) * fs.f_frsize, fs.f_blocks * fs.f_frsize)

    def holders(self) -> dict[int, int]:
        """Walks /proc: about 2 microseconds a mapping, of which a vLLM process has a thousand."""
        held: dict[int, int] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (mapped := self._mapped(entry)):
                held[int(entry)] = mapped
        return held

    def _mapped(self, pid: str) -> int:
        """Bytes; 0 for a process that ended meanwhile or may not be looked at."""
        try:
            maps = Path("/proc", pid, "maps").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return 0
        if self._dev_field not in maps:
            return 0
        ranges: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for start, end, offset, inode in self._line.findall(maps):
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
