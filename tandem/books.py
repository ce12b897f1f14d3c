"""The accounts of a node or of a local run, from its folder, read on while it goes on."""

import contextlib
import ctypes
import json
import os
import select
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from claim_phases.accounts import Accounts
from dra_driver.event_log import beginnings, fold
from tandem.growing_file import GrowingFile
from tandem.results import RUN
from tandem.run_files import EVENTS, RunFileError

# The bits of inotify(7).
_MODIFY, _CLOSE_WRITE, _MOVED_TO, _CREATE = 0x2, 0x8, 0x80, 0x100
_CHANGES: Final = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE
_READ_MAX: Final = 64 << 10


class Books:
    """The accounts of the folder, as far as `read` came. To be closed."""

    def __init__(self, folder: Path) -> None:
        """Raises RunFileError when the folder has no events, or ones that cannot be read."""
        self._folder = folder
        path = folder / EVENTS
        if not path.is_file():
            raise RunFileError(
                f"{folder}: no {EVENTS}: name a local run's folder, or on a node the driver's, "
                f"/run/tandem-gpu.io"
            )
        self._accounts = Accounts()
        *older, (newest, begin) = beginnings(path)
        for file, first in older:
            with contextlib.closing(GrowingFile(file, begin=first)) as self._file:
                self.read()
        self._file = GrowingFile(newest, begin=begin)
        try:
            self.read()
        except RunFileError:
            self.close()
            raise

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def read(self) -> bool:
        """Read on; whether there was anything new. Raises RunFileError."""
        new = False
        for line in self._file.lines():
            new = True
            try:
                self._accounts = fold(self._accounts, json.loads(line))
            except ValueError as exc:
                raise RunFileError(
                    f"{self._folder / EVENTS}: {exc}: use the Tandem version of the node"
                ) from exc
        return new

    def at(self, now: float) -> Accounts:
        """The accounts at CLOCK_MONOTONIC `now`; those of a run that has ended, at its end."""
        return self._accounts.at(self._accounts.now / 1e9 if self._ended() else now)

    def _ended(self) -> bool:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return self._accounts.boot_id != boot_id or (self._folder / RUN).is_file()


class Changes:
    """Tells when a file of a folder was written to or replaced. Use as a context."""

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0 or libc.inotify_add_watch(self._fd, bytes(folder), _CHANGES) < 0:
            number = ctypes.get_errno()
            self.close()
            raise RunFileError(f"{folder}: cannot be watched: {os.strerror(number)}: use --once")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Watch no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def wait(self, within_s: float) -> bool:
        """Return at the next change (one since the last call too), or after so many seconds."""
        changed = bool(select.select([self._fd], [], [], within_s)[0])
        if changed:
            os.read(self._fd, _READ_MAX)
        return changed
