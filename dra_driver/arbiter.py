"""The node's arbiter of turns: sessions in, the machine's effects out. It decides nothing itself.

Order of one step: the machine takes the event, the journal stores the node, the messages leave,
people are told. Reading the sum of a device's memory takes microseconds and happens inside the
step; finding its owners scans /proc and happens in a thread. When a step cannot be made whole the
arbiter ends: whoever starts it again gets the node as it was stored.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, assert_never

import grpc

from claim_phases import wire
from claim_phases.events import (
    Arm,
    Connected,
    Discard,
    Effect,
    Event,
    Fired,
    Freeze,
    Gone,
    Headroom,
    Kill,
    Lost,
    Measure,
    Measured,
    PhaseChanged,
    Resumed,
    RoomMade,
    Said,
    Send,
    Tell,
    Thaw,
    Timer,
    TimerKind,
    Told,
    Unread,
    Usage,
)
from claim_phases.messages import (
    PROTOCOL,
    Acquire,
    ArbiterMessage,
    Hello,
    Refused,
    TenantMessage,
)
from claim_phases.node import Membership
from claim_phases.phases import Phase
from claim_phases.turns import Turns
from claim_phases.turns_pb2 import FromTenant
from claim_phases.turns_pb2_grpc import TurnsServicer
from dra_driver import measuring
from dra_driver.devices import Device, DeviceError
from dra_driver.event_log import EventLog
from dra_driver.freezer import Freezer
from dra_driver.journal import Journal
from dra_driver.peers import Peer
from dra_driver.processes import Process, RegistryError
from dra_driver.roster import NotAMember, NotNow, Part, Roster

log = logging.getLogger("tandem.arbiter")

HELLO_WITHIN_S = 5.0
OUTGOING_MAX = 64
"""Messages that may wait for a tenant that does not read; it is cut off then."""

SessionContext = grpc.aio.ServicerContext[Any, Any]


class Peers(Protocol):
    """Who is at the other end of a connection, by the name that gRPC has for it."""

    def peer(self, name: str) -> Peer | None:
        """The peer; None when the connection came from nowhere that is known."""

    def drop(self, name: str) -> None:
        """Cut the connection."""


@dataclass(slots=True, eq=False)
class _Session:
    who: Membership
    process: Process
    outgoing: asyncio.Queue[ArbiterMessage | None]
    deaf: asyncio.Future[None]
    ran: bool = False

    def put(self, message: ArbiterMessage | None) -> None:
        """Send; None ends the session after what was sent before."""
        if self.outgoing.qsize() < OUTGOING_MAX:
            self.outgoing.put_nowait(message)
        elif not self.deaf.done():
            self.deaf.set_result(None)


@dataclass(slots=True)
class _Life:
    """One life of a tenant: its parts that run, each watched."""

    incarnation: str
    parts: dict[Process, Part] = field(default_factory=dict)


class Arbiter(TurnsServicer):
    """Carries out the effects of one node's machine of turns.

    `listener` is told what people are told, within the step: it must only take note. What is kept
    of tenants that are frozen is in `frozen_under` (`dra_driver.freezer`).

    `stopped` is done when it decides no more: after `close`, or with what made it end.
    """

    def __init__(
        self,
        turns: Turns,
        journal: Journal,
        devices: Mapping[str, Device],
        roster: Roster,
        peers: Peers,
        events: EventLog,
        clock: Callable[[], float],
        listener: Callable[[Told], None],
        frozen_under: Path,
    ) -> None:
        self._turns = turns
        self._journal = journal
        self._devices = devices
        self._roster = roster
        self._peers = peers
        self._events = events
        self._clock = clock
        self._listener = listener
        self._freezer = Freezer(turns.node, devices, roster, frozen_under, self.handle)
        self._loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        self._sessions: dict[str, _Session] = {}
        self._timers: dict[tuple[TimerKind, str], asyncio.TimerHandle] = {}
        self._lives: dict[str, _Life] = {}
        self._put_off = ""
        self._scans: set[asyncio.Task[None]] = set()
        self._pending: deque[Event] = deque()

    def start(self) -> None:
        """Take up the node as its journal has it."""
        node = self._turns.node
        self._events.started(node)
        for tenant in list(node.tenants.values()):
            # What the last arbiter stored and did not live to tell.
            self._events.tell(
                PhaseChanged(
                    tenant.name, tenant.phase, tenant.phase, tenant.epoch, tenant.who.devices
                ),
                self._clock(),
            )
            if tenant.aside and tenant.beyond:
                self._events.tell(
                    RoomMade(tenant.name, tenant.epoch, tenant.beyond, tenant.who.devices),
                    self._clock(),
                )
        self.handle(Resumed())
        for settling in self._freezer.take_up():
            self._look(settling)
        for tenant in list(node.tenants.values()):
            self._watch(tenant.who)

    def look_again(self, devices: Collection[str]) -> None:
        """Whoever uses these devices may have left: nobody who is on record may stay for ever."""
        for tenant in list(self._turns.node.tenants.values()):
            if set(devices) & set(tenant.who.devices):
                self._watch(tenant.who)

    def close(self) -> None:
        """Decide no more. The state stays as it is stored."""
        if not self.stopped.done():
            self.stopped.set_result(None)
        for timer in self._timers.values():
            timer.cancel()
        for life in self._lives.values():
            self._unwatch(life)
        self._lives.clear()
        self._freezer.close()
        self._events.close()

    async def drained(self) -> None:
        """Wait, after `close`, for what cannot be left half done."""
        await self._freezer.drained()

    # -- the machine ----------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Take in an event, and all that follows from it at once."""
        if self.stopped.done():
            return
        self._pending.append(event)
        if len(self._pending) > 1:
            return  # called from within a step: the loop below takes it up
        try:
            while self._pending:
                self._step(self._pending[0])
                self._pending.popleft()
        except Exception as exc:  # noqa: BLE001 - whatever it is, `serve` raises it
            self._end(exc)

    def _end(self, cause: Exception) -> None:
        if not self.stopped.done():
            self.stopped.set_exception(cause)

    def _step(self, event: Event) -> None:
        effects = self._turns.step(event, self._clock())
        if any(isinstance(effect, Send | Tell) for effect in effects):
            self._journal.append(self._turns.node.to_json())
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(tenant, message):
                session = self._sessions.get(tenant)
                if session is not None:
                    session.put(message)
            case Measure():
                if effect.attribute:
                    self._look(self._scan(effect))
                else:
                    self._pending.append(self._measured(effect, measuring.total))
            case Arm(timer, delay_s):
                self._arm(timer, delay_s)
            case Kill(tenant, devices):
                self._kill(tenant, devices)
            case Freeze(tenant):
                self._look(self._freezer.freeze(self._turns.node.tenants[tenant].who))
            case Thaw(tenant):
                self._look(self._freezer.thaw(self._turns.node.tenants[tenant].who))
            case Discard(tenant, incarnation, devices):
                self._look(self._freezer.discard(tenant, incarnation, devices))
            case Tell(at, what):
                self._events.tell(what, at)
                self._listener(what)
                if isinstance(what, PhaseChanged) and what.after is Phase.RUNNING:
                    self._runs(what.tenant)
            case _:
                assert_never(effect)

    def _runs(self, tenant: str) -> None:
        """In its first turn a tenant's other parts were started: an engine behind its agent."""
        session = self._sessions.get(tenant)
        if session is not None and not session.ran:
            session.ran = True
            self._loop.call_soon(self._watch, session.who)

    def _arm(self, timer: Timer, delay_s: float) -> None:
        key = (timer.kind, timer.subject)
        if (running := self._timers.pop(key, None)) is not None:
            running.cancel()
        self._timers[key] = self._loop.call_later(delay_s, self._fire, key, timer)

    def _fire(self, key: tuple[TimerKind, str], timer: Timer) -> None:
        del self._timers[key]
        self.handle(Fired(timer))

    def _look(self, looking: Coroutine[Any, Any, None]) -> None:
        scan = asyncio.ensure_future(looking)
        self._scans.add(scan)
        scan.add_done_callback(self._scanned)

    async def _scan(self, measure: Measure) -> None:
        self.handle(await asyncio.to_thread(self._measured, measure, self._attributed))

    def _headrooms(self, tenants: tuple[str, ...]) -> tuple[Headroom, ...]:
        known = (self._turns.node.tenants.get(tenant) for tenant in tenants)
        found = (self._roster.headroom(tenant.who) for tenant in known if tenant is not None)
        return tuple(headroom for headroom in found if headroom is not None)

    def _scanned(self, scan: asyncio.Task[None]) -> None:
        self._scans.discard(scan)
        if not scan.cancelled() and (error := scan.exception()) is not None:
            log.error("the devices' processes could not be looked at: %s", error)

    def _measured(self, measure: Measure, read: Callable[[Device], Usage]) -> Measured:
        usages, unread = [], []
        for name in measure.devices:
            try:
                usages.append(read(self._devices[name]))
            except DeviceError as exc:
                unread.append(Unread(name, str(exc)))
        headrooms = self._headrooms(measure.headrooms)
        return Measured(measure.asked, tuple(usages), tuple(unread), headrooms)

    def _attributed(self, device: Device) -> Usage:
        return measuring.attributed(device, self._roster)

    # -- sessions -------------------------------------------------------------------------------

    async def Session(  # type: ignore[override]  # noqa: N802 - the .proto's; reads and writes itself
        self, request_iterator: object, context: SessionContext
    ) -> None:
        """Serve one tenant's stream."""
        try:
            async with asyncio.timeout(HELLO_WITHIN_S):
                hello = await _next(context)
        except TimeoutError:
            await _refuse(context, f"no hello within {HELLO_WITHIN_S:g} s")
            return
        except wire.WireError as exc:
            await _refuse(context, str(exc))
            return
        try:
            session = await self._admit(self._peers.peer(context.peer()), hello)
        except NotNow as exc:
            if str(exc) != self._put_off:
                self._put_off = str(exc)
                log.warning("a hello is put off: %s", exc)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(exc))
        except (NotAMember, RegistryError) as exc:
            await _refuse(context, str(exc))
            return
        assert isinstance(hello, Hello)
        self._sessions[session.who.tenant] = session
        caller = self._roster.tenant_of_caller(hello.caller) if hello.caller else ""
        try:
            self._introduce(session.who)
            self.handle(Connected(session.who, hello, caller))
            self._introduce(session.who)
            if not self._is_watched(session):
                self._watch(session.who)
            await self._converse(session, context)
        finally:
            if self._sessions.get(session.who.tenant) is session:
                del self._sessions[session.who.tenant]
                self.handle(Lost(session.who.tenant))

    def _introduce(self, who: Membership) -> None:
        """Before its first phase changes; a next life only when the machine took it."""
        tenant = self._turns.node.tenants.get(who.tenant)
        if tenant is None or tenant.who.incarnation == who.incarnation:
            self._events.joined(who, who.job)

    async def _admit(self, peer: Peer | None, hello: TenantMessage | None) -> _Session:
        if not isinstance(hello, Hello):
            raise NotAMember("the first message must be a hello")
        if not served(hello.protocol):
            raise NotAMember(
                f"protocol {hello.protocol[:20]!r} is not served, this node speaks {PROTOCOL} and "
                f"the minor before: use the Tandem version of the node"
            )
        if peer is None:
            raise NotAMember("the connection did not come through a claim's socket: use that")
        who = await self._roster.identify(peer)
        if hello.role != who.role:
            raise NotAMember(
                f"the hello says role {hello.role[:63]!r}, and this pod's role is {who.role!r}: "
                f"let both say the same"
            )
        former = self._sessions.get(who.tenant)
        if former is not None:
            if former.who.incarnation != who.incarnation and former.process.alive:
                raise NotNow(
                    f"process {former.process.pid} of an earlier life of {who.tenant} still runs: "
                    f"this one is served when that has ended"
                )
            if former.process != peer.process and former.process.alive:
                raise NotAMember(
                    f"process {former.process.pid} has the session of {who.tenant}: one process of "
                    f"a tenant takes its turns"
                )
            former.put(Refused(0, f"another session of {who.tenant} took the place of this one"))
            former.put(None)
        queue: asyncio.Queue[ArbiterMessage | None] = asyncio.Queue()
        return _Session(who, peer.process, queue, self._loop.create_future())

    async def _converse(self, session: _Session, context: SessionContext) -> None:
        reader = asyncio.ensure_future(self._read(session, context))
        writer = asyncio.ensure_future(_write(session, context))
        try:
            await asyncio.wait({writer, session.deaf}, return_when=asyncio.FIRST_COMPLETED)
            if session.deaf.done():
                log.warning("the session of %s is cut off: it does not read", session.who.tenant)
                self._peers.drop(context.peer())
                await asyncio.wait({writer})  # its write fails: there is no connection any more
        finally:
            reader.cancel()
            writer.cancel()
            for end in await asyncio.gather(reader, writer, return_exceptions=True):
                if isinstance(end, Exception):
                    log.warning("the session of %s broke: %r", session.who.tenant, end)

    async def _read(self, session: _Session, context: SessionContext) -> None:
        try:
            while (message := await _next(context)) is not None:
                if self._sessions.get(session.who.tenant) is not session:
                    return
                caller = ""
                if isinstance(message, Acquire) and message.caller:
                    caller = self._roster.tenant_of_caller(message.caller)
                self.handle(Said(session.who.tenant, message, caller))
        except wire.WireError as exc:
            session.put(Refused(0, str(exc)))
        finally:
            session.put(None)

    # -- processes ------------------------------------------------------------------------------

    def _watch(self, who: Membership) -> None:
        """Learn of the end of each part of this life of the tenant, and so of its own."""
        tenant = self._turns.node.tenants.get(who.tenant)
        if self.stopped.done() or tenant is None or tenant.who.incarnation != who.incarnation:
            return
        life = self._lives.get(who.tenant)
        if life is None or life.incarnation != who.incarnation:
            self._unwatch(life)
            life = self._lives[who.tenant] = _Life(who.incarnation)
        try:
            parts = self._roster.life(who)
        except Exception as exc:  # noqa: BLE001 - unwatched, a death would go unnoticed
            self._end(exc)
            return
        for part in parts:
            if part.first in life.parts:
                os.close(part.pidfd)
            else:
                life.parts[part.first] = part
                self._loop.add_reader(part.pidfd, self._ended, who, life, part)
        if not life.parts:
            del self._lives[who.tenant]
            self.handle(Gone(who.tenant, who.incarnation))

    def _is_watched(self, session: _Session) -> bool:
        """Whether this process is one of its life's parts already: it said hello before."""
        life = self._lives.get(session.who.tenant)
        return (
            life is not None
            and life.incarnation == session.who.incarnation
            and session.process in life.parts
        )

    def _kill(self, tenant: str, devices: tuple[str, ...]) -> None:
        who = self._turns.node.tenants[tenant].who
        self._look(asyncio.to_thread(self._kill_all, who, devices))
        # What is frozen holds nothing that shows.
        self._look(self._freezer.discard(tenant, who.incarnation, devices))

    def _kill_all(self, who: Membership, devices: tuple[str, ...]) -> None:
        """Its parts, and those in no tree or container of one: an engine's orphaned worker."""
        tenant = who.tenant
        for part in self._roster.life(who):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(part.pidfd, signal.SIGKILL)
            os.close(part.pidfd)
        pids: set[int] = set()
        for name in devices:
            with contextlib.suppress(DeviceError):  # the watch tells it
                pids |= self._devices[name].holders().keys()
        for pid in pids & self._roster.owners(pids).keys():
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                try:
                    # Only now the pid cannot become another's.
                    if self._roster.owners([pid]).get(pid) == tenant:
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)

    def _unwatch(self, life: "_Life | None") -> None:
        for part in life.parts.values() if life is not None else ():
            self._loop.remove_reader(part.pidfd)
            os.close(part.pidfd)

    def _ended(self, who: Membership, life: "_Life", part: Part) -> None:
        self._loop.remove_reader(part.pidfd)
        os.close(part.pidfd)
        del life.parts[part.first]
        session = self._sessions.get(who.tenant)
        if part.loss and session is not None:
            session.put(Refused(0, part.loss))
            session.put(None)
        record = self._turns.node.life(who)
        if record is not None and record.frozen is not None:
            # It cannot go on whole, and a part that stands still cannot end for the other's sake.
            self._look(self._freezer.discard(who.tenant, who.incarnation, who.devices))
        if not life.parts:
            self._watch(who)  # what began meanwhile, or the end


def served(protocol: str) -> bool:
    """This minor of the protocol and the one before are served."""
    major, _, minor = PROTOCOL.partition(".")
    return protocol in {f"{major}.{minor}", f"{major}.{int(minor) - 1}"}


async def _next(context: SessionContext) -> TenantMessage | None:
    """The stream's next message, None at its end."""
    message = await context.read()
    return wire.tenant_from_wire(message) if isinstance(message, FromTenant) else None


async def _write(session: _Session, context: SessionContext) -> None:
    while (message := await session.outgoing.get()) is not None:
        await context.write(wire.arbiter_to_wire(message))


async def _refuse(context: SessionContext, reason: str) -> None:
    await context.write(wire.arbiter_to_wire(Refused(0, reason)))
