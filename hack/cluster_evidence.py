"""What Kubernetes shows of a run, recorded at three moments and at the end."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from claim_phases.phases import TURN, Phase
from hack import cluster_objects
from hack.cluster_commands import NAMESPACE, ClusterError, Raw, Say, kubectl, listed
from hack.cluster_example import TRAINER, Example
from hack.cluster_install import SYSTEM
from hack.cluster_world import World

MOMENTS: Final = (
    "describe-1-waiting.txt",
    "describe-2-trainer-runs.txt",
    "describe-3-rollout-runs.txt",
)


class Evidence:
    """Written to the run's folder."""

    def __init__(self, out: Path, example: Example, world: World, say: Say) -> None:
        self._out = out
        self._example = example
        self._world = world
        self._say = say

    async def waiting(self) -> None:
        """The first moment: now."""
        await self._describe(MOMENTS[0])

    async def turns(self) -> None:
        """The others: as soon as the claim's status tells of each tenant's turn."""
        tenants = {role: tenant for tenant, role in self._example.roles.items()}
        others = [role for role in tenants if role != TRAINER]
        moments = zip(MOMENTS[1:], [TRAINER, *others], strict=True)
        await asyncio.gather(*(self._turn(moment, tenants[role]) for moment, role in moments))

    async def _turn(self, moment: str, tenant: str) -> None:
        """Its turn, and again when it is in full swing: the status is written now and then only."""
        for phases in (TURN, {Phase.RUNNING}):
            told = partial(self._is_told, tenant, phases)
            recorded = False
            while not recorded:
                await self._world.until(f"the turn of {tenant}", told, None)
                recorded = await self._describe(moment, tenant)

    def missing(self) -> Iterator[str]:
        """A sentence for each moment that did not come."""
        for moment in MOMENTS:
            if not self._is_recorded(moment):
                yield f"{moment}: the claim's status never told it"

    async def collect(self) -> dict[str, Any]:
        """What else Kubernetes shows; Tandem's own output is saved."""
        version = json.loads(await kubectl("version", "-o", "json"))
        names = [*self._example.pods]
        pods = [one for one in await listed("pods", "-n", NAMESPACE) if _name(one) in names]
        claim = self._world.claims.get(self._example.claim, {})
        about = [*pods, *([claim] if claim else [])]
        events = [event for one in about for event in self._world.events_on(one)]
        for pod in await listed("pods", "-n", SYSTEM):
            with contextlib.suppress(ClusterError):  # it has just been replaced
                told = await kubectl("logs", "-n", SYSTEM, _name(pod))
                (self._out / "logs" / f"{_name(pod)}.log").write_text(told)
        shown = cluster_objects.told(version, await listed("nodes"), pods, claim, events)
        paths = [str(self._out / moment) for moment in MOMENTS if self._is_recorded(moment)]
        return shown | {"describes": paths}

    def _is_told(self, tenant: str, phases: AbstractSet[Phase]) -> bool | None:
        """Whether the claim's status tells that the tenant holds the turn, in such a phase."""
        claim = self._world.claims.get(self._example.claim, {})
        return cluster_objects.holder(claim) in {(tenant, phase) for phase in phases} or None

    def _is_recorded(self, moment: str) -> bool:
        return (self._out / moment).exists()

    async def _describe(self, moment: str, holder: str = "") -> bool:
        """Record it, unless the claim's status tells of another holder by now; say whether."""
        names = [name for name in self._example.pods if name in self._world.pods]
        claim = f"resourceclaim/{self._example.claim}"
        pods = [f"pod/{name}" for name in names]
        told = await kubectl("describe", "-n", NAMESPACE, "--show-events", claim, *pods)
        if not cluster_objects.describes(told, holder):
            return False
        table = await kubectl("get", "pods", *names, "-n", NAMESPACE, "-o", "wide")
        (self._out / moment).write_text(f"{table}\n{told}")
        self._say(f"kubectl describe: {moment}")
        return True


def show(console: Console, paths: list[str]) -> None:
    """What of the moments is about turns."""
    for path in map(Path, paths):
        console.print(f"[bold]{path.name}[/]", highlight=False)
        for line in cluster_objects.excerpt(path.read_text()):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _name(obj: Raw) -> str:
    return str(obj["metadata"]["name"])
