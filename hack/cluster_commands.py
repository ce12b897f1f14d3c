"""Commands of a local cluster: kubectl, hack/localkube, processes of a node. None outlives us."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

Raw = dict[str, Any]
"""An object of Kubernetes as it came."""

Say = Callable[[str], None]

ENDS_WITH_US: Final = ("setpriv", "--pdeathsig", "TERM", "--")
LOCALKUBE: Final = (*ENDS_WITH_US, sys.executable, "-m", "hack.kube")
KUBECTL: Final = (*LOCALKUBE, "kubectl")
NAMESPACE: Final = "default"

_TAIL_LINES: Final = 20
_ANSWER_S: Final = 60.0
_ENDING_S: Final = 10.0
_AGAIN_S: Final = 1.0


class ClusterError(Exception):
    """It cannot go on: a sentence, and the last lines of the output that explains it."""

    def __init__(self, sentence: str, tail: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.tail = tail


async def localkube(*arguments: str, within_s: float) -> str:
    """hack/localkube; its progress goes to stderr. Returns what it printed. Raises ClusterError."""
    told = f"hack/localkube {arguments[0]}"
    async with started(*LOCALKUBE, *arguments, stderr=None) as process:
        printed, _ = await _ended(process, told, within_s)
    if process.returncode != 0:
        raise ClusterError(f"{told} failed with status {process.returncode}: its words are above")
    return printed


async def kubectl(*arguments: str, stdin: str | None = None, within_s: float = _ANSWER_S) -> str:
    """What kubectl printed. Raises ClusterError with what it complained of."""
    told = f"kubectl {' '.join(arguments)}"
    async with started(*KUBECTL, *arguments, stdin=None if stdin is None else PIPE) as process:
        printed, complaint = await _ended(process, told, within_s, stdin)
    if process.returncode != 0:
        lines = complaint.strip().splitlines() or [f"status {process.returncode}"]
        raise ClusterError(f"{told}: {lines[-1]}", lines[-_TAIL_LINES:-1])
    return printed


async def get(*arguments: str) -> Raw:
    """`kubectl get` as an object. Raises ClusterError."""
    found: Raw = json.loads(await kubectl("get", *arguments, "-o", "json"))
    return found


async def listed(*arguments: str) -> list[Raw]:
    """The items of a `kubectl get`. Raises ClusterError."""
    items: list[Raw] = (await get(*arguments))["items"]
    return items


async def apply(objects: Sequence[Raw], namespace: str = NAMESPACE) -> None:
    """Server-side apply. Raises ClusterError."""
    command = ("apply", "--server-side", "--force-conflicts", "-n", namespace, "-f", "-")
    await kubectl(*command, stdin=_list_of(objects))


async def delete(objects: Sequence[Raw], within_s: float) -> None:
    """Delete what there is of them, and wait until it is gone. Raises ClusterError."""
    command = ("delete", "--ignore-not-found", f"--timeout={within_s:.0f}s", "-n", NAMESPACE)
    await kubectl(*command, "-f", "-", stdin=_list_of(objects), within_s=within_s + _ANSWER_S)


async def watch(resource: str) -> AsyncIterator[tuple[str, Raw]]:
    """Objects of NAMESPACE and what became of them, for ever: each is told anew now and then."""
    arguments = ("get", resource, "-n", NAMESPACE, "-w", "--output-watch-events", "-o", "json")
    while True:
        async with started(*KUBECTL, *arguments, stderr=DEVNULL) as process:
            async for line in _lines(process):
                told = json.loads(line)
                yield told["type"], told["object"]
        await asyncio.sleep(_AGAIN_S)


async def logs(pod: str, container: str, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The lines of a container that was started, each once, until it has `ended`.

    A kubelet that is restarted ends the connection too.
    """
    seen = 0
    arguments = ("logs", "-f", "-n", NAMESPACE, pod, "-c", container)
    while True:
        last = ended()
        number = 0
        async with started(*KUBECTL, *arguments, stderr=DEVNULL) as process:
            async for line in _lines(process):
                number += 1
                if number > seen:
                    yield line
        if last:
            return
        seen = max(seen, number)
        await asyncio.sleep(_AGAIN_S)


def of_node(number: int, *command: str) -> tuple[str, ...]:
    """The command line that runs `command` as a process of the node; SIGTERM to it reaches that."""
    return (*LOCALKUBE, "exec", f"--node={number}", "--", *ENDS_WITH_US, *command)


def kustomized(folder: Path) -> tuple[str, ...]:
    """The command line that renders a kustomization; no cluster is needed for it."""
    return ("kubectl", "kustomize", str(folder))


@contextlib.asynccontextmanager
async def started(
    *command: str,
    stdin: int | None = DEVNULL,
    stdout: int | None = PIPE,
    stderr: int | None = PIPE,
) -> AsyncIterator[Process]:
    """A process; it is ended with the block. A terminal's Ctrl-C is for us alone."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=DEVNULL if stdin is None else stdin,
        stdout=stdout,
        stderr=stderr,
        limit=1 << 24,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _ENDING_S)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _lines(process: Process) -> AsyncIterator[bytes]:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        yield line


async def _ended(
    process: Process, told: str, within_s: float, stdin: str | None = None
) -> tuple[str, str]:
    """What it printed, and what it said on stderr if that is ours to read."""
    try:
        async with asyncio.timeout(within_s):
            printed, said = await process.communicate(None if stdin is None else stdin.encode())
    except TimeoutError as exc:
        raise ClusterError(f"{told} did not end within {within_s:g} s") from exc
    return printed.decode(), (said or b"").decode(errors="replace")


def _list_of(objects: Sequence[Raw]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
