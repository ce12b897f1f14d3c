"""GRPO with TRL on a GPU that a vLLM server uses in turn: `python train.py --help`.

The model learns to write digits. All that is Tandem's is the turn and the rollout hook.
"""

import argparse
import json
import tempfile

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

import tandem
from tandem.trl import VllmRollout

PROMPTS = ["Count: ", "Pi is "]
SAMPLES = 8  # of each prompt in each step
TOKENS = 16  # of each sample


def digits(completions: list[str], **_: object) -> list[float]:
    """The share of digits among the characters: 1 when nothing else was written."""
    return [
        sum(character in "0123456789" for character in text) / max(1, len(text))
        for text in completions
    ]


class Progress(TrainerCallback):
    """Prints one JSON line an iteration."""

    def __init__(self, rollout: VllmRollout) -> None:
        self._rollout = rollout

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: object,
    ) -> None:
        check = self._rollout.last_check
        if logs is None or "loss" not in logs or check is None:
            return
        line = {
            "iteration": state.global_step,
            "reward": logs["reward"],
            "loss": logs["loss"],
            "grad_norm": logs["grad_norm"],
            "weights_version": check.version,
            "weights_check": check.mean_abs_difference,
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="model", help="folder of the model to start from")
    parser.add_argument("--engine", default="http://127.0.0.1:8000", help="address of the engine")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    arguments = parser.parse_args()

    disable_progress_bar()  # of each publication
    torch.set_num_threads(1)  # the order of additions, and so each loss, is always the same
    set_seed(arguments.seed)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),  # nothing is saved; TRL makes the folder
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=arguments.seed,
        max_steps=arguments.steps,
        learning_rate=arguments.learning_rate,
        lr_scheduler_type="constant",
        per_device_train_batch_size=len(PROMPTS) * SAMPLES,
        num_generations=SAMPLES,
        max_completion_length=TOKENS,
        logging_steps=1,
        disable_tqdm=True,
    )
    with tandem.turn("trainer") as turn:
        rollout = VllmRollout(turn, arguments.engine, dtype=torch.float32, seed=arguments.seed)
        trainer = GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32),
            digits,
            config,
            Dataset.from_dict({"prompt": PROMPTS}),
            processing_class=AutoTokenizer.from_pretrained(arguments.model, padding_side="left"),
            rollout_func=rollout,
            callbacks=[Progress(rollout)],
        )
        trainer.train()


if __name__ == "__main__":
    main()
