"""A turn that nobody else wants comes back without a look at the device: its reads are counted."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from claim_phases.turns import Limits
from dra_driver import node_file, serving
from dra_driver.devices import Blocks, Reading
from dra_driver.local import LocalRoster
from dra_driver.processes import Registry, process
from tests.unfrozen import Unfrozen
from workload_agents.session import Session


class CountedDevice(Unfrozen):
    """An empty device that counts how often it is looked at."""

    name = "gpu0"

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Reading:
        self.reads += 1
        return Reading(used=0, total=1 << 20)

    def holders(self) -> dict[int, Blocks]:
        self.reads += 1
        return {}


class Empty:
    """The memory of a tenant that holds none."""

    async def park(self) -> None:
        raise AssertionError("nobody else is there to park for")

    async def restore(self) -> int | None:
        return None


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose name is short enough for a socket in it."""
    made = Path(tempfile.mkdtemp(prefix="tandem-"))
    yield made
    shutil.rmtree(made)


async def test_a_turn_that_nobody_else_wants_comes_back_without_a_device_read(folder: Path) -> None:
    """This process is the only tenant of an arbiter on the same loop."""
    (folder / "claim").mkdir()
    me = {"pid": os.getpid(), "start_time": process(os.getpid()).start_time}
    (folder / "processes").write_text(json.dumps({"a": [me]}))
    spec = node_file.NodeSpec(
        folder / "state",
        folder / "events",
        folder / "processes",
        {},
        {
            "claim": node_file.ClaimSpec(
                folder / "claim", {"a": node_file.TenantSpec(("gpu0",), None, 0)}
            )
        },
        Limits(watch_s=3600.0),  # the look for intruders is not on this path
    )
    device = CountedDevice()
    roster = LocalRoster(spec, Registry(spec.processes))
    with serving.opened(spec.state_dir, {"gpu0": device}) as state:
        async with serving.arbitrating(
            *(state, {"gpu0": device}, roster, spec.limits, spec.events, lambda _: None),
            folder / "frozen",
        ) as running:
            await running.relay.serve("claim", folder / "claim")
            async with Session(folder / "claim" / "turns.sock", "a", Empty()) as session:
                at_first = device.reads
                assert await session.acquire() == 1
                granted = device.reads
                assert granted > at_first  # the first grant rests on a measurement
                for epoch in range(2, 12):
                    await session.yield_turn()
                    assert await session.acquire() == epoch
                assert device.reads == granted
