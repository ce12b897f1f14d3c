"""The files of a run that looks like a recorded one: two tenants on one device, written by a seed.

A rollout engine starts for 20 s, a trainer builds its model, and then they take turns. What is
written is exactly what the arbiter, the observer and a trainer write; no figure of Tandem's is
computed here, so tests may compare with what this module chose.
"""

import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
DEVICE = "gpu0"
CAPACITY = 256 * MIB
HELD = {"rollout": 168 * MIB, "trainer": 205 * MIB}
RESIDUAL = {"rollout": 11 * MIB, "trainer": 3 * MIB}
BUDGET = {"rollout": 16 * MIB, "trainer": 8 * MIB}


@dataclass
class SyntheticRun:
    """A clock and the lines that were written so far; the phase of each tenant by name."""

    seed: int
    t: float = 1000.0
    epoch: int = 0
    lines: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {"events.jsonl": [], "samples.jsonl": [], "progress.jsonl": []}
    )
    handovers_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start the arbiter; two tenants say hello."""
        self._random = random.Random(self.seed)
        self._phase: dict[str, str] = {}
        self._published: int | None = None
        self._weights: int | None = None
        self._memory: list[tuple[float, str, int]] = []
        self._event(kind="start", boot_id="6f1f0c7e", epoch=0)
        for tenant in ("rollout", "trainer"):
            self._event(
                kind="phase", tenant=tenant, **{"from": None}, to="Parked", epoch=0,
                devices=[DEVICE], weights=None,
            )  # fmt: skip
            self._phase[tenant] = "Parked"

    def iterate(self, iterations: int) -> None:
        """The whole run: starts, then `iterations` of rollout and update."""
        self.phase("rollout", "Waiting")
        self._grant("rollout", restoring_s=20.0)
        self.phase("rollout", "Yielded", after_s=0.4)
        self.phase("trainer", "Waiting", after_s=1.2)
        self._displace("rollout")
        self._grant("trainer", restoring_s=0.001)
        self.spend(2.5)
        for iteration in range(1, iterations + 1):
            self._iteration(iteration)
        self.phase("trainer", "Yielded", after_s=0.1)
        self.phase("trainer", "Quiescing")
        self.phase("trainer", "Verifying")
        self._hold("trainer", 0)
        self.phase("trainer", "Gone", after_s=0.02)

    def condition(self, condition: str, message: str, **about: Any) -> None:
        """Something that should not be happens now."""
        about = {"tenant": None, "device": None, "bytes": None} | about
        self._event(kind="condition", condition=condition, message=message, **about)

    def phase(self, tenant: str, to: str, after_s: float = 0.0) -> None:
        """`tenant` enters a phase after a time."""
        self.spend(after_s)
        self._event(
            kind="phase", tenant=tenant, **{"from": self._phase[tenant]}, to=to, epoch=self.epoch,
            devices=[DEVICE], weights=self._weights if tenant == "rollout" else None,
        )  # fmt: skip
        self._phase[tenant] = to

    def spend(self, seconds: float) -> None:
        """Let time go by."""
        self.t += seconds

    def write(self, folder: Path, sample_every_s: float) -> Path:
        """Write the three files; the observer looks every `sample_every_s`."""
        self._observe(sample_every_s)
        folder.mkdir(parents=True, exist_ok=True)
        for name, lines in self.lines.items():
            (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    def _iteration(self, iteration: int) -> None:
        self._published = iteration
        self.phase("trainer", "Yielded")
        self.phase("rollout", "Waiting", after_s=0.0006)
        could_start = self.t
        self._displace("trainer")
        self._grant("rollout", restoring_s=self._random.uniform(0.004, 0.022))
        self.handovers_s.append(self.t - could_start)
        self.spend(self._random.uniform(0.7, 1.1))
        self.phase("rollout", "Yielded")
        self.phase("trainer", "Waiting", after_s=0.0008)
        could_start = self.t
        self._displace("rollout")
        self._grant("trainer", restoring_s=self._random.uniform(0.003, 0.018))
        self.handovers_s.append(self.t - could_start)
        self.spend(self._random.uniform(0.9, 1.3))
        reward = 0.08 + 0.84 / (1 + math.exp(-(iteration - 14) / 3.5))
        self.lines["progress.jsonl"].append(
            {
                "t": self.t,
                "iteration": iteration,
                "reward": round(reward + self._random.gauss(0, 0.025), 4),
                "loss": round(0.3 / iteration, 5),
                "weights_version": iteration,
                "weights_check": round(self._random.uniform(1e-6, 6e-6), 9),
                "grad_norm": 1.0,
            }
        )
        self.spend(0.004)

    def _grant(self, tenant: str, restoring_s: float) -> None:
        self.epoch += 1
        self.phase(tenant, "Restoring", after_s=self._random.uniform(0.0002, 0.0006))
        self._grow(tenant, RESIDUAL[tenant], HELD[tenant], restoring_s)
        if tenant == "rollout":
            self._weights = self._published
        self.phase(tenant, "Running")

    def _displace(self, tenant: str) -> None:
        self.phase(tenant, "Quiescing", after_s=self._random.uniform(0.0002, 0.0005))
        self.phase(tenant, "Releasing", after_s=self._random.uniform(0.0004, 0.009))
        releasing_s = self._random.uniform(0.002, 0.02)
        if self._random.random() < 0.06:
            releasing_s += 0.02
        self._grow(tenant, HELD[tenant], RESIDUAL[tenant], releasing_s)
        self.phase(tenant, "Verifying")
        for attempt in range(self._random.choice((1, 1, 1, 2))):
            self.spend(self._random.uniform(0.0002, 0.0012) + 0.001 * attempt)
            self._event(
                kind="measured", device=DEVICE, used=sum(RESIDUAL.values()), total=CAPACITY,
                free=True, tenant=tenant,
            )  # fmt: skip
        self.phase(tenant, "Parked", after_s=0.0001)

    def _grow(self, tenant: str, before: int, after: int, seconds: float) -> None:
        for step in range(1, 9):
            self.spend(seconds / 8)
            self._hold(tenant, before + (after - before) * step // 8)

    def _hold(self, tenant: str, amount: int) -> None:
        self._memory.append((self.t, tenant, amount))

    def _event(self, **event: Any) -> None:
        self.lines["events.jsonl"].append({"t": self.t} | event)

    def _observe(self, every_s: float) -> None:
        held = {"rollout": 0, "trainer": 0}
        changes = iter([*self._memory, (math.inf, "", 0)])
        moment, tenant, amount = next(changes)
        t = self.lines["events.jsonl"][0]["t"]
        while t < self.t:
            while moment <= t:
                held[tenant] = amount
                moment, tenant, amount = next(changes)
            self.lines["samples.jsonl"].append(
                {
                    "t0": t,
                    "t1": t + 0.0001,
                    "devices": {DEVICE: {"used": sum(held.values()), "total": CAPACITY}},
                    "tenants": {name: {DEVICE: held[name]} for name in held},
                    "strangers": [],
                }
            )
            t += every_s
