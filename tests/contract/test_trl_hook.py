"""The rollout hook under TRL's real GRPOTrainer, against a server that answers as vLLM does.

The server's answers are not made up: it computes log-probabilities with a model of its own, loaded
from the files that the hook published.
"""

import json
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

with warnings.catch_warnings():
    # TRL warns at import if a vLLM is installed that it was not tried with; it never calls it here.
    warnings.simplefilter("ignore")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

from workload_agents.adapters import trl as hook
from workload_agents.adapters.torch_storage import TorchMemory
from workload_agents.adapters.trl import VllmRollout
from workload_agents.errors import TandemError, TurnRefused, TurnTimeout, WeightsError
from workload_agents.weights import latest

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz "
PROMPTS = ["one ", "two two "]
N = 4  # completions of each prompt
REPEATED = [prompt for prompt in PROMPTS for _ in range(N)]  # as TRL hands them in


class ParkingTurn:
    """A turn that always has somebody waiting: it parks as soon as it is yielded."""

    def __init__(self, events: list[str]) -> None:
        self.memory = TorchMemory()
        self._events = events

    def hold(self, *things: Any) -> None:
        self.memory.hold(*things)

    @contextmanager
    def yielded(self) -> Iterator[None]:
        self._events.append("yield")
        self.memory.park()
        try:
            yield
        finally:
            self.memory.restore()
            self._events.append("resume")


class ResidentTurn(ParkingTurn):
    """A turn that nobody else wants."""

    @contextmanager
    def yielded(self) -> Iterator[None]:
        yield


@dataclass
class Engine:
    """What the server does and saw."""

    directory: Path
    model: LlamaForCausalLM
    events: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    before_answer: Callable[[], None] = lambda: None
    headers: Callable[[int], dict[str, str]] = lambda version: {
        "Tandem-Weights-First": str(version),
        "Tandem-Weights-Last": str(version),
    }
    refusals: list[tuple[int, dict[str, str], str]] = field(default_factory=list)
    stuck_at: int | None = None  # a version that it goes on serving whatever is published
    url: str = ""

    def answer(self, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        self.requests.append(request)
        self.events.append("request")
        self.before_answer()
        if self.refusals:
            status, headers, sentence = self.refusals.pop(0)
            return status, headers, json.dumps({"error": {"message": sentence}}).encode()
        version = latest(self.directory)
        assert version is not None
        served = self.stuck_at or version
        weights = load_file(self.directory / f"v{served}" / "model.safetensors")
        self.model.load_state_dict(weights, strict=False)
        self.model.tie_weights()
        choices = [
            self._choice(prompt, request, request["seed"] + number)
            for prompt in request["prompt"]
            for number in range(request["n"])
        ]
        for index, choice in enumerate(choices):
            choice["index"] = index
        # In any order: only `index` says which is which.
        body = json.dumps({"choices": choices[::-1]}).encode()
        return 200, self.headers(version), body

    def _choice(self, prompt: list[int], request: dict[str, Any], seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        length = 1 + seed % request["max_tokens"]
        tokens = torch.randint(3, 3 + len(CHARACTERS), (length,), generator=generator).tolist()
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        return {"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("TANDEM_WEIGHTS_DIR", str(tmp_path))
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(hook, "_PAUSES_S", (0.01,))
    engine = Engine(tmp_path, policy().eval())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/completions"
            content = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, body = engine.answer(json.loads(content))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        engine.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield engine
        server.shutdown()
        thread.join()


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {
        token: number for number, token in enumerate(["<s>", "</s>", "<pad>", *CHARACTERS])
    }
    characterwise = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    characterwise.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=characterwise,
        padding_side="left",
        bos_token="<s>",  # noqa: S106
        eos_token="</s>",  # noqa: S106
        pad_token="<pad>",  # noqa: S106
    )


def policy(*, tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=3 + len(CHARACTERS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=tied,
        attention_dropout=0.1,
    )
    return LlamaForCausalLM(config)


def digits(completions: list[Any], **_: object) -> list[float]:
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [sum(map(str.isdigit, text)) / max(1, len(text)) for text in texts]


def grpo(
    rollout: VllmRollout, folder: Path, model: LlamaForCausalLM | None = None, **settings: Any
) -> GRPOTrainer:
    config = GRPOConfig(
        output_dir=str(folder / "checkpoints"),
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        logging_steps=1,
        learning_rate=1e-2,
        per_device_train_batch_size=len(PROMPTS) * N,
        max_completion_length=6,
        **{"max_steps": 3, "num_generations": N, **settings},
    )
    return GRPOTrainer(
        model or policy(),
        digits,
        config,
        Dataset.from_dict({"prompt": PROMPTS}),
        Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer(),
        rollout_func=rollout,
    )


def losses(trainer: GRPOTrainer) -> list[tuple[float, float]]:
    return [(log["reward"], log["loss"]) for log in trainer.state.log_history if "loss" in log]


def test_training_publishes_then_parks_then_asks_once_a_step(
    engine: Engine, tmp_path: Path
) -> None:
    turn = ParkingTurn(engine.events)
    rollout = VllmRollout(turn, engine.url, dtype=torch.float32, seed=5)
    policy().save_pretrained(tmp_path / "model")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model")  # its files stay mapped
    trainer = grpo(rollout, tmp_path, model, beta=0.1)  # with beta TRL loads a reference model
    resident: list[int] = []
    published: list[int | None] = []
    checks: list[hook.WeightsCheck | None] = []

    def look() -> None:
        resident.append(turn.memory.resident)
        published.append(latest(tmp_path))
        assert all(one.untyped_storage().nbytes() == 0 for one in trainer.model.parameters())
        assert all(one.untyped_storage().nbytes() == 0 for one in trainer.ref_model.parameters())
        checks.append(rollout.last_check)

    engine.before_answer = look
    trainer.train()

    assert engine.events == ["yield", "request", "resume"] * 3
    assert resident == [0, 0, 0]
    assert published == [1, 2, 3]
    checks = [*checks[1:], rollout.last_check]
    assert [check.version for check in checks if check] == [1, 2, 3]
    assert all(check.mean_abs_difference < 1e-6 and check.tokens > N for check in checks if check)
    for request in engine.requests:
        assert {name: request[name] for name in ("model", "n", "max_tokens", "temperature")} == {
            "model": "policy",
            "n": N,
            "max_tokens": 6,
            "temperature": 1.0,
        }
        assert sorted(map(len, request["prompt"])) == sorted(map(len, PROMPTS))
    assert len({request["seed"] for request in engine.requests}) == 3
    assert all(one.untyped_storage().nbytes() for one in trainer.model.parameters())
    assert trainer.model.training


def test_losses_are_the_same_with_parking_and_without(engine: Engine, tmp_path: Path) -> None:
    histories = []
    for kind in (ParkingTurn, ResidentTurn):
        rollout = VllmRollout(kind(engine.events), engine.url, dtype=torch.float32)
        trainer = grpo(rollout, tmp_path)
        trainer.train()
        histories.append(losses(trainer))
    assert len(histories[0]) == 3
    assert histories[0] == histories[1]
    assert latest(tmp_path) == 6  # the second trainer went on counting where the first had stopped
    assert [one["seed"] for one in engine.requests[:3]] == [
        one["seed"] for one in engine.requests[3:]
    ]


def test_evaluation_asks_too_and_publishes_a_step_once(engine: Engine, tmp_path: Path) -> None:
    rollout = VllmRollout(ParkingTurn(engine.events), engine.url, dtype=torch.float32)
    trainer = grpo(
        rollout,
        tmp_path,
        eval_strategy="steps",
        eval_steps=1,
        max_steps=2,
        num_generations_eval=2,
        per_device_eval_batch_size=2,
    )
    trainer.train()
    # Training asks for both prompts at once, evaluation for one a batch.
    assert [(len(one["prompt"]), one["n"]) for one in engine.requests] == [
        (2, N),
        (1, 2),
        (1, 2),
    ] * 2
    assert len({one["seed"] for one in engine.requests}) == 6
    assert latest(tmp_path) == 3  # after no update, one, two
    assert rollout.last_check is not None
    assert rollout.last_check.mean_abs_difference < 1e-6


def test_the_check_tells_weights_that_are_one_update_old(engine: Engine, tmp_path: Path) -> None:
    rollout = VllmRollout(ParkingTurn(engine.events), engine.url, dtype=torch.float32)
    engine.stuck_at = 1
    grpo(rollout, tmp_path, max_steps=2).train()
    assert rollout.last_check is not None
    assert rollout.last_check.version == 2
    assert rollout.last_check.mean_abs_difference > 1e-3


def test_tied_weights_are_published_once_in_the_engines_dtype(
    engine: Engine, tmp_path: Path
) -> None:
    model = policy(tied=True)
    rollout = VllmRollout(ParkingTurn(engine.events), engine.url)
    engine.model = policy(tied=True).eval()
    rollout(REPEATED, grpo(rollout, tmp_path, model))
    files = {one.name for one in (tmp_path / "v1").iterdir()}
    assert files == {"manifest.json", "model.safetensors"}
    weights = load_file(tmp_path / "v1" / "model.safetensors")
    assert set(weights) == {name for name, _ in model.named_parameters()}
    assert "lm_head.weight" not in weights
    assert {one.dtype for one in weights.values()} == {torch.bfloat16}
    for name, parameter in model.named_parameters():
        assert torch.equal(weights[name], parameter.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [("1", "0", "Last is 0"), ("0", "1", "First is 0"), ("1", "", "Last is missing")],
)
def test_an_answer_of_other_weights_is_refused(
    engine: Engine, tmp_path: Path, first: str, last: str, told: str
) -> None:
    headers = {"Tandem-Weights-First": first} | ({"Tandem-Weights-Last": last} if last else {})
    engine.headers = lambda _version: headers
    rollout = VllmRollout(ParkingTurn(engine.events), engine.url)
    with pytest.raises(WeightsError, match=f"{told}, published was 1") as error:
        grpo(rollout, tmp_path).train()
    assert "\n" not in str(error.value)


def test_a_refusal_that_names_the_holder_is_raised_at_once(engine: Engine, tmp_path: Path) -> None:
    engine.refusals = [(409, {}, "trainer holds the turn on gpu0 and asks for it itself")]
    rollout = VllmRollout(ParkingTurn(engine.events), engine.url)
    with pytest.raises(TurnRefused, match="trainer holds the turn on gpu0"):
        grpo(rollout, tmp_path).train()
    assert len(engine.requests) == 1


def test_a_mistake_in_the_request_is_not_retried(engine: Engine, tmp_path: Path) -> None:
    engine.refusals = [(404, {}, "The model `policy` does not exist.")]
    rollout = VllmRollout(ParkingTurn(engine.events), engine.url)
    with pytest.raises(TandemError, match="404: The model `policy` does not exist"):
        grpo(rollout, tmp_path).train()
    assert len(engine.requests) == 1


def test_an_engine_that_is_away_for_a_while_is_asked_again(engine: Engine, tmp_path: Path) -> None:
    engine.refusals = [
        (503, {"Retry-After": "0"}, "rollout waits for the turn"),
        (502, {}, "the engine ended"),
    ]
    rollout = VllmRollout(ParkingTurn(engine.events), engine.url)
    grpo(rollout, tmp_path, max_steps=1).train()
    assert len(engine.requests) == 3
    assert engine.requests[0] == engine.requests[1] == engine.requests[2]


def test_an_engine_that_never_answers_ends_in_one_line(engine: Engine, tmp_path: Path) -> None:
    engine.refusals = [(503, {"Retry-After": "30"}, "rollout waits for the turn")]
    rollout = VllmRollout(ParkingTurn(engine.events), engine.url, timeout_s=20)
    trainer = grpo(rollout, tmp_path)
    with pytest.raises(TurnTimeout, match=r"in 20 s.*503: rollout waits for the turn") as error:
        trainer.train()
    assert "\n" not in str(error.value)
    nowhere = VllmRollout(ParkingTurn([]), "http://127.0.0.1:9", timeout_s=0.05)
    with pytest.raises(TurnTimeout, match="refused"):
        nowhere(REPEATED, trainer)


def test_conversations_are_sent_through_the_chat_template(engine: Engine, tmp_path: Path) -> None:
    rollout = VllmRollout(ParkingTurn(engine.events), engine.url, dtype=torch.float32)
    trainer = grpo(rollout, tmp_path)
    trainer.processing_class.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %} "
    conversation = [{"role": "user", "content": "say one"}]
    answer = rollout([conversation] * N, trainer)
    expected = tokenizer()("say one ")["input_ids"]
    assert engine.requests[0]["prompt"] == [expected]
    assert answer["prompt_ids"] == [expected] * N
    assert all(
        len(a) == len(b) for a, b in zip(answer["completion_ids"], answer["logprobs"], strict=True)
    )


def test_outside_a_run_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_WEIGHTS_DIR", raising=False)
    with pytest.raises(TandemError, match="TANDEM_WEIGHTS_DIR is not set"):
        VllmRollout(ParkingTurn([]), "http://127.0.0.1:8000")
