"""How close jobs that share devices come to devices that change hands at no cost.

Each job alternates between a rollout on the one device and a training on the other, each in a
process of its own, with the real arbiter and real sessions; all jobs share both devices. Phases are
time asleep and nothing is copied: what is measured is the control overhead, and whether a device is
passed on in time. All worlds run at once, each with an arbiter of its own. The ideal is computed
from the same phases (`_interleaving.ideal`).
"""

import itertools
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.benchmarks import _figures, _interleaving, _lab
from hack.benchmarks._figures import Bound, progress
from hack.benchmarks._interleaving import ROLES, Phases, Timetable

NAME = "makespan"
PHASE_S = 2.0
VARIATION = 0.4
SEEDS = (1, 2, 3)
MAKESPAN_MAX = 1.05
BUSY_MIN = 0.95
BEGIN_AFTER_S = 0.1
"""From asking the jobs to their beginning: they begin together."""


@dataclass(frozen=True)
class World:
    """Jobs that share two devices, and what they reached."""

    name: str
    jobs: list[Phases]
    reached: Timetable

    @property
    def ideal(self) -> Timetable:
        """What they could reach."""
        return _interleaving.ideal(self.jobs)

    def as_json(self) -> dict[str, Any]:
        """For `-o json`."""
        return {
            "jobs": len(self.jobs),
            "rounds": len(self.jobs[0]) // len(ROLES),
            "makespan_s": self.reached.makespan,
            "ideal_makespan_s": self.ideal.makespan,
            "busy": self.reached.busy,
            "ideal_busy": self.ideal.busy,
        }


def worlds(rounds: int, scale: float) -> dict[str, list[Phases]]:
    """Two identical jobs; for each seed three with random phases, and four times as many rounds,
    as a few random rounds say little.
    """
    mean_s = PHASE_S * scale
    made = {"two identical jobs": _interleaving.regular(2, rounds, mean_s)}
    for seed in SEEDS:
        name = f"three random jobs, seed {seed}"
        made[name] = _interleaving.lognormal(3, 4 * rounds, mean_s, VARIATION, seed)
    return made


def tenants(folder: Path, jobs: int) -> list[_lab.Tenant]:
    """Both halves of each job, with the pipes between them."""
    made = []
    for job in range(jobs):
        pipes = [folder / f"{role}{job}" for role in ROLES]
        for pipe in pipes:
            os.mkfifo(pipe)
        made += [
            _lab.Tenant(f"{role}{job}", role, "phases", (mine, others))
            for role, mine, others in zip(ROLES, pipes, reversed(pipes), strict=True)
        ]
    return made


def begin(node: _lab.Node, jobs: list[Phases], at: float) -> None:
    """Have all jobs of a world begin at CLOCK_MONOTONIC `at`."""
    halves = iter(node.tenants)
    for phases in jobs:
        for number in range(len(ROLES)):
            next(halves).ask([None if number else at, phases[number :: len(ROLES)]])


def end(node: _lab.Node, jobs: list[Phases], began: float) -> Timetable:
    """Wait for the end of all jobs of a world."""
    of_tenants = [tenant.answer() for tenant in node.tenants]
    for number, role in enumerate(ROLES):
        turns = sorted(itertools.chain(*of_tenants[number :: len(ROLES)]))
        if any(later < ended for (_, ended), (later, _) in itertools.pairwise(turns)):
            raise RuntimeError(f"two turns overlap on the device {role}")
    ended = max(turn_ended for turns in of_tenants for _, turn_ended in turns)
    return Timetable(ended - began, sum(map(sum, jobs)))


def run(folder: Path, jobs: dict[str, list[Phases]]) -> list[World]:
    """Run all worlds at once."""
    with ExitStack() as stack:
        nodes = {}
        for number, (name, of_world) in enumerate(jobs.items()):
            place = folder / str(number)
            place.mkdir()
            nodes[name] = stack.enter_context(_lab.node(place, tenants(place, len(of_world))))
        at = time.monotonic() + BEGIN_AFTER_S
        for name, of_world in jobs.items():
            begin(nodes[name], of_world, at)
        reached = []
        for name, of_world in jobs.items():
            reached.append(World(name, of_world, end(nodes[name], of_world, at)))
            progress(f"[{len(reached)}/{len(jobs)}] {name}: {reached[-1].reached.makespan:.1f} s")
    return reached


def bounds(reached: list[World]) -> list[Bound]:
    """The identical jobs by their makespan, the random ones by how busy the devices are."""
    identical, *random = reached
    makespan = identical.reached.makespan / identical.ideal.makespan
    return [
        Bound(f"makespan by ideal, {identical.name}", makespan, at_most=MAKESPAN_MAX),
        *(
            Bound(
                f"busy by ideal, {world.name}",
                world.reached.busy / world.ideal.busy,
                at_least=BUSY_MIN,
            )
            for world in random
        ),
    ]


def table(reached: list[World]) -> list[str]:
    """Seconds, for people."""
    return [
        f"{'':28}{'makespan':>12}{'ideal':>12}{'busy':>9}{'ideal':>9}",
        *(
            f"{world.name:28}{world.reached.makespan:>10.3f} s{world.ideal.makespan:>10.3f} s"
            f"{world.reached.busy:>9.3f}{world.ideal.busy:>9.3f}"
            for world in reached
        ),
    ]


def benchmark(folder: Path, rounds: int, scale: float, output: str) -> int:
    """Run all worlds and tell."""
    jobs = worlds(rounds, scale)
    longest_s = max(_interleaving.ideal(of_world).makespan for of_world in jobs.values())
    progress(f"{len(jobs)} worlds at once, {longest_s:.0f} s ...")
    reached = run(folder, jobs)
    result = {"phase_s": PHASE_S * scale, "worlds": {w.name: w.as_json() for w in reached}}
    return _figures.report(result, table(reached), bounds(reached), output)


def main() -> int:
    """Parse and run."""
    parser = _lab.parser(NAME, __doc__)
    parser.add_argument("-n", type=int, default=5, help="rounds of the identical jobs (5)")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help=f"of the phases, {PHASE_S:g} s each: shorter ones make the bounds harder (1)",
    )
    asked = parser.parse_args()
    return _lab.apart(NAME, lambda folder: benchmark(folder, asked.n, asked.scale, asked.output))


if __name__ == "__main__":
    sys.exit(main())
