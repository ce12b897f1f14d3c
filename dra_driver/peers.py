"""One socket per claim, and who is at its other end by the kernel's word.

gRPC's Python server tells nothing of a unix socket's peer. So an outer socket accepts, reads
SO_PEERCRED, and relays the bytes to the inner gRPC socket over a connection that is bound to an
abstract name of its own; the server sees that name as its peer. Whoever connects to the inner
socket past the relay (its directory lets only the arbiter's user in) is nobody: the kernel gives
each name to one socket, and the relay's are taken.
"""

import asyncio
import errno
import logging
import os
import secrets
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from dra_driver.processes import Process, RegistryError, process

log = logging.getLogger("tandem.peers")

SOCKET = "turns.sock"
CONNECTIONS_MAX = 8
"""That a tenant may have open at once; all processes of no tenant together have as many."""

_UCRED = struct.Struct("3i")
_SO_PEERPIDFD = 77
"""Since Linux 6.5; Python has no name for it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who connected: through which claim's socket, as which process and user."""

    claim: str
    process: Process
    uid: int


class Relay:
    """Serves the claims' sockets in front of one inner gRPC socket.

    `tenant_of` names the tenant that a peer belongs to, empty when there is none.
    """

    def __init__(self, inner: Path, tenant_of: Callable[[Peer], str]) -> None:
        self._inner = inner
        self._tenant_of = tenant_of
        self._peers: dict[str, Peer] = {}
        self._outer: dict[str, _Outer] = {}
        self._open: Counter[tuple[str, str]] = Counter()
        self._servers: dict[str, asyncio.Server] = {}
        self._run = secrets.token_hex(8)
        self._number = 0

    async def serve(self, claim: str, directory: Path) -> None:
        """Open the claim's socket, unless it is open.

        A socket that an earlier arbiter left is replaced at once. Raises OSError.
        """
        if claim in self._servers:
            return
        path, fresh = directory / SOCKET, directory / f".{secrets.token_hex(4)}"
        loop = asyncio.get_running_loop()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(str(fresh))
        fresh.chmod(0o666)  # membership is decided by who connects, not by who may
        server = await loop.create_unix_server(lambda: _Outer(self, claim), sock=listener)
        fresh.rename(path)
        self._servers[claim] = server

    def stop(self, claim: str) -> None:
        """Accept no more through the claim's socket, if it is open; its folder is its owner's."""
        if (server := self._servers.pop(claim, None)) is not None:
            server.close()

    def peer(self, name: str) -> Peer | None:
        """The peer behind what `context.peer()` says; None when it did not come through here."""
        return self._peers.get(name)

    def drop(self, name: str) -> None:
        """Cut the connection behind what `context.peer()` says, with all that waits in it."""
        if (outer := self._outer.get(name)) is not None:
            outer.abort()

    def close(self) -> None:
        """Stop accepting. The sockets' names stay: a successor may have replaced them already."""
        for server in self._servers.values():
            server.close()

    def enter(self, peer: Peer) -> tuple[str, str] | None:
        """Count a connection in; the key to `leave` with, None when the peer has enough open."""
        key = (peer.claim, self._tenant_of(peer))
        if self._open[key] >= CONNECTIONS_MAX:
            return None
        self._open[key] += 1
        return key

    def leave(self, key: tuple[str, str]) -> None:
        """Count a connection out."""
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]

    async def connect(self, outer: "_Outer", peer: Peer) -> asyncio.Transport:
        """Open the inner connection that stands for this peer."""
        self._number += 1
        name = f"tandem-{self._run}-{self._number}"
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        inner.bind(f"\0{name}")
        inner.setblocking(False)
        loop = asyncio.get_running_loop()
        key = f"unix-abstract:{name}"
        self._peers[key], self._outer[key] = peer, outer
        try:
            await loop.sock_connect(inner, str(self._inner))
        except BaseException:
            self._forget(key)
            inner.close()
            raise
        transport, _ = await loop.create_connection(
            lambda: _Inner(outer, lambda: self._forget(key)), sock=inner
        )
        return transport

    def _forget(self, key: str) -> None:
        del self._peers[key], self._outer[key]


class _Outer(asyncio.Protocol):
    """The tenant's end."""

    def __init__(self, relay: Relay, claim: str) -> None:
        self._relay = relay
        self._claim = claim
        self.transport: asyncio.Transport | None = None
        self._inner: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._entered: tuple[str, str] | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        try:
            made_by, uid = _who_connected(transport.get_extra_info("socket"))
            peer = Peer(self._claim, made_by, uid)
            self._entered = self._relay.enter(peer)
        except (ProcessLookupError, RegistryError) as exc:
            log.warning("a connection to %s is dropped: %s", self._claim, exc)
            self.transport.abort()
            return
        if self._entered is None:
            log.warning(
                "a connection of process %d to %s is dropped: its tenant has %d open already",
                made_by.pid,
                self._claim,
                CONNECTIONS_MAX,
            )
            self.transport.abort()
            return
        self._task = asyncio.ensure_future(self._open(peer))

    async def _open(self, peer: Peer) -> None:
        try:
            self._inner = await self._relay.connect(self, peer)
        except OSError:  # the inner server is closing; the tenant connects again
            self.abort()
            return
        if self.transport is None:
            self._inner.close()
            return
        self.transport.resume_reading()
        self._inner.writelines(self._early)
        self._early.clear()

    def abort(self) -> None:
        """Close both ends; what is not sent yet is lost."""
        if self.transport is not None:
            self.transport.abort()
        if self._inner is not None:
            self._inner.abort()

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.write(data)
        elif self.transport is not None:
            self._early.append(data)
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_reading()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._entered is not None:
            self._relay.leave(self._entered)
        if self._inner is not None:
            self._inner.close()


class _Inner(asyncio.Protocol):
    """The gRPC server's end."""

    def __init__(self, outer: _Outer, forget: Callable[[], None]) -> None:
        self._outer = outer
        self._forget = forget

    def data_received(self, data: bytes) -> None:
        if self._outer.transport is not None:
            self._outer.transport.write(data)

    def pause_writing(self) -> None:
        if self._outer.transport is not None:
            self._outer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._outer.transport is not None:
            self._outer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self._outer.transport is not None:
            self._outer.transport.close()


def _who_connected(sock: socket.socket) -> tuple[Process, int]:
    """The process and the user. ProcessLookupError when the process is gone.

    SO_PEERCRED tells the pid of then, which may be somebody else's by now; SO_PEERPIDFD is not.
    A kernel without SO_PEERPIDFD leaves that gap, from connect to accept.
    """
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    try:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as exc:
        if exc.errno == errno.ENOPROTOOPT:
            return process(pid), uid
        raise ProcessLookupError(f"process {pid}, which made it, is gone ({exc})") from exc
    try:
        found = process(pid)
        if f"Pid:\t{pid}\n" not in Path(f"/proc/self/fdinfo/{pidfd}").read_text():
            raise ProcessLookupError(f"process {pid}, which made it, is gone")
    finally:
        os.close(pidfd)
    return found, uid


def private_directory(path: Path) -> Path:
    """A directory that only this user may enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path
