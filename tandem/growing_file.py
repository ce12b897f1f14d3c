"""A file that somebody else writes, read on while it grows."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


class GrowingFile:
    """The complete lines of a file that somebody else writes, and may replace by a new one.

    It need not exist yet. What is in it now before the byte `begin` is left out; `from_now`: all.
    """

    def __init__(self, path: Path, *, begin: int = 0, from_now: bool = False) -> None:
        self._path = path
        self._torn = b""
        self._file = _opened(path)
        if self._file is not None:
            self._file.seek(0, os.SEEK_END) if from_now else self._file.seek(begin)

    def lines(self) -> Iterator[bytes]:
        """Those that were completed since the last time."""
        while True:
            if self._file is None:
                self._file = _opened(self._path)
                if self._file is None:
                    return
            yield from self._added(self._file)
            if _is_at(self._file, self._path):
                return
            # Replaced: what was written to the old one meanwhile comes first.
            yield from self._added(self._file)
            self.close()
            self._torn = b""

    def close(self) -> None:
        """Let it go."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _added(self, file: BinaryIO) -> Iterator[bytes]:
        *lines, self._torn = (self._torn + file.read()).split(b"\n")
        yield from lines


def _opened(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether the path is still the file's; while there is none, it may come back."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return True
