"""The API server, as far as the driver needs it. Objects are raw dicts: a typed model drops the
fields that it does not know, and what was dropped would be unset by the next write.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from kubernetes_asyncio import client, config

from dra_driver.names import DRIVER
from dra_driver.roster import NotNow

TIMEOUT_S: Final = 10
_WATCH_S: Final = 300
"""A watch ends after this and is begun anew with a list, so that nothing missed stays missed."""

_RESOURCE: Final = "/apis/resource.k8s.io/v1"

Raw = dict[str, Any]


class ApiError(Exception):
    """The API server refused, or did not answer; one line."""

    def __init__(self, told: str, status: int) -> None:
        super().__init__(told)
        self.status = status


class Cluster:
    """What the driver of one node asks and tells. Raises ApiError, NotNow where it says so."""

    def __init__(self, api: client.ApiClient, node: str) -> None:
        self._api = api
        self._node = node

    async def claim(self, namespace: str, name: str) -> Raw | None:
        """The ResourceClaim, None when there is none. Raises NotNow."""
        return await self._asked(f"{_RESOURCE}/namespaces/{namespace}/resourceclaims/{name}")

    async def pod(self, namespace: str, name: str) -> Raw | None:
        """The Pod, None when there is none. Raises NotNow."""
        return await self._asked(f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def node(self) -> Raw:
        """The Node of this driver."""
        return await self._call("GET", f"/api/v1/nodes/{self._node}")

    async def slice(self, name: str) -> Raw | None:
        """The ResourceSlice, None when there is none."""
        return await self._found(f"{_RESOURCE}/resourceslices/{name}")

    async def apply_slice(self, body: Raw) -> Raw:
        """Server-side apply of a ResourceSlice; returns it as it is now."""
        return await self._apply(f"{_RESOURCE}/resourceslices/{body['metadata']['name']}", body)

    async def apply_claim_status(self, namespace: str, name: str, body: Raw) -> None:
        """Server-side apply of this node's part of a ResourceClaim's status."""
        await self._apply(f"{_RESOURCE}/namespaces/{namespace}/resourceclaims/{name}/status", body)

    async def tell(self, event: Raw) -> None:
        """Create an event (events.k8s.io/v1)."""
        namespace = event["metadata"]["namespace"]
        await self._call(
            "POST", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", body=event
        )

    async def slice_changes(self) -> AsyncIterator[None]:
        """One None at the begin and after each change of this driver's slices of this node."""
        selector = {"fieldSelector": f"spec.nodeName={self._node},spec.driver={DRIVER}"}
        listed = await self._call("GET", f"{_RESOURCE}/resourceslices", query=selector)
        yield None
        version = listed["metadata"]["resourceVersion"]
        query = selector | {
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        path = f"{_RESOURCE}/resourceslices"
        async with self._opened(
            "GET", path, query, None, "application/json", _WATCH_S + TIMEOUT_S
        ) as opened:
            async for line in opened.content:
                if json.loads(line)["type"] == "ERROR":
                    return  # too old a version, mostly: listed anew
                yield None

    async def _asked(self, path: str) -> Raw | None:
        try:
            return await self._found(path)
        except ApiError as exc:
            raise NotNow(str(exc)) from exc

    async def _found(self, path: str) -> Raw | None:
        try:
            return await self._call("GET", path)
        except ApiError as exc:
            if exc.status == 404:
                return None
            raise

    async def _apply(self, path: str, body: Raw) -> Raw:
        return await self._call(
            "PATCH",
            path,
            query={"fieldManager": f"{DRIVER}/{self._node}", "force": "true"},
            body=body,
            content_type="application/apply-patch+yaml",
        )

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Raw | None = None,
        content_type: str = "application/json",
    ) -> Raw:
        async with self._opened(method, path, query or {}, body, content_type, TIMEOUT_S) as opened:
            answer: Raw = await opened.json()
            return answer

    @asynccontextmanager
    async def _opened(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Raw | None,
        content_type: str,
        timeout_s: float,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Every fault of the exchange, within the block too, becomes an ApiError."""
        try:
            response: aiohttp.ClientResponse = await self._api.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=timeout_s,
            )
            async with response:
                if response.status >= 300:
                    reason = _reason(await response.read())
                    raise ApiError(f"{method} {path}: {response.status} {reason}", response.status)
                yield response
        except (aiohttp.ClientError, OSError, RecursionError, ValueError) as exc:
            raise ApiError(f"{method} {path}: {type(exc).__name__}: {exc}", 0) from exc


@asynccontextmanager
async def connected(node: str) -> AsyncIterator[Cluster]:
    """The cluster of the pod that this process runs in, by its service account."""
    settings = client.Configuration()
    config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    async with client.ApiClient(settings) as api:
        yield Cluster(api, node)


def _reason(body: bytes) -> str:
    """The message of a Status object (k8s.io/apimachinery), or the beginning of what came."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
