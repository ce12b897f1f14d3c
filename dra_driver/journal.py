"""The turns' journal: the newest line is the node's state. Lives under /run, as turns do.

Turns must survive the driver and need not survive the machine, so nothing here waits for a disk.
Each line is `<crc32 in hex> <JSON>`. A torn last line is a record whose commands never left (the
arbiter stores before it sends), so the one before it counts; any other damage stops the arbiter.
`turns.kept` beside it names the boot in which it was begun: one that is gone since is damage too.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any, Self

from dra_driver.layout import replace_file

COMPACT_AT = 1 << 20
"""Bytes after which the file is begun anew with the newest record alone."""

_REMEDY = "end the tenants of this node, then remove the files turns.* there"


class JournalError(Exception):
    """The state cannot be read or stored. Nothing is assumed, and nothing may be decided on."""


class Journal:
    """Appends records; owns the file's descriptor. Begins the file anew with `record`."""

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self._path = path
        self._fd = -1
        self._size = 0
        self._begin(_line(record))

    def append(self, record: dict[str, Any]) -> None:
        """Store a record; it is in the kernel's hands when this returns, JournalError if not."""
        line = _line(record)
        if self._size + len(line) > COMPACT_AT:
            self._begin(line)
            return
        try:
            _write(self._fd, line)
        except OSError as exc:
            raise self._not_stored(exc) from exc
        self._size += len(line)

    def close(self) -> None:
        """Close the file; the state stays."""
        os.close(self._fd)

    def _begin(self, line: bytes) -> None:
        fresh = self._path.with_suffix(".new")
        fd = -1
        try:
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            _write(fd, line)
            fresh.rename(self._path)
        except OSError as exc:
            if fd >= 0:
                os.close(fd)
            raise self._not_stored(exc) from exc
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, len(line)

    def _not_stored(self, exc: OSError) -> JournalError:
        return JournalError(
            f"{self._path}: the state cannot be stored ({exc.strerror}): make room for it; "
            f"an arbiter that starts then goes on from the record before"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read(path: Path) -> dict[str, Any] | None:
    """Return the newest whole record, None when there is no journal. JournalError when damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise JournalError(f"{path} cannot be read ({exc.strerror}): make it readable") from exc
    *lines, torn = content.split(b"\n")
    if torn and _record(torn[:-1]) is not None:
        lines.append(torn)  # no write is cut behind a record's end: its end of line is damaged
    newest = None
    for number, line in enumerate(lines, start=1):
        newest = _record(line)
        if newest is None:
            raise JournalError(f"{path}: line {number} is damaged: {_REMEDY}")
    if newest is None:
        raise JournalError(f"{path}: {len(torn)} bytes and no whole record: {_REMEDY}")
    return newest


def keep(path: Path, boot_id: str) -> None:
    """From now on the journal must be there until the machine is started again. JournalError."""
    mark = path.with_suffix(".kept")
    try:
        replace_file(mark, boot_id.encode())
    except OSError as exc:
        raise JournalError(
            f"{mark}: that there is a journal cannot be stored ({exc.strerror}): make room for it"
        ) from exc


def check_gone(path: Path, boot_id: str) -> None:
    """There is no journal: raise JournalError where there must be one."""
    try:
        kept = path.with_suffix(".kept").read_bytes()
    except FileNotFoundError:
        return
    except OSError as exc:
        raise JournalError(f"{exc.filename} cannot be read ({exc.strerror}): make it so") from exc
    if kept == boot_id.encode():
        raise JournalError(
            f"{path} is gone, and turns were arbitrated here since the node was started: {_REMEDY}"
        )


def _write(fd: int, line: bytes) -> None:
    while line:  # the rest of a short write has the error that tells why it was short
        line = line[os.write(fd, line) :]


def _line(record: dict[str, Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _record(line: bytes) -> dict[str, Any] | None:
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    record = json.loads(body)
    return record if isinstance(record, dict) else None
