"""The files of a run in a cluster while they grow: the observer's, the driver's, the trainer's."""

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import STDOUT
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from hack import cluster_objects
from hack.cluster_commands import NAMESPACE, ClusterError, Raw, logs, of_node, started
from hack.cluster_files import PODS, NodeEvents, PodLogs
from hack.cluster_node import TANDEM, Node
from tandem import local, run_files
from tandem.local_view import LocalView
from tandem.run_files import Condition, Progress, RunFileError
from tandem.verdict import VOID

STALL_S: Final = 900.0
"""The longest time without an iteration; before the first one the engine starts."""

_OBSERVER_S: Final = 10.0
_REFRESH_S: Final = 0.25
_VOID_GRACE_S: Final = 5.0
"""How long a run goes on that no longer counts, so that its files show what came of it."""


class Recording:
    """Writes and shows what happens. `roles`: by the names that the driver gives tenants.

    Whatever makes the run void ends the block that it is recorded in with a ClusterError, unless
    the run is `ending` already: what is left to do then is not broken off.
    """

    def __init__(self, out: Path, roles: Mapping[str, str], view: LocalView) -> None:
        self._out = out
        self._roles = roles
        self._view = view
        self._uids: dict[str, list[str]] = {role: [] for role in roles.values()}
        self._names: dict[str, str] = {}
        self._pods = out / "pods.json"
        self._tails = (run_files.events(out), run_files.samples(out), run_files.progress(out))
        self._void: Condition | None = None
        self._moved = 0.0
        self.ending = False

    def belongs(self, pod: Raw) -> None:
        """Tell the observer that the pod's processes are those of a tenant."""
        uids = self._uids[cluster_objects.role(pod)]
        if pod["metadata"]["uid"] not in uids:
            uids.append(pod["metadata"]["uid"])
            self._names[pod["metadata"]["uid"]] = pod["metadata"]["name"]
            fresh = self._pods.with_suffix(".new")
            fresh.write_text(json.dumps(self._uids))
            fresh.replace(self._pods)

    @contextlib.asynccontextmanager
    async def observing(self, node: Node, devices: Iterable[str]) -> AsyncIterator[None]:
        """Sample the node's devices and processes, in its namespaces."""
        folders = {name: f"{TANDEM}/devices/{name}" for name in devices}
        for folder in folders.values():
            await node.mounted(folder)
        spec = {name: {"simulated": folder} for name, folder in folders.items()}
        file = self._out / "observer.json"
        file.write_text(json.dumps({"devices": spec, "pods": str(self._pods)}))
        command = [sys.executable, "-m", "tandem.observer", "--node", str(file)]
        command += ["--out", str(self._out / run_files.SAMPLES)]
        command += ["--interval-ms", str(local.SAMPLING_MS)]
        async with started(*of_node(node.number, *command), stderr=STDOUT) as process:
            assert process.stdout is not None
            try:
                async with beside(self._vouched(process.stdout)):
                    yield
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                # It takes its last sample yet, and closes the pipe after that.
                async with asyncio.timeout(_OBSERVER_S):
                    await process.stdout.read()

    async def _vouched(self, output: asyncio.StreamReader) -> None:
        """Without a witness the run proves nothing: no second start hides the gap."""
        said = (await output.read()).decode(errors="replace")
        self._break(ClusterError("the observer ended", said.splitlines()))

    @contextlib.asynccontextmanager
    async def following(self, node: Node) -> AsyncIterator[PodLogs]:
        """Copy what the driver tells and what containers print, and show what happens."""
        source = node.path(f"{TANDEM}/events.jsonl")
        events = NodeEvents(source, self._out / run_files.EVENTS, self._roles)
        printed = PodLogs(node.path(PODS), self._out / "logs")
        self._moved = time.monotonic()
        try:
            async with beside(self._follow(events, printed)):
                yield printed
        finally:
            self._copy(events, printed)
            events.close()
            printed.close()
            with contextlib.suppress(RunFileError):  # whoever judges the files finds it too
                self._look()

    async def progress(self, pod: str, container: str, ended: Callable[[], bool]) -> None:
        """Take down what the trainer prints, from its start until it has ended."""
        async for printed in logs(pod, container, ended):
            run_files.take_progress(self._out, printed, time.monotonic())

    async def _follow(self, events: NodeEvents, printed: PodLogs) -> None:
        while True:
            self._copy(events, printed)
            try:
                self._look()
            except RunFileError as exc:
                self._break(ClusterError(str(exc)))
            now = time.monotonic()
            if self._void is not None and now - self._void.t > _VOID_GRACE_S:
                told = f"its first {self._void.condition}: it counts no more"
                self._break(ClusterError(f"ended {_VOID_GRACE_S:g} s after {told}"))
            if now - self._moved > STALL_S:
                self._break(ClusterError(f"{STALL_S:g} s went by without an iteration"))
            await asyncio.sleep(_REFRESH_S)

    def _copy(self, events: NodeEvents, printed: PodLogs) -> None:
        events.copy()
        for uid, name in self._names.items():
            printed.copy(NAMESPACE, name, uid)

    def _look(self) -> None:
        """Show what was written since the last look."""
        for record in [record for tail in self._tails for record in tail.read()]:
            self._view.feed(record)
            match record:
                case Condition() if record.condition in VOID:
                    self._void = self._void or record
                case Progress():
                    self._moved = time.monotonic()
                case _:
                    pass
        self._view.update(time.monotonic())

    def _break(self, error: ClusterError) -> None:
        if not self.ending:
            raise error


@contextlib.asynccontextmanager
async def beside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do it while the block lasts; what fails first ends the block, with its own error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
