"""The file of events with the accounts in it: torn, begun anew, damaged, from another version.

And on a full disk: see `Room`.
"""

import asyncio
import errno
import json
import logging
import os
import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from claim_phases.accounts import Accounts, Group
from claim_phases.escalation import Step
from claim_phases.events import Condition, ConditionKind, PhaseChanged
from claim_phases.node import Membership, Node
from claim_phases.phases import Phase
from dra_driver import event_log
from dra_driver.event_log import RETRY_S, EventLog, before, recorded
from tandem import run_files
from tandem.books import Books

WHO = Membership("x", "trainer", "x-1", ("gpu0",), None, 0)


class Clock:
    """Seconds that go by when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Room:
    """What the disk has room for: the kernel itself cuts a write short, and refuses the next."""

    def __init__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def left(self, path: Path, more: int) -> None:
        """The file has room for so many bytes more."""
        size = path.stat().st_size if path.is_file() else 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + more, self._limits[1]))

    def made(self) -> None:
        """There is enough again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.made()


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


# -- a file that cannot be written -----------------------------------------------------------------

LEFT = [0, 1, 100, 133, 250, 400, 700]
"""Room for less than three turns: a part of a line (133: one that is whole), or some before it."""


def running(path: Path) -> EventLog:
    """A log with a turn in its file."""
    log = opened(path, clock := Clock())
    log.joined(WHO, "job")
    run_for(log, clock, 5.0)
    log.write()
    return log


def clock_of(log: EventLog) -> Clock:
    assert isinstance(log._clock, Clock)
    return log._clock


def took_a_turn(log: EventLog, seconds: float = 5.0) -> None:
    """And each event was to be written before the next, the first when it is time to try again."""
    clock = clock_of(log)
    clock.now += RETRY_S
    went(log, clock, Phase.RESTORING, Phase.RUNNING)
    log.write()
    clock.now += seconds
    went(log, clock, Phase.RUNNING, Phase.YIELDED)
    log.write()


def take_turns(log: EventLog) -> None:
    """Three; the events of the first are to be written at once."""
    run_for(log, clock_of(log), 5.0)
    took_a_turn(log)
    took_a_turn(log)


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


async def test_an_outage_is_told_once_and_so_is_its_end(
    path: Path, room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    log = running(path)
    for outage in (1, 2):
        room.left(path, 100)
        for _ in range(5):
            took_a_turn(log)
        assert len(said(caplog, logging.ERROR)) == outage
        assert len(said(caplog, logging.WARNING)) == outage - 1
        room.made()
        took_a_turn(log)
        took_a_turn(log)
        assert len(said(caplog, logging.WARNING)) == outage
    assert said(caplog, logging.ERROR)[0] == (
        f"{path} cannot be written ([Errno 27] File too large): make room for it, or make it "
        f"writable; until then turns go on, and some of their events are lost"
    )
    assert said(caplog, logging.WARNING)[0] == (
        f"{path} can be written again: events of the time between may be missing in it, the "
        f"accounts are whole"
    )
    log.close()


@pytest.mark.parametrize("left", LEFT)
async def test_after_an_outage_every_line_is_whole_and_what_was_there_stays(
    path: Path, room: Room, left: int
) -> None:
    log = running(path)
    room.left(path, left)
    take_turns(log)
    full = content(path)
    room.made()
    took_a_turn(log)
    log.close()
    assert content(path).startswith(full)  # a reader that came so far can read on
    assert {line["kind"] for line in lines(path)} == {"start", "tenant", "phase", "accounts"}


@pytest.mark.parametrize("left", LEFT)
async def test_after_an_outage_the_accounts_come_first_and_are_those_in_memory(
    path: Path, room: Room, left: int
) -> None:
    log = running(path)
    room.left(path, left)
    take_turns(log)
    full = content(path)
    room.made()
    took_a_turn(log)
    rest, _, accounts = content(path)[len(full) :].partition(b'{"kind": "accounts"')
    assert rest.count(b"\n") == (not full.endswith(b"\n"))  # the end of the line that was torn
    assert accounts.count(b"\n") == 2  # and the turn's other event
    assert recorded(path).to_json() == log._accounts.to_json()
    took_a_turn(log)
    assert recorded(path).to_json() == log._accounts.to_json()
    assert recorded(path).tenants["x"].account.turns == 6
    assert recorded(path).tenants["x"].account.running == 30_000_000_000
    log.close()


@pytest.mark.parametrize("left", LEFT)
async def test_readers_that_follow_the_file_come_through_an_outage(
    path: Path, room: Room, left: int
) -> None:
    log = running(path)
    followed = run_files.events(path.parent)
    with closing(Books(path.parent)) as books:
        for outage in (1, 2):
            room.left(path, left)
            take_turns(log)
            books.read()
            followed.read()
            room.made()
            took_a_turn(log)
            books.read()
            assert any(isinstance(one, run_files.AccountsKept) for one in followed.read())
            assert books.at(0.0).tenants["x"].account.turns == 1 + outage * 4
            assert books.at(0.0).to_json() == log._accounts.at(0.0).to_json()
    log.close()
    assert not [note for note in run_files.read_run(path.parent).notes if "torn" in note]


@pytest.mark.parametrize("left", LEFT)
async def test_what_was_read_after_an_outage_is_read_after_a_kill_too(
    path: Path, room: Room, left: int
) -> None:
    """Though nothing more was told: Prometheus must not see a counter go backwards."""
    log = running(path)
    room.left(path, left)
    take_turns(log)
    during = log.accounts()
    assert during.tenants["x"].account.turns == 4
    room.made()
    read = log.accounts()
    assert read.to_json() == during.to_json()
    again = EventLog(path, log._clock)  # nothing was closed: the other was killed
    assert again.accounts().to_json() == read.to_json()
    again.close()
    log.close()


@pytest.mark.parametrize("left", LEFT)
async def test_an_arbiter_that_starts_in_an_outage_has_what_the_file_has(
    path: Path, room: Room, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = running(path)
    room.left(path, left)
    take_turns(log)
    log.close()  # killed or not: there is no room for more
    kept = recorded(path)
    room.left(path, 0)
    again = EventLog(path, log._clock)
    assert again.accounts().to_json() == kept.at(log._clock()).to_json()
    took_a_turn(again)
    room.made()
    took_a_turn(again)
    assert recorded(path).to_json() == again._accounts.to_json()
    x = kept.tenants["x"]
    turns = x.account.turns + 2 - (x.phase is Phase.RUNNING)  # maybe it still is
    assert recorded(path).tenants["x"].account.turns == turns
    assert {line["kind"] for line in lines(path)} == {"start", "tenant", "phase", "accounts"}
    assert len(said(caplog, logging.ERROR)) == 2
    again.close()


@pytest.mark.parametrize("left", LEFT)
async def test_an_arbiter_that_ends_in_an_outage_ends(path: Path, room: Room, left: int) -> None:
    log = running(path)
    room.left(path, left)
    take_turns(log)
    log.close()
    full = content(path)
    room.made()
    log.close()  # the arbiter does so twice
    assert content(path) == full


async def test_an_arbiter_that_ends_after_an_outage_writes_down_the_accounts(
    path: Path, room: Room
) -> None:
    log = running(path)
    room.left(path, 100)
    took_a_turn(log)
    room.made()
    log.close()
    assert lines(path)[-1]["kind"] == "accounts"
    assert recorded(path).tenants["x"].account.turns == 2


async def test_in_an_outage_it_is_tried_again_once_a_second_and_for_each_reading(
    path: Path, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All accounts are written then: on the loop that grants turns."""
    log = running(path)
    room.left(path, 0)
    tries: list[bytes] = []

    def write(_: int, content: bytes) -> int:
        tries.append(content)
        return refuse()

    monkeypatch.setattr(os, "write", write)
    for _ in range(10):
        went(log, clock_of(log), Phase.RESTORING, Phase.RUNNING)
        log.write()
    assert len(tries) == 1
    clock_of(log).now += RETRY_S
    log.write()
    assert len(tries) == 2
    log.accounts()
    assert len(tries) == 3


def refuse() -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_start_without_room_for_a_new_file_goes_on(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was put aside, and the driver killed before there was another."""
    with monkeypatch.context() as full:
        full.setattr(os, "open", lambda *_: refuse())
        log = opened(path, clock)
        run_for(log, clock, 5.0)
        log.write()
    assert len(said(caplog, logging.ERROR)) == 1
    took_a_turn(log)
    assert lines(path)[0]["kind"] == "accounts"
    log.close()
    assert recorded(path).to_json() == log._accounts.to_json()


def test_a_file_that_cannot_be_there_is_refused(tmp_path: Path) -> None:
    async def starts() -> None:
        EventLog(tmp_path / "nowhere" / "events.jsonl", Clock())

    with pytest.raises(FileNotFoundError):
        asyncio.run(starts())


async def test_an_outage_takes_no_memory(path: Path, room: Room) -> None:
    log = running(path)
    room.left(path, 100)
    took_a_turn(log)
    tracemalloc.start()
    for _ in range(200):
        took_a_turn(log, 0.0)
        await asyncio.sleep(0)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 40_000  # a tenth of what was told
    log.close()


async def test_a_file_that_cannot_be_begun_anew_has_the_accounts_at_its_head_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = running(path)
    monkeypatch.setattr(event_log, "FILE_MAX", 1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # as if no inode were left
    try:
        took_a_turn(log)
        took_a_turn(log)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert begun_anew(path)
    with pytest.raises(FileNotFoundError):
        content(path)
    assert len(said(caplog, logging.ERROR)) == 1
    monkeypatch.setattr(event_log, "FILE_MAX", 1 << 20)
    took_a_turn(log)
    assert [line["kind"] for line in lines(path)] == ["accounts", "phase"]
    assert recorded(path).to_json() == log._accounts.to_json()
    assert recorded(path).tenants["x"].account.turns == 4
    log.close()


async def test_while_a_large_file_cannot_be_put_aside_events_go_to_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = running(path)
    before(path).mkdir()
    monkeypatch.setattr(event_log, "FILE_MAX", 1)
    take_turns(log)
    assert [line["kind"] for line in lines(path)][2:] == ["phase"] * 8
    assert len(said(caplog, logging.ERROR)) == 1
    before(path).rmdir()
    took_a_turn(log)
    assert lines(path)[0]["kind"] == "accounts"
    assert recorded(path).tenants["x"].account.turns == 5
    log.close()


async def test_a_pipe_that_nobody_reads_for_a_while_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = running(path)
    told = [json.loads(line)["kind"] for line in os.read(reader, 1 << 16).splitlines()]
    assert told == ["start", "tenant", "phase", "phase"]
    os.close(reader)
    take_turns(log)
    assert len(said(caplog, logging.ERROR)) == 1
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    took_a_turn(log)
    told = [json.loads(line)["kind"] for line in os.read(reader, 1 << 16).splitlines()]
    assert told == ["accounts", "phase"]
    log.close()
    os.close(reader)
