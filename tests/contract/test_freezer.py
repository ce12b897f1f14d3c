"""Whom the driver freezes, thaws and discards, and when: with a device that is none."""

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from claim_phases.events import Frozen, Thawed
from claim_phases.node import Device, Membership, Node, Tenant
from claim_phases.phases import Phase
from dra_driver.devices import Blocks, DeviceError, NoRoom, Reading
from dra_driver.freezer import Freezer
from dra_driver.roster import Part
from tests.contract.test_admission import Roster, life_of

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

    def holders(self) -> dict[int, Blocks]:
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


Told = list[Frozen | Thawed]


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def node() -> Node:
    made = Node("boot", {"gpu-0": Device("gpu-0", 1)})
    made.tenants[NAME] = Tenant(THIS, Phase.FAULTED, faulty=1)
    return made


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def freezer(tmp_path: Path, node: Node, device: FakeDevice, told: Told) -> Iterator[Freezer]:
    made = Freezer(node, {"gpu-0": device}, Pod(), tmp_path / "frozen", told.append)
    yield made
    made.close()


async def begun(device: FakeDevice) -> None:
    assert await asyncio.to_thread(device.begun.acquire, timeout=10)


async def test_what_is_held_is_told(freezer: Freezer, device: FakeDevice, told: Told) -> None:
    await freezer.freeze(THIS)
    assert told == [Frozen(NAME, THIS.incarnation, 7)]
    assert device.did == ["freeze"]


@pytest.mark.parametrize("change", ["a next life", "gone", "well again"])
async def test_whom_the_freeze_is_not_about_any_more_is_let_be(
    freezer: Freezer, node: Node, device: FakeDevice, told: Told, change: str
) -> None:
    """The next life's processes are where those of this one were."""
    device.may_end = threading.Semaphore(0)
    former = asyncio.create_task(freezer.freeze(THIS))
    await begun(device)
    waiting = asyncio.create_task(freezer.freeze(THIS))
    await asyncio.sleep(0)
    changes(node.tenants[NAME], change)
    device.may_end.release(2)
    await asyncio.gather(former, waiting)
    _, answer = told
    assert isinstance(answer, Frozen)
    assert answer.problem == "it is not at fault any more"
    assert device.did.count("freeze") == 1


async def test_whose_turn_is_over_by_then_is_not_thawed(
    freezer: Freezer, node: Node, device: FakeDevice, told: Told
) -> None:
    """A thaw that comes while the freeze goes on waits for it."""
    node.tenants[NAME].phase = Phase.RESTORING
    device.may_end = threading.Semaphore(0)
    former = asyncio.create_task(freezer.freeze(THIS))
    await begun(device)
    waiting = asyncio.create_task(freezer.thaw(THIS))
    await asyncio.sleep(0)
    node.tenants[NAME].phase = Phase.FAULTED
    device.may_end.release(2)
    await asyncio.gather(former, waiting)
    assert told[1:] == [Thawed(NAME, THIS.incarnation, "it has no turn any more", later=True)]
    assert device.did == ["freeze"]


@pytest.mark.parametrize("change", ["a next life", "gone"])
@pytest.mark.parametrize("verb", ["freeze", "thaw"])
async def test_what_is_frozen_of_a_life_that_ended_meanwhile_is_discarded(
    freezer: Freezer, node: Node, device: FakeDevice, verb: str, change: str
) -> None:
    device.may_end = threading.Semaphore(0)
    if verb == "thaw":
        node.tenants[NAME].phase = Phase.RESTORING
    doing = asyncio.create_task(getattr(freezer, verb)(THIS))
    await begun(device)
    changes(node.tenants[NAME], change)
    device.may_end.release()
    await doing
    assert (device.did[0], {*device.did[1:]}) == (verb, {"discard"})


def changes(tenant: Tenant, how: str) -> None:
    if how == "a next life":
        tenant.who = NEXT
    tenant.gone = how == "gone"
    tenant.faulty = 0 if how == "well again" else tenant.faulty


async def test_who_has_no_turn_any_more_is_not_thawed(
    freezer: Freezer, device: FakeDevice, told: Told
) -> None:
    await freezer.thaw(THIS)
    assert told == [Thawed(NAME, THIS.incarnation, "it has no turn any more", later=True)]
    assert device.did == []


@pytest.mark.parametrize("failure", [DeviceError("it runs"), NoRoom("no space")])
async def test_only_for_want_of_room_another_turn_is_tried(
    freezer: Freezer, node: Node, device: FakeDevice, told: Told, failure: Exception
) -> None:
    node.tenants[NAME].phase, device.fails = Phase.RESTORING, failure
    await freezer.thaw(THIS)
    later = isinstance(failure, NoRoom)
    assert told == [Thawed(NAME, THIS.incarnation, str(failure), later)]


@pytest.mark.parametrize("verb", ["freeze", "thaw", "take up"])
async def test_what_nobody_foresaw_is_answered_too(
    freezer: Freezer, node: Node, device: FakeDevice, told: Told, verb: str
) -> None:
    """The machine would wait for it for ever."""
    device.fails = ZeroDivisionError("oops")
    if verb == "take up":
        freezer.folder_of(NAME, THIS.incarnation).mkdir(parents=True)
        (doing,) = freezer.take_up()
        await doing
    else:
        node.tenants[NAME].phase = Phase.RESTORING
        await getattr(freezer, verb)(THIS)
    (answer,) = told
    assert answer.problem == "ZeroDivisionError('oops'): see the driver's log"


async def test_nobodys_thaw_waits_for_anothers_freeze(
    freezer: Freezer, node: Node, device: FakeDevice
) -> None:
    other = replace(THIS, tenant="ns/other", incarnation="other/1")
    node.tenants["ns/other"] = Tenant(other, Phase.RESTORING)
    device.may_end = threading.Semaphore(0)
    freezing = asyncio.create_task(freezer.freeze(THIS))
    await begun(device)
    thawing = asyncio.create_task(freezer.thaw(other))
    await begun(device)
    assert device.did == ["freeze", "thaw"]
    device.may_end.release(2)
    await asyncio.gather(freezing, thawing)


async def test_a_life_that_ended_is_discarded_when_its_thaw_is_over(
    freezer: Freezer, node: Node, device: FakeDevice
) -> None:
    node.tenants[NAME].phase = Phase.RESTORING
    device.may_end = threading.Semaphore(0)
    thawing = asyncio.create_task(freezer.thaw(THIS))
    await begun(device)
    discarding = asyncio.create_task(freezer.discard(NAME, THIS.incarnation, ("gpu-0",)))
    await asyncio.sleep(0)
    assert device.did == ["thaw"]
    device.may_end.release()
    await asyncio.gather(thawing, discarding)
    assert device.did == ["thaw", "discard"]


async def test_what_was_left_is_taken_up(freezer: Freezer, device: FakeDevice, told: Told) -> None:
    freezer.folder_of(NAME, THIS.incarnation).mkdir(parents=True)
    (settling,) = freezer.take_up()
    await settling
    assert (told, device.did) == ([Frozen(NAME, THIS.incarnation, 7)], ["settle"])
    told.clear()
    device.fails = DeviceError("it cannot be read")
    (settling,) = freezer.take_up()
    await settling
    assert told == [Thawed(NAME, THIS.incarnation, "it cannot be read")]


async def test_what_was_left_of_nobody_is_discarded(
    freezer: Freezer, device: FakeDevice, told: Told
) -> None:
    freezer.folder_of(NAME, NEXT.incarnation).mkdir(parents=True)
    (discarding,) = freezer.take_up()
    await discarding
    assert (told, device.did) == ([], ["discard"])


async def test_of_a_life_that_is_over_nothing_is_settled(
    freezer: Freezer, node: Node, device: FakeDevice, told: Told
) -> None:
    """Those that were stopped must not go on."""
    freezer.folder_of(NAME, THIS.incarnation).mkdir(parents=True)
    (settling,) = freezer.take_up()
    node.tenants[NAME].gone = True
    await settling
    assert (told, device.did) == ([], ["discard"])


async def test_a_copy_under_way_is_waited_for(
    freezer: Freezer, device: FakeDevice, told: Told
) -> None:
    device.may_end = threading.Semaphore(0)
    freezing = asyncio.create_task(freezer.freeze(THIS))
    await begun(device)
    freezer.close()
    draining = asyncio.create_task(freezer.drained())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(draining), 0.01)
    device.may_end.release()
    await asyncio.gather(draining, freezing)
    await freezer.thaw(THIS)
    assert [type(answer) for answer in told] == [Frozen, Thawed]


async def test_what_waits_for_a_copy_is_not_begun_any_more(
    freezer: Freezer, device: FakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """The next arbiter takes it up; nobody reads of a fault that is none."""
    device.may_end = threading.Semaphore(0)
    freezing = asyncio.create_task(freezer.freeze(THIS))
    await begun(device)
    waiting = asyncio.create_task(freezer.discard(NAME, THIS.incarnation, ("gpu-0",)))
    await asyncio.sleep(0)
    freezer.close()
    device.may_end.release()
    await asyncio.wait([freezing, waiting])
    assert waiting.cancelled()
    assert (device.did, caplog.messages) == (["freeze"], [])


async def test_what_is_kept_is_private(freezer: Freezer, tmp_path: Path) -> None:
    await freezer.freeze(THIS)
    assert (tmp_path / "frozen").stat().st_mode & 0o777 == 0o700


async def test_a_freeze_for_which_there_is_no_room_says_so(
    freezer: Freezer, tmp_path: Path, told: Told
) -> None:
    (tmp_path / "frozen").write_bytes(b"")
    await freezer.freeze(THIS)
    (answer,) = told
    assert answer.problem == f"{tmp_path / 'frozen'}: File exists: make room for it"


def test_nothing_is_made_before_it_is_needed(freezer: Freezer, tmp_path: Path) -> None:
    """A disk that is full keeps nobody from turns who never froze anybody."""
    assert freezer.take_up() == []
    assert list(tmp_path.iterdir()) == []
