"""Stands in front of an engine's port: a request to a parked engine acquires the turn, waits and is
forwarded; when nothing is in flight and another tenant waits, the turn is yielded.

The engine itself listens where only this process and its own can reach it, because its development
routes are unauthenticated; so what is forwarded goes by a list of what is allowed.

    GET /tandem/startup   answers when the first turn is granted: the engine may be started
    GET /tandem/healthz   200 once the engine was healthy
"""

import asyncio
import io
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import aiohttp
from aiohttp import web

from workload_agents.callers import Caller, Connection
from workload_agents.errors import TandemError, TurnRefused
from workload_agents.gate import Engine, Gate

BODY_MAX: Final = 64 << 20  # bytes of a request; it is held in memory while it waits
RETRY_AFTER_S: Final = 5

DEVICE_ROUTES: Final = frozenset(
    {
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/embeddings"),
    }
)
HOST_ROUTES: Final = frozenset(
    {
        ("GET", "/health"),
        ("GET", "/version"),
        ("GET", "/v1/models"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
    }
)
"""Answered by the engine's front process while the engine sleeps: they need no turn."""

# RFC 9110, 7.6.1; and what concerns this connection only.
_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_LENGTH: Final = frozenset({"content-length"})
_FIRST, _LAST = "Tandem-Weights-First", "Tandem-Weights-Last"

Headers = list[tuple[str, str]]

log = logging.getLogger(__name__)


class Activator:
    """The HTTP side. `engine_ended` is set when the engine's port refuses connections."""

    def __init__(
        self,
        gate: Gate,
        engine: Engine,
        client: aiohttp.ClientSession,
        engine_url: str,
        caller_of: Callable[[Connection], Awaitable[Caller]],
        engine_ended: asyncio.Event,
    ) -> None:
        self._gate = gate
        self._engine = engine
        self._client = client
        self._engine_url = engine_url.rstrip("/")
        self._caller_of = caller_of
        self._engine_ended = engine_ended
        self._healthy = False

    async def start(self) -> None:
        """The engine's start, as Gate.start; healthy from then on."""
        await self._gate.start()
        self._healthy = True
        log.info("engine: ready")

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve; gives the port, which was chosen by the kernel where `port` is 0."""
        app = web.Application(client_max_size=BODY_MAX)
        app.router.add_get("/tandem/startup", self._startup)
        app.router.add_get("/tandem/healthz", self._healthz)
        app.router.add_route("*", "/{path:.*}", self._any)
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a client that leaves: its request is aborted
            auto_decompress=False,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        try:
            # The backlog takes a burst of clients that all wait for one turn.
            site = web.TCPSite(runner, host, port, backlog=4096)
            await site.start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _startup(self, _: web.Request) -> web.Response:
        await self._engine.starting.wait()
        return web.Response(text="the first turn is granted\n")

    async def _healthz(self, _: web.Request) -> web.Response:
        if self._healthy:
            return web.Response(text="ok\n")
        return _error(HTTPStatus.SERVICE_UNAVAILABLE, "the engine was not healthy yet")

    async def _any(self, request: web.Request) -> web.StreamResponse:
        route = (request.method, request.path)
        try:
            if route in DEVICE_ROUTES:
                body = await request.read()
                async with self._gate.request(lambda: self._caller(request)):
                    return await self._forward(request, body, versions=True)
            if route not in HOST_ROUTES:
                return _error(
                    HTTPStatus.FORBIDDEN, f"{request.method} {request.path} is not forwarded"
                )
            if not self._healthy:
                return _error(
                    HTTPStatus.SERVICE_UNAVAILABLE, "the engine is not up yet; ask again later"
                )
            return await self._forward(request, await request.read(), versions=False)
        except web.HTTPRequestEntityTooLarge:
            return _error(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the request's body is larger than {BODY_MAX} bytes",
            )
        except TurnRefused as exc:
            # With a holder: this very caller, so a retry would be as vain as waiting.
            status = HTTPStatus.SERVICE_UNAVAILABLE if exc.holder is None else HTTPStatus.CONFLICT
            return _error(status, str(exc))
        except TandemError as exc:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, str(exc))

    async def _caller(self, request: web.Request) -> Caller:
        if request.transport is None:  # it has left
            return None
        client = request.transport.get_extra_info("peername")
        server = request.transport.get_extra_info("sockname")
        return await self._caller_of((*client[:2], *server[:2]))

    async def _forward(
        self, request: web.Request, body: bytes, *, versions: bool
    ) -> web.StreamResponse:
        query = request.rel_url.raw_query_string
        url = self._engine_url + request.path + (f"?{query}" if query else "")
        first = self._engine.version
        try:
            answer = await self._client.request(
                request.method,
                url,
                headers=_end_to_end(request.headers, _LENGTH),
                data=io.BytesIO(body) if body else None,
                allow_redirects=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            )
        except aiohttp.ClientError as exc:
            if isinstance(exc, aiohttp.ClientConnectorError):
                self._engine_ended.set()
            log.warning("engine: %s was not answered: %s", request.path, exc)
            return _error(
                HTTPStatus.BAD_GATEWAY, f"the engine did not answer: {type(exc).__name__}: {exc}"
            )
        async with answer:
            streams = answer.content_type == "text/event-stream" and (
                "Content-Encoding" not in answer.headers
            )
            headers = _end_to_end(answer.headers, _LENGTH if streams else frozenset())
            lines = None
            if versions:
                headers.append((_FIRST, str(first)))
                if streams:
                    lines = VersionLines(first)
                else:  # its headers come when the last token is there
                    headers.append((_LAST, str(self._engine.version)))
            return await self._send(request, answer, headers, lines)

    async def _send(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        headers: Headers,
        lines: "VersionLines | None",
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        await response.prepare(request)
        async for chunk in self._chunks(request, answer):
            await response.write(lines.add(chunk, self._engine.version) if lines else chunk)
        if lines:
            await response.write(lines.end(self._engine.version))
        await response.write_eof()
        return response

    async def _chunks(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> AsyncIterator[bytes]:
        while True:
            try:
                chunk = await answer.content.readany()
            except aiohttp.ClientError as exc:
                log.warning("engine: the answer to %s broke off: %s", request.path, exc)
                # An orderly end would make a part look like the whole.
                if request.transport is not None:
                    request.transport.abort()
                return
            if not chunk:
                return
            yield chunk


class VersionLines:
    """Tells the version of the weights in a stream of server-sent events: as a comment, which every
    parser ignores (HTML standard, 9.2.6), when it changes and before the stream's end.

    An event is held back until it is whole, so that no comment lands inside of one.
    """

    _DONE: Final = re.compile(rb"^data: ?\[DONE\]", re.MULTILINE)

    def __init__(self, first: int | None) -> None:
        self._told = first
        self._ended = False
        self._part = b""

    def add(self, chunk: bytes, version: int | None) -> bytes:
        """What may be sent on, having got `chunk`."""
        self._part += chunk
        end = max(self._part.rfind(b"\n\n") + 2, self._part.rfind(b"\r\n\r\n") + 4)
        if end < 4:  # rfind found neither
            return b""
        whole, self._part = self._part[:end], self._part[end:]
        if (done := self._DONE.search(whole)) is not None:
            self._ended = True
            whole = whole[: done.start()] + _comment(version) + whole[done.start() :]
        if version != self._told:
            self._told = version
            whole = _comment(version) + whole
        return whole

    def end(self, version: int | None) -> bytes:
        """What is to be sent last."""
        return self._part if self._ended or self._part else _comment(version)


def engine_client() -> aiohttp.ClientSession:
    """For requests to the engine: any number at once, as long as they take, passed on as they are.

    A connection serves one request: the engine closes idle ones (uvicorn: after 5 s), and a POST
    that meets such a close cannot be repeated.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        auto_decompress=False,
    )


def _end_to_end(headers: Mapping[str, str], dropped: frozenset[str]) -> Headers:
    """The headers that are passed on; a name may come more than once."""
    named = [value for name, value in headers.items() if name.lower() == "connection"]
    gone = {one.strip().lower() for value in named for one in value.split(",")}
    gone |= _HOP_BY_HOP | dropped
    return [(name, value) for name, value in headers.items() if name.lower() not in gone]


def _error(status: HTTPStatus, message: str) -> web.Response:
    """One line of JSON in the shape of OpenAI's errors."""
    error = {"message": message, "type": status.phrase, "param": None, "code": status.value}
    headers: Mapping[str, str] = {}
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers = {"Retry-After": str(RETRY_AFTER_S)}
    return web.Response(
        status=status,
        text=json.dumps({"error": error}) + "\n",
        content_type="application/json",
        headers=headers,
    )


def _comment(version: int | None) -> bytes:
    return b": tandem-weights-version %d\n\n" % version if version is not None else b""
