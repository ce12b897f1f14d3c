"""Let TRL's GRPOTrainer sample from a vLLM server that it takes turns with.

    rollout = VllmRollout(turn, "http://127.0.0.1:8000")
    trainer = GRPOTrainer(..., rollout_func=rollout)

TRL 1.16 calls `rollout_func(prompts, trainer)` on the trainer's thread whenever it needs
completions, for evaluation too.
"""

import hashlib
import itertools
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Any, Protocol

import requests
import torch
from transformers import PreTrainedModel, TrainerState
from trl import GRPOTrainer, is_conversational

from workload_agents.errors import TandemError, TurnRefused, TurnTimeout, WeightsError
from workload_agents.weights import latest, publish

logger = logging.getLogger(__name__)

_CONNECT_S = 10.0
_PAUSES_S = (0.5, 1.0, 2.0, 4.0)  # between attempts; the last one repeats


class Turn(Protocol):
    """What the hook needs of a turn (workload_agents.turn)."""

    def hold(self, *things: Any) -> None: ...
    def yielded(self) -> AbstractContextManager[object]: ...


@dataclass(frozen=True)
class WeightsCheck:
    """How far the engine's log-probabilities of sampled tokens are from the trainer's own."""

    version: int
    mean_abs_difference: float  # nats a token
    tokens: int


@dataclass
class _Step:
    state: TrainerState  # each `train()` makes a new one
    number: int  # updates until now
    version: int  # of the weights published in it
    requests: int = 0


class VllmRollout:
    """A `rollout_func` that publishes the policy, yields the turn and asks vLLM in one request.

    A version of weights is `trainer.state.global_step + 1`, or the next free number where the
    directory already has that one: a trainer that starts over never publishes under a used name.
    A step that asks more than once, for evaluation, publishes once.

    When the answer is there and the turn is held again, the trainer computes the log-probabilities
    of the sampled tokens under its own weights; `last_check` is the comparison. vLLM must report
    them as it does by default (`--logprobs-mode raw_logprobs`): before temperature and truncation.

    Args:
        turn: the turn that the trainer holds; the hook adds models and optimizer to what it parks.
        url: the engine's address, without `/v1`.
        model: the name that the engine serves the policy under.
        dtype: the engine's dtype, in which weights are published.
        seed: of the sampling; each request has its own, derived from this and the step.
        timeout_s: for one request, with retries and an engine's restart.

    A call raises TurnRefused if the engine waits for the turn that this trainer holds, TurnTimeout
    without an answer in `timeout_s`, WeightsError if other weights answered than those published or
    the model cannot be published, and TandemError for any other refusal.
    """

    def __init__(
        self,
        turn: Turn,
        url: str,
        *,
        model: str = "policy",
        dtype: torch.dtype = torch.bfloat16,
        seed: int = 0,
        timeout_s: float = 600.0,
    ) -> None:
        if "TANDEM_WEIGHTS_DIR" not in environ:
            raise TandemError(
                "rollout: TANDEM_WEIGHTS_DIR is not set, so this process is no tenant; start it by"
                " `tandem local`, or in a pod with a claim"
            )
        self.last_check: WeightsCheck | None = None
        self._directory = Path(environ["TANDEM_WEIGHTS_DIR"])
        self._turn = turn
        self._url = f"{url.rstrip('/')}/v1/completions"
        self._model = model
        self._dtype = dtype
        self._seed = seed
        self._timeout_s = timeout_s
        self._trainer: GRPOTrainer | None = None
        self._step: _Step | None = None

    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Gives TRL a completion for each prompt, in the order of the prompts."""
        if trainer is not self._trainer:
            _hold(trainer, self._turn)
            self._trainer = trainer
        groups, n = _groups(prompts, trainer)
        prompt_ids = _tokenize(groups, trainer)
        step = self._publish(trainer)
        request = {
            "model": self._model,
            "prompt": prompt_ids,
            "n": n,
            "seed": _seed(self._seed, step.number, step.requests),
            "logprobs": 0,
            "return_token_ids": True,
            **_sampling(trainer),
        }
        step.requests += 1
        with self._turn.yielded():
            response = self._ask(request)
        _require_version(response.headers, step.version)
        choices = sorted(response.json()["choices"], key=lambda choice: int(choice["index"]))
        if len(choices) != len(prompts):
            raise TandemError(
                f"rollout: asked {self._url} for {len(prompts)} completions and got {len(choices)}"
            )
        rollouts = {
            "prompt_ids": [ids for ids in prompt_ids for _ in range(n)],
            "completion_ids": [choice["token_ids"] for choice in choices],
            "logprobs": [choice["logprobs"]["token_logprobs"] for choice in choices],
        }
        self.last_check = _check(trainer, step.version, **rollouts)
        return rollouts

    def _publish(self, trainer: GRPOTrainer) -> _Step:
        number = int(trainer.state.global_step)
        step = self._step
        if step is None or step.state is not trainer.state or step.number != number:
            model = trainer.accelerator.unwrap_model(trainer.model)
            version = max(latest(self._directory) or 0, number) + 1
            publish(self._directory, version, lambda folder: _write(model, self._dtype, folder))
            step = self._step = _Step(trainer.state, number, version)
        return step

    def _ask(self, request: Mapping[str, Any]) -> requests.Response:
        """POSTs until an answer comes: an engine that starts anew refuses connections meanwhile.

        A request sent twice is answered alike: its seed is fixed.
        """
        deadline = time.monotonic() + self._timeout_s
        pauses_s = itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1]))
        while True:
            remaining_s = max(deadline - time.monotonic(), 0.001)
            wait_s = next(pauses_s)
            try:
                response = requests.post(
                    self._url, json=request, timeout=(min(_CONNECT_S, remaining_s), remaining_s)
                )
            except (
                requests.ConnectionError,
                requests.Timeout,
                requests.exceptions.ChunkedEncodingError,
            ) as error:
                reason = _one_line(str(error))
            else:
                if response.ok:
                    return response
                reason = f"{response.status_code}: {_message(response)}"
                if response.status_code == requests.codes.conflict:
                    raise TurnRefused(f"rollout: {self._url} answered {reason}")
                if response.status_code < requests.codes.server_error:
                    raise TandemError(f"rollout: {self._url} answered {reason}")
                wait_s = max(wait_s, _retry_after_s(response.headers))
            if time.monotonic() + wait_s >= deadline:
                raise TurnTimeout(
                    f"rollout: no completions from {self._url} in {self._timeout_s:g} s; the last"
                    f" try: {reason}; see the engine's log"
                )
            logger.warning("rollout: asking %s again in %g s: %s", self._url, wait_s, reason)
            time.sleep(wait_s)


def _hold(trainer: GRPOTrainer, turn: Turn) -> None:
    if trainer.accelerator.num_processes != 1:
        raise TandemError(
            f"rollout: the trainer has {trainer.accelerator.num_processes} processes; VllmRollout"
            " serves one"
        )
    turn.hold(
        trainer.model,
        lambda: trainer.ref_model,
        lambda: [reward for reward in trainer.reward_funcs if isinstance(reward, torch.nn.Module)],
        lambda: trainer.optimizer,
    )


def _groups(prompts: list[Any], trainer: GRPOTrainer) -> tuple[list[Any], int]:
    """Each prompt once, and how many completions of it TRL wants: it hands them in repeated."""
    n = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    groups = prompts[::n]
    if [prompt for prompt in groups for _ in range(n)] != prompts:
        raise TandemError(
            f"rollout: {len(prompts)} prompts are not groups of {n} equal ones, as"
            " num_generations says; is this TRL version supported?"
        )
    return groups, int(n)


def _tokenize(prompts: list[Any], trainer: GRPOTrainer) -> list[list[int]]:
    if is_conversational({"prompt": prompts[0]}):
        tokens = trainer.processing_class.apply_chat_template(
            prompts,
            tools=trainer.tools or None,
            chat_template=trainer.chat_template,
            add_generation_prompt=True,
            return_dict=True,
            **trainer.chat_template_kwargs,
        )
    else:
        tokens = trainer.processing_class(text=prompts)
    return [list(ids) for ids in tokens["input_ids"]]


def _sampling(trainer: GRPOTrainer) -> dict[str, Any]:
    settings = trainer.args
    return {
        "max_tokens": settings.max_completion_length,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "min_p": settings.min_p or 0.0,
        "repetition_penalty": settings.repetition_penalty,
        **(settings.generation_kwargs or {}),
    }


def _seed(seed: int, step: int, request: int) -> int:
    # Hashed, since vLLM gives the n completions of a prompt the seeds seed, seed + 1 and so on:
    # those of two steps must not overlap.
    digest = hashlib.sha256(f"{seed}/{step}/{request}".encode()).digest()
    return int.from_bytes(digest[:4])


def _write(model: PreTrainedModel, dtype: torch.dtype, folder: Path) -> None:
    """Writes a checkpoint's tensors in `dtype`: under its names, those that are tied once."""
    if not isinstance(model, PreTrainedModel):
        raise WeightsError(
            f"weights: a {type(model).__name__} cannot be published, since an engine loads whole"
            " transformers models; merge adapters into the model first"
        )
    converted: dict[tuple[int, torch.Size], torch.Tensor] = {}
    state = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.size())
        if key not in converted:
            converted[key] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        state[name] = converted[key]
    model.save_pretrained(folder, state_dict=state)
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            file.unlink()


def _require_version(headers: Mapping[str, str], version: int) -> None:
    for name in ("Tandem-Weights-First", "Tandem-Weights-Last"):
        if headers.get(name) != str(version):
            raise WeightsError(
                f"weights: the answer's {name} is {headers.get(name, 'missing')}, published was"
                f" {version}; ask the engine through Tandem's agent, and see the agent's log"
            )


def _check(
    trainer: GRPOTrainer,
    version: int,
    prompt_ids: list[list[int]],
    completion_ids: list[list[int]],
    logprobs: list[list[float | None]],
) -> WeightsCheck:
    """Compares as many sequences at a time as a training step holds with gradients: they fit."""
    rows = int(trainer.args.per_device_train_batch_size)
    differences: list[torch.Tensor] = []
    with torch.no_grad(), _evaluating(trainer.model):
        for start in range(0, len(prompt_ids), rows):
            chunk = slice(start, start + rows)
            own = _logprobs(trainer.model, prompt_ids[chunk], completion_ids[chunk])
            for mine, served in zip(own, logprobs[chunk], strict=True):
                # vLLM gives None for what is not a number.
                theirs = [float("nan") if value is None else value for value in served]
                differences.append((mine.double().cpu() - torch.tensor(theirs).double()).abs())
    difference = torch.cat(differences)
    return WeightsCheck(version, float(difference.mean()), difference.numel())


def _logprobs(
    model: torch.nn.Module, prompt_ids: list[list[int]], completion_ids: list[list[int]]
) -> Iterator[torch.Tensor]:
    """For each row the log-probabilities of its completion, float32 of shape (tokens,).

    Padded on the right, so that every token has the position that it had in the engine; a causal
    model does not look at what comes after.
    """
    rows = [
        prompt + completion for prompt, completion in zip(prompt_ids, completion_ids, strict=True)
    ]
    width = max(map(len, rows))
    device = next(model.parameters()).device
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
    first = min(map(len, prompt_ids)) - 1  # the position whose logits give the first sampled token
    logits = model(
        input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=width - first
    ).logits
    for row, prompt, completion in zip(logits, prompt_ids, completion_ids, strict=True):
        start = len(prompt) - 1 - first
        sampled = torch.tensor(completion, device=device)
        yield -torch.nn.functional.cross_entropy(
            row[start : start + len(completion)].float(), sampled, reduction="none"
        )


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Dropout off, so that nothing draws from the generators; each module's mode comes back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _retry_after_s(headers: Mapping[str, str]) -> float:
    value = headers.get("Retry-After", "")
    return (
        float(value) if value.isdecimal() else 0.0
    )  # a date, which only proxies send, is not read


def _message(response: requests.Response) -> str:
    """The sentence of an error in OpenAI's shape, or the body as it is."""
    try:
        return _one_line(str(response.json()["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return _one_line(response.text)


def _one_line(text: str) -> str:
    return " ".join(text.split())
