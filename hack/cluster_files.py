"""Copies of files that grow on a node: what the driver tells, what containers print."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tandem.growing_file import GrowingFile

PODS: Final = "/var/log/pods"
"""Where a kubelet keeps what containers print: NAMESPACE_POD_UID/CONTAINER/RESTARTS.log"""

# One line of a container, or a part of it ("P"), as the runtime writes it (KEP-2411).
_PRINTED: Final = re.compile(rb"\S+ (?:stdout|stderr) ([FP]) (.*)", re.DOTALL)


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
            if record["kind"] == "accounts":
                continue  # of what was told before, by other names
            if "tenants" in record:
                record["tenants"] = [self._roles.get(one, one) for one in record["tenants"]]
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
