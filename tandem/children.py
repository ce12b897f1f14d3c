"""The processes of a local run: registered before they run, heard, and ended with their heirs."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

# Holds a child until a line comes; when the runner dies before that, it never runs.
_GATE: Final = ("/bin/sh", "-c", 'read -r _ && exec "$@" </dev/null', "tandem")
_LINE_LIMIT: Final = 1 << 20
_TAIL_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Child:
    """A process that was started, the first of a session of its own.

    `exited` becomes its exit status (128 + N after signal N). `started`: CLOCK_MONOTONIC, seconds.
    """

    name: str
    pid: int
    log: Path
    started: float
    exited: asyncio.Future[int]
    tenant: str | None
    stdout: "_Stdout | None"

    async def wait(self) -> int:
        """The exit status, once there is one. Cancelling the wait leaves the process alone."""
        return await asyncio.shield(self.exited)

    def tail(self, lines: int) -> list[str]:
        """The last lines of its output that are not blank."""
        if self.stdout is not None:
            self.stdout.read()
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


@dataclass
class Children:
    """Starts and ends the processes of a run.

    Attributes:
        folder: the run's folder: output goes to logs/NAME.N.log, starts and ends to children.jsonl.
        processes: the file that tells arbiter and observer which processes are whose.
    """

    folder: Path
    processes: Path
    _started: dict[str, int] = field(default_factory=dict)
    _roots: dict[str, dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make what arbiter and observer read before there is any child."""
        (self.folder / "logs").mkdir(exist_ok=True)
        self._write_processes()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        tenant: str | None = None,
        on_line: Callable[[bytes], None] | None = None,
    ) -> Child:
        """Start `command`; with `on_line`, each line of its stdout goes there too.

        A tenant's process is in the processes file before its first instruction. A command that
        cannot be executed ends with 126 or 127 and says why in its log, as from a shell.
        """
        number = self._started[name] = self._started.get(name, 0) + 1
        log = self.folder / "logs" / f"{name}.{number}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*_GATE, *command],
                stdin=subprocess.PIPE,
                stdout=output if on_line is None else subprocess.PIPE,
                stderr=output,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        assert process.stdin is not None
        if tenant is not None:
            roots = self._roots.setdefault(tenant, {})
            roots[process.pid] = _stat(process.pid).start_time
            self._write_processes()
        stdout = None
        if process.stdout is not None and on_line is not None:
            stdout = _Stdout(process.stdout.fileno(), log, on_line)
        begun = time.monotonic()
        child = Child(name, process.pid, log, begun, _exit_of(process), tenant, stdout)
        self._tell("started", child)
        child.exited.add_done_callback(lambda _: self._tell("ended", child))
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(b"\n")
        return child

    async def end(self, children: Sequence[Child], grace_s: float) -> None:
        """End them and their heirs; return when each process is gone and its output is read.

        As the kubelet does it: SIGTERM to each of `children`, SIGKILL to whatever is left when
        these are gone or `grace_s` is over. Heirs are their descendants and their sessions.
        """
        alive = [child for child in children if not child.exited.done()]
        with _Handles() as heirs:
            heirs.add(children)
            for child in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGTERM)
            if alive:
                await asyncio.wait([child.exited for child in alive], timeout=grace_s)
            heirs.add(children)
            heirs.kill()
            await heirs.gone()
            await asyncio.gather(*(child.wait() for child in children))
        for child in children:
            if child.stdout is not None:
                child.stdout.close()
            if child.tenant is not None:
                self._roots[child.tenant].pop(child.pid, None)
        self._write_processes()

    def _write_processes(self) -> None:
        roots = {
            tenant: [{"pid": pid, "start_time": begun} for pid, begun in by_pid.items()]
            for tenant, by_pid in self._roots.items()
        }
        fresh = self.processes.with_suffix(".new")
        fresh.write_text(json.dumps(roots))
        fresh.replace(self.processes)

    def _tell(self, event: str, child: Child) -> None:
        status = child.exited.result() if child.exited.done() else None
        told = {"t": time.monotonic(), "event": event, "child": child.name, "pid": child.pid}
        with (self.folder / "children.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(told | {"status": status}) + "\n")


class _Stdout:
    """Copies a child's stdout to its log, line by line, and hands the lines on."""

    def __init__(self, pipe: int, log: Path, on_line: Callable[[bytes], None]) -> None:
        # Its own descriptor, since it outlives the Popen object.
        self._pipe = os.dup(pipe)
        os.set_blocking(self._pipe, False)
        self._log = log.open("ab", buffering=0)
        self._on_line = on_line
        self._torn = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pipe, self.read)

    def read(self) -> None:
        """Take what is there."""
        while not self._log.closed:
            try:
                data = os.read(self._pipe, _TAIL_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._finish()
                return
            *lines, self._torn = (self._torn + data).split(b"\n")
            for line in lines:
                self._log.write(line + b"\n")
                self._on_line(line)
            if len(self._torn) > _LINE_LIMIT:
                self._log.write(self._torn)
                self._torn = b""

    def close(self) -> None:
        """Take what is there and stop: a process that left its tenant may keep the pipe open."""
        self.read()
        self._finish()

    def _finish(self) -> None:
        if not self._log.closed:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._log.write(self._torn)
            self._log.close()


def _exit_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()
    pidfd = os.pidfd_open(process.pid)

    def reap() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        status = process.wait()
        exited.set_result(status if status >= 0 else 128 - status)

    loop.add_reader(pidfd, reap)
    return exited


class _Handles:
    """Pidfds of processes: a pid may be given to another process, a pidfd never."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for fd in self._fds.values():
            os.close(fd)

    def add(self, children: Sequence[Child]) -> None:
        """Every process of their sessions, and every descendant of those."""
        stats = _stats()
        sessions = {child.pid for child in children}
        heirs = {pid for pid, stat in stats.items() if stat.session in sessions}
        while added := {pid for pid, stat in stats.items() if stat.parent in heirs} - heirs:
            heirs |= added
        for pid in heirs - self._fds.keys():
            with contextlib.suppress(ProcessLookupError):
                self._fds[pid] = os.pidfd_open(pid)

    def kill(self) -> None:
        for fd in self._fds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)

    async def gone(self) -> None:
        await asyncio.gather(*(_ended(fd) for fd in self._fds.values()))


async def _ended(pidfd: int) -> None:
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def told() -> None:
        loop.remove_reader(pidfd)
        gone.set_result(None)

    loop.add_reader(pidfd, told)
    try:
        await gone
    finally:
        loop.remove_reader(pidfd)


@dataclass(frozen=True)
class _Stat:
    """Of /proc/PID/stat; `start_time` in clock ticks since boot names a pid's process for good."""

    parent: int
    session: int
    start_time: int


def _stat(pid: int) -> _Stat:
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    # proc_pid_stat(5): the fields after the command's name, which may hold blanks and brackets.
    fields = stat.rpartition(")")[2].split()
    return _Stat(parent=int(fields[1]), session=int(fields[3]), start_time=int(fields[19]))


def _stats() -> dict[int, _Stat]:
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stats[int(entry.name)] = _stat(int(entry.name))
    return stats
