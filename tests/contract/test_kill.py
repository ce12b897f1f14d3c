"""Whom the ladder's `kill` kills: the tenant's, wherever they run, and not who has its pid next."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from claim_phases.node import Device, Node, Tenant
from claim_phases.turns import Limits, Turns
from dra_driver.arbiter import Arbiter
from dra_driver.devices import Blocks
from dra_driver.event_log import EventLog
from dra_driver.journal import Journal
from tests.contract.test_admission import Peers, Roster, life_of

WHO = life_of(1)


class Held:
    """A device that these processes hold memory of."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids

    def holders(self) -> dict[int, Blocks]:
        return {pid: {pid: [(0, 1)]} for pid in self._pids}


class Owners(Roster):
    """No part of the tenant runs any more; whose a process is, the test says each time."""

    def __init__(self, owner: Callable[[int], str]) -> None:
        super().__init__()
        self._owner = owner

    def owners(self, pids: Iterable[int]) -> dict[int, str]:
        return {pid: self._owner(pid) for pid in pids}


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


@pytest.fixture
def kill(tmp_path: Path) -> Callable[[Any, Roster], None]:
    def now(device: Any, roster: Roster) -> None:
        node = Node("boot", {"gpu-0": Device("gpu-0", 1)})
        node.tenants[WHO.tenant] = Tenant(WHO)
        with Journal(tmp_path / "journal", node.to_json()) as journal:
            arbiter = Arbiter(
                Turns(node, Limits()),
                journal,
                {"gpu-0": device},
                roster,
                Peers(),
                EventLog(tmp_path / "events", time.monotonic),
                time.monotonic,
                lambda _: None,
                tmp_path / "frozen",
            )
            arbiter._kill_all(WHO, WHO.devices)
            arbiter.close()

    return now


async def test_one_whose_parent_ended_is_found_by_what_it_holds(
    kill: Callable[[Any, Roster], None], child: "subprocess.Popen[bytes]"
) -> None:
    """An engine's worker that was orphaned: no part of the tenant leads to it."""
    kill(Held(child.pid), Owners(lambda _: WHO.tenant))
    assert child.wait(timeout=10) == -9


async def test_who_got_its_pid_meanwhile_lives(
    kill: Callable[[Any, Roster], None], child: "subprocess.Popen[bytes]"
) -> None:
    """Whose a pid is counts once it cannot become another's."""
    answers = iter([WHO.tenant, "ns/other"])
    kill(Held(child.pid), Owners(lambda _: next(answers)))
    assert child.poll() is None
    assert next(answers, None) is None, "it was asked twice"


async def test_who_holds_memory_for_another_lives(
    kill: Callable[[Any, Roster], None], child: "subprocess.Popen[bytes]"
) -> None:
    kill(Held(child.pid), Owners(lambda _: "ns/other"))
    assert child.poll() is None
