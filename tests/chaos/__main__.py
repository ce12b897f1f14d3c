"""Kills, stops and clock steps on real processes, at moments that a seed chooses; then a verdict.

The exit status is 0 only if nothing was violated. docs/chaos.md says what is judged, and how.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from tandem import namespace, run_files
from tandem.verdict import Budget, Rules
from tests.chaos import broken, judge, node, plan, wide
from tests.chaos.setting import ALONE, DEVICES, MIB, Setting, beside, with_ladders

LIBRARY: Final = "TANDEM_SIMDEVICE_LIBRARY"

_R = TypeVar("_R")


@dataclass(frozen=True)
class Report:
    """What came of a run. `longest_wait_s` is each waiter's; `looks` are the gauge's, which saw
    `most_mib` in use at once of each device.
    """

    seed: int
    shard: str
    beside: bool
    ladder: bool
    blows: dict[str, int]
    blows_in_all: int
    wall_s: float
    turns: int
    updates: dict[str, int]
    longest_wait_s: dict[str, float]
    bound_s: float
    looks: int
    most_mib: dict[str, float]
    samples: int
    samples_without_phases: int
    arbiter_starts: int
    told: dict[str, int]
    steps: dict[str, int]
    hangs: dict[str, int]
    violations: tuple[str, ...]


def main() -> int:
    """Parse, run, judge, report."""
    parser = argparse.ArgumentParser(prog="hack/chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the plan (default: 1)")
    parser.add_argument("--kills", type=int, default=1000, help="blows in all (default: 1000)")
    parser.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="K/N", help="deal part K of N"
    )
    parser.add_argument(
        "--beside", action="store_true", help="tenants that find room beside each other stay"
    )
    parser.add_argument(
        "--ladder",
        action="store_true",
        help="tenants hang until the arbiter freezes or kills them, by a ladder of escalation",
    )
    parser.add_argument("--out", type=Path, help="keep the run's files in this new folder")
    parser.add_argument("--cheat", choices=broken.BUGS, help="an arbiter with this bug")
    parser.add_argument("-o", choices=["table", "json"], default="table")
    given = parser.parse_args()
    library = Path(os.environ.get(LIBRARY, ""))
    if not library.is_file():
        parser.error(f"{LIBRARY} names no file: start it as hack/chaos")
    whole = plan.plan(given.seed, given.kills, hangs=given.ladder)
    blows = plan.shard(whole, *given.shard)
    setting = ALONE
    if given.beside:
        setting = beside(setting)
    if given.ladder:
        setting = with_ladders(setting)
    arbiter = [sys.executable, "-m", "dra_driver"]
    if given.cheat:
        arbiter = [sys.executable, "-m", "tests.chaos.broken", given.cheat]
    with tempfile.TemporaryDirectory(prefix="tandem-") as made:
        folder = given.out or Path(made) / "run"
        folder.mkdir(parents=True)
        runtime = Path(made) / "n"
        runtime.mkdir()
        began = time.monotonic()
        try:
            fault = _run(folder.resolve(), runtime, library, arbiter, setting, blows)
        except namespace.NamespaceError as exc:
            parser.error(str(exc))
        report = _report(folder, fault, given, setting, began)
    show = print_json if given.o == "json" else print_table
    show(report)
    return 1 if report.violations else 0


def _shard(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"must be K/N with 1 <= K <= N, got {text}")
    return int(number), int(of)


def _run(
    folder: Path,
    runtime: Path,
    library: Path,
    arbiter: Sequence[str],
    setting: Setting,
    blows: Sequence[plan.Blow],
) -> str:
    """Deal the blows; return why the run could not come to its end, if so."""

    def body() -> int:
        made = node.Node(folder, runtime, library, arbiter, setting, say)
        made.prepare()
        try:
            asyncio.run(made.run(blows))
        except* node.Stuck as faults:
            (folder / "fault").write_text("; ".join(map(str, faults.exceptions)))
        return 0

    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {what}", file=sys.stderr, flush=True)

    say(f"{len(blows)} blows")
    status = namespace.contained(body)
    fault = folder / "fault"
    if fault.exists():
        return fault.read_text()
    return "" if status == 0 else f"the runner ended with status {status}: what it said is above"


def _report(
    folder: Path, fault: str, given: argparse.Namespace, setting: Setting, began: float
) -> Report:
    done = list(_lines(folder / "done.jsonl"))
    words = [_read(judge.Word, line) for line in _lines(folder / "words.jsonl")]
    gauged = list(_lines(folder / "gauge.log"))
    run = run_files.read_run(folder)
    blows = [_read(judge.Struck, one) for one in done if one["kind"] == "blow"]
    updates = {word.who: word.updates for word in words if word.says == "done"}
    digests = dict.fromkeys(plan.TRAINERS, "unknown")
    digests |= {one["tenant"]: one["digest"] for one in done if one["kind"] == "digest"}
    digests[plan.WIDE] = wide.link(updates.get(plan.WIDE, 0)).hex()
    chaos = judge.Chaos(
        run=run,
        rules=Rules(
            capacity=setting.devices,
            budgets={name: Budget(devices, 0) for name, devices in DEVICES.items()},
        ),
        words=words,
        blows=blows,
        arbiter_ends=[
            judge.ArbiterEnd(one["t"], one["struck"], tuple(one["queue"]), one["epochs"])
            for one in done
            if one["kind"] == "arbiter ended"
        ],
        tenant_ends=[_read(judge.TenantEnd, one) for one in done if one["kind"] == "ended"],
        above=[_read(judge.Above, one) for one in gauged if "used" in one],
        digests=digests,
        bound_s=setting.bound_s,
        lease_s=plan.LEASE_S,
        cancelling=frozenset({plan.ROLLOUT}),
        hangs=[_read(judge.Hang, one) for one in done if one["kind"] == "hang ended"],
        refusing=not given.ladder,
    )
    violations = judge.judge(chaos)
    return Report(
        seed=given.seed,
        shard="/".join(map(str, given.shard)),
        beside=given.beside,
        ladder=given.ladder,
        blows=dict(sorted(Counter(f"{one.act} {one.victim}" for one in blows).items())),
        blows_in_all=len(blows),
        wall_s=round(time.monotonic() - began, 1),
        turns=len({change.epoch for change in run.changes if change.after == "Running"}),
        updates=updates,
        longest_wait_s={who: round(s, 2) for who, s in sorted(judge.waits(chaos).items())},
        bound_s=setting.bound_s,
        looks=max((one["looks"] for one in gauged if "looks" in one), default=0),
        most_mib={
            Path(device).name: round(used / MIB, 1)
            for one in gauged
            for device, used in one.get("worst", {}).items()
        },
        samples=len(run.samples),
        samples_without_phases=judge.known(run)[1],
        arbiter_starts=len(run.starts),
        told=dict(Counter(one.condition for one in run.conditions)),
        steps=dict(Counter(one.step for one in run.conditions if one.step is not None)),
        hangs=dict(Counter(hang.end for hang in chaos.hangs)),
        violations=(*([fault] if fault else []), *violations),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def _read(kind: Callable[..., _R], line: dict[str, Any]) -> _R:
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: value for key, value in line.items() if key in known})


def print_json(report: Report) -> None:
    """One object."""
    print(json.dumps(asdict(report)))


def print_table(report: Report) -> None:
    """For people."""
    for name, value in asdict(report).items():
        if name == "violations":
            continue
        parts = (
            [f"{key} {one}" for key, one in value.items()] if isinstance(value, dict) else [value]
        )
        print(f"{name.replace('_', ' '):24} {', '.join(map(str, parts))}")
    for violation in report.violations:
        print(f"VIOLATION: {violation}")
    print(
        "nothing was violated" if not report.violations else f"{len(report.violations)} violations"
    )


if __name__ == "__main__":
    sys.exit(main())
