"""Publishing devices: what is sent, what was dropped, and again whenever it changed."""

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from claim_phases.events import Condition, ConditionKind
from claim_phases.node import Device, Node
from claim_phases.taints import Reason, Taint, TaintEffect, Taints
from dra_driver.slices import Publisher, dropped, resource_slice

SIZES = {"gpu-1": 5, "gpu-0": 232 << 20}
SENT = resource_slice("node-1", "a-uid", SIZES, {}, None)
TAINTS: Taints = {
    "gpu-0": (
        Taint(Reason.FAULTED, TaintEffect.NO_SCHEDULE),
        Taint(Reason.FAULTED, TaintEffect.NO_EXECUTE),
    )
}


def test_the_node_owns_its_slice() -> None:
    (owner,) = SENT["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node-1", "a-uid")
    assert [device["name"] for device in SENT["spec"]["devices"]] == ["gpu-0", "gpu-1"]
    assert SENT["spec"]["pool"]["name"] == "node-1"


def test_a_device_that_is_tainted_says_so_and_no_other_does() -> None:
    one, other = resource_slice("node-1", "a-uid", SIZES, TAINTS, None)["spec"]["devices"]
    assert one["taints"] == [
        {"key": "tandem-gpu.io/faulted", "effect": "NoSchedule"},
        {"key": "tandem-gpu.io/faulted", "effect": "NoExecute"},
    ]
    assert "taints" not in other


def test_a_taint_that_is_published_keeps_its_time() -> None:
    published = resource_slice("node-1", "a-uid", SIZES, TAINTS, None)
    first, _ = published["spec"]["devices"][0]["taints"]
    first["timeAdded"] = "2026-11-30T01:02:03Z"
    again = resource_slice("node-1", "a-uid", SIZES, TAINTS, published)
    assert [taint.get("timeAdded") for taint in again["spec"]["devices"][0]["taints"]] == [
        "2026-11-30T01:02:03Z",
        None,
    ]


def test_a_field_that_did_not_come_back_is_named() -> None:
    got = copy.deepcopy(SENT)
    got["spec"]["devices"][1] = {"name": "gpu-1", "attributes": {}}
    assert dropped(SENT["spec"], got["spec"] | {"more": 1}) == [
        "devices[1].attributes.uuid",
        "devices[1].attributes.simulated",
        "devices[1].capacity",
    ]


@dataclass
class ApiServer:
    """Hands out changes, one by one, as the test says. Keeps taints only where it takes them."""

    takes_taints: bool = True
    changes: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    applied: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)

    async def node(self) -> dict[str, Any]:
        return {"metadata": {"uid": "a-uid"}}

    async def slice(self, name: str) -> dict[str, Any] | None:
        return None

    async def apply_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        self.applied.put_nowait(body)
        got = copy.deepcopy(body)
        for device in got["spec"]["devices"]:
            if not self.takes_taints:
                device.pop("taints", None)
        return {**got, "metadata": {**got["metadata"], "resourceVersion": "1"}}

    async def slice_changes(self) -> AsyncIterator[None]:
        while True:
            await self.changes.get()
            yield

    async def taints(self) -> list[dict[str, str]]:
        """Those of the next slice that is applied."""
        applied = await self.applied.get()
        return list(applied["spec"]["devices"][0].get("taints", []))


@asynccontextmanager
async def publishing(
    api: ApiServer, node: Node
) -> AsyncIterator[tuple[Publisher, list[Condition]]]:
    """A publisher that runs, and what it tells."""
    told: list[Condition] = []
    publisher = Publisher(api, node, "node-1", {"gpu-0": 100})
    running = asyncio.create_task(publisher.run(told.append))
    yield publisher, told
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def a_node(foreign: int = 0) -> Node:
    return Node("boot", {"gpu-0": Device("gpu-0", 100, foreign=foreign)})


NOTHING = Condition(ConditionKind.CLEARED, "whatever is told: the record says it")
FOREIGN = [{"key": "tandem-gpu.io/foreign-memory", "effect": "NoSchedule"}]


async def test_a_slice_that_was_deleted_is_published_again() -> None:
    api = ApiServer()
    async with publishing(api, a_node()):
        for _ in range(3):
            api.changes.put_nowait(None)
            applied = await api.applied.get()
            assert applied["metadata"]["name"] == "node-1-tandem-gpu.io"


async def test_taints_come_and_go_with_the_record() -> None:
    api, node = ApiServer(), a_node()
    async with publishing(api, node) as (publisher, told):
        api.changes.put_nowait(None)
        assert await api.taints() == []
        publisher.note(NOTHING)  # nothing is different, and so nothing is written
        node.devices["gpu-0"].foreign = 7
        publisher.note(NOTHING)
        assert await api.taints() == FOREIGN
        node.devices["gpu-0"].foreign = 0
        publisher.note(NOTHING)
        assert await api.taints() == []
        assert told == []
    assert api.applied.empty()


async def test_a_driver_that_starts_publishes_the_taints_of_the_record() -> None:
    api = ApiServer()
    async with publishing(api, a_node(foreign=7)) as (publisher, _):
        publisher.note(NOTHING)  # before it knows what is published
        api.changes.put_nowait(None)
        assert await api.taints() == FOREIGN
    assert api.applied.empty()


async def test_an_api_server_without_device_taints_is_told_of_once() -> None:
    api, node = ApiServer(takes_taints=False), a_node(foreign=7)
    async with publishing(api, node) as (publisher, told):
        for _ in range(3):
            api.changes.put_nowait(None)
            assert await api.taints() == FOREIGN
        (first,) = told
        assert (first.kind, first.device) == (ConditionKind.NOT_TAINTED, "gpu-0")
        assert first.message == (
            "gpu-0 is without the taint tandem-gpu.io/foreign-memory:NoSchedule, since the API "
            "server drops device taints: turn its feature gate DRADeviceTaints on, as it is from "
            "Kubernetes 1.36 on"
        )
        node.devices["gpu-0"].foreign = 0
        publisher.note(NOTHING)
        assert await api.taints() == []
        node.devices["gpu-0"].foreign = 7  # another time is told of again
        publisher.note(NOTHING)
        assert await api.taints() == FOREIGN
        api.changes.put_nowait(None)
        await api.taints()
        assert told == [first, first]
