"""The one module that talks to Kubernetes: lists, watches, patches, events, as raw dicts.

A typed model would drop the fields that it does not know.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, Never, Protocol

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration

from scheduler_extender.backoff import LONGEST_S, delay_s
from scheduler_extender.errors import ApiError
from scheduler_extender.names import DOMAIN, DRIVER, GATE, NAMESPACE
from scheduler_extender.objects import Pod, Raw

log = logging.getLogger(__name__)

TLS_SECRET: Final = "tandem-extender-tls"  # noqa: S105 - its name
WEBHOOK_CONFIGURATION: Final = "tandem-extender"
WEBHOOK: Final = f"pods.{DOMAIN}"
CONTAINER: Final = "extender"
"""Of our own pod: the one whose image the sidecars run too."""

ANSWER_WITHIN_S: Final = 30.0
RELIST_EVERY_S: Final = 240
"""A watch lasts so long; then everything is listed anew, so that nothing missed stays missed."""
SILENT_FOR_S: Final = 120.0
"""A bookmark comes about once a minute: what is silent for longer may have lost its connection."""
PAGE: Final = 500

_RESOURCE: Final = "/apis/resource.k8s.io/v1"
_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"
_EVENT_NAME_MAX: Final = 253

_JSON: Final = "application/json"
_JSON_PATCH: Final = "application/json-patch+json"
_MERGE_PATCH: Final = "application/merge-patch+json"
_STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"


class Sink(Protocol):
    """Takes over what is listed and watched."""

    def replace(self, raws: Iterable[Raw]) -> None:
        """These are all that there are."""

    def put(self, raw: Raw) -> None:
        """One is new or was changed."""

    def drop(self, raw: Raw) -> None:
        """One is gone."""


class Cluster:
    """What the extender asks of the API server and tells it. All but `follow` raise ApiError."""

    def __init__(self, api: ApiClient, instance: str) -> None:
        self._api = api
        self._instance = instance

    async def version(self) -> tuple[int, int]:
        """The API server's, major and minor."""
        told = await self._call("GET", "/version")
        # A provider may write the minor as `36+`.
        major, minor = (re.match(r"\d+", str(told[part])) for part in ("major", "minor"))
        if major is None or minor is None:
            raise ApiError(f"GET /version: there is no version in {told!r}")
        return int(major.group()), int(minor.group())

    async def own_image(self) -> str:
        """The image that this pod runs."""
        pod = await self._call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{self._instance}")
        return next(
            str(container["image"])
            for container in pod["spec"]["containers"]
            if container["name"] == CONTAINER
        )

    # -- watching -------------------------------------------------------------------------------

    async def follow_pods(self, sink: Sink) -> Never:
        """Every pod that has not ended."""
        selector = "status.phase!=Succeeded,status.phase!=Failed"
        await self._follow("/api/v1/pods", selector, sink)

    async def follow_nodes(self, sink: Sink) -> Never:
        """Every node."""
        await self._follow("/api/v1/nodes", "", sink)

    async def follow_claims(self, sink: Sink) -> Never:
        """Every ResourceClaim."""
        await self._follow(f"{_RESOURCE}/resourceclaims", "", sink)

    async def follow_slices(self, sink: Sink) -> Never:
        """The ResourceSlices of our driver."""
        await self._follow(f"{_RESOURCE}/resourceslices", f"spec.driver={DRIVER}", sink)

    async def follow_secret(self, sink: Sink) -> Never:
        """The Secret with our certificate."""
        await self._follow(_SECRETS, f"metadata.name={TLS_SECRET}", sink)

    async def follow_webhook(self, sink: Sink) -> Never:
        """The configuration of our webhook."""
        await self._follow(_WEBHOOKS, f"metadata.name={WEBHOOK_CONFIGURATION}", sink)

    async def _follow(self, path: str, fields: str, sink: Sink) -> Never:
        """Keep `sink` as the API server has it; whatever breaks is begun anew with a list."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            began = clock()
            try:
                version = await self._list(path, fields, sink)
                await self._watch(path, fields, version, sink)
                failures = 0
            except ApiError as exc:
                failures = failures + 1 if clock() < began + LONGEST_S else 1
                log.warning("%s; listed again in %g s", exc, delay_s(failures))
                await asyncio.sleep(delay_s(failures))

    async def _list(self, path: str, fields: str, sink: Sink) -> str:
        query = {"fieldSelector": fields, "limit": str(PAGE)}
        items: list[Raw] = []
        while True:
            page = await self._call("GET", path, query=query)
            items += page["items"]
            if not (token := page["metadata"].get("continue")):
                break
            query["continue"] = token
        sink.replace(items)
        return str(page["metadata"]["resourceVersion"])

    async def _watch(self, path: str, fields: str, version: str, sink: Sink) -> None:
        query = {
            "fieldSelector": fields,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(RELIST_EVERY_S),
        }
        timeout = aiohttp.ClientTimeout(sock_connect=ANSWER_WITHIN_S, sock_read=SILENT_FOR_S)
        async with self._opened("GET", path, query, timeout=timeout) as response:
            async for line in response.content:
                event = json.loads(line)
                match event["type"]:
                    case "ADDED" | "MODIFIED":
                        sink.put(event["object"])
                    case "DELETED":
                        sink.drop(event["object"])
                    case "ERROR" if event["object"].get("code") == 410:
                        return  # this version is too old for a watch
                    case "ERROR":
                        raise ApiError(f"watch of {path}: {event['object'].get('message')}")
                    case _:
                        pass  # a bookmark

    # -- pods -----------------------------------------------------------------------------------

    async def remove_gate(self, pod: Pod) -> None:
        """Remove our gate, and no other, from this pod, and from no other of its name."""
        gate = f"/spec/schedulingGates/{pod.gates.index(GATE)}"
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            {"op": "test", "path": f"{gate}/name", "value": GATE},
            {"op": "remove", "path": gate},
        ]
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        await self._call("PATCH", path, body=patch, content_type=_JSON_PATCH)

    async def evict(self, pod: Pod) -> None:
        """Evict this pod, and no other of its name; 429 while a PodDisruptionBudget forbids it."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        await self._call("POST", path, body=eviction)

    async def tell(self, pod: Pod, reason: str, message: str, *, warning: bool) -> None:
        """Make it an event on the pod; the same told again, after a restart say, is counted there.

        The event's name says what it tells, so that no memory of ours is needed for that.
        """
        events = f"/apis/events.k8s.io/v1/namespaces/{pod.namespace}/events"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        digest = hashlib.sha256(f"{pod.uid} {reason} {message}".encode()).hexdigest()[:16]
        name = f"{pod.name[: _EVENT_NAME_MAX - 17].rstrip('-.')}.{digest}"
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": pod.namespace},
            "eventTime": now,
            "reportingController": f"{DOMAIN}/extender",
            "reportingInstance": self._instance,
            "action": "Pairing",
            "reason": reason,
            "note": message,
            "type": "Warning" if warning else "Normal",
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
        }
        try:
            await self._call("POST", events, body=event)
        except ApiError as exc:
            if not exc.conflict:
                raise
            before = await self._call("GET", f"{events}/{name}")
            count = before.get("series", {}).get("count", 1) + 1
            series = {"series": {"count": count, "lastObservedTime": now}}
            path = f"{events}/{name}"
            await self._call("PATCH", path, body=series, content_type=_MERGE_PATCH)

    # -- our certificate ------------------------------------------------------------------------

    async def secret(self) -> Raw | None:
        """The Secret with our certificate, None when there is none."""
        return await self._asked(f"{_SECRETS}/{TLS_SECRET}")

    async def create_secret(self, data: Mapping[str, str]) -> None:
        """Create it; `data` in base64. A conflict means that another was faster."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": TLS_SECRET, "namespace": NAMESPACE},
            "type": "kubernetes.io/tls",
            "data": dict(data),
        }
        await self._call("POST", _SECRETS, body=body)

    async def update_secret(self, secret: Raw, data: Mapping[str, str]) -> None:
        """Change it, unless somebody else did since it was read."""
        version = {"resourceVersion": secret["metadata"]["resourceVersion"]}
        body = {"metadata": version, "data": dict(data)}
        path = f"{_SECRETS}/{TLS_SECRET}"
        await self._call("PATCH", path, body=body, content_type=_MERGE_PATCH)

    async def ca_bundle(self) -> str | None:
        """What the API server trusts our webhook by, in base64; None without a configuration."""
        configuration = await self._asked(f"{_WEBHOOKS}/{WEBHOOK_CONFIGURATION}")
        if configuration is None:
            return None
        return next(
            str(webhook["clientConfig"].get("caBundle", ""))
            for webhook in configuration["webhooks"]
            if webhook["name"] == WEBHOOK
        )

    async def set_ca_bundle(self, bundle: str) -> None:
        """Set it; `bundle` in base64."""
        body = {"webhooks": [{"name": WEBHOOK, "clientConfig": {"caBundle": bundle}}]}
        path = f"{_WEBHOOKS}/{WEBHOOK_CONFIGURATION}"
        await self._call("PATCH", path, body=body, content_type=_STRATEGIC_MERGE_PATCH)

    # -- HTTP -----------------------------------------------------------------------------------

    async def _asked(self, path: str) -> Raw | None:
        try:
            return await self._call("GET", path)
        except ApiError as exc:
            if exc.gone:
                return None
            raise

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = _JSON,
    ) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
        async with self._opened(
            method, path, query or {}, body=body, content_type=content_type, timeout=timeout
        ) as response:
            answer = json.loads(await response.read())
            assert isinstance(answer, dict)
            return answer

    @asynccontextmanager
    async def _opened(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: object = None,
        content_type: str = _JSON,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Every fault of the exchange, within the block too, becomes an ApiError."""
        what = f"{method} {path}"
        try:
            response: aiohttp.ClientResponse = await self._api.call_api(
                path,
                method,
                query_params=[(key, value) for key, value in query.items() if value],
                header_params={"Accept": _JSON, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=timeout,
            )
            async with response:
                if response.status >= 300:
                    why = _why(await response.read())
                    raise ApiError(f"{what}: {response.status} {why}", response.status)
                yield response
        except (aiohttp.ClientError, OSError, RecursionError, ValueError) as exc:
            raise ApiError(f"{what}: {type(exc).__name__}: {exc}") from exc


@asynccontextmanager
async def connected(instance: str) -> AsyncIterator[Cluster]:
    """In a pod with its service account, elsewhere as kubectl would be. `instance`: our name."""
    settings = Configuration()
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(client_configuration=settings)
    async with ApiClient(settings) as api:
        yield Cluster(api, instance)


def _why(body: bytes) -> str:
    """The message of a Status object, or the beginning of what came instead."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
