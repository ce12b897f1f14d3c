"""A tenant at fault is frozen: its memory goes to the host, and it goes on in its next turn."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.devices import DeviceError, NoRoom, freezing
from dra_driver.devices.freezing import stands_still
from dra_driver.devices.simulated import SimulatedDevice
from tandem import observer
from tests.contract.node_lab import DEVICE_SIZE, Child, Node, node
from tests.contract.test_turn import ends, go, program
from tests.device_memory import device_memory

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="the files behind a process's mappings are root's to open"
)

SIZE = 10 << 20
HOLDS = f"""
from tests.device_memory import device_memory
DEVICE, SIZE = os.environ.get("DEVICE"), {SIZE}
SAID = bytes(range(256)) * (SIZE // 256)
"""


@pytest.fixture
def lab() -> Iterator[Node]:
    with node(watch_s=0.05, park_s=0.2) as made:
        escalation = [{"step": "checkpoint", "after_s": 0.01}]
        turns = {"policy": "fifo", "leave_s": 0.05}
        made.claim("claim", "a", escalation=escalation, turns=turns)
        made.claim("other", "b")
        yield made


def gpu(lab: Node, arbiter: Child) -> Path:
    """The device as others see it that are not in the arbiter's mount namespace."""
    return Path(f"/proc/{arbiter.pid}/root{lab.devices['gpu0']}")


def used(device: Path) -> int:
    fs = os.statvfs(device)
    return (fs.f_blocks - fs.f_bfree) * fs.f_frsize


def witnessed(child: Child, device: Path) -> int:
    """What it holds by the observer's account, which shares no code with the arbiter's."""
    (process,) = (one for one in observer._processes() if one.pid == child.pid)
    devices = [observer.Device.of("gpu0", device)]
    return sum(block.size for _, held in observer._held(process, devices) for block in held)


def goes_on(lab: Node) -> None:
    """Its session hears then that it has a turn, before its user can leave that."""
    lab.events.wait(lambda event: "goes on" in event.get("message", ""))


def lives() -> bool:
    return True


def test_a_tenant_that_hangs_in_its_turn_is_frozen_and_goes_on_in_its_next(lab: Node) -> None:
    arbiter = lab.arbiter()
    b = lab.tenant("b", "other")
    a = program(
        lab,
        HOLDS
        + """
with tandem.turn("a") as turn:
    block = device_memory(DEVICE, SIZE)
    block[:] = SAID
    tell(epoch=turn.epoch)
    hear()
    tell(equal=block[:] == SAID)
    block.close()
with tandem.turn("a") as turn:
    tell(epoch=turn.epoch)
""",
        DEVICE=str(gpu(lab, arbiter)),
    )
    a.out.wait_for(epoch=1)
    assert witnessed(a, gpu(lab, arbiter)) == SIZE
    assert b.acquire() == 2
    assert used(gpu(lab, arbiter)) == 0
    assert witnessed(a, gpu(lab, arbiter)) == 0
    assert stands_still(a.pid)
    b.yield_turn()
    goes_on(lab)
    go(a)
    assert a.out.wait_for(equal=True)
    assert a.out.wait(lambda line: line.get("epoch", 1) > 2)
    ends(a)
    told = [event["message"] for event in lab.events.seen if event.get("condition") == "Escalated"]
    assert len(told) == 2
    assert told[0].endswith("are to be frozen, what they hold moved to the host")
    assert told[1] == "a is frozen: what it held is on the host until its next turn"
    assert not list((lab.folder / "state" / "frozen").glob("*/*"))


def test_one_that_dies_while_it_is_frozen_leaves_nothing(lab: Node) -> None:
    """Nor does its worker, which the kernel lets go on when nobody is left above it."""
    arbiter = lab.arbiter()
    b = lab.tenant("b", "other")
    a = program(
        lab,
        HOLDS
        + """
import signal
with tandem.turn("a") as turn:
    block = device_memory(DEVICE, SIZE)
    if not os.fork():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        tell(worker=True)
        time.sleep(1000)
    tell(epoch=turn.epoch)
    hear()
""",
        DEVICE=str(gpu(lab, arbiter)),
    )
    a.out.wait_for(worker=True)
    a.out.wait_for(epoch=1)
    assert b.acquire() == 2
    a.popen.send_signal(signal.SIGKILL)
    lab.phase("a", "Gone")
    assert a.end() == -signal.SIGKILL  # and nobody has its output any more
    b.yield_turn()
    assert b.acquire() == 3


def test_one_that_holds_nothing_yet_takes_nothing_without_a_turn(lab: Node) -> None:
    arbiter = lab.arbiter()
    b = lab.tenant("b", "other")
    a = program(
        lab,
        HOLDS
        + """
with tandem.turn("a") as turn:
    tell(epoch=turn.epoch)
    hear()
    block = device_memory(DEVICE, SIZE)
    tell(held=True)
    hear()
""",
        DEVICE=str(gpu(lab, arbiter)),
    )
    a.out.wait_for(epoch=1)
    assert b.acquire() == 2
    assert stands_still(a.pid)
    b.yield_turn()
    goes_on(lab)
    go(a)
    a.out.wait_for(held=True)


# -- the device alone ---------------------------------------------------------------------------


@pytest.fixture
def device(lab: Node) -> SimulatedDevice:
    return SimulatedDevice("gpu0", gpu(lab, lab.arbiter()))


@pytest.fixture
def holder(lab: Node, device: SimulatedDevice) -> Child:
    """It has most of the device, and a child of its that inherited that."""
    source = """
block = device_memory(DEVICE, SIZE)
block[:] = SAID
parent = os.fork()
if not parent:
    time.sleep(1000)
tell(child=parent)
hear()
tell(equal=block[:] == SAID)
os.kill(parent, 9)
"""
    return program(lab, HOLDS + source, DEVICE=str(device._directory))


def test_what_is_frozen_comes_back(device: SimulatedDevice, holder: Child, tmp_path: Path) -> None:
    pids = [holder.pid, holder.out.wait(lambda line: "child" in line)["child"]]
    assert device.freeze(lambda: pids, tmp_path / "a") == SIZE
    assert device.freeze(lambda: pids, tmp_path / "a") == SIZE
    assert device.read().used == 0
    assert not device.holders().keys() & set(pids)
    assert all(map(stands_still, pids))
    go(holder)
    device.thaw(lives, tmp_path / "a")
    assert holder.out.wait_for(equal=True)
    assert not (tmp_path / "a").exists()
    device.thaw(lives, tmp_path / "a")
    ends(holder)


def test_without_room_it_stays_frozen(
    device: SimulatedDevice, holder: Child, tmp_path: Path
) -> None:
    pids = [holder.pid, holder.out.wait(lambda line: "child" in line)["child"]]
    device.freeze(lambda: pids, tmp_path / "a")
    other = device_memory(str(device._directory), DEVICE_SIZE - SIZE // 2)
    with pytest.raises(NoRoom, match=r"gpu0: processes cannot be thawed: .*No space left"):
        device.thaw(lives, tmp_path / "a")
    assert all(map(stands_still, pids))
    device.freeze(lambda: pids, tmp_path / "a")
    assert device.read().used == DEVICE_SIZE - SIZE // 2
    other.close()
    device.thaw(lives, tmp_path / "a")
    go(holder)
    assert holder.out.wait_for(equal=True)
    ends(holder)


def test_one_that_cannot_be_saved_goes_on(
    device: SimulatedDevice, holder: Child, tmp_path: Path
) -> None:
    pids = [holder.pid, holder.out.wait(lambda line: "child" in line)["child"]]
    (tmp_path / "file").touch()
    with pytest.raises(DeviceError, match=r"gpu0: processes cannot be frozen: .*Not a directory"):
        device.freeze(lambda: pids, tmp_path / "file" / "a")
    assert not any(map(stands_still, pids))
    go(holder)
    assert holder.out.wait_for(equal=True)
    ends(holder)


def test_a_child_that_is_forked_meanwhile_is_frozen_too(
    device: SimulatedDevice, holder: Child, tmp_path: Path
) -> None:
    child = holder.out.wait(lambda line: "child" in line)["child"]
    asked: list[int] = []

    def of_tenant() -> list[int]:
        asked.append(1)
        return [holder.pid] if len(asked) == 1 else [holder.pid, child]

    device.freeze(of_tenant, tmp_path / "a")
    assert stands_still(child)
    device.thaw(lives, tmp_path / "a")
    go(holder)
    assert holder.out.wait_for(equal=True)
    ends(holder)


def test_memory_that_others_map_too_stays(
    device: SimulatedDevice, holder: Child, tmp_path: Path
) -> None:
    child = holder.out.wait(lambda line: "child" in line)["child"]
    with pytest.raises(DeviceError, match=rf"process {child} maps some of its memory too"):
        device.freeze(lambda: [holder.pid], tmp_path / "a")
    assert not stands_still(holder.pid)
    go(holder)
    assert holder.out.wait_for(equal=True)
    ends(holder)


def test_another_file_behind_the_same_addresses_is_not_written(
    lab: Node, device: SimulatedDevice, tmp_path: Path
) -> None:
    """Root opens what a tenant maps: not whatever it is."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"x" * 4096)
    source = """
import ctypes, mmap, signal
block = device_memory(DEVICE, 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(block))
fd = os.open(os.environ["VICTIM"], os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
def another(*_):
    FIXED = 0x10
    assert libc.mmap(address, 4096, mmap.PROT_READ, mmap.MAP_SHARED | FIXED, fd, 0) == address
    tell(mapped=True)
signal.signal(signal.SIGCONT, another)
tell(ready=True)
while True:
    time.sleep(0.01)
"""
    holder = program(lab, HOLDS + source, DEVICE=str(device._directory), VICTIM=str(victim))
    holder.out.wait_for(ready=True)
    device.freeze(lambda: [holder.pid], tmp_path / "a")
    holder.popen.send_signal(signal.SIGCONT)
    holder.out.wait_for(mapped=True)
    with pytest.raises(DeviceError, match=r"process \d+ did not stand still"):
        device.thaw(lives, tmp_path / "a")
    assert victim.read_bytes() == b"x" * 4096


def test_one_that_goes_on_all_the_same_dies(
    device: SimulatedDevice, holder: Child, tmp_path: Path
) -> None:
    """It would compute with zeros."""
    child = holder.out.wait(lambda line: "child" in line)["child"]
    device.freeze(lambda: [holder.pid, child], tmp_path / "a")
    go(holder)
    holder.popen.send_signal(signal.SIGCONT)
    assert holder.popen.wait() == -signal.SIGBUS
    device.thaw(lives, tmp_path / "a")
    os.kill(child, signal.SIGKILL)


def test_what_has_holes_keeps_them(lab: Node, device: SimulatedDevice, tmp_path: Path) -> None:
    """Neither the disk nor the device has room for what it never wrote."""
    source = """
fd = os.open(DEVICE, os.O_TMPFILE | os.O_RDWR, 0o600)
os.ftruncate(fd, 1 << 40)
import mmap
block = mmap.mmap(fd, 4096)
block[:] = SAID[:4096]
tell(ready=True)
hear()
tell(equal=block[:] == SAID[:4096], size=os.fstat(fd).st_size)
"""
    sparse = program(lab, HOLDS + source, DEVICE=str(device._directory))
    sparse.out.wait_for(ready=True)
    assert device.freeze(lambda: [sparse.pid], tmp_path / "a") == 4096
    assert sum(file.stat().st_blocks * 512 for file in (tmp_path / "a").iterdir()) < 1 << 20
    device.thaw(lives, tmp_path / "a")
    assert device.read().used == 4096
    go(sparse)
    assert sparse.out.wait_for(equal=True)["size"] == 1 << 40
    ends(sparse)


def test_what_the_disk_has_no_room_for_is_not_frozen(
    device: SimulatedDevice, holder: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = [holder.pid, holder.out.wait(lambda line: "child" in line)["child"]]
    monkeypatch.setattr(freezing, "DISK_RESERVE", 1 << 60)
    with pytest.raises(DeviceError, match=r"the disk of .* has no room for what they hold"):
        device.freeze(lambda: pids, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    go(holder)
    ends(holder)


def test_what_is_mapped_privately_is_not_frozen(
    lab: Node, device: SimulatedDevice, tmp_path: Path
) -> None:
    """What was written there is in no file."""
    source = """
import mmap
fd = os.open(DEVICE, os.O_TMPFILE | os.O_RDWR, 0o600)
os.posix_fallocate(fd, 0, 4096)
block = mmap.mmap(fd, 4096, mmap.MAP_PRIVATE)
block[:] = SAID[:4096]
tell(ready=True)
hear()
tell(equal=block[:] == SAID[:4096])
"""
    private = program(lab, HOLDS + source, DEVICE=str(device._directory))
    private.out.wait_for(ready=True)
    with pytest.raises(DeviceError, match=r"maps some of its memory privately"):
        device.freeze(lambda: [private.pid], tmp_path / "a")
    go(private)
    assert private.out.wait_for(equal=True)
    ends(private)


def test_one_that_forks_without_end_is_not_stopped_for_ever(
    device: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that it is asked who they are, there is one more."""
    monkeypatch.setattr(freezing, "STOPS_WITHIN_S", 0.2)
    children: list[subprocess.Popen[bytes]] = []

    def of_tenant() -> list[int]:
        children.append(subprocess.Popen(["sleep", "1000"]))
        return [child.pid for child in children]

    with pytest.raises(DeviceError, match=r"did not stop in 0\.2 s"):
        device.freeze(of_tenant, tmp_path / "a")
    assert not any(stands_still(child.pid) for child in children)
    for child in children:
        child.kill()
        child.wait()


def test_a_pid_that_became_anothers_is_not_touched(
    device: SimulatedDevice, holder: Child, tmp_path: Path
) -> None:
    """Its owner is asked for again, once its start is known."""
    child = holder.out.wait(lambda line: "child" in line)["child"]
    asked: list[int] = []

    def of_tenant() -> list[int]:
        asked.append(1)
        return [holder.pid, child] if len(asked) == 1 else []

    with pytest.raises(DeviceError, match="its processes have ended"):
        device.freeze(of_tenant, tmp_path / "a")
    assert not stands_still(holder.pid)
    go(holder)
    ends(holder)


def test_one_that_was_let_go_on_while_it_was_saved_is_not_frozen(
    device: SimulatedDevice, holder: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = [holder.pid, holder.out.wait(lambda line: "child" in line)["child"]]
    saves = freezing._save

    def save(*arguments: Any) -> None:
        saves(*arguments)
        os.kill(pids[1], signal.SIGCONT)

    monkeypatch.setattr(freezing, "_save", save)
    with pytest.raises(DeviceError, match=rf"process {pids[1]} did not stand still"):
        device.freeze(lambda: pids, tmp_path / "a")
    go(holder)
    assert holder.out.wait_for(equal=True)
    ends(holder)


def test_those_that_were_only_stopped_go_on_without_their_device(
    device: SimulatedDevice, holder: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver died before it had saved anything, and nothing is mounted when it is back."""
    pids = [holder.pid, holder.out.wait(lambda line: "child" in line)["child"]]

    class Died(BaseException):
        pass

    def dies(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(freezing, "_save", dies)
        patched.setattr(freezing, "thaw", dies)
        with pytest.raises(Died):
            device.freeze(lambda: pids, tmp_path / "a")
    assert all(map(stands_still, pids))
    (tmp_path / "nothing").mkdir()
    assert SimulatedDevice("gpu0", tmp_path / "nothing").settle(tmp_path / "a") is None
    go(holder)
    assert holder.out.wait_for(equal=True)
    ends(holder)


def test_a_thaw_that_was_cut_short_is_settled(
    device: SimulatedDevice, holder: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver died when all was back, and nobody knew."""
    pids = [holder.pid, holder.out.wait(lambda line: "child" in line)["child"]]
    device.freeze(lambda: pids, tmp_path / "a")
    with monkeypatch.context() as patched:
        patched.setattr(freezing, "go_on", lambda _: None)
        device.thaw(lives, tmp_path / "a")
    assert device.read().used == SIZE
    assert device.settle(tmp_path / "a") == SIZE
    assert device.read().used == 0
    device.thaw(lives, tmp_path / "a")
    go(holder)
    assert holder.out.wait_for(equal=True)
    ends(holder)


def test_one_of_those_that_are_frozen_may_die(
    device: SimulatedDevice, holder: Child, tmp_path: Path
) -> None:
    child = holder.out.wait(lambda line: "child" in line)["child"]
    device.freeze(lambda: [holder.pid, child], tmp_path / "a")
    os.kill(child, signal.SIGKILL)
    device.thaw(lives, tmp_path / "a")
    go(holder)
    assert holder.out.wait_for(equal=True)


def test_what_is_discarded_ends(device: SimulatedDevice, holder: Child, tmp_path: Path) -> None:
    pids = [holder.pid, holder.out.wait(lambda line: "child" in line)["child"]]
    device.freeze(lambda: pids, tmp_path / "a")
    device.discard(tmp_path / "a")
    assert holder.popen.wait() == -signal.SIGKILL
    assert not (tmp_path / "a").exists()


def test_one_whose_life_is_over_when_it_is_thawed_ends(
    device: SimulatedDevice, holder: Child, tmp_path: Path
) -> None:
    pids = [holder.pid, holder.out.wait(lambda line: "child" in line)["child"]]
    device.freeze(lambda: pids, tmp_path / "a")
    device.thaw(lambda: False, tmp_path / "a")
    assert holder.end() == -signal.SIGKILL  # and nobody has its output any more
    assert not (tmp_path / "a").exists()


def test_one_that_began_after_the_freeze_is_told(
    device: SimulatedDevice, holder: Child, tmp_path: Path
) -> None:
    """A container that was started again, say; it is not stopped, and the ladder goes on."""
    pids = [holder.pid, holder.out.wait(lambda line: "child" in line)["child"]]
    device.freeze(lambda: pids, tmp_path / "a")
    late = device_memory(str(device._directory), SIZE // 2)
    told = f"process {os.getpid()} began later, and holds memory of it"
    with pytest.raises(DeviceError, match=told):
        device.freeze(lambda: [*pids, os.getpid()], tmp_path / "a")
    late.close()
    assert all(map(stands_still, pids))
    device.thaw(lives, tmp_path / "a")
    go(holder)
    assert holder.out.wait_for(equal=True)
    ends(holder)
