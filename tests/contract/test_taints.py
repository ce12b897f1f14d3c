"""Devices are tainted while something is wrong with them: a real arbiter, real HTTP."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api_server import ApiServer
from tests.contract.node_lab import Child, Node, node

SLICE = "/apis/resource.k8s.io/v1/resourceslices/node-1-tandem-gpu.io"
FAULTED, FOREIGN = "tandem-gpu.io/faulted", "tandem-gpu.io/foreign-memory"
LADDER = [
    {"step": "taint-no-schedule", "after_s": 0.01},
    {"step": "taint-no-execute", "after_s": 0.01},
]


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """It has the node."""
    async with ApiServer().serving() as made:
        await made.put("/api/v1/nodes/node-1", {"metadata": {"name": "node-1", "uid": "a-uid"}})
        yield made


@pytest.fixture
def lab() -> Iterator[Node]:
    with node(lease_s=0.2, watch_s=0.05) as made:
        yield made


async def start(lab: Node, api: ApiServer) -> Child:
    module = "tests.contract.tainting_arbiter"
    return await asyncio.to_thread(lab.arbiter, "--api", api.url, module=module)


async def tainted(api: ApiServer, *taints: tuple[str, str]) -> None:
    """Wait until the device has these taints and no others."""
    await api.until(lambda: SLICE in api.objects and _taints(api.objects[SLICE]) == set(taints))


def _taints(published: dict[str, Any]) -> set[tuple[str, str]]:
    (device,) = published["spec"]["devices"]
    return {(taint["key"], taint["effect"]) for taint in device.get("taints", [])}


async def hang(lab: Node, api: ApiServer) -> Child:
    """A tenant with the turn is stopped, which is found out when the arbiter starts again."""
    arbiter = await start(lab, api)
    await tainted(api)
    tenant = await asyncio.to_thread(lab.tenant, "a")
    assert await asyncio.to_thread(tenant.acquire) == 1
    tenant.popen.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(arbiter.kill)
    return tenant


async def test_a_device_is_tainted_until_the_tenant_at_fault_has_left_it(
    lab: Node, api: ApiServer
) -> None:
    lab.claim("claim", "a", escalation=LADDER)
    tenant = await hang(lab, api)
    arbiter = await start(lab, api)
    await tainted(api, (FAULTED, "NoSchedule"), (FAULTED, "NoExecute"))
    await asyncio.to_thread(arbiter.kill)
    writes = api.requests.count(("patch", SLICE))
    await start(lab, api)
    await api.asked("patch", SLICE, writes + 1)
    tenant.popen.send_signal(signal.SIGKILL)
    await tainted(api)
    published = [_taints(one) for one in api.history(SLICE)]
    assert all(one != other for one, other in pairwise(published)), published  # each keeps its time


async def test_foreign_memory_keeps_pods_away_also_when_no_tenant_is_left(
    lab: Node, api: ApiServer
) -> None:
    lab.claim("claim", "a")
    arbiter = await start(lab, api)
    tenant = await asyncio.to_thread(lab.tenant, "a")
    held = Path(f"/proc/{arbiter.pid}/root{lab.devices['gpu0']}/held")
    await asyncio.to_thread(held.write_bytes, b"x" * 4096)
    await tainted(api, (FOREIGN, "NoSchedule"))
    await asyncio.to_thread(tenant.kill)
    await asyncio.to_thread(lab.phase, "a", "Gone")
    assert _taints(api.objects[SLICE]) == {(FOREIGN, "NoSchedule")}
    await asyncio.to_thread(held.unlink)
    await tainted(api)


async def test_where_the_api_server_drops_taints_it_is_told_and_the_ladder_goes_on(
    lab: Node, api: ApiServer
) -> None:
    api.takes_taints = False
    lab.claim("claim", "a", escalation=[*LADDER, {"step": "kill", "after_s": 0.01}])
    tenant = await hang(lab, api)
    await start(lab, api)
    without = f"gpu0 is without the taint {FAULTED}:NoSchedule"
    told = await asyncio.to_thread(lab.events.wait, lambda line: without in line.get("message", ""))
    assert (told["condition"], told["device"], told["tenant"]) == ("NotTainted", "gpu0", None)
    assert await asyncio.to_thread(tenant.end) == -signal.SIGKILL
    assert _taints(api.objects[SLICE]) == set()
