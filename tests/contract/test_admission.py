"""Who is admitted to a session beside whom: the arbiter's own rules, without a wire."""

import asyncio
import os
import time
from collections.abc import Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from claim_phases.events import Discard, Freeze, Headroom, Kill, Thaw
from claim_phases.messages import Hello
from claim_phases.node import Device, Membership, Node, Tenant
from claim_phases.phases import Phase
from claim_phases.turns import Limits, Turns
from dra_driver.arbiter import Arbiter, _Life, _Session
from dra_driver.event_log import EventLog
from dra_driver.journal import Journal
from dra_driver.peers import Peer
from dra_driver.processes import Process, process
from dra_driver.roster import NotNow, Part


def life_of(number: int) -> Membership:
    """One pod after the other, under one name."""
    return Membership("ns/rollout", "rollout", f"uid-{number}/1:1", ("gpu-0",), None, 0)


class Roster:
    """Everybody is the newest pod; what runs of it, the test says."""

    def __init__(self) -> None:
        self.parts: tuple[Part, ...] | OSError = ()

    async def identify(self, peer: Peer) -> Membership:
        return life_of(2)

    def owners(self, pids: Iterable[int]) -> dict[int, str]:
        return {}

    def budget(self, tenant: str, device: str) -> int:
        return 0

    def headroom(self, who: Membership) -> Headroom | None:
        return None

    def tenant_of_caller(self, caller: str) -> str:
        return ""

    def life(self, who: Membership) -> tuple[Part, ...]:
        if isinstance(self.parts, OSError):
            raise self.parts
        return self.parts

    def processes(self, who: Membership) -> frozenset[int]:
        return frozenset()


class Peers:
    """Nobody is connected."""

    def peer(self, name: str) -> Peer | None:
        return None

    def drop(self, name: str) -> None:
        raise AssertionError(name)


@pytest.fixture
def roster() -> Roster:
    return Roster()


@pytest.fixture
async def arbiter(tmp_path: Path, roster: Roster) -> Any:
    node = Node("boot", {"gpu-0": Device("gpu-0", 1)})
    with Journal(tmp_path / "journal", node.to_json()) as journal:
        made = Arbiter(
            Turns(node, Limits()),
            journal,
            {},
            roster,
            Peers(),
            EventLog(tmp_path / "events", time.monotonic),
            time.monotonic,
            lambda _: None,
            tmp_path,
        )
        yield made
        made.close()


@pytest.fixture
def myself() -> Process:
    return process(os.getpid())


@pytest.fixture
def parent() -> Process:
    return process(os.getppid())


async def test_a_pod_that_was_created_again_waits_for_the_end_of_the_former(
    arbiter: Arbiter, myself: Process, parent: Process
) -> None:
    """Force-deleted, its processes still end: that is no reason to refuse the next for good."""
    former = _Session(
        life_of(1), parent, asyncio.Queue(), asyncio.get_running_loop().create_future()
    )
    arbiter._sessions["ns/rollout"] = former
    with pytest.raises(NotNow, match="of an earlier life of ns/rollout still runs"):
        await arbiter._admit(Peer("claim", myself, 0), Hello("rollout"))


async def test_a_look_at_processes_that_fails_ends_the_arbiter(
    arbiter: Arbiter, roster: Roster
) -> None:
    """Unwatched, a death would go unnoticed; an arbiter that starts again looks again."""
    who = life_of(1)
    arbiter._turns.node.tenants[who.tenant] = Tenant(who)
    child = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    roster.parts = (Part(process(child.pid), os.pidfd_open(child.pid)),)
    arbiter._watch(who)
    roster.parts = OSError(22, "Invalid argument")
    assert child.stdin is not None
    child.stdin.close()
    with pytest.raises(OSError, match="Invalid argument"):
        await arbiter.stopped
    await child.wait()


async def test_a_tenant_whose_claim_left_the_node_is_not_kept(arbiter: Arbiter) -> None:
    """However its end was missed: its fault would keep everybody from the device."""
    who = life_of(1)
    node = arbiter._turns.node
    node.tenants[who.tenant] = Tenant(who, phase=Phase.FAULTED, epoch=1, parked=False)
    arbiter.look_again(["gpu-1"])
    assert not node.tenants[who.tenant].gone
    arbiter.look_again(["gpu-0"])
    assert node.tenants[who.tenant].gone


class Recording:
    """A freezer that only notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    async def freeze(self, who: Membership) -> None:
        self.asked.append(("freeze", who.tenant))

    async def thaw(self, who: Membership) -> None:
        self.asked.append(("thaw", who.tenant))

    async def discard(self, tenant: str, incarnation: str, devices: Collection[str]) -> None:
        self.asked.append(("discard", tenant, incarnation, *devices))

    async def _settle(self) -> None:
        self.asked.append(("settle",))

    def take_up(self) -> list[Coroutine[Any, Any, None]]:
        return [self._settle()]

    def close(self) -> None:
        self.asked.append(("close",))


async def test_what_freezes_is_told_all_that_it_must_know(
    arbiter: Arbiter, roster: Roster, parent: Process
) -> None:
    """To freeze, to thaw, and each way in which what is frozen may be nobody's any more."""
    arbiter._freezer = freezer = Recording()  # type: ignore[assignment]
    arbiter.start()
    who = life_of(1)
    arbiter._turns.node.tenants[who.tenant] = Tenant(who, frozen=7)
    ended = Part(parent, os.open(os.devnull, os.O_RDONLY))
    over = ("discard", who.tenant, who.incarnation, "gpu-0")
    roster.parts = ()
    arbiter._carry_out(Freeze(who.tenant, who.devices))
    arbiter._carry_out(Thaw(who.tenant, who.devices))
    arbiter._carry_out(Discard(who.tenant, who.incarnation, who.devices))
    arbiter._carry_out(Kill(who.tenant, ()))
    arbiter._ended(who, _Life(who.incarnation, {parent: ended, process(os.getpid()): ended}), ended)
    while arbiter._scans:
        await asyncio.wait(arbiter._scans, timeout=10)
    arbiter.close()
    assert freezer.asked == [
        ("settle",),
        ("freeze", who.tenant),
        ("thaw", who.tenant),
        over,
        ("discard", who.tenant, who.incarnation),
        over,
        ("close",),
    ]
