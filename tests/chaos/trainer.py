"""A trainer whose updates are functions of their numbers: killed, it goes on from a checkpoint."""

import hashlib
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

import torch

from tests.chaos.words import Words

_PAUSE_S: Final = 0.01
_ASK_S: Final = 120.0
_IN, _OUT, _BATCH = 512, 1024, 8
REFUSED_MAX: Final = 3


class Job:
    """A model and Adam: 2 MiB of weights, so 8 MiB with gradient and optimizer state."""

    def __init__(self, role: str) -> None:
        self._role = role
        torch.manual_seed(sum(role.encode()))
        self.model = torch.nn.Linear(_IN, _OUT, bias=False)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.updates = 0

    def update(self) -> None:
        """One step on the data of its number."""
        data = torch.Generator().manual_seed(self.updates)
        inputs = torch.randn(_BATCH, _IN, generator=data)
        target = torch.randn(_BATCH, _OUT, generator=data)
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self.model(inputs), target).backward()
        self.optimizer.step()
        self.updates += 1

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }
        fresh = path.with_suffix(".new")
        torch.save(state, fresh)
        fresh.replace(path)

    def load(self, path: Path) -> None:
        """Take up the checkpoint, if there is one."""
        if path.exists():
            state = torch.load(path, mmap=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.updates = state["updates"]

    @property
    def digest(self) -> str:
        """Of every byte of the state."""
        found = hashlib.sha256()
        for parameter in self.model.parameters():
            found.update(parameter.detach().numpy().tobytes())
            for _, value in sorted(self.optimizer.state[parameter].items()):
                found.update(value.numpy().tobytes())
        return found.hexdigest()


def train(role: str, engine: str, run: Path) -> None:
    """Until it is enough."""
    import tandem
    from workload_agents.errors import TandemError

    words = Words(role, run / "words")
    job: Job | None = None
    refused = 0
    while refused < REFUSED_MAX:
        words.say("waits")
        try:
            with tandem.turn(role) as turn:
                words.say("turn", epoch=turn.epoch)
                if job is None:
                    job = Job(role)
                    job.load(run / f"{role}.pt")
                    turn.hold(job.model, job.optimizer)
                while True:
                    refused = 0
                    job.update()
                    job.save(run / f"{role}.pt")
                    if (run / "enough").exists():
                        words.say("done", updates=job.updates, why=job.digest)
                        words.say("left", epoch=turn.epoch, updates=job.updates)
                        return
                    words.say("left", epoch=turn.epoch, updates=job.updates)
                    with turn.yielded():
                        _rollout(words, engine)
                        words.say("waits")
                    words.say("turn", epoch=turn.epoch)
        except TandemError as exc:
            refused += 1
            words.say("failed", why=f"{type(exc).__name__}: {exc}")


def _rollout(words: Words, engine: str) -> None:
    """Ask the engine for one; without an engine, or while it is away, go on soon."""
    if engine:
        words.say("asks")
        request = urllib.request.Request(f"{engine}/v1/completions", b"{}", method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_ASK_S) as answer:  # noqa: S310
                words.say("answered", why=str(answer.status))
                answer.read()
                return
        except urllib.error.HTTPError as exc:
            words.say("answered", why=f"{exc.code} {exc.read().decode(errors='replace')}")
        except OSError as exc:
            words.say("answered", why=f"{type(exc).__name__}: {exc}")
    time.sleep(_PAUSE_S)


def undisturbed(role: str, updates: int) -> str:
    """The digest after so many updates."""
    job = Job(role)
    for _ in range(updates):
        job.update()
    return job.digest
