"""Says hello over a connection that its parent opened, after its parent ended.

    python -m tests.contract.heir SOCKET ROLE

It waits for a line on stdin. Its gRPC reaches that connection through a socket of its own.
"""

import asyncio
import os
import socket
import sys
import tempfile
from pathlib import Path

from tests.contract.raw_peer import hello


async def copy(source: socket.socket, target: socket.socket) -> None:
    """All bytes from one to the other."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, 65536):
        await loop.sock_sendall(target, data)


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
        copying = [
            asyncio.create_task(copy(mine, inherited)),
            asyncio.create_task(copy(inherited, mine)),
        ]
        await speaking
        for task in copying:
            task.cancel()


if __name__ == "__main__":
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    if os.fork():
        os._exit(0)
    sys.stdin.readline()
    asyncio.run(main(connection, sys.argv[2]))
