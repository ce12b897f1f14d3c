"""Decides when a request may go to the engine, and when the turn is yielded. Knows no HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from workload_agents.callers import Caller
from workload_agents.errors import TurnLost, TurnTimeout

log = logging.getLogger(__name__)


class Turn(Protocol):
    """What is needed of a session (workload_agents/session.py). `acquire` may be called again, for
    another caller, while it waits.
    """

    @property
    def holds(self) -> bool: ...
    @property
    def wanted(self) -> bool: ...
    @property
    def urgent(self) -> bool: ...
    async def acquire(self, *, timeout_s: float | None = None, caller: Caller = None) -> int: ...
    async def yield_turn(self) -> None: ...


class Engine(Protocol):
    """What is needed of an engine's adapter beside parking and restoring."""

    starting: asyncio.Event
    version: int | None

    async def load_if_newer(self) -> int: ...


@dataclass
class _Acquiring:
    """An acquire, and how many wait for it."""

    task: asyncio.Task[None]
    waiting: int = 0


class Gate:
    """Decides when a request may go to the engine, and when the turn is yielded. Knows no HTTP.

    A request is in flight from before it is forwarded until its last byte is sent on. The turn is
    yielded only when nothing is in flight and no request that was let in is about to be. While
    another tenant waits that goes first, a request that comes goes with the next turn: steady
    traffic must not keep the other waiting for ever.
    """

    def __init__(self, turn: Turn, engine: Engine, *, wait_s: float) -> None:
        self.in_flight = 0
        self._turn = turn
        self._engine = engine
        self._wait_s = wait_s
        self._waiting = 0
        self._acquiring: dict[Caller, _Acquiring] = {}
        self._loading: asyncio.Task[None] | None = None
        self._yielding: asyncio.Task[None] | None = None
        self._drained: asyncio.Event | None = None

    async def start(self) -> None:
        """Acquire the first turn, in which the engine starts, and yield it when it is healthy.

        Raises TandemError where the engine did not start.
        """
        await self._acquire(None, None)
        if self.in_flight == self._waiting == 0:
            await self._yield_once()

    @asynccontextmanager
    async def request(self, caller_of: Callable[[], Awaitable[Caller]]) -> AsyncIterator[None]:
        """The block runs while the engine holds the turn, with the newest weights at its start.

        `caller_of` is asked only when the turn has to be acquired. Raises TandemError: the request
        must not be forwarded; TurnTimeout `wait_s` after it came.
        """
        await self._enter(caller_of)
        try:
            yield
        finally:
            self.in_flight -= 1
            self.consider_yielding()
            if self.in_flight == 0 and self._drained is not None:
                self._drained.set()
                self._drained = None

    def consider_yielding(self) -> None:
        """To be called when another tenant begins to wait; the gate itself does when work ends."""
        idle = self.in_flight == self._waiting == 0
        if idle and self._turn.holds and self._turn.wanted and self._yielding is None:
            self._yielding = _logged_task(self._yield())

    async def _enter(self, caller_of: Callable[[], Awaitable[Caller]]) -> None:
        deadline = asyncio.get_running_loop().time() + self._wait_s
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._until_ready(caller_of, deadline)
            self.in_flight += 1
        except TimeoutError as exc:
            raise TurnTimeout(
                f"the engine did not get the turn within {self._wait_s:g} s; ask again later"
            ) from exc
        finally:
            self._waiting -= 1
            self.consider_yielding()

    async def _until_ready(
        self, caller_of: Callable[[], Awaitable[Caller]], deadline: float
    ) -> None:
        newest = False
        while True:
            if self._yielding is not None:
                await asyncio.shield(self._yielding)
                newest = False
            elif not self._turn.holds:
                await self._acquired(await caller_of(), deadline)
                newest = False
            elif self.in_flight and self._turn.urgent:
                await self._until_drained()
            elif self.in_flight or newest:
                return
            else:  # a tenant alone on its devices never parks: this is where it gets new weights
                await self._newest_loaded()
                newest = True

    async def _until_drained(self) -> None:
        if self._drained is None:
            self._drained = asyncio.Event()
        self._waiting -= 1  # it does not keep the turn from being yielded
        try:
            await self._drained.wait()
        finally:
            self._waiting += 1

    async def _acquired(self, caller: Caller, deadline: float) -> None:
        if self._turn.holds or self._yielding is not None:  # changed while the caller was looked up
            return
        remaining_s = deadline - asyncio.get_running_loop().time()
        if remaining_s <= 0:
            raise TimeoutError
        try:
            await self._acquire(caller, remaining_s)
        except TurnTimeout:
            # Of whoever asked first; this request may have come later, and has its own deadline.
            log.info("turn: not granted within the deadline of the first request that waits")

    async def _acquire(self, caller: Caller, timeout_s: float | None) -> None:
        """One acquire for all that wait on behalf of the same caller. Not one for all: whether a
        request would wait for itself depends on its caller. It ends when all who waited have left.
        """
        acquiring = self._acquiring.get(caller)
        if acquiring is None:
            acquiring = _Acquiring(_logged_task(self._acquire_once(caller, timeout_s)))
            self._acquiring[caller] = acquiring
        acquiring.waiting += 1
        try:
            await asyncio.shield(acquiring.task)
        finally:
            acquiring.waiting -= 1
            if acquiring.waiting == 0 or acquiring.task.done():
                acquiring.task.cancel()
                if self._acquiring.get(caller) is acquiring:
                    del self._acquiring[caller]

    async def _acquire_once(self, caller: Caller, timeout_s: float | None) -> None:
        log.info("turn: acquire for %s", caller or "the engine")
        epoch = await self._turn.acquire(timeout_s=timeout_s, caller=caller)
        log.info("turn: granted, epoch %d, weights version %s", epoch, self._engine.version)

    async def _newest_loaded(self) -> None:
        if self._loading is None:
            self._loading = _logged_task(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        try:
            await self._engine.load_if_newer()
        finally:
            self._loading = None

    async def _yield_once(self) -> None:
        if self._yielding is None:
            self._yielding = _logged_task(self._yield())
        await asyncio.shield(self._yielding)

    async def _yield(self) -> None:
        try:
            await self._turn.yield_turn()
            log.info("turn: yielded")
        except TurnLost as exc:  # nothing was in flight, so nothing was done in vain
            log.warning("turn: %s", exc)
        finally:
            self._yielding = None


def _logged_task(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """A task whose error is told even if all who waited for it have left."""
    task = asyncio.create_task(work)
    task.add_done_callback(_tell_error)
    return task


def _tell_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("turn: %s", error)
