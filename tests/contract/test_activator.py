"""The activator between real HTTP clients and a real HTTP server that stands for the engine."""

import asyncio
import gzip
import io
import json
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDictProxy

from workload_agents.activator import Activator, engine_client
from workload_agents.adapters.vllm import VllmMemory
from workload_agents.callers import Callers
from workload_agents.errors import RestoreFailed, TurnLost, TurnRefused, TurnTimeout
from workload_agents.gate import Gate
from workload_agents.weights import publish

ME = f"pid:{os.getpid()}"


@dataclass
class FakeEngine:
    """The routes of a vLLM server that the agent uses, over real HTTP; `asked` lists the calls.

    Completions answer the version loaded; while `hold` is set they wait, and a stream waits before
    its second event. A request that reaches it asleep is counted as `served_asleep`.
    """

    asked: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    weights: str = "base"
    awake: bool = True
    served_asleep: int = 0
    running: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    answers: Counter[str] = field(default_factory=Counter)
    breaks: bool = False

    def __post_init__(self) -> None:
        self.go_on.set()
        self.runner: web.AppRunner | None = None
        # While it is down nobody else may get its port.
        self.place = socket.socket()
        self.place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.place.bind(("127.0.0.1", 0))
        self.port: int = self.place.getsockname()[1]

    async def start(self) -> None:
        app = web.Application(client_max_size=100 << 20)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_route("*", "/{route:.*}", self.other)
        self.runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, auto_decompress=False
        )
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port, backlog=4096, reuse_port=True)
        await site.start()

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.served_asleep += not self.awake
        self.running += 1
        self.arrived.set()
        try:
            if request.query.get("stream"):
                return await self.stream(request)
            await self.go_on.wait()
            self.answers[body.decode(errors="replace")] += 1
            answer = json.dumps({"weights": self.weights}).encode()
            if request.query.get("gzip"):
                coded = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
                return web.Response(body=gzip.compress(answer), headers=coded)
            return web.Response(body=answer, content_type="application/json")
        except asyncio.CancelledError:
            self.left.set()
            raise
        finally:
            self.running -= 1

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"n": 1}\n\n')
        await self.go_on.wait()
        if self.breaks:
            assert request.transport is not None
            request.transport.abort()
            return response
        for part in (b'data: {"n"', b": 2}\n\nda", b"ta: [DO", b"NE]\n\n"):
            await response.write(part)
        return response

    async def other(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        match request.path:
            case "/sleep":
                self.awake = False
            case "/wake_up":
                self.awake = request.query["tags"] == "kv_cache"
                return web.json_response({"status": "awake" if self.awake else "sleeping"})
            case "/collective_rpc":
                body = await request.json()
                self.weights = Path(body["kwargs"]["weights_path"]).name
            case "/reset_prefix_cache":
                return web.json_response({"success": True})
            case _:
                pass
        return web.json_response({})


@dataclass
class ScriptedTurn:
    """A session whose arbiter is the test: the interface of workload_agents.session.Session."""

    memory: VllmMemory | None = None
    on_wanted: Callable[[], None] = lambda: None
    free: asyncio.Event = field(default_factory=asyncio.Event)
    holder: str = "trainer"
    refusal: str | None = None
    holder_callers: set[str] = field(default_factory=set)
    acquires: list[str | None] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    yielded: asyncio.Event = field(default_factory=asyncio.Event)
    parked: asyncio.Event = field(default_factory=asyncio.Event)
    may_yield: asyncio.Event = field(default_factory=asyncio.Event)
    holds: bool = False
    wanted: bool = False
    urgent: bool = False
    epoch: int = 0
    resident: bool = False
    lost: bool = False

    def __post_init__(self) -> None:
        self.may_yield.set()

    async def acquire(self, *, timeout_s: float | None = None, caller: str | None = None) -> int:
        self.acquires.append(caller)
        self.asked.set()
        if self.refusal is not None:
            raise TurnRefused(self.refusal)
        if caller in self.holder_callers:
            raise TurnRefused(
                f"the request comes from {self.holder}, which holds the turn", holder=self.holder
            )
        try:
            async with asyncio.timeout(timeout_s):
                await self.free.wait()
        except TimeoutError:
            raise TurnTimeout(f"{self.holder} holds the turn") from None
        if not self.resident:
            assert self.memory is not None
            await self.memory.restore()
        self.holds, self.resident = True, True
        self.epoch += 1
        self.yielded.clear()
        self.parked.clear()
        return self.epoch

    async def yield_turn(self) -> None:
        await self.may_yield.wait()
        self.holds = False
        try:
            if self.lost:
                raise TurnLost("the lease ran out")
            if self.wanted:
                await self.take()
        finally:
            self.yielded.set()

    async def take(self) -> None:
        """The other tenant gets the turn: this one parks."""
        assert self.memory is not None
        self.free.clear()
        self.wanted = self.urgent = False
        await self.memory.park()
        self.resident = False
        self.parked.set()

    def want(self) -> None:
        self.wanted = self.urgent = True
        self.on_wanted()


@dataclass
class Stand:
    """Everything of one test; `url` is the activator's."""

    engine: FakeEngine
    turn: ScriptedTurn
    memory: VllmMemory
    gate: Gate
    activator: Activator
    client: aiohttp.ClientSession
    url: str
    port: int
    weights: Path
    engine_ended: asyncio.Event

    async def ready(self) -> None:
        """As after the engine's start: healthy, yielded, resident."""
        await self.engine.start()
        self.turn.free.set()
        await self.activator.start()
        self.engine.asked.clear()
        self.turn.acquires.clear()

    async def parked(self) -> None:
        await self.ready()
        await self.turn.take()
        self.turn.asked.clear()
        self.engine.asked.clear()

    async def ask(self, body: bytes = b"x", query: str = "", **more: object) -> "Answered":
        url = f"{self.url}/v1/completions{query}"
        async with self.client.post(url, data=io.BytesIO(body), **more) as response:  # type: ignore[arg-type]
            return Answered(response.status, await response.read(), response.headers)

    def asking(self, body: bytes = b"x", query: str = "") -> "asyncio.Task[Answered]":
        return asyncio.create_task(self.ask(body, query))


@dataclass(frozen=True)
class Answered:
    status: int
    body: bytes
    headers: CIMultiDictProxy[str]

    def header(self, name: str) -> str | None:
        return self.headers.get(name)

    @property
    def message(self) -> str:
        assert self.body.count(b"\n") == 1
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == self.status
        return str(error["message"])


@asynccontextmanager
async def stand_on(tmp_path: Path, *, wait_s: float = 60.0) -> AsyncIterator[Stand]:
    engine, turn, ended = FakeEngine(), ScriptedTurn(), asyncio.Event()
    url = f"http://127.0.0.1:{engine.port}"
    connector = aiohttp.TCPConnector(limit=0)
    async with engine_client() as client, aiohttp.ClientSession(connector=connector) as outside:
        memory = VllmMemory(
            client, url, tmp_path, in_flight=lambda: gate.in_flight, engine_ended=ended
        )
        turn.memory = memory
        gate = Gate(turn, memory, wait_s=wait_s)
        turn.on_wanted = gate.consider_yielding
        activator = Activator(gate, memory, client, url, Callers().caller_of, ended)
        async with activator.listening("127.0.0.1", 0) as port:
            yield Stand(
                engine,
                turn,
                memory,
                gate,
                activator,
                outside,
                f"http://127.0.0.1:{port}",
                port,
                tmp_path,
                ended,
            )
        await engine.stop()
        engine.place.close()
        assert engine.served_asleep == 0


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with stand_on(tmp_path) as stand:
        yield stand


def weights(stand: Stand, version: int) -> None:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"%d" % version)

    publish(stand.weights, version, write)


class TestStart:
    async def test_the_engine_may_start_when_the_first_turn_is_granted(self, stand: Stand) -> None:
        start = asyncio.create_task(stand.activator.start())
        probe = asyncio.create_task(stand.client.get(f"{stand.url}/tandem/startup"))
        await stand.turn.asked.wait()
        async with stand.client.get(f"{stand.url}/tandem/healthz") as answer:
            assert answer.status == 503
        async with stand.client.get(f"{stand.url}/health") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert not probe.done()
        stand.turn.free.set()
        assert (await probe).status == 200
        assert not start.done()
        assert not stand.turn.holds
        await stand.engine.start()
        await start
        assert stand.turn.yielded.is_set()
        assert stand.engine.asked[-1] == "/health"
        assert stand.memory.version == 0
        async with stand.client.get(f"{stand.url}/tandem/healthz") as answer:
            assert answer.status == 200

    async def test_requests_that_came_meanwhile_use_the_first_turn(self, stand: Stand) -> None:
        start = asyncio.create_task(stand.activator.start())
        asking = stand.asking()
        while len(stand.turn.acquires) < 2:
            await stand.turn.asked.wait()
            stand.turn.asked.clear()
        await stand.engine.start()
        stand.turn.free.set()
        assert (await asking).status == 200
        await start

    async def test_an_engine_that_ends_before_it_is_healthy(self, stand: Stand) -> None:
        stand.turn.free.set()
        start = asyncio.create_task(stand.activator.start())
        await stand.memory.starting.wait()
        stand.engine_ended.set()
        with pytest.raises(RestoreFailed, match="ended before it was healthy"):
            await start


class TestRoutes:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/sleep?level=2"),
            ("POST", "/collective_rpc"),
            ("POST", "/v1/../sleep"),
            ("POST", "/v1/%2e%2e/sleep"),
            ("POST", "//v1/completions"),
            ("POST", "/v1/completions/"),
            ("GET", "/v1/completions"),
            ("POST", "/v1/load_lora_adapter"),
            ("GET", "/"),
            ("DELETE", "/health"),
        ],
    )
    async def test_what_is_not_allowed_is_not_forwarded(
        self, stand: Stand, method: str, path: str
    ) -> None:
        await stand.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", stand.port)
        writer.write(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
        status, _, rest = (await reader.read()).partition(b"\r\n")
        writer.close()
        assert b" 403 " in status
        assert rest.endswith(b'"code": 403}}\n')
        assert stand.engine.asked == []
        assert stand.turn.acquires == []

    async def test_what_needs_no_device_needs_no_turn(self, stand: Stand) -> None:
        await stand.parked()
        for path in ("/health", "/version", "/v1/models"):
            async with stand.client.get(stand.url + path) as answer:
                assert answer.status == 200
        async with stand.client.post(f"{stand.url}/tokenize?a=b%20c", json={}) as answer:
            assert answer.status == 200
        assert stand.engine.asked == ["/health", "/version", "/v1/models", "/tokenize?a=b%20c"]
        assert stand.turn.acquires == []

    async def test_headers_of_this_connection_only_are_dropped(self, stand: Stand) -> None:
        await stand.ready()
        sent = {
            "Authorization": "Bearer x",
            "Content-Encoding": "gzip",
            "Connection": "close, X-Mine",
            "X-Mine": "1",
            "TE": "trailers",
            "X-Other": "2",
        }
        assert (await stand.ask(gzip.compress(b"x"), headers=sent)).status == 200
        got = {name.lower(): value for name, value in stand.engine.headers[0].items()}
        assert got["authorization"] == "Bearer x"
        assert got["x-other"] == "2"
        assert got["content-encoding"] == "gzip"
        assert got["host"] == f"127.0.0.1:{stand.engine.port}"
        assert "x-mine" not in got
        assert "te" not in got
        assert stand.engine.bodies == [gzip.compress(b"x")]

    async def test_a_compressed_answer_passes_as_it_is(self, stand: Stand) -> None:
        await stand.ready()
        answer = await stand.ask(query="?gzip=1")
        assert answer.header("Content-Encoding") == "gzip"
        assert json.loads(answer.body) == {"weights": "base"}

    async def test_bodies_have_a_limit(self, stand: Stand) -> None:
        await stand.ready()
        answer = await stand.ask(bytes((64 << 20) + 1))
        assert answer.status == 413
        assert "larger than 67108864 bytes" in answer.message
        assert (await stand.ask(bytes(20 << 20))).status == 200
        assert len(stand.engine.bodies[0]) == 20 << 20

    async def test_chunked_and_http_1_0(self, stand: Stand) -> None:
        await stand.ready()

        async def parts() -> AsyncIterator[bytes]:
            yield b"ab"
            yield b"cd"

        async with stand.client.post(f"{stand.url}/v1/completions", data=parts()) as answer:
            assert answer.status == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", stand.port)
        writer.write(b"POST /v1/completions?stream=1 HTTP/1.0\r\nContent-Length: 2\r\n\r\nef")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.0 200 ")
        assert b"chunked" not in head.lower()
        assert body.startswith(b'data: {"n": 1}\n\n')
        assert body.endswith(b"data: [DONE]\n\n")
        assert stand.engine.bodies == [b"abcd", b"ef"]


class TestWaiting:
    async def test_each_of_600_waiting_requests_is_answered_once(self, stand: Stand) -> None:
        await stand.parked()
        asking = [stand.asking(b"%d" % n) for n in range(600)]
        await stand.turn.asked.wait()
        stand.turn.free.set()
        answers = await asyncio.gather(*asking)
        assert Counter(answer.status for answer in answers) == {200: 600}
        assert stand.engine.answers == Counter(str(n) for n in range(600))
        assert stand.turn.acquires == [ME]
        assert stand.gate.in_flight == 0

    async def test_600_that_run_at_once(self, stand: Stand) -> None:
        await stand.ready()
        stand.engine.go_on.clear()
        asking = [stand.asking(b"%d" % n) for n in range(600)]
        while stand.engine.running < 600:
            await stand.engine.arrived.wait()
            stand.engine.arrived.clear()
        assert stand.gate.in_flight == 600
        stand.engine.go_on.set()
        assert {answer.status for answer in await asyncio.gather(*asking)} == {200}

    async def test_no_caller_is_looked_up_while_the_turn_is_held(self, stand: Stand) -> None:
        await stand.ready()
        await stand.ask()
        await stand.ask()
        assert stand.turn.acquires == [ME]

    async def test_the_holder_is_refused_at_once_and_named(self, stand: Stand) -> None:
        await stand.parked()
        stand.turn.holder_callers.add(ME)
        answer = await stand.ask()
        assert answer.status == 409
        assert answer.message == "the request comes from trainer, which holds the turn"
        assert answer.header("Retry-After") is None
        assert stand.turn.acquires == [ME]

    async def test_other_refusals_are_temporary(self, stand: Stand) -> None:
        await stand.parked()
        stand.turn.refusal = "the device is faulted"
        answer = await stand.ask()
        assert (answer.status, answer.header("Retry-After")) == (503, "5")
        assert answer.message == "the device is faulted"

    async def test_the_deadline(self, tmp_path: Path) -> None:
        async with stand_on(tmp_path, wait_s=0.2) as stand:
            await stand.parked()
            answer = await stand.ask()
            assert (answer.status, answer.header("Retry-After")) == (503, "5")
            assert "did not get the turn within 0.2 s" in answer.message

    async def test_a_client_that_leaves_asks_no_more(self, stand: Stand) -> None:
        await stand.parked()
        asking = stand.asking()
        await stand.turn.asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        stand.turn.asked.clear()
        later = stand.asking()  # were the first still waiting, this one would share its acquire
        await stand.turn.asked.wait()
        stand.turn.free.set()
        assert (await later).status == 200
        assert stand.turn.acquires == [ME, ME]
        assert len(stand.engine.bodies) == 1


class TestYielding:
    async def test_when_wanted_and_idle(self, stand: Stand) -> None:
        await stand.ready()
        await stand.ask()
        assert stand.turn.holds
        stand.turn.want()
        await stand.turn.parked.wait()
        assert not stand.turn.holds

    async def test_not_before_the_last_byte(self, stand: Stand) -> None:
        await stand.ready()
        stand.engine.go_on.clear()
        url = f"{stand.url}/v1/completions?stream=1"
        async with stand.client.post(url, data=b"x") as answer:
            assert await answer.content.readuntil(b"\n\n") == b'data: {"n": 1}\n\n'
            stand.turn.want()
            assert stand.gate.in_flight == 1
            assert stand.turn.holds
            assert not stand.turn.parked.is_set()
            stand.engine.go_on.set()
            assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")
        await stand.turn.parked.wait()
        assert stand.gate.in_flight == 0

    async def test_a_request_that_comes_meanwhile_waits_for_a_new_turn(self, stand: Stand) -> None:
        await stand.ready()
        await stand.ask()
        stand.turn.asked.clear()
        stand.turn.may_yield.clear()
        stand.turn.want()

        async def late() -> int:
            async with stand.gate.request(lambda: asyncio.sleep(0, "pid:1")):
                return stand.turn.epoch

        asking = asyncio.create_task(late())  # runs before the yield goes on
        assert stand.turn.holds
        before = stand.turn.epoch
        stand.turn.may_yield.set()
        await stand.turn.asked.wait()
        assert stand.turn.parked.is_set()
        assert not asking.done()
        stand.turn.free.set()
        assert await asking == before + 1

    async def test_steady_traffic_does_not_keep_the_other_waiting(self, stand: Stand) -> None:
        await stand.ready()
        stand.engine.go_on.clear()
        first = stand.asking(b"first")
        await stand.engine.arrived.wait()
        stand.turn.want()
        stand.turn.asked.clear()

        async def late() -> int:
            async with stand.gate.request(lambda: asyncio.sleep(0, "pid:1")):
                return stand.turn.epoch

        before = stand.turn.epoch
        asking = asyncio.create_task(late())
        await asyncio.sleep(0)
        assert not asking.done()  # although the engine holds the turn
        stand.engine.go_on.set()
        assert (await first).status == 200
        await stand.turn.asked.wait()
        assert stand.turn.parked.is_set()
        stand.turn.free.set()
        assert await asking == before + 1

    async def test_a_turn_that_was_lost_is_acquired_again(self, stand: Stand) -> None:
        await stand.ready()
        await stand.ask()
        stand.turn.lost = True
        stand.turn.want()
        await stand.turn.yielded.wait()
        stand.turn.lost = stand.turn.wanted = False
        assert (await stand.ask()).status == 200


class TestStreams:
    async def test_a_client_that_leaves_aborts_its_request(self, stand: Stand) -> None:
        await stand.ready()
        stand.engine.go_on.clear()
        async with stand.client.post(f"{stand.url}/v1/completions?stream=1", data=b"x") as answer:
            await answer.content.readuntil(b"\n\n")
        await stand.engine.left.wait()
        stand.turn.want()
        await stand.turn.parked.wait()

    async def test_a_client_that_leaves_before_the_answer_begins(self, stand: Stand) -> None:
        await stand.ready()
        stand.engine.go_on.clear()
        asking = stand.asking()
        await stand.engine.arrived.wait()
        asking.cancel()
        await stand.engine.left.wait()

    async def test_an_answer_that_breaks_off_does_not_look_whole(self, stand: Stand) -> None:
        await stand.ready()
        stand.engine.breaks = True
        with pytest.raises(aiohttp.ClientError):
            await stand.ask(query="?stream=1")
        assert stand.gate.in_flight == 0

    async def test_an_engine_that_is_gone_is_told(self, stand: Stand) -> None:
        await stand.ready()
        await stand.ask()
        await stand.engine.stop()
        answer = await stand.ask()
        assert answer.status == 502
        assert "the engine did not answer: ClientConnectorError" in answer.message
        assert stand.engine_ended.is_set()
        assert stand.gate.in_flight == 0


class TestVersions:
    async def test_of_the_first_and_the_last_token(self, stand: Stand) -> None:
        await stand.ready()
        answer = await stand.ask()
        assert answer.header("Tandem-Weights-First") == "0"
        assert answer.header("Tandem-Weights-Last") == "0"
        weights(stand, 7)
        answer = await stand.ask()
        assert json.loads(answer.body) == {"weights": "v7"}
        assert answer.header("Tandem-Weights-First") == "7"
        assert answer.header("Tandem-Weights-Last") == "7"

    async def test_of_a_stream(self, stand: Stand) -> None:
        await stand.ready()
        weights(stand, 7)
        answer = await stand.ask(query="?stream=1")
        assert answer.header("Tandem-Weights-First") == "7"
        assert answer.header("Tandem-Weights-Last") is None
        assert answer.body == (
            b'data: {"n": 1}\n\ndata: {"n": 2}\n\n: tandem-weights-version 7\n\ndata: [DONE]\n\n'
        )

    async def test_of_a_stream_over_new_weights(self, stand: Stand) -> None:
        """Parked with the stream kept, and restored with a newer version."""
        await stand.ready()
        stand.engine.go_on.clear()
        url = f"{stand.url}/v1/completions?stream=1"
        async with stand.client.post(url, data=b"x") as answer:
            assert answer.headers["Tandem-Weights-First"] == "0"
            await answer.content.readuntil(b"\n\n")
            await stand.memory.park()
            weights(stand, 8)
            await stand.memory.restore()
            stand.engine.go_on.set()
            assert await answer.content.read() == (
                b': tandem-weights-version 8\n\ndata: {"n": 2}\n\n'
                b": tandem-weights-version 8\n\ndata: [DONE]\n\n"
            )
        assert "/sleep?level=1&mode=keep" in stand.engine.asked

    async def test_new_weights_are_loaded_when_work_begins_and_only_then(
        self, stand: Stand
    ) -> None:
        await stand.ready()
        await stand.ask()
        stand.engine.arrived.clear()
        stand.engine.go_on.clear()
        first = stand.asking(b"first")
        await stand.engine.arrived.wait()
        weights(stand, 1)
        stand.engine.arrived.clear()
        second = stand.asking(b"second")
        await stand.engine.arrived.wait()
        assert stand.engine.weights == "base"
        stand.engine.go_on.set()
        await asyncio.gather(first, second)
        assert stand.engine.weights == "base"
        asking = [stand.asking() for _ in range(20)]
        for answer in await asyncio.gather(*asking):
            assert json.loads(answer.body) == {"weights": "v1"}
        assert [one for one in stand.engine.asked if one == "/collective_rpc"] == [
            "/collective_rpc"
        ]

    async def test_weights_that_are_damaged_are_not_served(self, stand: Stand) -> None:
        await stand.ready()
        await stand.ask()
        weights(stand, 1)
        (stand.weights / "v1" / "model.safetensors").write_bytes(b"2")
        answer = await stand.ask()
        assert answer.status == 503
        assert "version 1 in" in answer.message
        assert "/collective_rpc" not in stand.engine.asked
        weights(stand, 2)
        assert json.loads((await stand.ask()).body) == {"weights": "v2"}
