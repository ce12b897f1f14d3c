"""Says hello over a connection that its parent opened, after its parent ended.

    python -m tests.contract.heir SOCKET ROLE connected|accepted

The parent ends when it is connected, or when the arbiter has answered. The child waits for a line
on stdin. Its gRPC reaches that connection through a socket of its own.
"""

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from pathlib import Path

from tests.contract.raw_peer import hello, tell


async def copy(source: socket.socket, target: socket.socket) -> None:
    """All bytes from one to the other."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, 65536):
        await loop.sock_sendall(target, data)


async def closed(connection: socket.socket, there: socket.socket) -> None:
    """Copy what comes until the arbiter hangs up, and tell that."""
    with contextlib.suppress(ConnectionError):
        await copy(connection, there)
    tell(ended="closed")


async def main(inherited: socket.socket, role: str) -> None:
    """Relay gRPC over the inherited connection."""
    inherited.setblocking(False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        speaking = asyncio.create_task(hello(str(path), role))
        mine, _ = await asyncio.get_running_loop().sock_accept(listener)
        there = asyncio.create_task(copy(mine, inherited))
        back = asyncio.create_task(closed(inherited, mine))
        await asyncio.wait([speaking, back], return_when=asyncio.FIRST_COMPLETED)
        for task in (speaking, there, back):
            task.cancel()
        await asyncio.wait([speaking, there, back])


if __name__ == "__main__":
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    if sys.argv[3] == "accepted":
        connection.recv(1, socket.MSG_PEEK)  # its server speaks first
    if os.fork():
        os._exit(0)
    sys.stdin.readline()
    asyncio.run(main(connection, sys.argv[2]))
