"""Tells in the API what happens: each claim's `status.devices`, and events on its pods.

For people to read: the turn itself is on the node. A claim's status is written at once when it was
not for a while, else every few seconds with the newest state: each write reaches every watcher of
claims.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from claim_phases.escalation import Step
from claim_phases.events import Condition, ConditionKind, PhaseChanged, Told
from claim_phases.node import Node, Tenant
from claim_phases.phases import HOLDING
from dra_driver.checkpoint import Allocated, Prepared
from dra_driver.cluster import ApiError
from dra_driver.names import CONFIG_API, DRIVER
from dra_driver.pods import pod_uid

log = logging.getLogger("tandem.status")

EVERY_S: Final = 2.0
AGAIN_S: Final = 60.0
"""The same about the same is told no more often."""

TOLD_MAX: Final = 1000
NOTICES_MAX: Final = 100
"""Events that may wait to be told; more are dropped, and that is logged."""

_WARNINGS: Final = frozenset(ConditionKind) - {ConditionKind.CLEARED, ConditionKind.REFUSED}
_OF_STATUS: Final = {
    ConditionKind.ESCALATED,
    ConditionKind.DEVICE_FAILED,
    ConditionKind.CLEARED,
}
"""Those that a claim's status tells of."""
_NOTE_MAX: Final = 1024  # bytes: events.k8s.io/v1


class Api(Protocol):
    """Where it is told. Raises ApiError."""

    async def apply_claim_status(self, namespace: str, name: str, body: dict[str, Any]) -> None: ...

    async def tell(self, event: dict[str, Any]) -> None: ...


def claim_status(
    prepared: Prepared, node: Node, now: datetime, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a server-side apply says of the claim; `before` is what the last one said."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": prepared.name, "namespace": prepared.namespace, "uid": prepared.uid},
        "status": {
            "devices": [
                _device(result, node, now, before["status"]["devices"][n] if before else None)
                for n, result in enumerate(prepared.results)
            ]
        },
    }


def _device(
    result: Allocated, node: Node, now: datetime, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    tenants = sorted(node.on(result.device), key=lambda tenant: tenant.name)
    holder = next((tenant for tenant in tenants if tenant.phase in HOLDING), None)
    held = {"type": "Held", "status": "False", "reason": "Free", "message": "nobody has the turn"}
    if failed := node.devices[result.device].failed:
        held |= {"reason": ConditionKind.DEVICE_FAILED.value, "message": f"no turn: {failed}"}
    if holder is not None:
        held |= {"status": "True", "reason": holder.phase.value, "message": _told(holder)}
    since = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    if before is not None and before["conditions"][0]["status"] == held["status"]:
        since = before["conditions"][0]["lastTransitionTime"]
    entry = {
        "driver": DRIVER,
        "pool": result.pool,
        "device": result.device,
        "conditions": [held | {"lastTransitionTime": since}],
        "data": {
            "apiVersion": CONFIG_API,
            "kind": "Turns",
            "epoch": node.epoch,
            "holder": "" if holder is None else holder.name,
            "tenants": [_tenant(tenant) for tenant in tenants],
        },
    }
    return entry if result.share is None else entry | {"shareID": result.share}


def _tenant(tenant: Tenant) -> dict[str, Any]:
    """`evict` is the UID of a pod that the cluster's controller is asked to evict."""
    told = {
        "name": tenant.name,
        "role": tenant.who.role,
        "phase": tenant.phase.value,
        "epoch": tenant.epoch,
    }
    return told | {"evict": pod_uid(tenant.who)} if Step.EVICT in tenant.steps else told


def _told(holder: Tenant) -> str:
    return f"{holder.name} ({holder.who.role}) is {holder.phase.value} in epoch {holder.epoch}"


def pod_event(condition: Condition, node: Node, name: str, now: datetime) -> dict[str, Any]:
    """An event (events.k8s.io/v1) on the tenant's pod, or on the Node called `name`."""
    tenant = node.tenants.get(condition.tenant or "")
    if tenant is not None:
        namespace, _, pod = tenant.name.partition("/")
        regarding = {"kind": "Pod", "namespace": namespace, "name": pod}
        regarding["uid"] = pod_uid(tenant.who)
    else:
        namespace, regarding = "default", {"kind": "Node", "name": name}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "tandem-", "namespace": namespace},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Warning" if condition.kind in _WARNINGS else "Normal",
        "reason": condition.kind.value,
        "action": "Turn",
        "note": condition.message.encode()[:_NOTE_MAX].decode(errors="ignore"),
        "regarding": {"apiVersion": "v1"} | regarding,
        "reportingController": DRIVER,
        "reportingInstance": name,
    }


class Teller:
    """Takes note of what the arbiter tells (`note`), and tells the API server (`run`)."""

    def __init__(
        self,
        api: Api,
        node: Node,
        name: str,
        claims: Iterable[Prepared],
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._node = node
        self._name = name
        self._claims = claims
        self._clock = clock
        self._changed = asyncio.Event()
        self._applied: dict[str, dict[str, Any]] = {}
        self._told: dict[tuple[ConditionKind, str | None, str | None], tuple[str, float]] = {}
        self._notices: asyncio.Queue[dict[str, Any]] = asyncio.Queue(NOTICES_MAX)

    def note(self, what: Told) -> None:
        """As `Arbiter`'s listener."""
        match what:
            case PhaseChanged():
                self._changed.set()
            case Condition(kind=ConditionKind.REFUSED):
                pass  # the one who was refused is told
            case Condition() if self._is_repeated(what):
                pass
            case Condition():
                if what.kind in _OF_STATUS:
                    self._changed.set()
                try:
                    self._notices.put_nowait(
                        pod_event(what, self._node, self._name, datetime.now(UTC))
                    )
                except asyncio.QueueFull:
                    log.error("too many events wait for the API server; not told: %s", what.message)
            case _:
                pass

    def _is_repeated(self, what: Condition) -> bool:
        """A pod that does the same wrong again and again is told so once in a while."""
        about = (what.kind, what.tenant, what.device)
        now = self._clock()
        message, at = self._told.get(about, ("", -AGAIN_S))
        if message == what.message and now - at < AGAIN_S:
            return True
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told[about] = (what.message, now)
        return False

    def forget(self, claim: str) -> None:
        """The claim, by UID, is not prepared any more: the API server clears its status."""
        self._applied.pop(claim, None)

    async def run(self) -> None:
        """Tell until cancelled; first of all how it is now: the last driver may not have told."""
        self._changed.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_status())
            tasks.create_task(self._send_notices())

    async def _keep_status(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            for prepared in (one for one in self._claims if not one.admin):
                await self._apply(prepared)
            await asyncio.sleep(EVERY_S)

    async def _apply(self, prepared: Prepared) -> None:
        before = self._applied.get(prepared.uid)
        body = claim_status(prepared, self._node, datetime.now(UTC), before)
        if body == before:
            return
        try:
            await self._api.apply_claim_status(prepared.namespace, prepared.name, body)
            self._applied[prepared.uid] = body
        except ApiError as exc:
            # A claim that is going away has no allocation any more, and so no devices.
            log.warning("the status of %s is not told: %s", prepared.told, exc)
            if exc.status in (0, 409, 429) or exc.status >= 500:
                self._changed.set()

    async def _send_notices(self) -> None:
        while True:
            notice = await self._notices.get()
            try:
                await self._api.tell(notice)
            except ApiError as exc:
                log.warning("an event is not told: %s", exc)
