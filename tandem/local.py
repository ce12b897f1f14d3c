"""Run a job's tenants on simulated devices of one machine, as a node would.

Everything that is started lives in a namespace of its own (`tandem.namespace`), so nothing outlives
the run. Its folder holds what happened: events.jsonl (the arbiter), samples.jsonl (the observer),
progress.jsonl (the trainer), children.jsonl and run.json (this module), and logs/.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from claim_phases.phases import Phase
from tandem import namespace, run_files
from tandem.children import Child, Children
from tandem.config import LocalConfig, TenantConfig
from tandem.local_view import LocalView
from tandem.results import CONFIG, RUN
from tandem.run_files import ArbiterStart, Condition, PhaseChange, RunFileError
from tandem.verdict import VOID

SAMPLING_MS: Final = 100
LIBRARY: Final = "TANDEM_SIMDEVICE_LIBRARY"
"""The environment variable that names the simulated device's library."""

ARBITER: Final = (sys.executable, "-m", "dra_driver")
_LIMITS: Final = {"lease_s": 10, "verify_s": 5, "park_s": 60, "restore_s": 600}
_WAIT_S: Final = 600
"""How long a request to a parked engine waits for its turn."""

_GRACE_S: Final = 5.0  # less than the lease: an end that was asked for is no fault
_TAIL_LINES: Final = 20
_REFRESH_S: Final = 0.25
_STARTING_S: Final = 5.0
_SAID_WIDTH: Final = 100
_PROBE_S: Final = 0.1
_VOID_GRACE_S: Final = 5.0
"""How long a run goes on that no longer counts, so that its files show what came of it."""


class RunError(Exception):
    """The run cannot be started; one line."""


class _Failed(Exception):
    """The run ends here: a sentence, and the last lines of the output that explains it."""

    def __init__(self, sentence: str, tail: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.tail = tail


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `failures`: one sentence each; none means that it ended as it should.

    `statuses` are the exit statuses of the tenants that end the run; `signal` ended it before.
    """

    wall_s: float
    statuses: Mapping[str, int]
    failures: tuple[str, ...]
    signal: int | None
    sampling_ms: int = SAMPLING_MS

    def failing(self, sentence: str) -> "RunResult":
        """The same with one more failure."""
        return replace(self, failures=(*self.failures, sentence))


@dataclass
class Restarts:
    """When to start again what has ended: at once, then after 1, 2, 4 ... s, `limit` times.

    Whoever lived for `healthy_s` counts as new.
    """

    limit: int
    healthy_s: float
    count: int = 0

    def after(self, lived_s: float) -> float | None:
        """Seconds to wait before the next start; None when it has ended too often."""
        if lived_s >= self.healthy_s:
            self.count = 0
        if self.count >= self.limit:
            return None
        self.count += 1
        return 0.0 if self.count == 1 else 2.0 ** (self.count - 2)


def run(
    config: LocalConfig,
    out: Path,
    *,
    folder: Path,
    console: Console,
    arbiter: Sequence[str] = ARBITER,
) -> RunResult:
    """Run until every tenant with `restart: never` has ended, one failed, or a signal came.

    Args:
        config: devices and tenants.
        out: the run's folder, made here; must be empty.
        folder: where the commands run.
        console: where the run is shown while it goes on.
        arbiter: the command that is given `--node FILE`.

    Raises:
        RunError: it could not be started.
    """
    library = os.environ.get(LIBRARY)
    if not library or not Path(library).is_file():
        raise RunError(
            f"{LIBRARY} names no file ({library or 'it is not set'}): start with hack/env, which"
            " builds the simulated device's library and sets it"
        )
    for name, tenant in config.tenants.items():
        for key, port in (("listen", tenant.listen), ("engine_port", tenant.engine_port)):
            if port is not None and not port_is_free(port):
                raise RunError(
                    f"tenants.{name}.{key}: port {port} of 127.0.0.1 is in use: stop who listens"
                    f" there, or name another"
                )
    out = out.resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise RunError(
            f"{out} cannot be made: {exc.strerror}: name another folder for the run"
        ) from exc
    if any(out.iterdir()):
        raise RunError(f"{out} is not empty: name another folder for the run")
    (out / CONFIG).write_text(config.model_dump_json(indent=2) + "\n")
    with tempfile.TemporaryDirectory(prefix="tandem-") as runtime:
        inside = _Inside(
            config, out, Path(runtime), folder.resolve(), Path(library), arbiter, console
        )
        try:
            status = namespace.contained(inside.main)
        except namespace.NamespaceError as exc:
            raise RunError(str(exc)) from exc
    try:
        told = json.loads((out / RUN).read_text())
    except FileNotFoundError as exc:
        raise RunError(f"the runner ended with status {status} before the run did") from exc
    return RunResult(**told | {"failures": tuple(told["failures"])})


def port_is_free(port: int) -> bool:
    """Whether one can listen on the port of 127.0.0.1 now."""
    with socket.socket() as listener:
        # As servers do it: what an ended connection left there does not count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            return False
    return True


class _Inside:
    """The run, seen from inside its namespace."""

    def __init__(
        self,
        config: LocalConfig,
        out: Path,
        runtime: Path,
        folder: Path,
        library: Path,
        arbiter: Sequence[str],
        console: Console,
    ) -> None:
        self._config = config
        self._out = out
        self._runtime = runtime
        self._folder = folder
        self._library = library
        self._arbiter = arbiter
        self._console = console
        self._node = runtime / "node.json"
        self._statuses: dict[str, int] = {}
        self._phases: dict[str, Phase | run_files.Gone] = {}
        self._arbiter_is_up = asyncio.Event()
        self._void: Condition | None = None
        self._signal: signal.Signals | None = None
        self._tails = (
            run_files.events(out),
            run_files.samples(out),
            run_files.progress(out),
        )

    def main(self) -> int:
        """Mounts and files first, then the processes. Returns the body's exit status."""
        began = time.monotonic()
        self._prepare()
        self._children = Children(self._out, self._runtime / "processes.json")
        with LocalView(self._config.job, self._console, began) as self._view:
            failures = asyncio.run(self._run())
        result = RunResult(time.monotonic() - began, self._statuses, failures, self._signal)
        (self._out / RUN).write_text(json.dumps(asdict(result), indent=2) + "\n")
        return 0

    def _prepare(self) -> None:
        namespace.mount_tmpfs(self._runtime)
        for name, size in self._config.devices.items():
            self._device(name).mkdir(parents=True)
            namespace.mount_tmpfs(self._device(name), size)
        self._weights.mkdir()
        namespace.mount_tmpfs(self._weights, self._config.weights)
        self._sockets.mkdir(parents=True)
        (self._runtime / "state").mkdir()
        node = {
            "state_dir": str(self._runtime / "state"),
            "events": str(self._out / run_files.EVENTS),
            "processes": str(self._runtime / "processes.json"),
            "devices": {
                name: {"simulated": str(self._device(name))} for name in self._config.devices
            },
            "claims": {
                self._config.job: {
                    "socket_dir": str(self._sockets),
                    "tenants": {
                        name: {
                            "devices": list(tenant.devices),
                            "need": tenant.need,
                            "residual": tenant.residual,
                        }
                        for name, tenant in self._config.tenants.items()
                    },
                }
            },
            "limits": _LIMITS,
        }
        self._node.write_text(json.dumps(node, indent=2) + "\n")

    def _device(self, name: str) -> Path:
        return self._runtime / "devices" / name

    @property
    def _weights(self) -> Path:
        return self._runtime / "weights"

    @property
    def _sockets(self) -> Path:
        return self._runtime / "claims" / self._config.job

    async def _run(self) -> tuple[str, ...]:
        """Returns the failures."""
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[signal.Signals] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _stop, stop, number)
        observer = asyncio.create_task(self._keep_observer())
        arbiter = asyncio.create_task(self._keep_arbiter())
        tenants: dict[str, asyncio.Task[None]] = {
            name: asyncio.create_task(self._keep_tenant(name, tenant))
            for name, tenant in self._config.tenants.items()
        }
        watch = asyncio.create_task(self._watch())
        tasks = [observer, arbiter, watch, *tenants.values()]
        deciding = [tenants[n] for n, t in self._config.tenants.items() if t.restart == "never"]
        failures: list[str] = []
        try:
            while not all(task.done() for task in deciding) and not stop.done():
                running = [task for task in tasks if not task.done()]
                await _first([*running, stop])
                for task in running:
                    if task.done():
                        task.result()  # raises what ended it
        except _Failed as exc:
            failures.append(str(exc))
            for line in exc.tail:
                self._view.say(f"    {line}")
        if stop.done():
            self._signal = stop.result()
            failures.append(f"ended by {self._signal.name}")
        # Tenants first: the arbiter sees them go, and the observer sees what they leave.
        await _cancel(tenants.values())
        await _cancel([watch, arbiter])
        await _cancel([observer])
        with contextlib.suppress(_Failed):  # whoever judges the files finds it too
            self._look()
        return tuple(failures)

    async def _keep_observer(self) -> None:
        command = [sys.executable, "-m", "tandem.observer", "--node", str(self._node)]
        command += ["--out", str(self._out / run_files.SAMPLES)]
        command += ["--interval-ms", str(SAMPLING_MS)]
        async with self._started("observer", command) as observer:
            status = await observer.wait()
            # Without a witness the run proves nothing: no second start hides the gap.
            raise _Failed(f"the observer ended with status {status}", observer.tail(_TAIL_LINES))

    async def _keep_arbiter(self) -> None:
        restarts = Restarts(limit=6, healthy_s=5.0)
        command = [*self._arbiter, "--node", str(self._node)]
        while True:
            async with self._started("arbiter", command) as arbiter:
                status = await arbiter.wait()
                tail = arbiter.tail(_TAIL_LINES)
            delay_s = restarts.after(time.monotonic() - arbiter.started)
            if delay_s is None:
                raise _Failed(f"the arbiter ended too often, last with status {status}", tail)
            self._view.say(f"arbiter ended with status {status}; it starts again in {delay_s:g} s")
            await asyncio.sleep(delay_s)

    async def _keep_tenant(self, name: str, tenant: TenantConfig) -> None:
        # What is on a device when the arbiter first reads it counts as there from the beginning.
        await self._arbiter_is_up.wait()
        restarts = Restarts(limit=4, healthy_s=600.0)
        while True:
            began = time.monotonic()
            what, status, tail = await self._attempt(name, tenant)
            said = f": {tail[-1].strip()}" if tail and status != 0 else ""
            told = f"{what} ended with status {status}{said}"
            if tenant.restart == "never":
                self._statuses[name] = status
                if status != 0:
                    raise _Failed(told, tail)
                return
            delay_s = restarts.after(time.monotonic() - began)
            if delay_s is None:
                raise _Failed(f"{told} (too often to start it again)", tail)
            self._view.say(f"{told}; all of {name} starts again in {delay_s:g} s")
            await asyncio.sleep(delay_s)

    async def _attempt(self, name: str, tenant: TenantConfig) -> tuple[str, int, list[str]]:
        """Start the tenant's processes in order; return when one ended and all are gone.

        A tenant is one thing, as under RestartAllContainers: an engine without its activator
        would serve outside its turns.
        """
        claim = {
            "TANDEM_SOCKET_DIR": str(self._sockets),
            "TANDEM_WEIGHTS_DIR": str(self._weights),
            "PYTHONUNBUFFERED": "1",
        }
        preload = " ".join(filter(None, [str(self._library), os.environ.get("LD_PRELOAD")]))
        device = {
            "LD_PRELOAD": preload,
            "SIMDEVICE_DIR": str(self._device(tenant.devices[0])),
        }
        command = [sys.executable if tenant.command[0] == "python" else tenant.command[0]]
        command += tenant.command[1:]
        children: list[Child] = []
        starting: asyncio.Task[None] | None = None
        try:
            if tenant.engine is not None:
                activator = self._start(
                    f"{name}.activator", _activator(name, tenant), os.environ | claim, name
                )
                children.append(activator)
                assert tenant.listen is not None
                self._view.say(f"{name}: waits for its first turn")
                if not await _before_exit(activator, _first_turn(tenant.listen)):
                    return _how(activator)
                device |= {"VLLM_SERVER_DEV_MODE": "1"}
            process = self._start(
                name,
                command,
                os.environ | claim | device | tenant.env,
                name,
                None if tenant.engine else self._take,
            )
            children.append(process)
            self._view.say(f"{name}: started, output in {process.log}")
            if tenant.engine is not None:
                starting = asyncio.create_task(self._show_start(name, process))
            await _first([child.exited for child in children])
            return _how(next(child for child in children if child.exited.done()))
        finally:
            if starting is not None:
                starting.cancel()
            await self._children.end(children, _GRACE_S)

    def _take(self, printed: bytes) -> None:
        run_files.take_progress(self._out, printed, time.monotonic())

    async def _watch(self) -> None:
        """Show what happens, and end a run that no longer counts."""
        while True:
            self._look()
            void = self._void
            if void is not None and time.monotonic() - void.t > _VOID_GRACE_S:
                raise _Failed(
                    f"ended {_VOID_GRACE_S:g} s after its first {void.condition}: it counts no more"
                )
            await asyncio.sleep(_REFRESH_S)

    def _look(self) -> None:
        """Show what was written since the last look."""
        try:
            records = [record for tail in self._tails for record in tail.read()]
        except RunFileError as exc:
            raise _Failed(str(exc)) from exc
        for record in records:
            self._view.feed(record)
            match record:
                case Condition() if record.condition in VOID:
                    self._void = self._void or record
                case PhaseChange():
                    self._phases[record.tenant] = record.after
                case ArbiterStart():
                    self._arbiter_is_up.set()
                case _:
                    pass
        self._view.update(time.monotonic())

    async def _show_start(self, name: str, engine: Child) -> None:
        """Until the engine is up: a line now and then, with the last that it said itself."""
        while True:
            await asyncio.sleep(_STARTING_S)
            if self._phases.get(name) is not Phase.RESTORING:
                return
            said = engine.tail(1) or ["nothing said yet"]
            self._view.say(
                f"{name}: starting for {time.monotonic() - engine.started:.0f} s: {said[0]}"
            )

    def _start(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        tenant: str | None = None,
        on_line: Callable[[bytes], None] | None = None,
    ) -> Child:
        return self._children.start(
            name, command, env=env, cwd=self._folder, tenant=tenant, on_line=on_line
        )

    @contextlib.asynccontextmanager
    async def _started(self, name: str, command: Sequence[str]) -> AsyncIterator[Child]:
        child = self._start(name, command, os.environ)
        try:
            yield child
        finally:
            await self._children.end([child], _GRACE_S)


def _stop(stop: asyncio.Future[signal.Signals], number: signal.Signals) -> None:
    """The first signal ends the run in order, the second at once: the namespace ends with us."""
    if stop.done():
        os._exit(128 + number)
    stop.set_result(number)


def _activator(name: str, tenant: TenantConfig) -> list[str]:
    command = [sys.executable, "-m", "workload_agents", "--role", name]
    command += ["--engine", str(tenant.engine)]
    command += ["--engine-url", f"http://127.0.0.1:{tenant.engine_port}"]
    command += ["--listen", f"127.0.0.1:{tenant.listen}", "--wait-s", str(_WAIT_S)]
    if tenant.engine_weights is not None:
        command += ["--engine-weights", str(tenant.engine_weights)]
    return command


def _how(child: Child) -> tuple[str, int, list[str]]:
    """Who ended, its exit status, and the last that it said."""
    return child.name, child.exited.result(), child.tail(_TAIL_LINES)


async def _first(futures: Sequence[asyncio.Future[Any]]) -> None:
    """Return when the first of them is done; cancels none."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel them all and return when all have ended; what else went wrong is raised."""
    waited = [*tasks]
    for task in waited:
        task.cancel()
    for ended in await asyncio.gather(*waited, return_exceptions=True):
        if ended is not None and not isinstance(ended, asyncio.CancelledError | _Failed):
            raise ended


async def _before_exit(child: Child, work: Coroutine[None, None, None]) -> bool:
    """Whether `work` was done before `child` ended; it is cancelled otherwise."""
    task = asyncio.create_task(work)
    try:
        await _first([task, child.exited])
        if task.done():
            task.result()
        return task.done()
    finally:
        task.cancel()


async def _first_turn(port: int) -> None:
    """Return when the activator says that the engine may start.

    As a startup probe: the answer is held back until the first turn is granted; a probe that
    fails (the activator does not listen yet) is repeated.
    """
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /tandem/startup HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
                status = (await reader.readline()).split()
            finally:
                writer.close()
            if status[1:2] == [b"200"]:
                return
        except OSError:
            pass
        await asyncio.sleep(_PROBE_S)
