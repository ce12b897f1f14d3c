"""The cluster's namespaces, seen from outside: make them, start processes in them, end them."""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dra_driver.processes import Process, process, watch
from hack.kube.errors import LocalkubeError
from hack.kube.layout import Layout

_STARTING_S: Final = 20.0
_ENDING_S: Final = 60.0
_TERMINATING_S: Final = 5.0
_RETRY_S: Final = 0.02
_CLONE_NEWNET: Final = 0x40000000  # <linux/sched.h>

# Starts a process that the first process of the PID namespace reaps, and says its pid there.
_BACKGROUND: Final = 'log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 & echo $!'

_libc = ctypes.CDLL(None, use_errno=True)


def keeper(layout: Layout) -> int | None:
    """The keeper's pid; None if the cluster is not up."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(layout.keeper))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        size = struct.calcsize("3i")
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)


def running(layout: Layout) -> int:
    """The keeper's pid. Raises LocalkubeError if the cluster is not up."""
    found = keeper(layout)
    if found is None:
        raise LocalkubeError(f"no cluster is up in {layout.state}: start it with hack/localkube up")
    return found


def inside(layout: Layout, number: int) -> int:
    """A process whose namespaces are those of the node's processes. Raises LocalkubeError."""
    running(layout)
    holding = recall(layout.process(layout.node(number).holder))
    if holding is None:
        names = ", ".join(node.name for node in layout.nodes())
        raise LocalkubeError(f"there is no node {number}; there are {names}")
    return holding.pid


def make(layout: Layout) -> None:
    """Start the keeper of fresh namespaces. Raises LocalkubeError."""
    log = layout.log("keeper")
    command = [sys.executable, "-P", "-m", "hack.kube.keeper", str(layout.state)]
    with log.open("ab") as output:
        started = subprocess.Popen(
            ["unshare", "--net", *command],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    until = time.monotonic() + _STARTING_S
    while keeper(layout) is None:
        if started.poll() is not None or time.monotonic() > until:
            started.kill()
            raise LocalkubeError(
                "the cluster's namespaces cannot be made:\n" + log.read_text()[-1000:]
            )
        time.sleep(_RETRY_S)


def end(layout: Layout) -> None:
    """Kill the keeper and wait until everything in its namespaces is gone."""
    pid = keeper(layout)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not layout.alive.exists():
        return
    with layout.alive.open("w") as alive:
        until = time.monotonic() + _ENDING_S
        while True:
            try:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise LocalkubeError(
                        f"processes of the cluster in {layout.state} do not end: look for those"
                        f" that hold {layout.alive} (fuser)"
                    ) from None
                time.sleep(_RETRY_S)
            else:
                return


def entering(target: int, command: Sequence[str], folder: Path = Path("/")) -> list[str]:
    """The command line that runs `command` in the namespaces of the process `target`."""
    spaces = [f"--target={target}", "--mount", "--net", "--pid", f"--wdns={folder}"]
    return ["nsenter", *spaces, "--", *command]


def start(target: int, command: Sequence[str], log: Path, env: dict[str, str]) -> Process:
    """Start a process in the namespaces of `target`; its end is the keeper's to notice."""
    shell = ["/bin/sh", "-c", _BACKGROUND, "sh", str(log), *command]
    done = subprocess.run(
        entering(target, shell), env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    inner = int(done.stdout)
    try:
        return process(_outer_pid(target, inner))
    except ProcessLookupError:
        raise LocalkubeError(
            f"{command[0]} ended at once; the last words in {log}:\n{log.read_text()[-1000:]}"
        ) from None


def stop(running: Process) -> None:
    """SIGTERM, and SIGKILL to whoever does not heed it; return when it has ended."""
    handle = watch(running)
    if handle is None:
        return
    try:
        for number, within_s in ((signal.SIGTERM, _TERMINATING_S), (signal.SIGKILL, _ENDING_S)):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            ended, _, _ = select.select([handle], [], [], within_s)
            if ended:
                return
    finally:
        os.close(handle)


def remember(path: Path, running: Process) -> None:
    """Write down who it is."""
    path.write_text(json.dumps({"pid": running.pid, "start_time": running.start_time}))


def recall(path: Path) -> Process | None:
    """Who was written down, running or not; None if nobody was."""
    try:
        return Process(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None


def join_network(target: int) -> None:
    """Move this thread to the network of the process `target`."""
    with Path(f"/proc/{target}/ns/net").open() as net:
        if _libc.setns(net.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "setns")


def _outer_pid(target: int, inner: int) -> int:
    """The pid here of the process that has the pid `inner` in the PID namespace of `target`.

    Raises ProcessLookupError.
    """
    space = Path(f"/proc/{target}/ns/pid").readlink()
    for pid, pids in _namespaced():
        if pids[-1] == inner and len(pids) > 1:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/ns/pid").readlink() == space:
                    return pid
    raise ProcessLookupError(inner)


def _namespaced() -> Iterator[tuple[int, list[int]]]:
    """Every process: its pid here, and its pids from here down to its own namespace."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                status = (folder / "status").read_text()
                _, _, after = status.partition("NSpid:")
                pids = [int(pid) for pid in after.partition("\n")[0].split()]
                yield int(folder.name), pids
