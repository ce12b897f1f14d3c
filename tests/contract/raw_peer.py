"""A process that speaks to a claim's socket as no agent would: python -m tests.contract.raw_peer.

Arguments: what to do, the socket, and what that takes. Answers on stdout, a JSON object a line.
"""

import asyncio
import contextlib
import json
import mmap
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from claim_phases import wire
from claim_phases.messages import PROTOCOL, Acquire, Hello, TenantMessage, Yield
from claim_phases.turns_pb2 import FromArbiter
from tests.device_memory import device_memory

Stream = grpc.aio.StreamStreamCall[bytes, bytes]
METHOD = "/tandem.turns.v1alpha1.Turns/Session"


def tell(**what: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(what), flush=True)


def channel(path: str, *options: tuple[str, int]) -> grpc.aio.Channel:
    """A connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1), *options)
    return grpc.aio.insecure_channel(f"unix:{path}", options=options)


async def speak(path: str, *said: bytes) -> None:
    """Say these encoded messages on one stream; tell each answer, and how the stream ended."""
    async with channel(path) as connection:
        stream: Stream = connection.stream_stream(METHOD)()
        try:
            for message in said:
                await stream.write(message)
            async for answer in stream:
                heard = wire.arbiter_from_wire(FromArbiter.FromString(answer))
                tell(heard=type(heard).__name__, reason=getattr(heard, "reason", None))
            tell(ended="OK")
        except grpc.aio.AioRpcError as exc:
            tell(ended=exc.code().name, details=exc.details())


def encoded(message: TenantMessage) -> bytes:
    """A message as it goes over the wire."""
    return wire.tenant_to_wire(message).SerializeToString()


async def hello(path: str, role: str, protocol: str = PROTOCOL) -> None:
    """One hello."""
    await speak(path, encoded(Hello(role, protocol=protocol)))


async def no_hello(path: str) -> None:
    """An acquire where a hello is due."""
    await speak(path, encoded(Acquire(1)))


async def unknown(path: str, role: str) -> None:
    """A message that no version of the protocol knows."""
    await speak(path, encoded(Hello(role)), b"\xfa\x06\x03abc")


async def oversized(path: str, role: str) -> None:
    """A hello of a megabyte."""
    await speak(path, encoded(Hello(role + "x" * (1 << 20))))


async def silent_stream(path: str) -> None:
    """A stream on which nothing is said."""
    await speak(path)


async def as_another(path: str, role: str, epoch: str) -> None:
    """A hello as somebody else, and when that is answered, a yield of that one's turn."""
    async with channel(path) as connection:
        stream: Stream = connection.stream_stream(METHOD)()
        await stream.write(encoded(Hello(role, epoch=int(epoch))))
        answer = await stream.read()
        assert isinstance(answer, bytes)
        heard = wire.arbiter_from_wire(FromArbiter.FromString(answer))
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await stream.write(encoded(Yield(int(epoch))))
        tell(heard=type(heard).__name__, reason=getattr(heard, "reason", None))


async def garbage(path: str) -> None:
    """Bytes that are no HTTP/2, until the other end hangs up."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"\x00\xff garbage \r\n" * 1000)
    try:
        while await reader.read(4096):
            pass
        tell(ended="closed")
    except ConnectionError as exc:
        tell(ended=type(exc).__name__)


async def silent(path: str, number: str) -> None:
    """Connections that say nothing, held until stdin ends."""
    held = []
    for _ in range(int(number)):
        connection = socket.socket(socket.AF_UNIX)
        await asyncio.to_thread(connection.connect, path)
        held.append(connection)
    tell(connected=len(held))
    await asyncio.to_thread(sys.stdin.read)


async def flood(path: str, role: str) -> None:
    """Hellos on stream after stream, sixteen at a time, until killed."""
    async with channel(path) as connection:
        session: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = connection.stream_stream(METHOD)

        async def one_after_another() -> None:
            while True:
                stream = session()
                try:
                    await stream.write(encoded(Hello(role)))
                    await stream.read()
                    stream.cancel()
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    pass

        tell(flooding=True)
        await asyncio.gather(*(one_after_another() for _ in range(16)))


async def deaf(path: str, role: str) -> None:
    """Acquires without end on a stream whose answers are never read."""
    little_room = ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1)
    async with channel(path, *little_room) as connection:
        stream: Stream = connection.stream_stream(METHOD)()
        await stream.write(encoded(Hello(role)))
        request = 0
        try:
            while True:
                request += 1
                await stream.write(encoded(Acquire(request)))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            tell(ended=(await stream.code()).name, details=await stream.details(), said=request)


async def converse(path: str) -> None:
    """Bytes: what stdin says is said, what is heard is told, both in hexadecimal."""
    async with contextlib.AsyncExitStack() as connections:
        stream: Stream | None = None
        listening: asyncio.Task[None] | None = None
        held: list[mmap.mmap] = []
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            match command["do"]:
                case "open":
                    connection = await connections.enter_async_context(channel(path))
                    stream = connection.stream_stream(METHOD)()
                    listening = asyncio.create_task(_listen(stream))
                case "break":
                    assert stream is not None
                    assert listening is not None
                    listening.cancel()
                    stream.cancel()
                case "say":
                    assert stream is not None
                    await stream.write(bytes.fromhex(command["bytes"]))
                case "hold":
                    held.append(device_memory(command["device"], command["size"]))
                case "free":
                    held.pop().close()
                case unknown:
                    raise ValueError(unknown)
            tell(did=command["do"])


async def _listen(stream: Stream) -> None:
    """Tell what is heard on a stream that the arbiter may end at any time."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for answer in stream:
            tell(heard=answer.hex())
    tell(ended=True)


async def strange_name(path: str, role: str) -> None:
    """A process whose name is no text says hello."""
    with open("/proc/self/comm", "wb") as comm:  # noqa: ASYNC230, PTH123 - of this process
        comm.write(b") Z \xff\xfe(")
    await hello(path, role)


DEEDS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    deed.__name__: deed
    for deed in (
        hello,
        no_hello,
        unknown,
        oversized,
        silent_stream,
        as_another,
        garbage,
        silent,
        flood,
        deaf,
        converse,
        strange_name,
    )
}

if __name__ == "__main__":
    asyncio.run(DEEDS[sys.argv[1]](*sys.argv[2:]))
