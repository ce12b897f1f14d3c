"""A small API server for tests that need what a real one does seldom: lost watches, old versions,
conflicts. Lists in pages, watches, creates and patches over HTTP; validates nothing.
"""

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Raw = dict[str, Any]
WITHIN_S = 20.0
_COLLECTIONS = (
    "mutatingwebhookconfigurations",
    "nodes",
    "pods",
    "resourceclaims",
    "resourceslices",
    "secrets",
)


class ApiServer:
    """Objects by path, as `/api/v1/namespaces/lab/pods/rollout`. A collection's path covers its
    namespaces' collections: `/api/v1/pods` those of all.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Raw] = {}
        self.requests: list[tuple[str, str]] = []
        """Verb and path; of a list or watch of one name, that object's."""
        self.refuse: Callable[[str, str], int | None] = lambda *_: None
        """The status to refuse a request with."""
        self.takes_taints = True
        """Whether devices keep their taints; else the feature gate is off."""
        self.url = ""
        self._version = itertools.count(1)
        self._history: list[tuple[int, str, str, Raw]] = []
        self._oldest = 0
        self._changed = asyncio.Condition()
        self._watches: set[asyncio.Task[Any]] = set()

    # -- for tests ------------------------------------------------------------------------------

    async def put(self, path: str, raw: Raw) -> None:
        """Create or replace an object."""
        kind = "MODIFIED" if path in self.objects else "ADDED"
        await self._change(kind, path, copy.deepcopy(raw))

    async def delete(self, path: str) -> None:
        """Remove an object."""
        await self._change("DELETED", path, self.objects[path])

    async def until(self, true: Callable[[], Any]) -> Any:
        """Wait until this is true of what was stored or asked; return it."""
        async with asyncio.timeout(WITHIN_S), self._changed:
            return await self._changed.wait_for(true)

    def of(self, part: str) -> list[Raw]:
        """The objects whose path has this part."""
        return [raw for path, raw in self.objects.items() if f"/{part}/" in path]

    def history(self, path: str) -> list[Raw]:
        """What the object was after each of its changes."""
        return [raw for _, _, at, raw in self._history if at == path]

    async def break_watches(self, *, forget: bool = False) -> None:
        """Cut all watches off. With `forget` their versions are too old to go on with."""
        if forget:
            self._oldest = next(self._version)
        for watch in list(self._watches):
            watch.cancel()

    async def asked(self, verb: str, path: str, times: int = 1) -> None:
        """Wait until this was asked so many times."""
        await self.until(lambda: self.requests.count((verb, path)) >= times)

    # -- HTTP -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ApiServer"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._any)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    async def _any(self, request: web.Request) -> web.StreamResponse:
        path, verb = request.path, _verb(request)
        name = request.query.get("fieldSelector", "").partition("metadata.name=")[2]
        self.requests.append((verb, f"{path}/{name}" if name else path))
        async with self._changed:
            self._changed.notify_all()
        if (status := self.refuse(verb, path)) is not None:
            return _status(status, "refused by the test")
        if path == "/version":
            return web.json_response({"major": "1", "minor": "36"})
        body: Any = json.loads(await request.read() or "null")
        match verb:
            case "watch":
                return await self._watch(request)
            case "list":
                return self._list(request)
            case "get" if path in self.objects:
                return web.json_response(self.objects[path])
            case "create" if path.endswith("/eviction"):
                return await self._evict(path.removesuffix("/eviction"), body)
            case "create":
                at = f"{path}/{body['metadata']['name']}"
                if at in self.objects:
                    return _status(409, f"{at} exists")
                await self._change("ADDED", at, body)
                return web.json_response(self.objects[at], status=201)
            case "patch" if request.content_type == "application/apply-patch+yaml":
                return await self._apply(path, body)
            case "patch" if path in self.objects:
                return await self._patch(path, body, request.content_type)
        return _status(404, f"{path} not found")

    def _list(self, request: web.Request) -> web.Response:
        found = sorted(path for path in self.objects if _within(path, request.path))
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 500))
        items = [self.objects[path] for path in found[start : start + limit]]
        metadata = {"resourceVersion": str(next(self._version))}
        if start + limit < len(found):
            metadata["continue"] = str(start + limit)
        return web.json_response(
            {"metadata": metadata, "items": [i for i in items if _selected(i, request)]}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        seen = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if seen < self._oldest:
            gone = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
            await response.write(json.dumps(gone).encode() + b"\n")
            return response
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            while True:
                async with self._changed:
                    new = [event for event in self._history if event[0] > seen]
                    if not new:
                        await self._changed.wait()
                        continue
                for version, kind, path, raw in new:
                    seen = version
                    if _within(path, request.path) and _selected(raw, request):
                        line = json.dumps({"type": kind, "object": raw})
                        await response.write(line.encode() + b"\n")
        finally:
            self._watches.discard(task)

    async def _evict(self, path: str, body: Any) -> web.Response:
        """The pod is gone at once."""
        if path not in self.objects:
            return _status(404, f"{path} not found")
        raw = self.objects[path]
        if body["deleteOptions"]["preconditions"]["uid"] != raw["metadata"]["uid"]:
            return _status(409, "the UID is another")
        await self._change("DELETED", path, raw)
        return _status(201, "evicted")

    async def _apply(self, path: str, body: Raw) -> web.Response:
        """Whoever applies is the only one, so what it says is all there is. A taint that comes
        without its time gets one, which differs with each write.
        """
        before = self.objects.get(path)
        moment = f"2026-11-30T00:00:00.{next(self._version):06}Z"
        for device in body["spec"]["devices"]:
            if not self.takes_taints:
                device.pop("taints", None)
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", moment)
        if before is None or before["spec"] != body["spec"]:
            await self._change("ADDED" if before is None else "MODIFIED", path, body)
        return web.json_response(self.objects[path])

    async def _patch(self, path: str, body: Any, content_type: str) -> web.Response:
        raw = copy.deepcopy(self.objects[path])
        match content_type:
            case "application/json-patch+json":
                for op in body:
                    *parents, last = op["path"].split("/")[1:]
                    target: Any = raw
                    try:
                        for part in [*parents, last][: -1 if op["op"] == "remove" else None]:
                            target = target[int(part) if isinstance(target, list) else part]
                    except (IndexError, KeyError):
                        return _status(422, f"{op['path']}: no such path")
                    if op["op"] == "test" and target != op["value"]:
                        return _status(422, f"{op['path']}: is not {op['value']}")
                    if op["op"] == "remove":
                        del target[int(last) if isinstance(target, list) else last]
            case "application/merge-patch+json":
                version = body.get("metadata", {}).pop("resourceVersion", None)
                if version not in (None, raw["metadata"]["resourceVersion"]):
                    return _status(409, "changed meanwhile")
                _merge(raw, body)
            case _:  # a strategic merge, of which only this is understood
                for change in body["webhooks"]:
                    one = next(w for w in raw["webhooks"] if w["name"] == change["name"])
                    _merge(one, change)
        await self._change("MODIFIED", path, raw)
        return web.json_response(raw)

    async def _change(self, kind: str, path: str, raw: Raw) -> None:
        version = next(self._version)
        raw["metadata"]["resourceVersion"] = str(version)
        if kind == "DELETED":
            del self.objects[path]
        else:
            self.objects[path] = raw
        self._history.append((version, kind, path, copy.deepcopy(raw)))
        async with self._changed:
            self._changed.notify_all()


def _verb(request: web.Request) -> str:
    match request.method:
        case "GET" if "watch" in request.query:
            return "watch"
        case "GET" if request.path.rpartition("/")[2] in _COLLECTIONS:
            return "list"
        case method:
            return {"GET": "get", "POST": "create", "PATCH": "patch"}[method]


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


def _within(path: str, collection: str) -> bool:
    *head, last = collection.split("/")
    parts = path.split("/")
    return parts[: len(head)] == head and parts[-2] == last


def _selected(raw: Raw, request: web.Request) -> bool:
    for term in filter(None, request.query.get("fieldSelector", "").split(",")):
        key, _, wanted = term.replace("!=", "=!").partition("=")
        value: Any = raw
        for part in key.split("."):
            value = value.get(part, {})
        if (value == wanted.lstrip("!")) is wanted.startswith("!"):
            return False
    return True


def _merge(raw: Raw, change: Raw) -> None:
    """RFC 7386."""
    for key, value in change.items():
        if isinstance(value, dict):
            _merge(raw.setdefault(key, {}), value)
        else:
            raw[key] = value
