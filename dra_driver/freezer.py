"""Freezes tenants that do not leave, and thaws them in a later turn: their devices do it.

What is done to the processes of one life is done in order, and waits for nobody else's.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from claim_phases.events import Frozen, Thawed
from claim_phases.node import Membership, Node
from claim_phases.verdicts import WHOLE
from dra_driver.devices import Device, DeviceError, NoRoom
from dra_driver.peers import private_directory
from dra_driver.processes import RegistryError
from dra_driver.roster import Roster

log = logging.getLogger("tandem.freezer")

COPIES_MAX = 64
"""Tenants whose memory may be on its way to or from the host at once."""

_T = TypeVar("_T")


class _Overtaken(Exception):
    """What was to be done about a tenant at fault is not to be done any more, and why."""


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[_T]):
    """What a device answered; None with a `problem`, which is over `later` for want of room."""

    answer: _T | None
    problem: str = ""
    later: bool = False


class Freezer:
    """Each coroutine does what one effect of the machine asks for, and gives the `answer` to it.

    What is kept of those that are frozen lies under `folder`, which is made when it is needed, for
    this user alone. The machine's `node` is read for what became of a life meanwhile.
    """

    def __init__(
        self,
        node: Node,
        devices: Mapping[str, Device],
        roster: Roster,
        folder: Path,
        answer: Callable[[Frozen | Thawed], None],
    ) -> None:
        self._node = node
        self._devices = devices
        self._roster = roster
        self._folder = folder
        self._answer = answer
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()
        # Threads of their own: a copy is as much as devices hold, and no reading waits for it.
        self._copying = ThreadPoolExecutor(COPIES_MAX, "copying")
        self._closed = False

    async def freeze(self, who: Membership) -> None:
        """Answers with Frozen, also where it was not possible."""
        async with self._in_order(who) as folder:
            outcome = await self._try(f"freezing {who.tenant}", self._freeze, who, folder)
        self._answer(Frozen(who.tenant, who.incarnation, outcome.answer or 0, outcome.problem))

    async def thaw(self, who: Membership) -> None:
        """Answers with Thawed, also where it was not possible."""
        outcome: _Outcome[None] = _Outcome(None, "it has no turn any more", later=True)
        async with self._in_order(who) as folder:
            record = self._node.life(who)
            if record is not None and record.phase in WHOLE:
                outcome = await self._try(f"thawing {who.tenant}", self._thaw, who, folder)
        self._answer(Thawed(who.tenant, who.incarnation, outcome.problem, outcome.later))

    async def discard(self, tenant: str, incarnation: str, devices: Collection[str]) -> None:
        """A life is over: end those of it that stand still. There is no answer."""
        await self._discard_in_order(self.folder_of(tenant, incarnation), devices)

    def take_up(self) -> list[Coroutine[Any, Any, None]]:
        """What the arbiter before began and did not live to record, or recorded and did not do."""
        left = set(self._folder.iterdir()) if self._folder.is_dir() else set()
        todo = []
        for tenant in self._node.tenants.values():
            folder = self.folder_of(tenant.name, tenant.who.incarnation)
            if not tenant.gone and (folder in left or tenant.frozen is not None):
                left.discard(folder)
                todo.append(self._settle(tenant.who))
        of_nobody = [self._discard_in_order(folder, self._devices) for folder in left]
        return [*todo, *of_nobody]

    def folder_of(self, tenant: str, incarnation: str) -> Path:
        """One life's folder; its name is of one length, whatever the tenant's is."""
        life = f"{tenant} {incarnation}"
        return self._folder / hashlib.sha256(life.encode()).hexdigest()

    def close(self) -> None:
        """Begin nothing more: what waits for its order is cancelled."""
        self._closed = True
        self._copying.shutdown(wait=False, cancel_futures=True)

    async def drained(self) -> None:
        """Wait, after `close`, for copies under way: the next arbiter finds them whole."""
        await asyncio.to_thread(self._copying.shutdown)

    async def _settle(self, who: Membership) -> None:
        async with self._in_order(who) as folder:
            if self._node.life(who) is None:
                return
            outcome = await self._try(f"settling {who.tenant}", self._settle_one, who, folder)
        if outcome.problem:
            log.error("%s is neither frozen nor goes on: %s", who.tenant, outcome.problem)
            self._answer(Thawed(who.tenant, who.incarnation, outcome.problem))
        elif outcome.answer is None:
            self._answer(Thawed(who.tenant, who.incarnation))
        else:
            self._answer(Frozen(who.tenant, who.incarnation, outcome.answer))

    def _freeze(self, who: Membership, folder: Path) -> int:
        if len(who.devices) > 1:
            raise DeviceError("it has more than one device")

        def of_tenant() -> Collection[int]:
            """A life is known by where its processes are: those there now may be the next one's."""
            record = self._node.life(who)
            if record is None or not record.faulty:
                raise _Overtaken("it is not at fault any more")
            return self._roster.processes(who)

        parts = self._roster.life(who)
        for part in parts:
            os.close(part.pidfd)
        if not parts:
            raise _Overtaken("its processes have ended")
        try:
            for made in (self._folder.parent, self._folder):
                private_directory(made)
        except OSError as exc:
            raise DeviceError(f"{exc.filename}: {exc.strerror}: make room for it") from exc
        return self._devices[who.devices[0]].freeze(of_tenant, folder)

    def _settle_one(self, who: Membership, folder: Path) -> int | None:
        return self._devices[who.devices[0]].settle(folder)

    def _thaw(self, who: Membership, folder: Path) -> None:
        for name in who.devices:
            self._devices[name].thaw(lambda: self._node.life(who) is not None, folder)

    async def _discard_in_order(self, folder: Path, devices: Collection[str]) -> None:
        async with self._lock(folder):
            await self._discard(folder, devices)

    async def _discard(self, folder: Path, devices: Collection[str]) -> None:
        for name in devices:
            outcome = await self._try("discarding", self._devices[name].discard, folder)
            if outcome.problem:
                log.error("%s", outcome.problem)

    @asynccontextmanager
    async def _in_order(self, who: Membership) -> AsyncIterator[Path]:
        """Alone with one life's folder; what is in it of a life that is over then is discarded."""
        folder = self.folder_of(who.tenant, who.incarnation)
        async with self._lock(folder):
            yield folder
            if self._node.life(who) is None:
                await self._discard(folder, who.devices)

    def _lock(self, folder: Path) -> asyncio.Lock:
        return self._locks.setdefault(folder, asyncio.Lock())

    async def _try(self, what: str, work: Callable[..., _T], *arguments: object) -> _Outcome[_T]:
        if self._closed:
            raise asyncio.CancelledError
        try:
            loop = asyncio.get_running_loop()
            return _Outcome(await loop.run_in_executor(self._copying, work, *arguments))
        except (DeviceError, RegistryError, _Overtaken) as exc:
            return _Outcome(None, str(exc), isinstance(exc, NoRoom))
        except Exception as exc:
            log.exception("%s broke", what)
            return _Outcome(None, f"{exc!r}: see the driver's log")
