"""The processes of the benchmarks: each does what a line on its stdin asks, and answers in JSON.

python -P -m hack.benchmarks._parts PART ARGUMENT...
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import grpc

from workload_agents.session import Memory, Session


class Timed(Memory, Protocol):
    """Memory that knows how many seconds of copying its last park and its last restore were."""

    parked_s: float
    restored_s: float


class Nothing:
    """The memory of a tenant that holds none."""

    parked_s = restored_s = 0.0

    async def park(self) -> None:
        """There is nothing to give back."""

    async def restore(self) -> int | None:
        """There is nothing to bring back."""
        return None


async def bare_server(socket: str) -> None:
    """The baseline's other end: a unary method that answers with what it got."""

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("Bare", {"Echo": method}),)
    )
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    _answer("ready")
    await server.wait_for_termination()


async def bare_client(socket: str) -> None:
    """Asked with `[n, pause_s]`: n times pauses and calls; answers with the seconds of each."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/Bare/Echo")
        await call(b"x", wait_for_ready=True)
        _answer("ready")
        async for count, pause_s in _asked():
            times = []
            for _ in range(count):
                await asyncio.sleep(pause_s)
                begin = time.monotonic()
                await call(b"x")
                times.append(time.monotonic() - begin)
            _answer(times)


async def tenant(role: str, socket: str) -> None:
    """Takes turns; holds nothing."""
    await _take_turns(role, socket, Nothing())


async def _take_turns(role: str, socket: str, memory: Timed) -> None:
    """Takes turns in any of three ways.

    `["hand", n, pause_s]`: n turns, each yielded a pause after the other tenant began to wait for
    it, but for the last one, which nobody may come to want; answers with each one's epoch, whether
    it was waited for, when it began and ended, and the seconds of copying of the restore before it
    and of the park before that. `["again", n, pause_s]`: acquires n times what
    nobody else wants, a pause after its yield; answers with the seconds of each. `["copy", n, 0]`:
    parks, the next time restores, and so on n times, in a turn that nobody may come to want from
    then on; answers with the seconds of each.
    """
    wanted, parked = asyncio.Event(), False
    async with Session(Path(socket), role, memory, on_wanted=wanted.set) as session:

        async def hand(count: int, pause_s: float) -> list[tuple[float, ...]]:
            turns: list[tuple[float, ...]] = []
            for left in reversed(range(count)):
                wanted.clear()
                epoch = await session.acquire()
                began, copied = time.monotonic(), (memory.restored_s, memory.parked_s)
                if left:
                    await wanted.wait()
                    await asyncio.sleep(pause_s)
                ended = time.monotonic()
                await session.yield_turn()
                turns.append((epoch, bool(left), began, ended, *copied))
            return turns

        async def again(count: int, pause_s: float) -> list[float]:
            await session.acquire()
            times = []
            for _ in range(count):
                await session.yield_turn()
                await asyncio.sleep(pause_s)
                begin = time.monotonic()
                await session.acquire()
                times.append(time.monotonic() - begin)
            await session.yield_turn()
            return times

        async def copy(count: int, _pause_s: float) -> list[float]:
            nonlocal parked
            await session.acquire()
            times = []
            for _ in range(count):
                await (memory.restore() if parked else memory.park())
                times.append(memory.restored_s if parked else memory.parked_s)
                parked = not parked
            return times

        _answer("ready")
        async for way, count, pause_s in _asked():
            _answer(await {"hand": hand, "again": again, "copy": copy}[way](count, pause_s))


async def phases(role: str, socket: str, mine: str, others: str) -> None:
    """One half of a job, whose halves take turns too: a baton goes to and fro in two pipes.

    Asked with `[begin, [seconds, ...]]`: each phase is time asleep in a turn of its own, begun when
    the baton comes through the pipe `mine`, and at its end the baton goes into `others`. The first
    phase of the half that begins is at CLOCK_MONOTONIC `begin`, which is null for the other half.
    Answers with when each phase began and ended.
    """
    # Opened for both directions, which waits for nobody (fifo(7)).
    taking, giving = os.open(mine, os.O_RDWR), os.open(others, os.O_RDWR)
    async with Session(Path(socket), role, Nothing()) as session:
        _answer("ready")
        async for begin, durations in _asked():
            turns = []
            for number, phase_s in enumerate(durations):
                if begin is None or number:
                    await asyncio.to_thread(os.read, taking, 1)
                else:
                    await asyncio.sleep(begin - time.monotonic())
                await session.acquire()
                began = time.monotonic()
                await asyncio.sleep(phase_s)
                turns.append((began, time.monotonic()))
                await session.yield_turn()
                os.write(giving, b".")
            _answer(turns)


async def blocks(role: str, socket: str, mib: str, ahead: str) -> None:
    """Takes turns as `tenant` does, and holds memory on a device, in blocks of 16 MiB.

    `ahead`: "ahead" when it may be restored ahead of the turn.
    """
    from hack.benchmarks._blocks import Blocks, BlocksInPieces  # torch

    memory = (BlocksInPieces if ahead == "ahead" else Blocks)(int(mib))
    await _take_turns(role, socket, memory)


async def spinner() -> None:
    """Keeps a core busy until it is killed."""
    _answer("ready")
    while True:
        pass


async def _asked() -> AsyncIterator[Any]:
    """The lines of stdin, parsed. Reading waits in a thread: a session must go on meanwhile."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield json.loads(line)


def _answer(what: object) -> None:
    print(json.dumps(what), flush=True)


PARTS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "bare-server": bare_server,
    "bare-client": bare_client,
    "tenant": tenant,
    "phases": phases,
    "spinner": spinner,
    "blocks": blocks,
}

if __name__ == "__main__":
    asyncio.run(PARTS[sys.argv[1]](*sys.argv[2:]))
