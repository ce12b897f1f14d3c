"""Who is at the other end of a TCP connection: a pod by its address, on this machine a process.

The kernel lists each socket with its addresses and its inode (/proc/net/tcp), and each process'
descriptors name the inodes of its sockets (/proc/PID/fd): both as documented in proc(5).
"""

import asyncio
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

Connection = tuple[str, int, str, int]
"""Address and port of the client's end, then of the server's; IPv4 in dotted form."""

Caller = str | None
"""`pid:<n>` for a process of this machine (in a pod: of the pod), `ip:<address>`; None: unknown."""

_PROC: Final = Path("/proc")
_ESTABLISHED: Final = "01"
_SOCKET: Final = re.compile(r"socket:\[([0-9]+)\]")


class Callers:
    """Looks callers up. One scan of /proc serves all that wait for it: many requests that come at
    once cost about as much as one.
    """

    def __init__(self) -> None:
        self._next: asyncio.Task[Mapping[Connection, int]] | None = None
        self._turn = asyncio.Lock()

    async def caller_of(self, connection: Connection) -> Caller:
        """The client's address, or over the loopback the process that holds the client's end: the
        lowest pid where several share it, None where it is gone or another user's.
        """
        address = ipaddress.ip_address(connection[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if not address.is_loopback:
            return f"ip:{address}"
        if self._next is None:
            self._next = asyncio.create_task(self._scan())
        pid = (await asyncio.shield(self._next)).get(connection)
        return None if pid is None else f"pid:{pid}"

    async def _scan(self) -> Mapping[Connection, int]:
        async with self._turn:
            # Whoever asks from now on may be too new for this scan: the next one is theirs.
            self._next = None
            return await asyncio.to_thread(scan)


def scan() -> Mapping[Connection, int]:
    """Each established TCP connection over IPv4 of this network namespace, and its process."""
    inodes = _inodes()
    found: dict[Connection, int] = {}
    for pid in sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()):
        for inode in _sockets(pid):
            if inode in inodes:
                found.setdefault(inodes[inode], pid)
    return found


def _inodes() -> Mapping[str, Connection]:
    with (_PROC / "net" / "tcp").open() as table:
        rows = [line.split() for line in table][1:]
    return {row[9]: (*_end(row[1]), *_end(row[2])) for row in rows if row[3] == _ESTABLISHED}


def _end(field: str) -> tuple[str, int]:
    """`0100007F:1F90` is 127.0.0.1 port 8080: the address as the machine's own 32-bit number."""
    address, port = field.split(":")
    octets = int(address, 16).to_bytes(4, byteorder="little")
    return ".".join(map(str, octets)), int(port, 16)


def _sockets(pid: int) -> list[str]:
    """The inodes of a process' sockets; none where it is gone, or another user's."""
    sockets = []
    try:
        with os.scandir(_PROC / str(pid) / "fd") as descriptors:
            for descriptor in descriptors:
                try:
                    target = os.readlink(descriptor.path)  # noqa: PTH115
                except FileNotFoundError:  # closed meanwhile
                    continue
                if socket := _SOCKET.fullmatch(target):
                    sockets.append(socket[1])
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return []
    return sockets
