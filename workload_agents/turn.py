"""The API that user code calls: `with turn("trainer") as t:` and what can be done inside.

A process is one tenant, so it has one session, whatever the number of its turns. The session lives
on an event loop in a thread of its own, so that it can park what the turn holds while the user's
thread waits elsewhere, for the engine's answer, say.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from workload_agents.errors import TandemError, TurnLost, TurnTimeout
from workload_agents.session import Session

if TYPE_CHECKING:
    from workload_agents.adapters.torch_storage import TorchMemory

_T = TypeVar("_T")
SOCKET_DIR = "TANDEM_SOCKET_DIR"
SOCKET = "turns.sock"
FAREWELL_WITHIN_S = 1.0
"""Who is interrupted, or ends, waits no longer until the arbiter knows that the turn is free."""


class Turn:
    """One tenant's turns, as a context manager (`with` and `async with`).

    Inside the block the tenant has the exclusive right to its devices. `timeout_s` bounds each
    wait for the turn. Raises TurnRefused, TurnTimeout, RestoreFailed on entering, and TurnLost at
    the first call after the turn was taken away. One block at a time: TandemError otherwise.

    A tenant with several ranks takes its turns collectively, decided by rank 0; this version
    serves one rank and says so when WORLD_SIZE tells of more.
    """

    def __init__(self, role: str, *, timeout_s: float | None = None) -> None:
        self._role = role
        self._timeout_s = timeout_s
        self._inside: _Tenant | None = None

    def __enter__(self) -> Self:
        tenant = _tenant_of_process(self._role)
        tenant.claim_block()
        try:
            tenant.wait_for_turn(self._timeout_s)
        except BaseException:
            tenant.leave_block()
            raise
        self._inside = tenant
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tenant, self._inside = self._inside, None
        if tenant is None or tenant.forked:
            return
        try:
            tenant.leave_turn(_patience(exc))
        except TurnLost as lost:
            _raise_beside(exc, lost)
        finally:
            tenant.leave_block()

    async def __aenter__(self) -> Self:
        tenant = _tenant_of_process(self._role)
        tenant.claim_block()
        try:
            await tenant.turn_awaited(self._timeout_s)
        except BaseException:
            tenant.leave_block()
            raise
        self._inside = tenant
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tenant, self._inside = self._inside, None
        if tenant is None or tenant.forked:
            return
        try:
            await tenant.turn_left(_patience(exc))
        except TurnLost as lost:
            _raise_beside(exc, lost)
        finally:
            tenant.leave_block()

    @property
    def epoch(self) -> int:
        """The epoch of the turn."""
        return self._held().session.epoch

    def should_yield(self) -> bool:
        """Whether another tenant that goes first waits: yield at the next good moment.

        Raises TurnLost.
        """
        session = self._held().session
        session.check()
        return session.urgent

    def hold(self, *things: object) -> None:
        """Name what the turn holds on its devices: it is parked when others need the room.

        Modules, optimizers and tensors of torch, or callables that return them.
        """
        self._held().memory.hold(*things)

    def yielded(self, *, next_s: float | None = None) -> "Yielded":
        """Free the turn inside `with turn.yielded():` (or `async with`).

        `next_s`: the turn will be wanted again in about so many seconds, None: unknown. Tenants
        that only harvest gaps leave this one's memory alone where the gap is short.

        Afterwards it is granted again, state restored; also when the block raises an Exception.
        An interrupt (KeyboardInterrupt, a cancelled task) does not wait for that: it leaves the
        turn's own block without the turn.
        """
        return Yielded(self._held(), self._timeout_s, next_s)

    def _held(self) -> "_Tenant":
        if self._inside is None:
            raise TandemError(
                f"the turn of {self._role} is not held here: use what it offers inside its block, "
                f'with turn("{self._role}") as t'
            )
        self._inside.check_process()
        return self._inside


class Yielded:
    """The turn is free inside this block."""

    def __init__(self, tenant: "_Tenant", timeout_s: float | None, next_s: float | None) -> None:
        self._tenant = tenant
        self._timeout_s = timeout_s
        self._next_s = next_s

    def __enter__(self) -> None:
        self._begin()
        self._tenant.leave_turn(None, self._next_s)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tenant.away = False
        if exc is None or isinstance(exc, Exception):
            self._tenant.wait_for_turn(self._timeout_s)

    async def __aenter__(self) -> None:
        self._begin()
        await self._tenant.turn_left(None, self._next_s)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tenant.away = False
        if exc is None or isinstance(exc, Exception):
            await self._tenant.turn_awaited(self._timeout_s)

    def _begin(self) -> None:
        if self._tenant.away:
            raise TandemError(
                f"the turn of {self._tenant.role} is yielded already: leave that block first"
            )
        self._tenant.away = True


def turn(role: str, *, timeout_s: float | None = None) -> Turn:
    """Take turns as `role` on the devices of this process's claim.

    >>> with turn("trainer") as t:       # blocks until granted; build model and optimizer inside
    ...     t.hold(model, optimizer)
    ...     with t.yielded():            # the engine has the devices here
    ...         completions = ask(engine_url)
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise TandemError(
            f"{role} has WORLD_SIZE={os.environ['WORLD_SIZE']}: turns over several ranks are not "
            f"served by this version; run one rank"
        )
    return Turn(role, timeout_s=timeout_s)


class _Tenant:
    """This process as a tenant: one session, in a thread of its own, and what it holds."""

    def __init__(self, role: str, socket: Path) -> None:
        self.role = role
        self.memory = _Held()
        self.away = False
        self._socket = socket
        self._process = os.getpid()
        self._session: Session | None = None
        self._block = threading.Lock()
        self._block_of = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tandem", daemon=True)
        self._thread.start()

    @property
    def session(self) -> Session:
        """The session; there is one inside of every block."""
        assert self._session is not None
        return self._session

    # -- one block at a time --------------------------------------------------------------------

    def claim_block(self) -> None:
        """TandemError when a block has the turn, or waits for it."""
        self.check_process()
        if not self._block.acquire(blocking=False):
            raise TandemError(
                f"the turn of {self.role} is in use by a block of thread {self._block_of}: a turn "
                f"has one block at a time, leave it first"
            )
        self._block_of = threading.current_thread().name
        self.away = False

    def leave_block(self) -> None:
        """Another block may begin."""
        self._block.release()

    @property
    def forked(self) -> bool:
        """Whether this is a child that was forked: the turn, and the session, are its parent's."""
        return self._process != os.getpid()

    def check_process(self) -> None:
        """TandemError in a child that was forked."""
        if self.forked:
            raise TandemError(
                f"the turn of {self.role} belongs to process {self._process}, which forked this "
                f"one: use it there"
            )

    # -- from the user's thread -----------------------------------------------------------------

    def wait_for_turn(self, timeout_s: float | None) -> None:
        """Block until granted. An interrupt leaves no request behind."""
        waiting = self._submit(functools.partial(self._acquire, timeout_s))
        try:
            waiting.result()
        except BaseException:
            self._give_up(waiting)
            raise

    async def turn_awaited(self, timeout_s: float | None) -> None:
        """`wait_for_turn`, on the user's event loop."""
        waiting = self._submit(functools.partial(self._acquire, timeout_s))
        try:
            await asyncio.wrap_future(waiting)
        except BaseException:
            self._give_up(waiting)
            raise

    def leave_turn(self, within_s: float | None, next_s: float | None = None) -> None:
        """Block until the turn is free, no longer than this: it becomes free, interrupt or not.

        Raises TurnLost.
        """
        try:
            with contextlib.suppress(TimeoutError):
                self._submit(functools.partial(self._yield_turn, next_s)).result(within_s)
        except Exception:
            raise
        except BaseException:
            self._submit(self._leave)  # the interrupt may have come before the line above
            raise

    async def turn_left(self, within_s: float | None, next_s: float | None = None) -> None:
        """`leave_turn`, on the user's event loop."""
        left = asyncio.wrap_future(self._submit(functools.partial(self._yield_turn, next_s)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(left), within_s)

    def _submit(
        self, work: Callable[[], Coroutine[Any, Any, _T]]
    ) -> "concurrent.futures.Future[_T]":
        """Have the session's thread do it.

        It gets the function: an interrupt would leave a coroutine behind that nobody awaits.
        """
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._start, work, done)
        return done

    def _give_up(self, waiting: "concurrent.futures.Future[None]") -> None:
        waiting.cancel()
        self._submit(self._leave)  # granted in the same moment: nobody would use it

    # -- on the session's loop ------------------------------------------------------------------

    def _start(
        self,
        work: Callable[[], Coroutine[Any, Any, _T]],
        done: "concurrent.futures.Future[_T]",
    ) -> None:
        if not done.cancelled():
            task = self._loop.create_task(work())
            task.add_done_callback(lambda task: _hand_over(task, done))
            done.add_done_callback(lambda done: self._stop(task) if done.cancelled() else None)

    def _stop(self, task: asyncio.Task[_T]) -> None:
        self._loop.call_soon_threadsafe(task.cancel)

    async def _yield_turn(self, next_s: float | None) -> None:
        """Free the turn, or learn that it was taken; either way the user's code is out of it."""
        self.memory.in_use(False)
        await self.session.yield_turn(next_s)

    async def _acquire(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                if self._session is None:
                    session = Session(self._socket, self.role, self.memory)
                    # Left open until the process ends: what is held may have to be parked later.
                    self._session = await session.__aenter__()
                await self.session.acquire()
        except TimeoutError:
            raise TurnTimeout(
                f"{self.role} waited {timeout_s:g} s for its turn in vain: see who holds it, or "
                f"wait longer"
            ) from None
        self.memory.in_use(True)

    async def _leave(self) -> None:
        self.memory.in_use(False)
        if self._session is not None:
            with contextlib.suppress(TurnLost):  # the interrupt says enough
                await self._session.yield_turn()

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session and its thread. A forked child has neither."""
        if self.forked:
            return
        with contextlib.suppress(TimeoutError):
            self._submit(self._close).result(FAREWELL_WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(FAREWELL_WITHIN_S)

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.__aexit__()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _hand_over(task: asyncio.Task[_T], done: "concurrent.futures.Future[_T]") -> None:
    if task.cancelled():
        done.cancel()
    elif done.set_running_or_notify_cancel():
        if (error := task.exception()) is not None:
            done.set_exception(error)
        else:
            done.set_result(task.result())


class _Held:
    """What a turn holds; torch is imported only when there is something of it."""

    def __init__(self) -> None:
        self._torch: TorchMemory | None = None
        self._unused = asyncio.Event()
        self._unused.set()

    def hold(self, *things: Any) -> None:
        """Add to what is parked."""
        if self._torch is None:
            from workload_agents.adapters.torch_storage import TorchMemory

            self._torch = TorchMemory()
        self._torch.hold(*things)

    def in_use(self, used: bool) -> None:
        """Whether the user's code is inside its turn, on the session's loop."""
        if used:
            self._unused.clear()
        else:
            self._unused.set()

    async def park(self) -> None:
        """Park in a thread, once the user's code is out of its turn.

        A turn can be taken from under it, and memory that vanishes while it computes would break
        it; until its next call it is at fault, and nobody else is granted.
        """
        await self.park_in_pieces(lambda: None, keep=0)

    async def park_in_pieces(self, freed: Callable[[], None], keep: int) -> int:
        """`park` all but so many bytes, and tell how it goes on."""
        await self._unused.wait()
        if self._torch is None:
            return 0
        await _in_a_thread(functools.partial(self._torch.park, freed, keep))
        return self._torch.taken

    async def restore_ahead(self, size: int) -> None:
        """Bring some of it back, in a thread."""
        if self._torch is not None:
            await _in_a_thread(functools.partial(self._torch.restore_ahead, size))

    async def restore(self) -> int | None:
        """Bring it back, in a thread."""
        if self._torch is not None:
            await _in_a_thread(self._torch.restore)
        return None


async def _in_a_thread(work: Callable[[], object]) -> None:
    """Not in Python's pool: it takes no work while the interpreter ends, when others still wait."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        try:
            work()
        except Exception as exc:  # noqa: BLE001 - it is raised where the work is awaited
            loop.call_soon_threadsafe(done.set_exception, exc)
        else:
            loop.call_soon_threadsafe(done.set_result, None)

    try:
        threading.Thread(target=run, name="tandem-memory", daemon=True).start()
    except RuntimeError:  # since 3.12 no thread starts at the very end
        run()
    await done


_creating = threading.Lock()
_of_process: _Tenant | None = None


def _tenant_of_process(role: str) -> _Tenant:
    global _of_process  # noqa: PLW0603 - a process is one tenant, however many modules take turns
    with _creating:
        if _of_process is None:
            _of_process = _Tenant(role, _socket())
        elif _of_process.role != role:
            raise TandemError(
                f"this process takes turns as {_of_process.role}, so it cannot as {role}: a "
                f"process is one tenant"
            )
        return _of_process


def _close() -> None:
    if _of_process is not None:
        _of_process.close()


def _forget() -> None:
    global _creating, _of_process
    _creating, _of_process = threading.Lock(), None


atexit.register(_close)
os.register_at_fork(after_in_child=_forget)


def _patience(exc: BaseException | None) -> float | None:
    """How long a block that this leaves waits until its turn is free, in seconds."""
    return None if exc is None or isinstance(exc, Exception) else FAREWELL_WITHIN_S


def _raise_beside(exc: BaseException | None, lost: TurnLost) -> None:
    """Raise `lost`, unless another exception leaves the block: that one tells of it in a note."""
    if exc is None:
        raise lost
    if not isinstance(exc, TurnLost):
        exc.add_note(str(lost))


def _socket() -> Path:
    directory = os.environ.get(SOCKET_DIR)
    if not directory:
        raise TandemError(
            f"{SOCKET_DIR} is not set: this process belongs to no claim; start it in a pod that "
            f"lists the claim, or through tandem local"
        )
    return Path(directory) / SOCKET
