"""The node's devices as a ResourceSlice (resource.k8s.io/v1), and keeping it published.

Kept level-triggered: the kubelet deletes a driver's slices when it starts, and when the driver was
away for half a minute.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

from dra_driver.cluster import ApiError
from dra_driver.names import DRIVER

log = logging.getLogger("tandem.slices")

AGAIN_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses after failures; the last one repeats."""


class Slices(Protocol):
    """Where slices are published. Raises ApiError."""

    async def node(self) -> dict[str, Any]: ...

    async def apply_slice(self, body: dict[str, Any]) -> dict[str, Any]: ...

    def slice_changes(self) -> AsyncIterator[None]: ...


def resource_slice(node: str, node_uid: str, devices: Mapping[str, int]) -> dict[str, Any]:
    """The slice of a node whose simulated devices have these sizes, in bytes."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": f"{node}-{DRIVER}",
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": node,
                    "uid": node_uid,
                    "controller": True,
                }
            ],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": name,
                    "attributes": {
                        "uuid": {"string": f"SIM-{node}-{name}"[:64]},
                        "simulated": {"bool": True},
                    },
                    "capacity": {"memory": {"value": str(size)}},
                }
                for name, size in sorted(devices.items())
            ],
        },
    }


def dropped(sent: object, got: object, where: str = "") -> list[str]:
    """The paths of what was sent and did not come back: their feature gate is off."""
    if isinstance(sent, Mapping) and isinstance(got, Mapping):
        inside = [
            (f"{where}.{key}".lstrip("."), value, got.get(key)) for key, value in sent.items()
        ]
    elif isinstance(sent, list) and isinstance(got, list) and len(sent) == len(got):
        inside = [(f"{where}[{n}]", *pair) for n, pair in enumerate(zip(sent, got, strict=True))]
    else:
        return [where] if got is None and sent is not None else []
    return [path for name, one, other in inside for path in dropped(one, other, name)]


async def keep_published(slices: Slices, node: str, devices: Mapping[str, int]) -> None:
    """Publish the slice, and again whenever it was changed or deleted. Never returns."""
    failures, version = 0, ""
    while True:
        try:
            wanted = resource_slice(node, (await slices.node())["metadata"]["uid"], devices)
            name = wanted["metadata"]["name"]
            async for _ in slices.slice_changes():
                got = await slices.apply_slice(wanted)
                failures = 0
                if got["metadata"]["resourceVersion"] != version:
                    version = got["metadata"]["resourceVersion"]
                    log.info("published %s", name)
                    if lost := dropped(wanted["spec"], got["spec"]):
                        log.error("%s: the API server dropped %s", name, ", ".join(lost))
            await asyncio.sleep(AGAIN_S[0])  # the watch is over, perhaps at once each time
        except ApiError as exc:
            pause_s = AGAIN_S[min(failures, len(AGAIN_S) - 1)]
            log.error("the devices are not published: %s; again in %g s", exc, pause_s)
            failures += 1
            await asyncio.sleep(pause_s)
