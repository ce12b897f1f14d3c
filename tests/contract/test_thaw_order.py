"""Whom the arbiter freezes, thaws and discards, and when: with a device that is none."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim_phases.events import Discard, Event, Freeze, Frozen, Thaw, Thawed
from claim_phases.node import Device, Membership, Node, Tenant
from claim_phases.phases import Phase
from claim_phases.turns import Limits, Turns
from dra_driver.arbiter import Arbiter
from dra_driver.devices import DeviceError, NoRoom, Reading
from dra_driver.event_log import EventLog
from dra_driver.journal import Journal
from dra_driver.roster import Part
from tests.contract.test_admission import Peers, Roster, life_of

NAME = "ns/rollout"
THIS, NEXT = life_of(1), life_of(2)


class Pod(Roster):
    """All processes are the pod's, whichever life is on record."""

    def processes(self, who: Membership) -> frozenset[int]:
        return frozenset({os.getpid()})

    def life(self, who: Membership) -> tuple[Part, ...]:
        return (Part(None, os.open(os.devnull, os.O_RDONLY)),)  # type: ignore[arg-type]


class FakeDevice:
    """It does what is asked of it when the test lets it."""

    name = "gpu-0"

    def __init__(self) -> None:
        self.did: list[str] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(100)
        self.fails: Exception | None = None

    def read(self) -> Reading:
        return Reading(0, 1)

    def holders(self) -> dict[int, int]:
        return {}

    def _work(self, verb: str) -> None:
        self.did.append(verb)
        self.begun.release()
        assert self.may_end.acquire(timeout=10)
        if self.fails is not None:
            raise self.fails

    def freeze(self, of_tenant: Callable[[], Collection[int]], folder: Path) -> int:
        assert os.getpid() in of_tenant()
        self._work("freeze")
        return 7

    def settle(self, folder: Path) -> int | None:
        self._work("settle")
        return 7

    def thaw(self, lives: Callable[[], bool], folder: Path) -> None:
        self._work("thaw")
        if not lives():
            self.did.append("discard")

    def discard(self, folder: Path) -> None:
        self.did.append("discard")


class Listening(Arbiter):
    """It only notes what it is told of."""

    heard: list[Event]

    def handle(self, event: Event) -> None:
        self.heard.append(event)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
async def arbiter(tmp_path: Path, device: FakeDevice) -> Any:
    node = Node("boot", {"gpu-0": Device("gpu-0", 1)})
    node.tenants[NAME] = Tenant(THIS, Phase.FAULTED, faulty=1)
    (tmp_path / "frozen").mkdir()
    with Journal(tmp_path / "journal", node.to_json()) as journal:
        made = Listening(
            Turns(node, Limits()),
            journal,
            {"gpu-0": device},
            Pod(),
            Peers(),
            EventLog(tmp_path / "events", time.monotonic),
            time.monotonic,
            lambda _: None,
            tmp_path / "frozen",
        )
        made.heard = []
        yield made
        made.close()


def record(arbiter: Arbiter) -> Tenant:
    return arbiter._turns.node.tenants[NAME]


async def done(arbiter: Listening) -> list[Event]:
    """All that was to be done is; what was heard of it."""
    while arbiter._scans:
        await asyncio.wait(arbiter._scans, timeout=10)
    heard, arbiter.heard = arbiter.heard, []
    return heard


async def begun(device: FakeDevice) -> None:
    assert await asyncio.to_thread(device.begun.acquire, timeout=10)


async def test_what_is_held_is_told(arbiter: Listening, device: FakeDevice) -> None:
    arbiter._carry_out(Freeze(NAME, ("gpu-0",)))
    assert await done(arbiter) == [Frozen(NAME, THIS.incarnation, 7)]
    assert device.did == ["freeze"]


@pytest.mark.parametrize("change", ["a next life", "gone", "well again"])
async def test_whom_the_freeze_is_not_about_any_more_is_let_be(
    arbiter: Listening, device: FakeDevice, change: str
) -> None:
    """The next life's processes are where those of this one were."""
    async with arbiter._in_order(arbiter._frozen(NAME, THIS.incarnation)):
        arbiter._carry_out(Freeze(NAME, ("gpu-0",)))
        await asyncio.sleep(0)
        changes(record(arbiter), change)
    (told,) = await done(arbiter)
    assert isinstance(told, Frozen)
    assert told.problem == "it is not at fault any more"
    assert "freeze" not in device.did


@pytest.mark.parametrize("change", ["a next life", "gone"])
@pytest.mark.parametrize("verb", ["freeze", "thaw"])
async def test_what_is_frozen_of_a_life_that_ended_meanwhile_is_discarded(
    arbiter: Listening, device: FakeDevice, verb: str, change: str
) -> None:
    device.may_end = threading.Semaphore(0)
    if verb == "thaw":
        record(arbiter).phase = Phase.RESTORING
    arbiter._carry_out((Freeze if verb == "freeze" else Thaw)(NAME, ("gpu-0",)))
    await begun(device)
    changes(record(arbiter), change)
    device.may_end.release()
    await done(arbiter)
    assert (device.did[0], {*device.did[1:]}) == (verb, {"discard"})


def changes(tenant: Tenant, how: str) -> None:
    if how == "a next life":
        tenant.who = NEXT
    tenant.gone = how == "gone"
    tenant.faulty = 0 if how == "well again" else tenant.faulty


async def test_who_has_no_turn_any_more_is_not_thawed(
    arbiter: Listening, device: FakeDevice
) -> None:
    arbiter._carry_out(Thaw(NAME, ("gpu-0",)))
    (told,) = await done(arbiter)
    assert isinstance(told, Thawed)
    assert (told.problem, told.later) == ("it has no turn any more", True)
    assert device.did == []


@pytest.mark.parametrize("failure", [DeviceError("it runs"), NoRoom("no space")])
async def test_only_for_want_of_room_another_turn_is_tried(
    arbiter: Listening, device: FakeDevice, failure: Exception
) -> None:
    record(arbiter).phase, device.fails = Phase.RESTORING, failure
    arbiter._carry_out(Thaw(NAME, ("gpu-0",)))
    later = isinstance(failure, NoRoom)
    assert await done(arbiter) == [Thawed(NAME, THIS.incarnation, str(failure), later)]


async def test_nobodys_thaw_waits_for_anothers_freeze(
    arbiter: Listening, device: FakeDevice
) -> None:
    other = replace(THIS, tenant="ns/other", incarnation="other/1")
    arbiter._turns.node.tenants["ns/other"] = Tenant(other, Phase.RESTORING)
    device.may_end = threading.Semaphore(0)
    arbiter._carry_out(Freeze(NAME, ("gpu-0",)))
    await begun(device)
    arbiter._carry_out(Thaw("ns/other", ("gpu-0",)))
    await begun(device)
    assert device.did == ["freeze", "thaw"]
    device.may_end.release(2)
    await done(arbiter)


async def test_a_life_that_ended_is_discarded_when_its_thaw_is_over(
    arbiter: Listening, device: FakeDevice
) -> None:
    record(arbiter).phase = Phase.RESTORING
    device.may_end = threading.Semaphore(0)
    arbiter._carry_out(Thaw(NAME, ("gpu-0",)))
    await begun(device)
    arbiter._carry_out(Discard(NAME, THIS.incarnation, ("gpu-0",)))
    await asyncio.sleep(0)
    assert device.did == ["thaw"]
    device.may_end.release()
    await done(arbiter)
    assert device.did == ["thaw", "discard"]


async def test_what_was_left_is_taken_up(arbiter: Listening, device: FakeDevice) -> None:
    arbiter._frozen(NAME, THIS.incarnation).mkdir()
    arbiter._take_up_the_frozen()
    assert await done(arbiter) == [Frozen(NAME, THIS.incarnation, 7)]
    assert device.did == ["settle"]
    device.fails = DeviceError("it cannot be read")
    arbiter._take_up_the_frozen()
    assert await done(arbiter) == [Thawed(NAME, THIS.incarnation, "it cannot be read")]
