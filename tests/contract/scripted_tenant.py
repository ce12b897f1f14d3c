"""A tenant in a process of its own that does what its stdin says, a JSON object a line.

    python -m tests.contract.scripted_tenant ROLE SOCKET

It answers on stdout in the same way. Its memory is none; `{"do": "slow", "memory": "park"}` makes
the next park (or restore) wait for `{"do": "go"}`, or fail for `{"do": "go", "fail": "why"}`.
From `{"do": "leak", "device": "/some/dir", "bytes": 4096}` on, each park leaves so much more there.
"""

import asyncio
import json
import mmap
import sys
import time
from pathlib import Path
from typing import Any

from tests.device_memory import device_memory
from workload_agents.errors import ParkFailed, RestoreFailed, TandemError
from workload_agents.session import Session


class Memory:
    """Tells each command, and waits where it was told to."""

    def __init__(self) -> None:
        self.slow: set[str] = set()
        self.leak: tuple[str, int] | None = None
        self.leaked: list[mmap.mmap] = []
        self.go: asyncio.Queue[str] = asyncio.Queue()

    async def park(self) -> None:
        if why := await self._do("park"):
            raise ParkFailed(why)
        if self.leak is not None:
            self.leaked.append(device_memory(*self.leak))

    async def restore(self) -> int | None:
        if why := await self._do("restore"):
            raise RestoreFailed(why)
        return None

    async def _do(self, what: str) -> str:
        tell(memory=what)
        if what not in self.slow:
            return ""
        self.slow.discard(what)
        return await self.go.get()


def tell(**what: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps({"t": time.monotonic(), **what}), flush=True)


async def acquire(session: Session, options: dict[str, Any]) -> None:
    """Acquire, and tell how it went."""
    try:
        epoch = await session.acquire(**options)
    except TandemError as exc:
        tell(failed=type(exc).__name__, why=str(exc), holder=getattr(exc, "holder", None))
    except asyncio.CancelledError:
        tell(did="cancel")
    else:
        tell(did="acquire", epoch=epoch)


async def rounds(session: Session, number: int) -> None:
    """Acquire and yield so many times."""
    for _ in range(number):
        await acquire(session, {})
        await session.yield_turn()
    tell(did="rounds")


async def main(role: str, socket: str) -> None:
    """Serve stdin until it ends."""
    memory = Memory()
    session = Session(Path(socket), role, memory, on_wanted=lambda: tell(wanted=session.epoch))
    acquiring: asyncio.Task[None] | None = None
    try:
        await session.__aenter__()
    except TandemError as exc:
        tell(failed=type(exc).__name__, why=str(exc))
        return
    tell(did="open")
    stdin = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    while line := await stdin.readline():
        command = json.loads(line)
        match command.pop("do"):
            case "acquire":
                acquiring = asyncio.create_task(acquire(session, command))
            case "rounds":
                acquiring = asyncio.create_task(rounds(session, command["number"]))
            case "cancel":
                assert acquiring is not None
                acquiring.cancel()
            case "yield":
                try:
                    await session.yield_turn()
                except TandemError as exc:
                    tell(failed=type(exc).__name__, why=str(exc))
                else:
                    tell(did="yield")
            case "leak":
                memory.leak = command["device"], command["bytes"]
                tell(did="leak")
            case "slow":
                memory.slow.add(command["memory"])
                tell(did="slow")
            case "go":
                memory.go.put_nowait(command.get("fail", ""))
            case "state":
                tell(state=True, holds=session.holds, wanted=session.wanted, epoch=session.epoch)
            case unknown:
                raise ValueError(unknown)
    await session.__aexit__()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
