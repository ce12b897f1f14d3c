"""A tenant's session with the node's arbiter: one stream, opened again whenever it breaks.

The protocol is `claim_phases.tenancy`; here are the stream, the memory's commands (one at a time)
and those who wait for an answer. Everything runs on the event loop that entered the session.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, assert_never, runtime_checkable

import grpc

from claim_phases import wire
from claim_phases.tenancy import (
    Act,
    Answer,
    Left,
    Park,
    Restore,
    RestoreAhead,
    Say,
    Shut,
    Tenancy,
    WantedByOther,
    Warn,
)
from claim_phases.turns_pb2 import FromArbiter, FromTenant
from claim_phases.turns_pb2_grpc import TurnsStub
from workload_agents.errors import (
    ParkFailed,
    RestoreFailed,
    TandemError,
    TurnLost,
    TurnRefused,
    TurnTimeout,
)

log = logging.getLogger("tandem.session")

PARK_AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between tries to park; the last one repeats."""

CONNECT_AGAIN_S = (0.05, 0.2, 0.5, 1.0)
"""Pauses between streams that ended before a word was said; the last one repeats."""

TELL_AFTER_S = 5.0
"""From when on people are told that no arbiter answers."""

CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


class Memory(Protocol):
    """What a tenant holds on its devices. The session calls one of these at a time."""

    async def park(self) -> None:
        """Finish or pause work and give the memory back. ParkFailed: the session tries again."""

    async def restore(self) -> int | None:
        """Bring back what is not there; return the version of the weights now served, None: no
        engine.

        RestoreFailed: it is not back.
        """


@runtime_checkable
class InPieces(Memory, Protocol):
    """Memory that can be parked in part, and restored piece by piece as another tenant's goes."""

    async def park_in_pieces(self, freed: Callable[[], None], keep: int) -> int:
        """`park` all but up to `keep` bytes on each device; return how many those are.

        `freed` is called, from any thread, each time that a good part is back.
        """

    async def restore_ahead(self, size: int) -> None:
        """Bring back what fits in so many bytes on each device, with what a park kept.

        RestoreFailed: that was not possible.
        """


@dataclass(eq=False, slots=True)
class _Waiting:
    """One who waits for the turn, and on whose behalf."""

    caller: str
    answer: asyncio.Future[int]


class Session:
    """The tenant's end of the turn protocol.

    `socket` is the claim's socket. `on_wanted` is called on the loop when another tenant begins to
    wait for the turn that is held. Entering waits for the arbiter.
    """

    def __init__(
        self,
        socket: Path,
        role: str,
        memory: Memory,
        *,
        on_wanted: Callable[[], None] | None = None,
    ) -> None:
        self._socket = socket
        self._memory = memory
        self._on_wanted = on_wanted
        self._in_pieces = memory if isinstance(memory, InPieces) else None
        self._tenancy = Tenancy(role, pieces=self._in_pieces is not None)
        self._outgoing: asyncio.Queue[FromTenant] | None = None
        self._commands: asyncio.Queue[Park | Restore | RestoreAhead] = asyncio.Queue()
        self._waiting: dict[int, _Waiting] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._welcome: asyncio.Future[None] | None = None
        self._left: asyncio.Future[None] | None = None
        self._shut: str | None = None
        self._is_shut = asyncio.Event()
        self._heard = False
        self._put_off: str | None = None
        self._park_tries = 0

    @property
    def holds(self) -> bool:
        """Whether the tenant has the turn, with its memory restored."""
        return self._tenancy.holds

    @property
    def wanted(self) -> bool:
        """Whether another tenant waits for the turn: leave it as soon as there is nothing to do."""
        return self._tenancy.wanted

    @property
    def urgent(self) -> bool:
        """Whether one waits for whose sake the turn should be left at the next good moment."""
        return self._tenancy.urgent

    @property
    def epoch(self) -> int:
        """The newest epoch, in a turn that turn's; 0 before the first."""
        return self._tenancy.epoch

    async def __aenter__(self) -> Self:
        self._welcome = asyncio.get_running_loop().create_future()
        self._tasks = [
            asyncio.create_task(self._keep_open()),
            asyncio.create_task(self._work()),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        tell = asyncio.get_running_loop().call_later(
            TELL_AFTER_S, log.warning, "no arbiter answers on %s: still waiting", self._socket
        )
        try:
            await self._welcome
        except BaseException:
            await self._close()
            raise
        finally:
            tell.cancel()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def acquire(self, *, timeout_s: float | None = None, caller: str | None = None) -> int:
        """Wait for the turn; return its epoch, with the memory restored.

        `caller` names the process ("pid:12") or pod ("ip:10.0.0.7") on whose behalf this is, None
        when it is the tenant's own. Several may wait at once, each on behalf of its own caller: one
        grant answers all. Raises TurnRefused, TurnTimeout, RestoreFailed.
        """
        if self._shut is not None:
            raise TurnRefused(self._shut)
        if self.holds:
            return self.epoch
        waiting = _Waiting(caller or "", asyncio.get_running_loop().create_future())
        self._want(waiting)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting.answer
        except BaseException as exc:
            if list(self._waiting.values()) == [waiting]:
                # Granted in the very moment in which the wait was given up: nobody would use it.
                self._do([*self._tenancy.unwant(), *self._tenancy.leave()])
            if isinstance(exc, TimeoutError):
                raise TurnTimeout(
                    f"{self._tenancy.role} waited {timeout_s:g} s for its turn in vain: see "
                    f"who holds it, or wait longer"
                ) from None
            raise
        finally:
            self._waiting = {n: one for n, one in self._waiting.items() if one is not waiting}

    async def refused(self) -> str:
        """Return why once the arbiter, or a fault, has ended the session for good."""
        await self._is_shut.wait()
        assert self._shut is not None
        return self._shut

    def _want(self, waiting: _Waiting) -> None:
        request = time.monotonic_ns()
        self._waiting[request] = waiting
        self._do(self._tenancy.want(request, waiting.caller))

    def check(self) -> None:
        """Raise TurnLost, once, when the turn was taken: work done since may have been in vain."""
        taken, self._tenancy.taken = self._tenancy.taken, None
        if taken is not None:
            raise TurnLost(
                f"the turn of epoch {self.epoch} was taken from {self._tenancy.role}: {taken}"
            )

    async def yield_turn(self, next_s: float | None = None) -> None:
        """Free the turn; nothing is parked until somebody needs the room. Idempotent.

        `next_s`: in how many seconds this tenant will want it again, None: unknown.

        Returns when the arbiter knows: a request to the engine that follows must not find this
        tenant still holding the turn. Without an arbiter that is when there is one again.

        Raises TurnLost as `check` does.
        """
        self.check()
        self._do(self._tenancy.leave(next_s))
        if self._tenancy.leaving and self._shut is None:
            if self._left is None or self._left.done():
                self._left = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._left)

    # -- acts -----------------------------------------------------------------------------------

    def _do(self, acts: list[Act]) -> None:
        for act in acts:
            match act:
                case Say(message):
                    if self._outgoing is not None:
                        self._outgoing.put_nowait(wire.tenant_to_wire(message))
                case Park() | Restore() | RestoreAhead():
                    self._commands.put_nowait(act)
                case Answer():
                    self._answered(act)
                case Left():
                    if self._left is not None and not self._left.done():
                        self._left.set_result(None)
                case WantedByOther():
                    if self._on_wanted is not None:
                        self._on_wanted()
                case Warn(message):
                    log.warning("%s", message)
                case Shut(reason):
                    self._refused_for_good(reason)
                case _:
                    assert_never(act)

    def _answered(self, answer: Answer) -> None:
        answered = [answer.request] if answer.request else list(self._waiting)
        for request in answered:
            waiting = self._waiting.pop(request, None)
            if waiting is None or waiting.answer.done():
                continue
            if answer.refusal is not None:
                waiting.answer.set_exception(TurnRefused(answer.refusal, holder=answer.holder))
            elif answer.failure is not None:
                waiting.answer.set_exception(RestoreFailed(answer.failure))
            else:
                waiting.answer.set_result(answer.epoch)
        if self._waiting and self._tenancy.request == 0:
            # The newest acquire was refused for its own sake: those before it wait on.
            self._want(self._waiting.pop(max(self._waiting)))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the session of %s broke", self._tenancy.role, exc_info=error)
            self._refused_for_good(f"the session broke ({error!r}): start this process again")

    def _refused_for_good(self, reason: str) -> None:
        self._shut = reason
        self._is_shut.set()
        self._do([Left()])
        error = TurnRefused(reason)
        for answer in (self._welcome, *(one.answer for one in self._waiting.values())):
            if answer is not None and not answer.done():
                answer.set_exception(error)

    # -- the memory -----------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            match await self._commands.get():
                case Park() as command:
                    await self._park(command)
                case RestoreAhead(size):
                    if self._commands.empty():  # else what follows does more, or undoes it
                        await self._restore_ahead(size)
                case Restore(epoch):
                    await self._restore(epoch)

    async def _park(self, command: Park) -> None:
        epoch, kept = command.epoch, 0
        if command.again:
            await asyncio.sleep(PARK_AGAIN_S[min(self._park_tries, len(PARK_AGAIN_S) - 1)])
            self._park_tries += 1
        else:
            self._park_tries = 0
        try:
            if self._in_pieces is not None and (command.pieces or command.keep):
                freed = self._freed_of(epoch) if command.pieces else _nobody_asks
                kept = await self._in_pieces.park_in_pieces(freed, command.keep)
            else:
                await self._memory.park()
        except ParkFailed as exc:
            log.error("cannot park: %s", exc)
            self._do(self._tenancy.park_failed(epoch, str(exc)))
        except Exception as exc:
            log.exception("parking broke")
            self._do(self._tenancy.park_failed(epoch, f"{type(exc).__name__}: {exc}"))
        else:
            self._do(self._tenancy.parked(epoch, kept))

    def _freed_of(self, epoch: int) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def freed() -> None:
            loop.call_soon_threadsafe(lambda: self._do(self._tenancy.freed(epoch)))

        return freed

    async def _restore_ahead(self, size: int) -> None:
        """What cannot be restored now is when the turn is granted, and told then."""
        if self._in_pieces is None:
            return
        try:
            await self._in_pieces.restore_ahead(size)
        except TandemError as exc:
            log.warning("cannot restore ahead of the turn: %s", exc)
        except Exception:
            log.exception("restoring ahead of the turn broke")

    async def _restore(self, epoch: int) -> None:
        try:
            weights = await self._memory.restore()
        except TandemError as exc:
            log.error("cannot restore: %s", exc)
            self._do(self._tenancy.restore_failed(epoch, str(exc)))
        except Exception as exc:
            log.exception("restoring broke")
            self._do(self._tenancy.restore_failed(epoch, f"{type(exc).__name__}: {exc}"))
        else:
            self._do(self._tenancy.restored(epoch, weights))

    # -- the stream -----------------------------------------------------------------------------

    async def _keep_open(self) -> None:
        async with grpc.aio.insecure_channel(
            f"unix:{self._socket}", options=CHANNEL_OPTIONS
        ) as channel:
            stub = TurnsStub(channel)
            mute = 0
            while self._shut is None:
                self._heard = False
                try:
                    await self._converse(stub)
                except grpc.aio.AioRpcError as exc:
                    self._tell_end(exc)
                mute = 0 if self._heard else mute + 1
                await asyncio.sleep(CONNECT_AGAIN_S[min(mute, len(CONNECT_AGAIN_S) - 1)])

    def _tell_end(self, exc: grpc.aio.AioRpcError) -> None:
        """The arbiter's own words, why it cannot serve this tenant yet, are for people: once."""
        level = logging.INFO
        if exc.code() is grpc.StatusCode.FAILED_PRECONDITION and exc.details() != self._put_off:
            level, self._put_off = logging.WARNING, exc.details()
        log.log(level, "connecting again: %s (%s)", exc.details(), exc.code().name)

    async def _converse(self, stub: TurnsStub) -> None:
        stream = stub.Session(wait_for_ready=True)
        outgoing: asyncio.Queue[FromTenant] = asyncio.Queue()
        self._outgoing = outgoing
        writer = asyncio.create_task(_write(stream, outgoing))
        try:
            self._do(self._tenancy.opened())
            async for heard in stream:
                self._heard = True
                self._do(self._tenancy.heard(wire.arbiter_from_wire(heard)))
                if self._welcome is not None and not self._welcome.done():
                    self._welcome.set_result(None)
        finally:
            self._outgoing = None
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            stream.cancel()


def _nobody_asks() -> None:
    """How a park goes on is of interest only to one that restores meanwhile."""


async def _write(
    stream: "grpc.aio.StreamStreamCall[FromTenant, FromArbiter]",
    outgoing: asyncio.Queue[FromTenant],
) -> None:
    while True:
        await stream.write(await outgoing.get())
