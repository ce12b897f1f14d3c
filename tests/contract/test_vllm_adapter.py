"""The vLLM adapter on a real vLLM server, whose worker parks as the simulated device's does.

Every call passes a proxy that lists it, and that can answer in the engine's place.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models

from workload_agents.activator import engine_client
from workload_agents.adapters.vllm import Parking, VllmMemory, WeightsAhead, parking
from workload_agents.errors import ParkFailed, RestoreFailed
from workload_agents.weights import publish

REPOSITORY = Path(__file__).parents[2]
HIDDEN, INNER, LAYERS, VOCABULARY, CONTEXT = 128, 256, 2, 64, 512
PROMPT = list(range(3, 63)) * 2  # several blocks of the prefix cache
BASE_SEED = 0

vllm = [pytest.mark.vllm, pytest.mark.timeout(300)]  # the first to run waits for the engine


def tensors(seed: int) -> dict[str, np.ndarray]:
    """A Llama's weights, under the names that checkpoints use."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, 0.15, (rows, columns)).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    named = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        named |= {f"{prefix}self_attn.{one}_proj.weight": matrix(HIDDEN, HIDDEN) for one in "qkvo"}
        named |= {f"{prefix}mlp.{one}_proj.weight": matrix(INNER, HIDDEN) for one in ("gate", "up")}
        named[f"{prefix}mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
        named |= {f"{prefix}{one}_layernorm.weight": ones for one in ("input", "post_attention")}
    return named


def checkpoint(folder: Path) -> None:
    """What `vllm serve FOLDER` needs."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = {str(number): number for number in range(VOCABULARY)}
    Tokenizer(models.WordLevel(words, "2")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "1"})
    )
    save_file(tensors(BASE_SEED), folder / "model.safetensors", metadata={"format": "pt"})


@dataclass(frozen=True)
class Server:
    """A vLLM server that is starting, or has started."""

    url: str
    failures: Path
    engine: subprocess.Popen[bytes]

    def fails_once(self, call: str) -> None:
        (self.failures / call).touch()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model, failures = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("failures")
    checkpoint(model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "FAILURES": str(failures),
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(model), "--served-model-name", "policy", "--dtype", "float32"]
    command += ["--max-model-len", str(CONTEXT), "--block-size", "32", "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(32 << 20)]
    command += ["--worker-cls", "tests.contract.failing_worker.FailingWorker"]
    with (tmp_path_factory.mktemp("log") / "engine.log").open("wb") as log:
        engine = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield Server(f"http://127.0.0.1:{port}", failures, engine)
    finally:
        engine.terminate()
        engine.wait()
        with suppress(ProcessLookupError):  # a worker that outlived it
            os.killpg(engine.pid, signal.SIGKILL)


@dataclass
class Proxy:
    """In front of the engine. `instead` holds what is answered once in its place, by path."""

    server: Server
    client: aiohttp.ClientSession
    asked: list[str] = field(default_factory=list)
    instead: dict[str, list[web.Response]] = field(default_factory=dict)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/health":
            self.asked.append(request.path_qs)
        if answers := self.instead.get(request.path):
            return answers.pop(0)
        url, body = self.server.url + request.path_qs, await request.read()
        headers = {"Content-Type": request.content_type}
        try:
            answer = await self.client.request(request.method, url, data=body, headers=headers)
        except aiohttp.ClientConnectorError:  # it starts
            return web.Response(status=502)
        async with answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response

    def calls(self, path: str) -> int:
        return sum(one.startswith(path) for one in self.asked)


@dataclass
class Agent:
    """An adapter that has met the engine, awake, and how many requests it believes in flight."""

    proxy: Proxy
    url: str
    client: aiohttp.ClientSession
    weights: Path
    engine_ended: asyncio.Event
    in_flight: int = 0

    def __post_init__(self) -> None:
        self.memory = VllmMemory(
            self.client,
            self.url,
            self.weights,
            in_flight=lambda: self.in_flight,
            engine_ended=self.engine_ended,
        )

    def publish(self, version: int, seed: int) -> None:
        def write(folder: Path) -> None:
            save_file(tensors(seed), folder / "model.safetensors", metadata={"format": "pt"})

        publish(self.weights, version, write)

    def body(self, **more: object) -> Mapping[str, object]:
        greedy = {"temperature": 0, "ignore_eos": True, "max_tokens": 8, "logprobs": 0}
        return {"model": "policy", "prompt": PROMPT, **greedy, **more}

    async def logprobs(self) -> list[float]:
        """Of eight tokens after the prompt: the same to the last digit under the same weights."""
        url = f"{self.url}/v1/completions"
        async with asyncio.timeout(30), self.client.post(url, json=self.body()) as answer:
            content: Any = await answer.json()
            assert answer.status == 200, content
            return list(content["choices"][0]["logprobs"]["token_logprobs"])


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@asynccontextmanager
async def agent_of(server: Server, folder: Path) -> AsyncIterator[Agent]:
    async with engine_client() as client:
        proxy = Proxy(server, client)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        engine = os.pidfd_open(server.engine.pid)
        loop.add_reader(engine, ended.set)
        try:
            yield Agent(proxy, url, client, folder, ended)
        finally:
            loop.remove_reader(engine)
            os.close(engine)
            await runner.cleanup()


@pytest.fixture
async def agent(server: Server, tmp_path: Path) -> AsyncIterator[Agent]:
    async with agent_of(server, tmp_path) as agent:
        await agent.memory.restore()
        agent.proxy.asked.clear()
        yield agent
    empty(tmp_path)
    async with agent_of(server, tmp_path) as last:  # leaves the weights that were there at first
        last.publish(1, BASE_SEED)
        await last.memory.restore()


@pytest.fixture
async def fresh(agent: Agent) -> list[float]:
    """What the server answered with the weights that it started with: the last test left those."""
    return await agent.logprobs()


@pytest.mark.parametrize(
    ("in_flight", "loaded", "published", "dropped", "expected"),
    [
        (0, 0, None, False, Parking(1, "wait")),
        (0, 0, 1, False, Parking(2, "wait")),
        (0, 7, 7, False, Parking(2, "wait")),
        (0, 7, 6, False, Parking(1, "wait")),
        (0, 7, None, False, Parking(1, "wait")),
        (3, 7, 7, False, Parking(1, "keep")),
        (0, None, 7, False, Parking(1, "wait")),
        (0, 7, None, True, Parking(2, "wait")),
    ],
)
def test_how_to_park(
    in_flight: int, loaded: int | None, published: int | None, dropped: bool, expected: Parking
) -> None:
    chosen = parking(in_flight=in_flight, loaded=loaded, published=published, dropped=dropped)
    assert chosen == expected


class TestOnVllm:
    pytestmark = vllm

    async def test_a_stream_in_flight_survives_a_park(self, agent: Agent) -> None:
        body = agent.body(max_tokens=200, stream=True, stream_options={"include_usage": True})
        async with agent.client.post(f"{agent.url}/v1/completions", json=body) as stream:
            assert stream.status == 200
            await stream.content.readuntil(b"\n\n")
            agent.in_flight = 1
            await agent.memory.park()
            assert agent.proxy.asked[1:] == ["/sleep?level=1&mode=keep"]
            assert await agent.memory.restore() == 0
            assert await agent.memory.load_if_newer() == 0
            rest = await stream.content.read()
        events = [json.loads(one[6:]) for one in rest.decode().split("\n\n")[:-2]]
        assert events[-2]["choices"][0]["finish_reason"] == "length"
        assert events[-1]["usage"]["completion_tokens"] == 200

    async def test_kept_weights_come_back(self, agent: Agent, fresh: list[float]) -> None:
        await agent.memory.park()
        assert await agent.memory.restore() == 0
        assert await agent.logprobs() == fresh
        assert agent.proxy.calls("/collective_rpc") == 0
        assert agent.proxy.calls("/is_sleeping") == 0

    async def test_published_weights_equal_a_fresh_start(
        self, agent: Agent, fresh: list[float]
    ) -> None:
        agent.publish(1, seed=1)
        await agent.memory.park()
        assert agent.proxy.asked[-1] == "/sleep?level=2&mode=wait"
        assert await agent.memory.restore() == 1
        other = await agent.logprobs()
        assert max(abs(a - b) for a, b in zip(other, fresh, strict=True)) > 0.1
        agent.publish(2, BASE_SEED)
        agent.proxy.asked.clear()
        await agent.memory.park()
        assert await agent.memory.restore() == 2
        assert agent.proxy.asked == [
            "/sleep?level=2&mode=wait",
            "/wake_up?tags=weights",
            "/collective_rpc",
            "/reset_prefix_cache?reset_running_requests=true&reset_external=true",
            "/wake_up?tags=kv_cache",
        ]
        assert await agent.logprobs() == fresh

    async def test_dropped_weights_come_back_from_the_same_version(self, agent: Agent) -> None:
        agent.publish(1, seed=1)
        await agent.memory.load_if_newer()
        before = await agent.logprobs()
        await agent.memory.park()
        assert agent.proxy.asked[-1] == "/sleep?level=2&mode=wait"
        assert await agent.memory.restore() == 1
        assert await agent.logprobs() == before

    async def test_nothing_computed_under_old_weights_is_used(
        self, agent: Agent, fresh: list[float]
    ) -> None:
        """vllm#28827, vllm#12284: new weights under a prefix that was cached before."""
        agent.publish(1, seed=1)
        assert await agent.memory.load_if_newer() == 1
        without_cache = await agent.logprobs()
        agent.publish(2, BASE_SEED)
        assert await agent.memory.load_if_newer() == 2
        assert await agent.logprobs() == fresh
        # And the check can fail: with the reset swallowed, the cached prefix is of other weights.
        agent.proxy.instead["/reset_prefix_cache"] = [web.json_response({"success": True})]
        agent.publish(3, seed=1)
        assert await agent.memory.load_if_newer() == 3
        assert await agent.logprobs() != without_cache

    async def test_a_failed_sleep_is_retried_and_never_answered_by_waking(
        self, agent: Agent, fresh: list[float]
    ) -> None:
        agent.proxy.server.fails_once("sleep")
        await agent.memory.park()
        assert agent.proxy.asked[-2:] == ["/sleep?level=1&mode=wait"] * 2
        assert agent.proxy.calls("/wake_up") == 0
        assert await agent.memory.restore() == 0
        assert await agent.logprobs() == fresh

    async def test_a_sleep_whose_answer_was_lost(self, agent: Agent, fresh: list[float]) -> None:
        await agent.memory.park()
        agent.proxy.instead["/sleep"] = [web.Response(status=500, text="lost")]
        await agent.memory.park()
        assert await agent.memory.restore() == 0
        assert await agent.logprobs() == fresh

    async def test_a_park_that_fails_for_good_is_finished_before_a_wake(
        self, agent: Agent, fresh: list[float]
    ) -> None:
        agent.proxy.instead["/sleep"] = [
            web.Response(status=500, text="no\nroom") for _ in range(5)
        ]
        with pytest.raises(ParkFailed, match="HTTP 500: no room, after 5 attempts at level 1"):
            await agent.memory.park()
        agent.proxy.asked.clear()
        assert await agent.memory.restore() == 0
        assert agent.proxy.asked[:2] == ["/sleep?level=1&mode=wait", "/wake_up?tags=weights"]
        assert await agent.logprobs() == fresh

    @pytest.mark.parametrize("tag", ["weights", "kv_cache"])
    async def test_a_wake_without_room_can_be_tried_again(
        self, agent: Agent, fresh: list[float], tag: str
    ) -> None:
        agent.publish(1, BASE_SEED)
        await agent.memory.park()
        agent.proxy.server.fails_once(f"wake_up.{tag}")
        with pytest.raises(RestoreFailed, match=f"did not wake its {tag}: /wake_up was answered"):
            await agent.memory.restore()
        assert await agent.memory.restore() == 1
        assert await agent.logprobs() == fresh

    async def test_weights_come_back_ahead_of_the_turn(
        self, agent: Agent, fresh: list[float]
    ) -> None:
        ahead = WeightsAhead(agent.memory, 100)
        agent.publish(1, seed=1)
        assert await ahead.park_in_pieces(lambda: None, 1000) == 0
        agent.publish(2, BASE_SEED)
        agent.proxy.asked.clear()
        await ahead.restore_ahead(99)  # they do not fit
        assert agent.proxy.asked == []
        await ahead.restore_ahead(100)
        await ahead.restore_ahead(101)
        assert agent.proxy.asked == [
            "/release_kv_cache_memory",
            "/wake_up?tags=weights",
            "/collective_rpc",
            "/reset_prefix_cache?reset_running_requests=true&reset_external=true",
        ]
        assert await ahead.restore() == 2
        assert agent.proxy.asked[-1] == "/wake_up?tags=kv_cache"
        assert await agent.logprobs() == fresh

    async def test_weights_that_came_back_in_vain_are_parked_again(
        self, agent: Agent, fresh: list[float]
    ) -> None:
        ahead = WeightsAhead(agent.memory, 100)
        await ahead.park()
        await ahead.restore_ahead(100)
        agent.proxy.server.fails_once("sleep")  # the worker is asked, so it fails
        await ahead.park()
        assert agent.proxy.asked[-2:] == ["/sleep?level=1&mode=wait"] * 2
        assert await ahead.restore() == 0
        assert await agent.logprobs() == fresh

    async def test_an_engine_that_would_not_sleep_again_waits_for_its_turn(
        self, agent: Agent, fresh: list[float]
    ) -> None:
        ahead = WeightsAhead(agent.memory, 100)
        await ahead.park()
        agent.proxy.instead["/release_kv_cache_memory"] = [web.Response(status=404)]
        await ahead.restore_ahead(100)
        assert agent.proxy.calls("/wake_up") == 0
        assert await ahead.restore() == 0
        assert await agent.logprobs() == fresh

    async def test_an_engine_that_was_never_parked_is_not_restored_ahead(
        self, agent: Agent
    ) -> None:
        await WeightsAhead(agent.memory, 100).restore_ahead(100)
        assert agent.proxy.asked == []

    async def test_an_older_version_is_never_loaded(self, agent: Agent) -> None:
        agent.publish(7, seed=1)
        assert await agent.memory.load_if_newer() == 7
        before = await agent.logprobs()
        empty(agent.weights)
        agent.publish(6, BASE_SEED)
        assert await agent.memory.load_if_newer() == 7
        await agent.memory.park()
        assert agent.proxy.asked[-1] == "/sleep?level=1&mode=wait"
        assert await agent.memory.restore() == 7
        assert agent.proxy.calls("/collective_rpc") == 1
        assert await agent.logprobs() == before

    async def test_dropped_weights_that_are_published_no_more(self, agent: Agent) -> None:
        """prime-rl#3004: base weights are never served in place of version 7."""
        agent.publish(7, seed=1)
        assert await agent.memory.load_if_newer() == 7
        await agent.memory.park()
        empty(agent.weights)
        agent.proxy.asked.clear()
        with pytest.raises(RestoreFailed, match="version 7 or newer is not in"):
            await agent.memory.restore()
        agent.publish(6, BASE_SEED)
        with pytest.raises(RestoreFailed, match="version 7 or newer is not in"):
            await agent.memory.restore()
        assert agent.proxy.calls("/collective_rpc") == 0
        agent.publish(8, seed=1)
        assert await agent.memory.restore() == 8

    async def test_a_directory_that_cannot_be_loaded_never_reaches_the_engine(
        self, agent: Agent, fresh: list[float]
    ) -> None:
        agent.publish(1, seed=1)
        shutil.rmtree(agent.weights / "v1")
        with pytest.raises(RestoreFailed, match=r"version 1 in .* cannot be read: No such file"):
            await agent.memory.load_if_newer()
        agent.publish(2, seed=1)
        with (agent.weights / "v2" / "model.safetensors").open("r+b") as file:
            file.write(b"\xff")
        with pytest.raises(
            RestoreFailed, match=r"must not be loaded: model\.safetensors has crc32"
        ):
            await agent.memory.load_if_newer()
        assert agent.proxy.calls("/collective_rpc") == 0
        assert await agent.logprobs() == fresh
        assert not agent.engine_ended.is_set()

    async def test_an_engine_is_lost_after_a_failed_reload(self, agent: Agent) -> None:
        agent.publish(1, BASE_SEED)
        agent.proxy.instead["/collective_rpc"] = [web.Response(status=500, text="no such tensor")]
        lost = r"version 1 was to be loaded, but .* HTTP 500: no such tensor; nothing is forwarded"
        with pytest.raises(RestoreFailed, match=lost):
            await agent.memory.load_if_newer()
        assert agent.engine_ended.is_set()
        agent.proxy.asked.clear()
        for again in (agent.memory.restore, agent.memory.load_if_newer):
            with pytest.raises(RestoreFailed, match=lost):
                await again()
        assert agent.proxy.asked == []

    async def test_an_engine_that_was_restarted_while_parked(self, agent: Agent) -> None:
        """It serves its own weights, whatever version it was parked with."""
        await agent.memory.park()
        await VllmMemory(
            agent.client,
            agent.proxy.server.url,
            agent.weights,
            in_flight=lambda: 0,
            engine_ended=asyncio.Event(),
        ).restore()
        with pytest.raises(RestoreFailed, match="is not the one that was parked"):
            await agent.memory.restore()
        assert agent.engine_ended.is_set()

    async def test_no_weights_are_loaded_into_a_parked_engine(self, agent: Agent) -> None:
        agent.publish(1, BASE_SEED)
        await agent.memory.park()
        with pytest.raises(RestoreFailed, match="acquire the turn first"):
            await agent.memory.load_if_newer()
        assert agent.proxy.calls("/collective_rpc") == 0
        await agent.memory.restore()

    async def test_an_agent_that_follows_another_brings_the_engine_to_a_known_state(
        self, agent: Agent, fresh: list[float]
    ) -> None:
        """The one before died after a sleep that failed: a wake alone would kill the engine."""
        agent.proxy.server.fails_once("sleep")
        async with agent.client.post(f"{agent.url}/sleep?level=1&mode=wait") as answer:
            assert answer.status == 500
        async with agent_of(agent.proxy.server, agent.weights) as next_one:
            assert await next_one.memory.restore() == 0
            assert next_one.proxy.asked[:2] == ["/sleep?level=1&mode=wait", "/wake_up?tags=weights"]
            assert await next_one.logprobs() == fresh


async def test_an_engine_that_is_gone_cannot_be_parked_and_one_never_started_need_not(
    tmp_path: Path,
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with engine_client() as client:
            memory = VllmMemory(
                client, url, tmp_path, in_flight=lambda: 0, engine_ended=asyncio.Event()
            )
            await memory.park()
            memory.starting.set()
            with pytest.raises(ParkFailed, match="/sleep was not answered: ClientConnectorError"):
                await memory.park()
