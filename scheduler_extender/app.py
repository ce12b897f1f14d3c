"""The HTTPS side: kube-scheduler's filter and prioritize, the API server's webhook, probes."""

import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from scheduler_extender import filtering, webhook
from scheduler_extender.filtering import Question, Whereabouts
from scheduler_extender.objects import Malformed, Pod

BODY_MAX: Final = 8 << 20
"""Bytes. The API server takes objects of 3 MiB; the scheduler sends a pod and names of nodes."""

log = logging.getLogger(__name__)


class App:
    """`whereabouts` says where the scheduler may put a pod, None for a pod that is none of ours;
    `listed` whether the cache is whole.
    """

    def __init__(
        self,
        whereabouts: Callable[[Pod], Whereabouts | None],
        listed: Callable[[], bool],
        settings: webhook.Settings,
    ) -> None:
        self._whereabouts = whereabouts
        self._listed = listed
        self._settings = settings

    @asynccontextmanager
    async def listening(self, host: str, port: int, tls: ssl.SSLContext) -> AsyncIterator[int]:
        """Serve; gives the port, which was chosen by the kernel where `port` is 0."""
        app = web.Application(client_max_size=BODY_MAX)
        app.router.add_post("/filter", self._filter)
        app.router.add_post("/prioritize", self._prioritize)
        app.router.add_post("/mutate", self._mutate)
        app.router.add_get("/healthz", self._healthz)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _filter(self, request: web.Request) -> web.Response:
        asked = await self._question(request)
        return web.json_response(filtering.filtered(asked, self._whereabouts(asked.pod)))

    async def _prioritize(self, request: web.Request) -> web.Response:
        asked = await self._question(request)
        return web.json_response(filtering.prioritized(asked, self._whereabouts(asked.pod)))

    async def _question(self, request: web.Request) -> Question:
        body = await _json(request)
        if not self._listed():
            # No node would pass for want of knowledge; on an error the scheduler asks again soon.
            raise web.HTTPServiceUnavailable(text="the cluster's objects are not listed yet\n")
        try:
            return filtering.question(body)
        except Malformed as exc:
            raise _bad_request(request, exc) from exc

    async def _mutate(self, request: web.Request) -> web.Response:
        body = await _json(request)
        try:
            answer = webhook.review(body, self._settings)
        except Malformed as exc:
            raise _bad_request(request, exc) from exc
        if not answer["response"]["allowed"]:
            log.info("a pod is refused: %s", answer["response"]["status"]["message"])
        return web.json_response(answer)

    async def _healthz(self, _: web.Request) -> web.Response:
        if self._listed():
            return web.Response(text="ok\n")
        return web.Response(
            status=HTTPStatus.SERVICE_UNAVAILABLE, text="the cluster's objects are not listed yet\n"
        )


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except (ValueError, RecursionError) as exc:
        raise _bad_request(request, exc) from exc


def _bad_request(request: web.Request, exc: Exception) -> web.HTTPBadRequest:
    log.warning("%s from %s: %s", request.path, request.remote, exc)
    return web.HTTPBadRequest(text=f"{exc}\n")
