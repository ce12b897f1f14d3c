"""Jobs that share a rollout device and a training device, as if turns cost nothing."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

ROLES = ("rollout", "trainer")

Phases = Sequence[float]
"""A job: seconds of its phases, first a rollout, then a training, and so on."""


@dataclass(frozen=True)
class Timetable:
    """Jobs that began together: seconds until the last one ended, and what the devices did."""

    makespan: float
    work: float  # of both devices

    @property
    def busy(self) -> float:
        """The mean part of the makespan in which a device works."""
        return self.work / len(ROLES) / self.makespan


def ideal(jobs: Sequence[Phases]) -> Timetable:
    """First come, first served on both devices; a turn begins when the one before it ends."""
    free = [0.0] * len(ROLES)
    arrivals = [(0.0, job, 0) for job, phases in enumerate(jobs) if phases]
    while arrivals:
        arrived, job, number = heapq.heappop(arrivals)
        device = number % len(ROLES)
        free[device] = max(free[device], arrived) + jobs[job][number]
        if number + 1 < len(jobs[job]):
            heapq.heappush(arrivals, (free[device], job, number + 1))
    return Timetable(max(free), sum(map(sum, jobs)))


def regular(jobs: int, rounds: int, phase_s: float) -> list[Phases]:
    """Identical jobs whose every phase takes as long."""
    return [[phase_s] * (rounds * len(ROLES))] * jobs


def lognormal(jobs: int, rounds: int, mean_s: float, variation: float, seed: int) -> list[Phases]:
    """Jobs with random phases; `variation` is standard deviation by mean.

    The logarithm's parameters follow from mean and variation: sigma^2 = ln(1 + variation^2),
    mu = ln(mean) - sigma^2 / 2.
    """
    rng = random.Random(seed)  # noqa: S311 - phases, no secret
    variance = log(1 + variation**2)
    scale_s = mean_s * exp(-variance / 2)

    def phase() -> float:
        return scale_s * exp(rng.gauss(0, sqrt(variance)))

    return [[phase() for _ in range(rounds * len(ROLES))] for _ in range(jobs)]
