"""The file of events with the accounts in it: torn, begun anew, damaged, from another version."""

import asyncio
import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from claim_phases.accounts import Accounts, Group
from claim_phases.escalation import Step
from claim_phases.events import Condition, ConditionKind, PhaseChanged
from claim_phases.node import Membership, Node
from claim_phases.phases import Phase
from dra_driver import event_log
from dra_driver.event_log import EventLog, before, recorded
from tandem import run_files

WHO = Membership("x", "trainer", "x-1", ("gpu0",), None, 0)


class Clock:
    """Seconds that go by when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(path: Path, clock: Clock) -> EventLog:
    log = EventLog(path, clock)
    log.started(Node("boot", {}))
    return log


def went(log: EventLog, clock: Clock, before: Phase, after: Phase) -> None:
    log.tell(PhaseChanged("x", before, after, 1, ("gpu0",)), clock.now)


def run_for(log: EventLog, clock: Clock, seconds: float) -> None:
    went(log, clock, Phase.RESTORING, Phase.RUNNING)
    clock.now += seconds
    went(log, clock, Phase.RUNNING, Phase.YIELDED)


def content(path: Path) -> bytes:
    return path.read_bytes()


def begun_anew(path: Path) -> bool:
    return before(path).is_file()


def has(path: Path, written: bytes) -> None:
    path.write_bytes(written)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def test_what_is_told_is_written_after_the_step_that_tells_it(
    path: Path, clock: Clock
) -> None:
    log = opened(path, clock)
    log.joined(WHO, "job")
    run_for(log, clock, 5.0)
    assert [line["kind"] for line in lines(path)] == ["start"]  # a hello needs what came before
    await asyncio.sleep(0)
    assert [line["kind"] for line in lines(path)] == ["start"]  # messages go first
    await asyncio.sleep(0)
    assert [line["kind"] for line in lines(path)] == ["start", "tenant", "phase", "phase"]
    log.close()
    assert recorded(path).groups()[Group("job", "trainer")].running == 5_000_000_000


async def test_a_hello_is_told_once_in_each_life_and_a_job_that_is_unknown_is_the_known_one(
    path: Path, clock: Clock
) -> None:
    log = opened(path, clock)
    log.joined(WHO, "job")
    log.joined(WHO, "job")
    log.joined(WHO, "")
    log.joined(Membership("x", "trainer", "x-2", ("gpu0",), None, 0), "")
    log.close()
    told = [line for line in lines(path) if line["kind"] == "tenant"]
    assert [(line["job"], line["life"]) for line in told] == [("job", "x-1"), ("job", "x-2")]


async def test_each_reading_is_no_less_than_the_one_before(path: Path, clock: Clock) -> None:
    """Else Prometheus would take it for a counter that began anew."""
    log = opened(path, clock)
    log.joined(WHO, "job")
    went(log, clock, Phase.RESTORING, Phase.RUNNING)
    clock.now += 2.0
    told = PhaseChanged("x", Phase.RUNNING, Phase.YIELDED, 1, ("gpu0",))
    log.tell(told, clock.now)  # taken note of, and not folded yet
    clock.now += 1.0
    readings = []
    for _ in range(3):
        readings.append(log.accounts().tenants["x"].account.running)
        clock.now += 1.0
    assert readings == [2_000_000_000] * 3
    log.close()


async def test_a_torn_line_is_dropped_before_the_next_is_written(path: Path, clock: Clock) -> None:
    log = opened(path, clock)
    log.close()
    whole = content(path)
    has(path, whole + b'{"t": 101.0, "kind": "phase", "ten')
    opened(path, clock).close()
    assert content(path).startswith(whole + b'{"t": 100.0, "kind": "start"')
    assert len(lines(path)) == 2


@pytest.mark.parametrize("killed", ["after the accounts", "before the accounts"])
async def test_accounts_go_on_when_the_file_was_begun_anew(
    path: Path, clock: Clock, killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "FILE_MAX", 2_000)
    log = opened(path, clock)
    log.joined(WHO, "job")
    turns = 0
    while not begun_anew(path):
        run_for(log, clock, 5.0)
        turns += 1
        log.write()
    if killed == "before the accounts":
        has(path, b"")
    else:
        assert lines(path)[0]["kind"] == "accounts"
    accounts = recorded(path)
    assert accounts.tenants["x"].account.turns == turns
    assert accounts.tenants["x"].account.running == turns * 5_000_000_000
    log.close()


async def test_a_start_reads_from_the_last_accounts_on(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "ACCOUNTS_EVERY", 1)
    log = opened(path, clock)
    log.joined(WHO, "job")
    run_for(log, clock, 5.0)
    log.close()
    told = content(path)
    last = told.rindex(b'{"kind": "accounts"')
    has(path, b"#" * last + told[last:])  # nothing before it is looked at
    assert recorded(path).tenants["x"].account.running == 5_000_000_000


async def test_a_message_that_looks_like_accounts_is_none(path: Path, clock: Clock) -> None:
    log = opened(path, clock)
    log.tell(Condition(ConditionKind.FAULTED, '{"kind": "accounts", "t": 1}'), clock.now)
    log.close()
    assert recorded(path).conditions == {"Faulted": 1}


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"kind": "phase", "t": 1.0}',
        b'{"kind": "accounts", "t": 1.0, "accounts": {"version": 99}}',
    ],
)
async def test_a_line_that_cannot_be_read_is_logged_and_stops_no_arbiter(
    path: Path, clock: Clock, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    has(path, line + b"\n")
    log = opened(path, clock)
    log.joined(WHO, "job")
    assert set(log.accounts().tenants) == {"x"}
    assert "a line is left out of the accounts" in caplog.text
    log.close()


async def test_the_steps_about_a_tenant_are_counted_over_starts_and_after_it_left(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "ACCOUNTS_EVERY", 1)
    for step in (Step.ASK, Step.KILL):
        log = opened(path, clock)
        log.joined(WHO, "job")
        log.tell(Condition(ConditionKind.ESCALATED, "so it is", "x", step=step), clock.now)
        log.tell(PhaseChanged("x", Phase.VERIFYING, None, 1, ("gpu0",)), clock.now)
        log.close()
    (account,) = recorded(path).groups().values()
    assert account.steps == {Step.ASK: 1, Step.KILL: 1}


def test_there_are_no_accounts_without_a_file(path: Path) -> None:
    assert recorded(path).to_json() == Accounts().to_json()


def test_whoever_reads_a_run_knows_every_condition_that_an_arbiter_tells() -> None:
    read = get_type_hints(run_files.Condition)["condition"]
    assert set(get_args(read)) == {kind.value for kind in ConditionKind}
