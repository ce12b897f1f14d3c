"""The real arbiter, with a journal that kills a process at a given moment of a turn.

    python -m tests.demo.killing_arbiter --kill arbiter:trainer:Quiescing --node FILE

Each `--kill VICTIM:TENANT:PHASE` waits for its turn in the order given: when the tenant enters the
phase, the record is stored, and the victim is killed before anything that follows from the record
leaves. A victim is `arbiter` or the newest child of that name in the run's children.jsonl. The
first `CALM` epochs are left alone, and so is each epoch in which something was killed already.
"""

import argparse
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver import node_file
from dra_driver.__main__ import serve
from dra_driver.journal import Journal

CALM = 6


@dataclass(frozen=True)
class Kill:
    """Whom to kill, and when."""

    victim: str
    tenant: str
    phase: str


class Plan:
    """What is still to be killed; it survives the arbiter in a file."""

    def __init__(self, kills: list[Kill], run: Path, done: Path) -> None:
        self._kills = kills
        self._run = run
        self._done = done

    def carry_out(self, record: dict[str, Any]) -> None:
        """Kill, if the record shows the moment."""
        self._done.touch()
        epochs = [int(line) for line in self._done.read_text().split()]
        if len(epochs) == len(self._kills) or record["epoch"] <= max(epochs, default=CALM):
            return
        kill = self._kills[len(epochs)]
        if record["tenants"].get(kill.tenant, {}).get("phase") != kill.phase:
            return
        with self._done.open("a") as done:
            done.write(f"{record['epoch']}\n")
        os.kill(os.getpid() if kill.victim == "arbiter" else self._pid(kill.victim), signal.SIGKILL)

    def _pid(self, victim: str) -> int:
        lines = (self._run / "children.jsonl").read_text().splitlines()
        told = [json.loads(line) for line in lines]
        return int([one["pid"] for one in told if one["child"] == victim][-1])


def killing(plan: Plan) -> type[Journal]:
    """A journal type that carries out the plan after each record is stored."""

    class KillingJournal(Journal):
        def append(self, record: dict[str, Any]) -> None:
            super().append(record)
            plan.carry_out(record)

    return KillingJournal


def main() -> None:
    """Arbitrate, and kill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", type=Path, required=True)
    parser.add_argument("--kill", action="append", required=True)
    arguments = parser.parse_args()
    spec = node_file.load(arguments.node)
    kills = [Kill(*kill.split(":")) for kill in arguments.kill]
    # Beside the state: what lies in the state folder is the arbiter's.
    plan = Plan(kills, spec.events.parent, spec.state_dir.with_name("killed"))
    serve(spec, journal_type=killing(plan))


if __name__ == "__main__":
    main()
