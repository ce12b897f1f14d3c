"""A node with real processes, and the blows that a plan deals to them.

Two devices: trainer-a and its engine (rollout-a) on gpu0, trainer-b on gpu1, wide on both.
All of it lives in a namespace of its own (`tandem.namespace`): nothing outlives the run.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from claim_phases.phases import Phase
from dra_driver import journal
from dra_driver.devices.freezing import stands_still
from dra_driver.processes import process
from tandem import namespace, run_files
from tests.chaos.plan import (
    ARBITER,
    CLOCK,
    HANG_S,
    ROLLOUT,
    TRAINERS,
    WIDE,
    Act,
    Blow,
    Moment,
)
from tests.chaos.setting import BLOCK, DEVICES, Setting

ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLING_MS: Final = 50
GAUGING_S: Final = 0.001
_LOOK_EVERY_S: Final = 0.05

# Holds a process until it is registered.
_GATE: Final = ("/bin/sh", "-c", 'read -r _ && exec "$@" </dev/null', "gate")


class Stuck(Exception):
    """The run cannot go on, in one sentence."""


@dataclass(eq=False)
class Part:
    """A process of the run. `struck`: it was killed by us; `hung`: stopped, for others to end."""

    name: str
    tenant: str | None
    pid: int
    pidfd: int
    start_time: int
    ended: asyncio.Future[None]
    struck: bool = False
    hung: bool = False

    async def gone(self) -> None:
        """Wait for its end; cancelling the wait leaves the process alone."""
        await asyncio.shield(self.ended)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)


@dataclass(eq=False)
class _Hang:
    """`faulted`: its tenant was at fault since, so that it is the arbiter's to end."""

    over: asyncio.Task[None]
    faulted: bool = False


@dataclass(eq=False)
class _Wait:
    moment: Moment
    left: int
    come: asyncio.Future[None]


@dataclass
class Node:
    """One run. `folder` gets all that is known of it; `runtime`, of a short name, is mounted."""

    folder: Path
    runtime: Path
    library: Path
    arbiter: Sequence[str]
    setting: Setting
    say: Callable[[str], None]
    _parts: dict[str, Part] = field(default_factory=dict)
    _up: dict[str, asyncio.Event] = field(default_factory=dict)
    _roots: dict[str, list[Part]] = field(default_factory=dict)
    _waits: list[_Wait] = field(default_factory=list)
    _since: dict[str, float] = field(default_factory=dict)
    _updates: dict[str, int] = field(default_factory=dict)
    _calls: set[asyncio.Task[None]] = field(default_factory=set)
    _stops: dict[str | None, set[asyncio.Task[None]]] = field(default_factory=dict)
    _hangs: dict[str | None, _Hang] = field(default_factory=dict)

    # -- files ----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Mounts, pipes and files."""
        namespace.mount_tmpfs(self.runtime)
        for name, size in self.setting.devices.items():
            self._device(name).mkdir()
            namespace.mount_tmpfs(self._device(name), size)
        for claim in ("a", "b", "wide"):
            (self.runtime / claim).mkdir()
        (self.runtime / "weights").mkdir()
        os.mkfifo(self.runtime / "events")
        os.mkfifo(self.runtime / "words")
        self._clock.write_bytes(struct.pack("d", 0.0))
        self._write_roots()
        claims = {"a": ("trainer-a", ROLLOUT), "b": ("trainer-b",), "wide": (WIDE,)}
        node = {
            "state_dir": str(self.runtime / "state"),
            "events": str(self.runtime / "events"),
            "processes": str(self.runtime / "processes.json"),
            "devices": {d: {"simulated": str(self._device(d))} for d in self.setting.devices},
            "claims": {
                claim: {
                    "socket_dir": str(self.runtime / claim),
                    "tenants": {name: self.setting.tenant(name) for name in names},
                }
                for claim, names in claims.items()
            },
            "limits": self.setting.limits,
        }
        (self.runtime / "node.json").write_text(json.dumps(node, indent=2))

    def _device(self, name: str) -> Path:
        return self.runtime / name

    @property
    def _clock(self) -> Path:
        return self.runtime / "clock"

    def _write_roots(self) -> None:
        roots = {
            tenant: [{"pid": part.pid, "start_time": part.start_time} for part in parts]
            for tenant, parts in self._roots.items()
        }
        fresh = self.runtime / "processes.new"
        fresh.write_text(json.dumps(roots))
        fresh.replace(self.runtime / "processes.json")

    def _note(self, **what: Any) -> None:
        """Take down what we did, or saw at a process's end."""
        with (self.folder / "done.jsonl").open("a") as file:
            file.write(json.dumps({"t": time.monotonic(), **what}) + "\n")

    # -- the run --------------------------------------------------------------------------------

    async def run(self, plan: Sequence[Blow]) -> None:
        """Deal every blow, then let the tenants come to their end. Raises Stuck."""
        async with asyncio.TaskGroup() as tasks:
            readers = [
                tasks.create_task(self._follow("events", self._event)),
                tasks.create_task(self._follow("words", self._word)),
            ]
            gauge = self._start("gauge", self._gauge())
            observer = self._start("observer", self._observer())
            await asyncio.gather(*map(self._nursery, TRAINERS))
            watch = tasks.create_task(self._watch())
            started = self._moment(Moment(ARBITER, None, 1))
            arbiter = tasks.create_task(self._keep_arbiter())
            await started
            tenants = [
                tasks.create_task(self._keep_rollout()),
                tasks.create_task(self._keep_wide()),
                *(tasks.create_task(self._keep_trainer(name)) for name in TRAINERS),
            ]
            for number, blow in enumerate(plan, start=1):
                self._since["the plan"] = time.monotonic()
                await self._deal(number, blow)
                if number % 25 == 0:
                    self.say(f"{number} blows dealt")
            del self._since["the plan"]
            (self.runtime / "enough").touch()
            self.say("enough: the tenants come to their end")
            await asyncio.gather(*tenants[1:])
            await self._end([tenants[0], watch, arbiter], "activator", "engine", ARBITER)
            for witness in (observer, gauge):
                witness.send(signal.SIGTERM)
                await witness.gone()
            await asyncio.gather(*map(self._undisturbed, TRAINERS))
            await self._end([*readers, *self._calls])

    async def _end(self, tasks: Sequence[asyncio.Task[None]], *parts: str) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for part in (self._parts[name] for name in parts if name in self._parts):
            part.struck = True
            part.send(signal.SIGKILL)
            await part.gone()

    async def _watch(self) -> None:
        """End a run in which somebody waits for longer than the bound, or a blow for its moment."""
        bound_s = self.setting.bound_s
        while True:
            await asyncio.sleep(0.5)
            for who, since in self._since.items():
                if time.monotonic() - since > bound_s:
                    for part in self._parts.values():
                        part.send(signal.SIGABRT)  # Python then says in its log where it was
                    raise Stuck(f"{who}: waits for longer than the bound of {bound_s:g} s")

    # -- what is said ---------------------------------------------------------------------------

    async def _follow(self, name: str, take: Callable[[dict[str, Any]], None]) -> None:
        """Copy a pipe to the file of its name, line by line."""
        pipe = os.open(self.runtime / name, os.O_RDWR | os.O_NONBLOCK)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe)
        )
        try:
            with (self.folder / f"{name}.jsonl").open("ab") as copy:
                while line := await reader.readline():
                    copy.write(line)
                    copy.flush()
                    take(json.loads(line))
        finally:
            transport.close()

    def _event(self, event: dict[str, Any]) -> None:
        match event:
            case {"kind": "start"}:
                self._happened(ARBITER, None)
            case {"kind": "phase", "from": before, "to": after, "tenant": tenant}:
                if before != after:
                    self._happened(tenant, after)
                if after == Phase.FAULTED and (hang := self._hangs.get(tenant)) is not None:
                    hang.faulted = True
                    self._since.setdefault(f"{tenant} hangs", time.monotonic())
            case _:
                pass

    def _happened(self, who: str, phase: str | None) -> None:
        for wait in list(self._waits):
            if (wait.moment.who, wait.moment.phase) == (who, phase):
                wait.left -= 1
                if not wait.left and not wait.come.done():
                    wait.come.set_result(None)

    def _word(self, word: dict[str, Any]) -> None:
        who = word["who"]
        match word["says"]:
            case "waits":
                self._since.setdefault(who, word["t"])
            case "asks":
                self._since.setdefault(f"{who} asks", word["t"])
            case "answered":
                self._since.pop(f"{who} asks", None)
            case "done":
                self._updates[who] = word["updates"]
            case _:
                self._since.pop(who, None)

    async def _moment(self, moment: Moment) -> None:
        wait = _Wait(moment, moment.nth, asyncio.get_running_loop().create_future())
        self._waits.append(wait)
        try:
            await wait.come
        finally:
            self._waits.remove(wait)

    # -- blows ----------------------------------------------------------------------------------

    async def _deal(self, number: int, blow: Blow) -> None:
        """Wait for the blow's moment, and for its victim where that is away, and deal it."""
        if blow.after is not None:
            await self._moment(blow.after)
        await asyncio.sleep(blow.delay_s)
        if blow.act is Act.STEP:
            with self._clock.open("r+b", buffering=0) as clock:
                clock.write(struct.pack("d", blow.by_s))
            self._note(kind="blow", number=number, act=blow.act, victim=CLOCK, tenant=None)
            return
        part = await self._victim(blow)
        self._note(kind="blow", number=number, act=blow.act, victim=blow.victim, tenant=part.tenant)
        if blow.act is Act.KILL:
            part.struck = True
            part.send(signal.SIGKILL)
            return
        part.send(signal.SIGSTOP)
        if blow.act is Act.HANG:
            part.hung = True
            self._hangs[part.tenant] = _Hang(self._call(self._hang(part)))
            return
        stops = self._stops.setdefault(part.tenant, set())
        go_on = self._call(self._go_on(part, blow))
        stops.add(go_on)
        go_on.add_done_callback(stops.discard)

    def _call(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    async def _go_on(self, part: Part, blow: Blow) -> None:
        try:
            if blow.until is not None:
                await self._moment(blow.until)
            await asyncio.sleep(blow.lasts_s)
        finally:
            part.send(signal.SIGCONT)

    async def _hang(self, part: Part) -> None:
        """Wait until its tenant was frozen and goes on, or it was ended; where nobody minds that it
        hangs, it is ended here.
        """
        began = time.monotonic()
        stopped = False
        while not part.ended.done():
            still = stands_still(part.pid)
            if stopped and not still:
                break
            stopped = stopped or still
            if time.monotonic() - began > HANG_S and not self._hangs[part.tenant].faulted:
                part.struck = True
                part.send(signal.SIGKILL)
                await part.gone()
            await asyncio.sleep(_LOOK_EVERY_S)
        # Whoever is killed runs for a moment too.
        await asyncio.wait([part.ended], timeout=_LOOK_EVERY_S)
        part.hung = part.ended.done()  # if it goes on, what ends it then is told
        by_arbiter = "killed" if part.hung else "thawed"
        end = "struck" if part.struck else by_arbiter
        del self._hangs[part.tenant]
        self._since.pop(f"{part.tenant} hangs", None)
        until = time.monotonic()
        self._note(kind="hang ended", t=began, until=until, tenant=part.tenant, end=end)

    async def _victim(self, blow: Blow) -> Part:
        """A tenant that hangs is not stopped besides: what ends the stop would end the hang."""
        while True:
            part = await self._living(blow.victim)
            hang = self._hangs.get(part.tenant)
            if blow.act is not Act.KILL and hang is not None:
                await asyncio.wait([hang.over])
            elif blow.act is Act.HANG and (stops := self._stops.get(part.tenant)):
                await asyncio.wait(stops)
            else:
                return part

    async def _living(self, name: str) -> Part:
        """The process of that name, once it runs and was not killed already."""
        while True:
            part = self._parts.get(name)
            if part is not None and not part.struck and not part.ended.done():
                return part
            self._up[name] = asyncio.Event()
            await self._up[name].wait()

    # -- processes ------------------------------------------------------------------------------

    async def _keep_arbiter(self) -> None:
        while True:
            command = [*self.arbiter, "--node", str(self.runtime / "node.json")]
            part = self._start(ARBITER, command)
            await part.gone()
            state = journal.read(self.runtime / "state" / "turns.journal") or {}
            tenants = state.get("tenants", {})
            self._note(
                kind="arbiter ended",
                struck=part.struck,
                queue=state.get("queue", []),
                epochs={name: tenant["epoch"] for name, tenant in tenants.items()},
            )
            if not part.struck:
                raise Stuck("the arbiter ended by itself: see its log")

    async def _keep_wide(self) -> None:
        while WIDE not in self._updates:
            devices = [str(self._device(name)) for name in DEVICES[WIDE]]
            command = [sys.executable, "-m", "tests.chaos.wide", WIDE, str(BLOCK), *devices]
            await self._life(self._start(WIDE, command, WIDE, "wide"))

    async def _keep_trainer(self, name: str) -> None:
        engine = f"http://127.0.0.1:{self._listen}" if name == "trainer-a" else ""
        while name not in self._updates:
            claim = self.runtime / ("a" if name == "trainer-a" else "b")
            async with self._ask_nursery(name, str(claim), engine) as (answer, writer):
                # Its parent, the nursery, reaps it.
                part = self._take_up(name, int(answer), name, lambda: None)
                writer.write(b"\n")
            await self._life(part)

    async def _keep_rollout(self) -> None:
        while True:
            self._since[ROLLOUT] = time.monotonic()
            activator = self._start("activator", self._activator(), ROLLOUT, "a")
            parts = [activator]
            if await _before(_first_turn(self._listen), activator.ended):
                self._since.pop(ROLLOUT, None)
                device = str(self._device("gpu0"))
                command = [sys.executable, "-m", "tests.light_engine"]
                command += [str(self._engine), device, str(BLOCK)]
                parts.append(self._start("engine", command, ROLLOUT, "a"))
            await self._life(*parts)

    async def _life(self, *parts: Part) -> None:
        """A tenant is one thing: where a part of it ended, the others are ended too."""
        await asyncio.wait([part.ended for part in parts], return_when=asyncio.FIRST_COMPLETED)
        tenant = parts[0].tenant
        assert tenant is not None
        struck = any(part.struck or part.hung for part in parts)
        self._note(kind="ended", tenant=tenant, struck=struck)
        for part in parts:
            part.struck |= any(one.struck for one in parts)
            part.send(signal.SIGKILL)
        await asyncio.wait([part.ended for part in parts])
        for who in (tenant, f"{tenant} asks"):
            self._since.pop(who, None)
        self._roots[tenant] = [one for one in self._roots[tenant] if one not in parts]
        self._write_roots()

    def _activator(self) -> list[str]:
        command = [sys.executable, "-m", "workload_agents", "--role", ROLLOUT, "--engine", "vllm"]
        command += ["--engine-url", f"http://127.0.0.1:{self._engine}"]
        return [*command, "--listen", f"127.0.0.1:{self._listen}", "--wait-s", "120"]

    def _observer(self) -> list[str]:
        command = [
            sys.executable,
            "-m",
            "tandem.observer",
            "--node",
            str(self.runtime / "node.json"),
        ]
        command += ["--out", str(self.folder / run_files.SAMPLES)]
        return [*command, "--interval-ms", str(SAMPLING_MS)]

    def _gauge(self) -> list[str]:
        command = [sys.executable, "-m", "tests.chaos.gauge"]
        command += [str(self.setting.most), str(GAUGING_S)]
        return command + [str(self._device(name)) for name in self.setting.devices]

    async def _nursery(self, trainer: str) -> None:
        """Where a trainer is born; the simulated device's library is told of its device at once."""
        path = self._nursery_of(trainer)
        command = ["env", f"LD_PRELOAD={self.library}"]
        command += [f"SIMDEVICE_DIR={self._device(DEVICES[trainer][0])}"]
        command += [sys.executable, "-m", "tests.chaos.nursery", str(path)]
        nursery = self._start(path.name, command)
        while not path.exists():
            if nursery.ended.done():
                raise Stuck(f"the nursery of {trainer} ended: see its log")
            await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def _ask_nursery(
        self, trainer: str, *question: str
    ) -> AsyncIterator[tuple[str, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_unix_connection(self._nursery_of(trainer))
        writer.write(("\t".join((trainer, *question)) + "\n").encode())
        yield (await reader.readline()).decode().strip(), writer
        writer.close()

    async def _undisturbed(self, trainer: str) -> None:
        """Have the digest computed that the trainer's state must have."""
        async with self._ask_nursery(trainer, str(self._updates[trainer])) as (digest, _):
            self._note(kind="digest", tenant=trainer, digest=digest)

    def _nursery_of(self, trainer: str) -> Path:
        return self.runtime / f"{trainer}.nursery"

    def _start(
        self, name: str, command: Sequence[str], tenant: str | None = None, claim: str = ""
    ) -> Part:
        """Start a process in a session of its own; one of a tenant is registered before it runs."""
        own = {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/chaos/clock"), str(ROOT)]),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TANDEM_CHAOS_CLOCK": str(self._clock),
            "TANDEM_CHAOS_RUN": str(self.runtime),
            "TANDEM_SOCKET_DIR": str(self.runtime / claim),
            "TANDEM_WEIGHTS_DIR": str(self.runtime / "weights"),
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                [*_GATE, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | own,
                cwd=ROOT,
                start_new_session=True,
            )
        part = self._take_up(name, started.pid, tenant, started.wait)
        assert started.stdin is not None
        with started.stdin:
            started.stdin.write(b"\n")
        return part

    def _take_up(self, name: str, pid: int, tenant: str | None, reap: Callable[[], object]) -> Part:
        """Register a process, and learn of its end."""
        loop = asyncio.get_running_loop()
        pidfd = os.pidfd_open(pid)
        part = Part(name, tenant, pid, pidfd, process(pid).start_time, loop.create_future())

        def gone() -> None:
            loop.remove_reader(pidfd)
            reap()
            part.ended.set_result(None)
            os.close(pidfd)

        loop.add_reader(pidfd, gone)
        self._parts[name] = part
        if tenant is not None:
            self._roots.setdefault(tenant, []).append(part)
            self._write_roots()
        if (up := self._up.pop(name, None)) is not None:
            up.set()
        return part

    def __post_init__(self) -> None:
        """Two ports that are free now."""
        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.bind(("127.0.0.1", 0))
            self._listen, self._engine = one.getsockname()[1], other.getsockname()[1]


async def _before(work: Coroutine[None, None, None], end: "asyncio.Future[None]") -> bool:
    """Whether `work` was done before the end; it is cancelled otherwise."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task, end], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task.done()
    finally:
        task.cancel()


async def _first_turn(port: int) -> None:
    """Return when the activator says that the engine may start: a startup probe, held open."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as client:
        while True:
            try:
                async with client.get(f"http://127.0.0.1:{port}/tandem/startup") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
