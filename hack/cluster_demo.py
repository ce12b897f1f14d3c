"""The demo's job as two pods of a real Kubernetes: run, watched, judged like a local run."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from rich.console import Console

from hack import cluster_evidence, cluster_example, cluster_install, cluster_objects
from hack.cluster_commands import ClusterError, Raw, apply, delete, listed, localkube
from hack.cluster_evidence import Evidence
from hack.cluster_example import Example
from hack.cluster_files import PodLogs
from hack.cluster_node import Node, mount_environment
from hack.cluster_objects import Failure
from hack.cluster_recording import STALL_S, Recording, beside
from hack.cluster_world import World, line
from hack.demo_outcome import Done, judged
from hack.kube import builds
from hack.kube.mounts import HIDDEN
from tandem.local import RunError
from tandem.local_view import LocalView
from tandem.results import CONFIG

NAME: Final = "cluster"
WAITING: Final = "WaitingForPartner"
"""The reason of the event on a pod whose pair is not complete."""

_CLEAR_S: Final = 180.0
_PARTNER_S: Final = 60.0
_PLACED_S: Final = 120.0
_STATUS_S: Final = 60.0
_DOWN_S: Final = 300.0
_TAIL_LINES: Final = 20
_WORDS_S: Final = 1.0
"""In this time what a container printed last has been copied."""


def run(out: Path, steps: int | None, seed: int, keep: bool, console: Console) -> Done:
    """Run the example on the cluster of hack/localkube and judge it; the folder is made here.

    Raises RunError if it could not be started.
    """
    out = out.resolve()
    if hidden := [path for path in HIDDEN if out.is_relative_to(path)]:
        raise RunError(f"{out}: a node has its own {hidden[0]}: name another folder for the run")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise RunError(f"{out} is not empty: name another folder for the run")
    (out / "logs").mkdir()
    try:
        tandem = cluster_example.rendered(cluster_example.OVERLAYS)
        objects = cluster_example.rendered(cluster_example.EXAMPLE)
    except subprocess.CalledProcessError as exc:
        raise RunError("kubectl kustomize failed; its words are above") from exc
    demo = _Demo(tandem, cluster_example.example(objects, steps, seed), out, console)
    asyncio.run(demo.main(keep))
    if not demo.tried:
        raise RunError("; ".join(demo.failures))
    beside = {"kubernetes": demo.kubernetes}
    return judged(NAME, demo.devices, out, demo.failures, demo.signal, beside)


def show(console: Console, done: Done, keep: bool) -> None:
    """What Kubernetes showed while it ran, and where to look further."""
    cluster_evidence.show(console, done.beside["kubernetes"].get("describes", []))
    if keep:
        console.print(
            "the cluster is still up: hack/localkube kubectl get pods -A looks around,"
            " hack/localkube down takes it down",
            highlight=False,
        )


def _environment() -> dict[str, Path]:
    """What the example's pods find below hack.cluster_node.LOCAL."""
    compiled = builds.cache() / "pycache-pods"
    compiled.mkdir(exist_ok=True)
    compiled.chmod(0o1777)  # any user's pod writes there
    simdevice = Path(__file__).with_name("simdevice")
    return {"venv": Path(sys.prefix), "simdevice": simdevice, "pycache": compiled}


class _Demo:
    """One run. `tried`: its pods were on a node, so there is something to judge."""

    def __init__(self, tandem: list[Raw], example: Example, out: Path, console: Console) -> None:
        self._tandem = tandem
        self._example = example
        self._out = out
        self._view = LocalView(example.claim, console, time.monotonic())
        self._world = World(self._changed)
        self._evidence = Evidence(out, example, self._world, self._say)
        self._recording = Recording(out, example.roles, self._view)
        self._told: set[str] = set()
        self._states: dict[str, str] = {}
        self.devices: dict[str, int] = {}
        self.failures: list[str] = []
        self.kubernetes: dict[str, Any] = {}
        self.signal: int | None = None
        self.tried = False

    async def main(self, keep: bool) -> None:
        """Until the trainer has ended, something failed, or a signal came; then clean up."""
        work = asyncio.create_task(self._work(keep))

        def stop(number: signal.Signals) -> None:
            """The first signal ends the demo in order, the second at once."""
            if self.signal is not None:
                os._exit(128 + number)
            self.signal = number
            self.failures.append(f"ended by {number.name}")
            self._say(f"{number.name}: cleaning up; a second one ends the demo at once")
            work.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._try(work)
        finally:
            if not keep:
                self._say("hack/localkube down")
                await self._try(localkube("down", within_s=_DOWN_S))

    async def _work(self, keep: bool) -> None:
        await cluster_install.bring_up(self._say)
        await cluster_install.install(self._tandem, self._say)
        for one in await listed("nodes"):
            await mount_environment(Node(one["metadata"]["name"]).number, _environment())
        world = self._world
        following = (world.follow_pods(), world.follow_claims(), world.follow_events())
        async with beside(*following), contextlib.AsyncExitStack() as recorded:
            await delete(self._example.objects, _CLEAR_S)  # of a demo that was killed, or kept
            try:
                with self._view:
                    await self._run(recorded)
            finally:
                self._recording.ending = True
                await self._try(self._collect())
                if not keep:
                    await self._try(delete(self._example.objects, _CLEAR_S))

    async def _run(self, recorded: contextlib.AsyncExitStack) -> None:
        """The example from its first half on; it is recorded until it is deleted, or kept."""
        self._say("kubectl apply: the claim and the rollout pod, without the trainer")
        await apply(self._example.half)
        what = f"an event {WAITING} on the rollout pod"
        await self._world.until(what, self._waits_for_partner, _PARTNER_S)
        await self._evidence.waiting()
        self._say("kubectl apply: the trainer too")
        await apply(self._example.objects)
        placed = await self._world.until("both pods on one node", self._placed, _PLACED_S)
        self._agree()
        node = Node(placed)
        await recorded.enter_async_context(self._recording.observing(node, self.devices))
        printed = await recorded.enter_async_context(self._recording.following(node))
        self.tried = True
        async with beside(self._guard(printed), self._evidence.turns()):
            await self._train()
        self.failures += self._evidence.missing()

    def _agree(self) -> None:
        """Write down by what the run will be judged."""
        capacity = cluster_objects.simulated(self._tandem)
        claim = self._world.claims[self._example.claim]
        agreed = cluster_objects.agreed(claim, self._example.pods.values(), capacity)
        self.devices = dict(agreed.devices)
        (self._out / CONFIG).write_text(agreed.model_dump_json(indent=2) + "\n")

    async def _train(self) -> None:
        """Until the trainer has succeeded."""
        pod = self._example.trainer
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        started = partial(self._is, name, cluster_objects.was_started, container)
        ended = partial(self._is, name, cluster_objects.has_ended, container)
        await self._world.until("the trainer's container", lambda: started() or None, STALL_S)
        await self._recording.progress(name, container, ended)
        succeeded = partial(self._is, name, cluster_objects.has_succeeded)
        await self._world.until("the trainer's success", lambda: succeeded() or None, _STATUS_S)

    async def _guard(self, printed: PodLogs) -> NoReturn:
        """End the run when a pod cannot do its work."""
        name, found = await self._world.until("a failure", self._failed, None)
        await asyncio.sleep(_WORDS_S)
        raise ClusterError(found.sentence, printed.last_words(name, found.container, _TAIL_LINES))

    async def _collect(self) -> None:
        self.kubernetes = await self._evidence.collect()

    # -- what the world tells -------------------------------------------------------------------

    def _waits_for_partner(self) -> bool | None:
        """Whether each pod that is there was told that it waits for its partner."""
        pods = self._pods()
        told = [{event.get("reason") for event in self._world.events_on(pod)} for pod in pods]
        return (bool(pods) and all(WAITING in reasons for reasons in told)) or None

    def _placed(self) -> str | None:
        """The node of all pods, once their claim is known to be allocated there."""
        nodes = {pod["spec"].get("nodeName") for pod in self._pods()}
        complete = len(self._pods()) == len(self._example.pods)
        claim = self._world.claims.get(self._example.claim, {})
        allocated = "allocation" in claim.get("status", {})
        return nodes.pop() if complete and allocated and len(nodes) == 1 else None

    def _is(self, name: str, what: Callable[..., bool], *about: str) -> bool:
        """Whether there is such a pod, and this is true of it."""
        pod = self._world.pods.get(name)
        return pod is not None and what(pod, *about)

    def _failed(self) -> tuple[str, Failure] | None:
        for name in self._example.pods:
            seen = self._world.pods.get(name)
            if seen is None or "deletionTimestamp" in seen["metadata"]:
                return name, Failure(f"pod {name} was deleted, not by the demo")
            if found := cluster_objects.failure(seen):
                return name, found
        return None

    def _pods(self) -> list[Raw]:
        """The example's pods that there are."""
        return [self._world.pods[name] for name in self._example.pods if name in self._world.pods]

    def _changed(self, obj: Raw) -> None:
        """The object is new, or another than it was."""
        name = obj["metadata"]["name"]
        if obj["kind"] == "Pod" and name in self._example.pods:
            self._recording.belongs(obj)
            if self._states.get(name) != (state := cluster_objects.state(obj)):
                self._states[name] = state
                self._say(f"pod {name}: {state}")
        for pod in self._pods():
            for event in self._world.events_on(pod):
                told = line(event)
                if told not in self._told and cluster_objects.is_notable(event):
                    self._told.add(told)
                    self._say(told)

    # -- what a person sees ---------------------------------------------------------------------

    async def _try(self, work: "Coroutine[Any, Any, object] | asyncio.Task[None]") -> None:
        """Do it; what goes wrong is a failure of the demo."""
        try:
            await work
        except ClusterError as exc:
            self.failures.append(str(exc))
            self._say(f"failed: {exc}")
            for told in exc.tail:
                self._say(f"    {told}")

    def _say(self, told: str) -> None:
        self._view.update(time.monotonic())
        self._view.say(told)
