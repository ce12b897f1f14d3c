"""Publishing devices: what is sent, what was dropped, and again whenever it changed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dra_driver.slices import dropped, keep_published, resource_slice

SENT = resource_slice("node-1", "a-uid", {"gpu-1": 5, "gpu-0": 232 << 20})


def test_the_node_owns_its_slice() -> None:
    (owner,) = SENT["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node-1", "a-uid")
    assert [device["name"] for device in SENT["spec"]["devices"]] == ["gpu-0", "gpu-1"]
    assert SENT["spec"]["pool"]["name"] == "node-1"


def test_a_field_that_did_not_come_back_is_named() -> None:
    got = resource_slice("node-1", "a-uid", {"gpu-1": 5, "gpu-0": 232 << 20})
    got["spec"]["devices"][1] = {"name": "gpu-1", "attributes": {}}
    assert dropped(SENT["spec"], got["spec"] | {"more": 1}) == [
        "devices[1].attributes.uuid",
        "devices[1].attributes.simulated",
        "devices[1].capacity",
    ]


class ApiServer:
    """Hands out changes, one by one, as the test says."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[None] = asyncio.Queue()
        self.applied: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def node(self) -> dict[str, Any]:
        return {"metadata": {"uid": "a-uid"}}

    async def apply_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        self.applied.put_nowait(body)
        return {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}

    async def slice_changes(self) -> AsyncIterator[None]:
        while True:
            await self.changes.get()
            yield


async def test_a_slice_that_was_deleted_is_published_again() -> None:
    api = ApiServer()
    publishing = asyncio.create_task(keep_published(api, "node-1", {"gpu-0": 5}))
    for _ in range(3):
        api.changes.put_nowait(None)
        applied = await api.applied.get()
        assert applied["metadata"]["name"] == "node-1-tandem-gpu.io"
    publishing.cancel()
