"""A tenant in a pod, with real device memory: takes turns for ever and tells each.

`python3 -m tests.cluster.tenant ROLE MIB` acquires, holds the memory, yields, and again.
`... ROLE MIB hold` yields only when it is told to, by a line into the pipe /tmp/go.
`... ROLE 0` has a session and asks for nothing.
`... - MIB` has none, and holds the memory from a line into /tmp/go to one into /tmp/stop.
"""

import asyncio
import json
import mmap
import os
import signal
import sys
import time
from pathlib import Path

from tests.device_memory import device_memory
from workload_agents.session import Session

WORK_S = 0.05
GO, STOP = Path("/tmp/go"), Path("/tmp/stop")  # noqa: S108 - a container's own


class Memory:
    """One block."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._block: mmap.mmap | None = None

    async def park(self) -> None:
        if self._block is not None:
            self._block.close()
            self._block = None

    async def restore(self) -> int | None:
        if self._block is None:
            self._block = device_memory(os.environ["SIMDEVICE_DIR"], self._size)
        return None


def tell(**what: object) -> None:
    """Print a line of JSON."""
    print(json.dumps(what), flush=True)


def work(hold: bool) -> None:
    """What a turn is used for."""
    if hold:
        GO.read_text()  # waits for whoever opens its other end
    time.sleep(WORK_S)


async def take_turns(role: str, size: int, hold: bool) -> None:
    """Until the session ends."""
    socket = Path(os.environ["TANDEM_SOCKET_DIR"]) / "turns.sock"
    async with Session(socket, role, Memory(size)) as session:
        tell(session=role)
        while size:
            tell(epoch=await session.acquire())
            await asyncio.to_thread(work, hold)
            await session.yield_turn()
        tell(refused=await session.refused())


def intrude(size: int) -> None:
    """Use the device without a turn."""
    tell(intruder="waits")
    GO.read_text()
    block = device_memory(os.environ["SIMDEVICE_DIR"], size)
    tell(intruder="holds")
    STOP.read_text()
    block.close()
    tell(intruder="left")
    signal.pause()


if __name__ == "__main__":
    for pipe in (GO, STOP):
        os.mkfifo(pipe)
    role, mib, *hold = sys.argv[1:]
    if role == "-":
        intrude(int(mib) << 20)
    else:
        asyncio.run(take_turns(role, int(mib) << 20, bool(hold)))
