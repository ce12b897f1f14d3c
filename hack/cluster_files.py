"""Copies of files that grow on a node: what the driver tells, what containers print."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

PODS: Final = "/var/log/pods"
"""Where a kubelet keeps what containers print: NAMESPACE_POD_UID/CONTAINER/RESTARTS.log"""

# One line of a container, or a part of it ("P"), as the runtime writes it (KEP-2411).
_PRINTED: Final = re.compile(rb"\S+ (?:stdout|stderr) ([FP]) (.*)", re.DOTALL)


class GrowingFile:
    """The complete lines of a file that somebody else writes, and may replace by a new one.

    It need not exist yet. `from_now`: what is in it now is left out.
    """

    def __init__(self, path: Path, *, from_now: bool = False) -> None:
        self._path = path
        self._torn = b""
        self._file = _opened(path)
        if self._file is not None and from_now:
            self._file.seek(0, os.SEEK_END)

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


class NodeEvents:
    """Copies what the driver tells from now on, with the tenants called by their roles."""

    def __init__(self, source: Path, copy: Path, roles: Mapping[str, str]) -> None:
        self._source = GrowingFile(source, from_now=True)
        self._roles = roles
        self._copy = copy.open("ab", buffering=0)

    def copy(self) -> None:
        """Copy what is new."""
        for line in self._source.lines():
            record = json.loads(line)
            named = record.get("tenant")
            if named in self._roles:
                record["tenant"] = self._roles[named]
            self._copy.write(json.dumps(record).encode() + b"\n")

    def close(self) -> None:
        """Let the files go."""
        self._source.close()
        self._copy.close()


class PodLogs:
    """Copies what containers print to POD.CONTAINER.N.log, while they print it.

    Of containers that were all started anew together the API server has nothing left.
    """

    def __init__(self, pods: Path, copies: Path) -> None:
        self._pods = pods
        self._copies = copies
        self._files: dict[Path, GrowingFile] = {}

    def copy(self, namespace: str, pod: str, uid: str) -> None:
        """Copy what is new of this pod's."""
        for path in sorted(self._pods.glob(f"{namespace}_{pod}_{uid}/*/*.log")):
            if path not in self._files:
                self._files[path] = GrowingFile(path)
            number = int(path.stem) + 1
            with (self._copies / f"{pod}.{path.parent.name}.{number}.log").open("ab") as copy:
                copy.writelines(map(_printed, self._files[path].lines()))

    def last_words(self, pod: str, container: str, lines: int) -> list[str]:
        """The end of what the container printed, in its last life in which it printed at all."""
        copies = [
            one for one in self._copies.glob(f"{pod}.{container}.*.log") if one.stat().st_size
        ]
        newest = max(copies, key=lambda one: int(one.stem.rpartition(".")[2]), default=None)
        return [] if newest is None else newest.read_text(errors="replace").splitlines()[-lines:]

    def close(self) -> None:
        """Let the files go."""
        for file in self._files.values():
            file.close()


def _printed(line: bytes) -> bytes:
    found = _PRINTED.fullmatch(line)
    if found is None:
        return line + b"\n"
    kind, text = found.groups()
    return bytes(text) + (b"\n" if kind == b"F" else b"")


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
