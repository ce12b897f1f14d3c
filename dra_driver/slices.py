"""The node's devices as a ResourceSlice (resource.k8s.io/v1), and keeping it published.

Kept level-triggered: the kubelet deletes a driver's slices when it starts, and when the driver was
away for half a minute; and a device's taints come and go with what the node's record says of it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Protocol

from claim_phases.events import Condition, ConditionKind, Told
from claim_phases.node import Node
from claim_phases.taints import Taint, Taints, tainted
from dra_driver.cluster import ApiError
from dra_driver.names import DRIVER

log = logging.getLogger("tandem.slices")

AGAIN_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses after failures; the last one repeats."""


class Slices(Protocol):
    """Where slices are published. Raises ApiError."""

    async def node(self) -> dict[str, Any]: ...

    async def slice(self, name: str) -> dict[str, Any] | None: ...

    async def apply_slice(self, body: dict[str, Any]) -> dict[str, Any]: ...

    def slice_changes(self) -> AsyncIterator[None]: ...


def slice_name(node: str) -> str:
    """A node has one slice."""
    return f"{node}-{DRIVER}"


def resource_slice(
    node: str,
    node_uid: str,
    devices: Mapping[str, int],
    taints: Taints,
    before: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The slice of a node whose simulated devices have these sizes, in bytes.

    `before` is the one that is published: a taint that is in it keeps its time. Without one the API
    server would set its own at each write, and each write would be a change.
    """
    since = {} if before is None else _taints(before)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": slice_name(node),
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
                _device(node, name, size, taints.get(name, ()), since)
                for name, size in sorted(devices.items())
            ],
        },
    }


_Key = tuple[str, str, str]
"""A taint's device, key and effect."""


def _device(
    node: str, name: str, size: int, taints: tuple[Taint, ...], since: Mapping[_Key, str]
) -> dict[str, Any]:
    device = {
        "name": name,
        "attributes": {
            "uuid": {"string": f"SIM-{node}-{name}"[:64]},
            "simulated": {"bool": True},
        },
        "capacity": {"memory": {"value": str(size)}},
    }
    if not taints:
        return device
    return device | {"taints": [_taint(name, taint, since) for taint in taints]}


def _taint(device: str, taint: Taint, since: Mapping[_Key, str]) -> dict[str, str]:
    told = {"key": f"{DRIVER}/{taint.reason}", "effect": taint.effect.value}
    at = since.get((device, told["key"], told["effect"]))
    return told | {"timeAdded": at} if at else told


def _taints(body: Mapping[str, Any]) -> dict[_Key, str]:
    """The taints of a slice with the times when they were added; empty before it was published."""
    return {
        (device["name"], taint["key"], taint["effect"]): taint.get("timeAdded", "")
        for device in body["spec"].get("devices") or ()
        for taint in device.get("taints", ())
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


class Publisher:
    """Keeps the node's slice as it should be: its devices, of these sizes in bytes, with taints."""

    def __init__(self, slices: Slices, node: Node, name: str, devices: Mapping[str, int]) -> None:
        self._slices = slices
        self._node = node
        self._name = name
        self._devices = devices
        self._taints: Taints | None = None
        self._due = asyncio.Event()
        self._refused: set[_Key] = set()
        self._failures = 0
        self._version = ""

    def note(self, what: Told) -> None:
        """As `Arbiter`'s listener: after any of it the taints may be others."""
        if self._taints is not None and tainted(self._node) != self._taints:
            self._due.set()

    async def run(self, tell: Callable[[Condition], None]) -> None:
        """Publish until cancelled; `tell` hears of taints that cannot be."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._publish(tell))

    async def _watch(self) -> None:
        while True:
            try:
                async for _ in self._slices.slice_changes():
                    self._due.set()
                await asyncio.sleep(AGAIN_S[0])  # the watch is over, perhaps at once each time
            except ApiError as exc:
                await self._pause(exc)

    async def _publish(self, tell: Callable[[Condition], None]) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                for told in await self._apply():
                    tell(told)
            except ApiError as exc:
                self._due.set()
                await self._pause(exc)

    async def _apply(self) -> list[Condition]:
        """Publish it as it is now; return what there is to tell of it."""
        uid = (await self._slices.node())["metadata"]["uid"]
        before = await self._slices.slice(slice_name(self._name))
        self._taints = tainted(self._node)
        wanted = resource_slice(self._name, uid, self._devices, self._taints, before)
        got = await self._slices.apply_slice(wanted)
        self._failures = 0
        if got["metadata"]["resourceVersion"] != self._version:
            self._version = got["metadata"]["resourceVersion"]
            log.info("published %s", slice_name(self._name))
            if lost := dropped(wanted["spec"], got["spec"]):
                log.error("%s: the API server dropped %s", slice_name(self._name), ", ".join(lost))
        refused = set(_taints(wanted)) - set(_taints(got))
        new, self._refused = refused - self._refused, refused
        return [_not_tainted(*one) for one in sorted(new)]

    async def _pause(self, exc: ApiError) -> None:
        pause_s = AGAIN_S[min(self._failures, len(AGAIN_S) - 1)]
        log.error("the devices are not published: %s; again in %g s", exc, pause_s)
        self._failures += 1
        await asyncio.sleep(pause_s)


def _not_tainted(device: str, key: str, effect: str) -> Condition:
    message = (
        f"{device} is without the taint {key}:{effect}, since the API server drops device taints: "
        f"turn its feature gate DRADeviceTaints on, as it is from Kubernetes 1.36 on"
    )
    return Condition(ConditionKind.NOT_TAINTED, message, device=device)
