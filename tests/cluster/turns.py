"""Tenants as pods, and what the driver of their node tells of their turns."""

import contextlib
import functools
import itertools
import json
from collections.abc import Collection, Iterator

from claim_phases.phases import TURN
from hack.cluster_commands import Raw
from tests.cluster.kube import ROOT, WITHIN_S
from tests.cluster.lab import Namespace, half

EVENTS = "/run/tandem-gpu.io/events.jsonl"
SOURCE = {"name": "source", "hostPath": {"path": str(ROOT / "tests"), "type": "Directory"}}
TURNS = 8
"""Turns that are waited for after each fault."""


def container(name: str, *arguments: str, program: str = "tenant") -> Raw:
    return {
        "name": name,
        "image": "localhost/tandem:local",
        "command": ["python3", "-m", f"tests.cluster.{program}", *arguments],
        "env": [{"name": "PYTHONPATH", "value": "/opt/tandem:/source"}],
        "resources": {"claims": [{"name": "gpu"}], "requests": {"memory": "64Mi"}},
        "volumeMounts": [{"name": "source", "mountPath": "/source/tests", "readOnly": True}],
    }


def tenant(role: str, mib: int = 160, *options: str, beside: tuple[Raw, ...] = ()) -> Raw:
    """A pod that takes turns, with more than half of the device each time."""
    containers = [container("main", role, str(mib), *options), *beside]
    return half(role, containers=containers, volumes=[SOURCE])


class Turns:
    """What the driver of a node tells of one namespace's tenants."""

    def __init__(self, lab: Namespace, node: str) -> None:
        self.node = node.removeprefix("node")
        self._lab = lab

    def events(self) -> list[Raw]:
        """All that was told so far."""
        lines = self._lab.kube("exec", f"--node={self.node}", "--", "cat", EVENTS).splitlines()
        return [one for one in map(json.loads, lines) if self._is_mine(one)]

    def entered(self, tenant: str, phase: str) -> list[Raw]:
        """The changes by which the tenant came into this phase."""
        return [one for one in self.events() if self._enters(one, tenant, phase)]

    def grants(self, tenant: str) -> list[int]:
        """The epochs in which this tenant ran."""
        return [one["epoch"] for one in self.entered(tenant, "Running")]

    def until(self, tenant: str, phase: str, times: int, within_s: float = WITHIN_S) -> None:
        """Wait until the tenant came into this phase so often."""
        enters = (1 for one in self._follow(within_s) if self._enters(one, tenant, phase))
        seen = sum(itertools.islice(enters, times))
        assert seen == times, f"{tenant} was {phase} {seen} times, not {times}: {self._newest()}"

    def until_named(self, tenant: str, since: float) -> None:
        """Wait until the tenant was told to use a device without a turn, since this time."""
        name = f"{self._lab.name}/{tenant}"
        named = any(
            one.get("condition") == "Intruder" and one["tenant"] == name and one["t"] > since
            for one in self._follow(WITHIN_S)
        )
        assert named, f"{tenant} was not named since {since}: {self._newest()}"

    def _follow(self, within_s: float) -> Iterator[Raw]:
        """What was told so far, and what is within this time."""
        command = ("exec", f"--node={self.node}", "--", "tail", "-n", "+1", "-F", EVENTS)
        with contextlib.closing(self._lab.kube.follow(*command, within_s=within_s)) as lines:
            yield from map(json.loads, lines)

    def _newest(self) -> str:
        return "\n".join(map(json.dumps, self.events()[-40:]))

    def go_on(self, *tenants: str) -> None:
        """Wait until each of these had a few more turns."""
        for one in tenants:
            enough = max(self.grants(one), default=0) + 2 * TURNS
            self._lab.hears(one, functools.partial(_beyond, enough))

    def conditions(self) -> list[Raw]:
        """What should not be."""
        return [one for one in self.events() if one["kind"] == "condition"]

    def assert_one_at_a_time(self, allowed: Collection[str] = ()) -> None:
        """No two had a turn at once, epochs only grew, and nobody broke a rule but as allowed."""
        wrong = {"Faulted", "Intruder", "ForeignMemory"} - set(allowed)
        assert [one for one in self.conditions() if one["condition"] in wrong] == []
        holders: dict[str, int] = {}
        newest = 0
        for one in self.events():
            if one["kind"] != "phase":
                continue
            before = holders.pop(one["tenant"], None)
            if one["to"] in TURN:
                assert not holders, (one, holders)
                holders[one["tenant"]] = one["epoch"]
                assert before is not None or one["epoch"] >= newest, one
                newest = max(newest, one["epoch"])

    def assert_nobody_granted_while_named(self) -> None:
        """From an intruder's naming until its memory was measured gone nobody got a turn."""
        named: set[str | None] = set()
        for one in self.events():
            match one["kind"], one:
                case "condition", {"condition": "Intruder"}:
                    named.add(one["tenant"])
                case "condition", {"condition": "Cleared"}:
                    named.discard(one["tenant"])
                case "phase", {"to": "Parked" | "Gone"}:
                    named.discard(one["tenant"])
                case "phase", {"to": "Restoring"} if one["from"] != "Restoring":
                    assert not named, one

    def _is_mine(self, one: Raw) -> bool:
        """Events of the driver itself have no tenant, or none by that name."""
        mine = f"{self._lab.name}/"
        return (one.get("tenant") or mine).startswith(mine)

    def _enters(self, one: Raw, tenant: str, phase: str) -> bool:
        named = one["kind"] == "phase" and one["tenant"] == f"{self._lab.name}/{tenant}"
        return bool(named and one["to"] == phase != one["from"])


def _beyond(epoch: int, line: Raw) -> bool:
    return bool(line.get("epoch", 0) > epoch)


def kill(lab: Namespace, pattern: str) -> None:
    """SIGKILL to the pods' processes of both nodes whose command line is like that."""
    lab.kube("exec", "--", "pkill", "-KILL", "-f", pattern)
