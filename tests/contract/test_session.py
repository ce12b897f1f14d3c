"""A tenant's session over a real stream; the arbiter at its other end is the test."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from claim_phases import wire
from claim_phases.messages import Acquire, ArbiterMessage, Granted, Room, Wanted, Welcome
from claim_phases.phases import Phase
from claim_phases.turns_pb2 import FromArbiter, FromTenant
from claim_phases.turns_pb2_grpc import TurnsServicer, add_TurnsServicer_to_server
from workload_agents.session import Session


class ScriptedArbiter(TurnsServicer):
    """Welcomes a new tenant, grants its acquire, and says before and after that what it is told."""

    def __init__(self, before: list[ArbiterMessage], after: list[ArbiterMessage]) -> None:
        self._before = before
        self._after = after

    async def Session(  # noqa: N802
        self, request_iterator: AsyncIterator[FromTenant], context: Any
    ) -> AsyncIterator[FromArbiter]:
        yield wire.arbiter_to_wire(Welcome(Phase.PARKED, 0))
        async for said in request_iterator:
            message = wire.tenant_from_wire(said)
            if isinstance(message, Acquire):
                grant = Granted(9, message.request)
                for answer in (*self._before, grant, *self._after):
                    yield wire.arbiter_to_wire(answer)


@dataclass
class SlowMemory:
    """Its first restore ahead lasts until it is let go."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[object] = field(default_factory=list)

    async def park(self) -> None:
        self.asked.append("park")

    async def restore(self) -> int | None:
        self.asked.append("restore")
        return None

    async def park_in_pieces(self, freed: Callable[[], None], keep: int) -> int:
        self.asked.append("park")
        return 0

    async def restore_ahead(self, size: int) -> None:
        self.asked.append(size)
        await self.go_on.wait()


@pytest.fixture
def socket() -> Iterator[Path]:
    """One whose path is short enough."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-"))
    yield folder / "turns.sock"
    shutil.rmtree(folder)


async def test_of_the_rooms_that_came_meanwhile_none_delays_the_turn(socket: Path) -> None:
    server = grpc.aio.server()
    arbiter = ScriptedArbiter([Room(3, 10), Room(3, 20), Room(3, 30)], [Wanted(9)])
    add_TurnsServicer_to_server(arbiter, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    memory = SlowMemory()
    try:
        # It hears of the others that wait when it has heard all that was said before.
        async with Session(socket, "trainer", memory, on_wanted=memory.go_on.set) as session:
            assert await session.acquire() == 9
    finally:
        await server.stop(None)
    assert memory.asked == [10, "restore"]
