"""Whose memory is it when processes share it, or the one that holds it has begun to end?

On a real tmpfs a process whose first thread has ended, while another goes on, stays as one that is
killed is for an instant: its memory is in use, and its mappings are shown no more.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from claim_phases.events import Headroom
from claim_phases.node import Membership
from dra_driver import measuring
from dra_driver.devices import Blocks, Reading
from dra_driver.peers import Peer
from dra_driver.roster import NotAMember, Part
from tests.contract import simdevice_env
from tests.unfrozen import Unfrozen

MIB = 1 << 20

HOLDER = """
import ctypes, mmap, os, sys, threading
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fd, 0, 4 << 20)
held = mmap.mmap(fd, 4 << 20)
os.close(fd)
os.unlink(sys.argv[1])
libc = ctypes.CDLL(None)
threading.Thread(target=libc.pause).start()
os.write(1, b"holds\\n")
os.read(0, 1)
libc.pthread_exit(None)
"""

LOOKER = """
import os, subprocess, sys
from pathlib import Path
from dra_driver import measuring
from dra_driver.devices.simulated import SimulatedDevice
from tests.contract.test_measuring import HOLDER, MIB, OneTenant

folder = Path(os.environ["SIMDEVICE_DIR"])
device = SimulatedDevice("gpu0", folder)
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder / "held")], **pipes) as holder:
    roster = OneTenant(holder.pid)
    assert holder.stdout.readline() == b"holds\\n"
    usage = measuring.attributed(device, roster)
    assert (usage.tenants, usage.unknown, usage.ending) == ((("a", 4 * MIB),), 0, frozenset())

    holder.stdin.close()
    while Path(f"/proc/{holder.pid}/maps").read_bytes():
        os.sched_yield()
    usage = measuring.attributed(device, roster)
    assert (usage.tenants, usage.unknown, usage.ending) == ((), 4 * MIB, frozenset("a"))

    holder.kill()
assert measuring.attributed(device, roster).used == 0
"""


class OneTenant:
    """One process, of tenant a. Implements `roster.Roster`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def owners(self, pids: Iterable[int]) -> dict[int, str]:
        return {pid: "a" for pid in pids if pid == self._pid}

    def budget(self, tenant: str, device: str) -> int:
        return 0

    async def identify(self, peer: Peer) -> Membership:
        raise NotAMember("nobody says hello here")

    def headroom(self, who: Membership) -> Headroom | None:
        return None

    def tenant_of_caller(self, caller: str) -> str:
        return ""

    def life(self, who: Membership) -> tuple[Part, ...]:
        return ()

    def processes(self, who: Membership) -> frozenset[int]:
        return frozenset()


class Shares(Unfrozen):
    """A device of which processes hold these blocks."""

    name = "gpu0"

    def __init__(self, holders: Mapping[int, Blocks]) -> None:
        self._holders = dict(holders)

    def read(self) -> Reading:
        return Reading(used=7, total=10)

    def holders(self) -> dict[int, Blocks]:
        return self._holders


class Family(OneTenant):
    """Of these processes each is tenant a's."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids

    def owners(self, pids: Iterable[int]) -> dict[int, str]:
        return {pid: "a" for pid in pids if pid in self._pids}


def test_what_processes_share_since_a_fork_is_there_once() -> None:
    me, other = os.getpid(), os.getppid()
    device = Shares({me: {1: [(0, 3)], 2: [(0, 1)]}, other: {1: [(2, 4)], 3: [(5, 7)]}})
    theirs = measuring.attributed(device, Family(me, other))
    assert (theirs.tenants, theirs.foreign) == ((("a", 7),), 0)
    strangers = measuring.attributed(device, Family())
    assert (strangers.tenants, strangers.foreign) == ((), 7)


def test_who_ends_is_named_while_its_memory_is_nobody_s(tmp_path: Path) -> None:
    device = tmp_path / "gpu0"
    device.mkdir()
    done = subprocess.run(
        simdevice_env.on_device(device, 16 * MIB, [sys.executable, "-c", LOOKER]),
        env=simdevice_env.environment(device),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
