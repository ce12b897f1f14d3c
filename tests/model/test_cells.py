"""Each event in each phase of its tenant: the whole machine, where test_phases has its table alone.

What each cell leads to is written in cells.txt. After a change that is meant, write it anew, as the
transcripts (see test_transcripts), and read the difference.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from claim_phases.events import (
    Connected,
    Event,
    Fired,
    Frozen,
    Gone,
    Lost,
    Measured,
    Resumed,
    Said,
    Thawed,
    Timer,
    TimerKind,
    Unread,
    Usage,
)
from claim_phases.messages import Acquire, Hello, TenantMessage
from claim_phases.node import Tenant
from claim_phases.phases import TURN, Phase
from claim_phases.verdicts import MIB
from tests.model.invariants import decisions
from tests.model.script import Script
from tests.model.test_transcripts import WRITE

FILE = Path(__file__).parent / "cells.txt"
LEGEND = """\
# Each event in each phase of the tenant that it is about: the phase that follows.
#
#   .  nothing is changed and nothing is done
#   :  nothing is decided; something is answered, measured, armed or told
#   =  the phase stays; the request, the queue, a fault, the devices or the session's record change
#
# The tenant is in its third turn, or had two before; another one waits, or has the turn.
# A: it waits, and has room for some of its memory ahead of its turn. K: it is parked, but for some.
# F: it could not park. T: Faulted as well, its turn was taken.
# S: it is parked, and stands still, frozen. H: it is restoring, and being thawed for that.
#
# "old" is of an epoch or a request before, "new" of one to come. What has a * must change nothing.
"""
LETTERS = dict(zip(Phase, "PWRUYQLVF", strict=True))

BEFORE = """\
connect rollout need=80 residual=5
connect trainer need=70 residual=3 ladder=ask:5,kill:5 leave_s=5
say trainer acquire 1
measured gpu0 used=0
say trainer restored 1
say trainer yield 1
say trainer acquire 2
say trainer yield 2
"""
ASIDE = BEFORE + "say rollout acquire 1\nsay trainer released 2\n"
RUNS = BEFORE + "say trainer acquire 3\n"
LEAVES = RUNS + "say trainer yield 3\nsay rollout acquire 1\n"
KEEPS = BEFORE.replace("residual=3", "residual=3 pieces=yes", 1) + (
    "say rollout acquire 1\nsay trainer released 2 kept=10485760\n"
    "measured gpu0 used=13 trainer=13 foreign=0\nsay rollout restored 3\n"
)
FROZEN = LEAVES + (
    "say trainer failed 3 reason=busy\nfrozen trainer held=67\n"
    "measured gpu0 used=0\nsay rollout restored 4\n"
)
ROLLOUT_RUNS = "measured gpu0 used=3\nsay rollout restored 3\n"
COLUMNS = {
    "P": ASIDE + ROLLOUT_RUNS,
    "W": ASIDE + ROLLOUT_RUNS + "say trainer acquire 3",
    "K": KEEPS,
    "A": ASIDE + ROLLOUT_RUNS + "connect trainer epoch=2 pieces=yes\nsay trainer acquire 3\n"
    "say rollout yield 3\nsay rollout quiesced 3\n"
    "measured gpu0 used=83 rollout=80 trainer=3 foreign=0",
    "R": ASIDE + "say rollout cancel 1\nmeasured gpu0 used=3\nsay trainer acquire 3\n"
    "measured gpu0 used=3\nsay rollout acquire 2",
    "U": RUNS + "say rollout acquire 1",
    "Y": RUNS + "say trainer yield 3",
    "Q": LEAVES,
    "L": LEAVES + "say trainer quiesced 3",
    "V": LEAVES + "say trainer released 3",
    "F": LEAVES + "say trainer failed 3 reason=busy",
    "T": RUNS + "say rollout acquire 1\nlost trainer\nfire lease trainer\n"
    "connect trainer phase=Running epoch=3\nfire phase trainer",
    "S": FROZEN,
    "H": FROZEN + "fire watch\nmeasured gpu0 used=80 rollout=80\nsay rollout yield 4\n"
    "say rollout released 4\nmeasured gpu0 used=0",
}
"""For each column what leads there."""


SAME = str.maketrans("AKTSH", "WPFPR")


def scene(column: str) -> tuple[Script, Tenant]:
    """The machine with its tenant in that phase."""
    script = Script()
    for command in COLUMNS[column].splitlines():
        script.run(command)
    tenant = script.node.tenants["trainer"]
    assert LETTERS[tenant.phase] == column.translate(SAME), script.run("state")
    assert (tenant.taken == tenant.epoch) == (column == "T")
    return script, tenant


Row = Callable[[Tenant], Event]
NEVER = 1 << 40
"""A step that has not come: a reading that was asked for then is not overtaken."""


def rows() -> dict[str, Row]:
    """The events, by what they are called in the table."""
    return {
        **dict(hellos()),
        "lost": lambda tenant: Lost(tenant.name),
        "gone": lambda tenant: Gone(tenant.name, tenant.who.incarnation),
        "gone, another life *": lambda tenant: Gone(tenant.name, "trainer/0"),
        "frozen": lambda tenant: Frozen(tenant.name, tenant.who.incarnation),
        "not frozen": lambda tenant: Frozen(tenant.name, tenant.who.incarnation, problem="busy"),
        "thawed": lambda tenant: Thawed(tenant.name, tenant.who.incarnation),
        "not thawed": lambda tenant: Thawed(tenant.name, tenant.who.incarnation, "no room"),
        "thawed, another life *": lambda tenant: Thawed(tenant.name, "trainer/0"),
        "frozen, another life *": lambda tenant: Frozen(tenant.name, "trainer/0"),
        **dict(row for message in get_args(TenantMessage) for row in words(message)),
        **dict(row for kind in TimerKind for row in timers(kind)),
        **dict(readings()),
        "resumed": lambda _: Resumed(),
    }


def hellos() -> Iterator[tuple[str, Row]]:
    def hello(**said: Any) -> Row:
        def event(tenant: Tenant) -> Event:
            known: dict[str, Any] = {"phase": tenant.phase, "epoch": tenant.epoch} | said
            return Connected(tenant.who, Hello("trainer", **known))

        return event

    yield "hello, of one mind", hello()
    yield "hello, it waits", hello(request=9)
    yield "hello, parked meanwhile", hello(phase=Phase.PARKED)
    yield "hello, yielded meanwhile", hello(phase=Phase.YIELDED)
    yield "hello, failed meanwhile", hello(phase=Phase.FAULTED)
    yield "hello, an agent anew", hello(phase=Phase.PARKED, epoch=0)
    yield "hello, old", hello(phase=Phase.RUNNING, epoch=1)
    yield "hello, new *", hello(phase=Phase.RUNNING, epoch=99)


def words(message: type[Any]) -> Iterator[tuple[str, Row]]:
    """Each message, also one that the protocol gains: of the present, an old, a new epoch."""
    names = {f.name for f in fields(message)}
    if message is Hello:
        yield "a second hello *", lambda tenant: Said(tenant.name, Hello("trainer"))
        return
    key = "epoch" if "epoch" in names else "request"
    others: dict[str, Any] = {"reason": "it could not"} if "reason" in names else {}
    verb = message.__name__.lower()

    def said(number: int | None = None) -> Row:
        def event(tenant: Tenant) -> Event:
            value = getattr(tenant, key) if number is None else number
            return Said(tenant.name, message(**{key: value}, **others))

        return event

    yield verb, said()
    yield f"{verb}, old *", said(1)
    yield f"{verb}, new" + ("" if message is Acquire else " *"), said(99)


def timers(kind: TimerKind) -> Iterator[tuple[str, Row]]:
    """Each timer: one that still counts, where it may be armed, and one that was overtaken."""

    def fired(tenant: Tenant) -> Event:
        marks = {
            TimerKind.LEASE: tenant.lost,
            TimerKind.BLOCKED: tenant.blocked,
            TimerKind.LADDER: tenant.faulty,
            TimerKind.LEAVE: tenant.epoch,
        }
        return Fired(Timer(kind, tenant.name, marks.get(kind, tenant.since) or -1))

    yield f"timer {kind}", fired
    if kind is not TimerKind.WATCH:  # the node's: it is never overtaken
        yield f"timer {kind}, overtaken *", lambda tenant: Fired(Timer(kind, tenant.name, -1))


def readings() -> Iterator[tuple[str, Row]]:
    def reading(used: int, *, asked: int = NEVER, **owners: int) -> Row:
        foreign = owners.get("foreign", 0) * MIB
        tenants = tuple((name, size * MIB) for name, size in owners.items() if name != "foreign")
        whose = (tenants, foreign, (("trainer", 3 * MIB), ("rollout", 5 * MIB)))
        usage = Usage("gpu0", used * MIB, *(whose if owners else ()))
        return lambda _: Measured(asked, (usage,))

    yield "measured, all free", reading(0)
    yield "measured, all in use", reading(100)
    yield "measured, overtaken *", reading(0, asked=0)
    yield "by owner, within its budget", reading(3, trainer=3)
    yield "by owner, beyond it", reading(40, trainer=40)
    yield "by owner, overtaken *", reading(40, asked=0, trainer=40)
    yield "by owner, a stranger's", reading(43, trainer=3, foreign=40)
    yield "by owner, nobody's", reading(43, trainer=3)
    unread = (Unread("gpu0", "it does not answer"),)
    yield "device failed", lambda _: Measured(NEVER, (), unread)
    yield "device failed, overtaken *", lambda _: Measured(0, (), unread)


ROWS = rows()


def cell(name: str, column: str) -> str:
    """What comes of an event; no cell raises, and none gives a device two turns."""
    script, tenant = scene(column)
    before, record, phase = decisions(script.node), stored(script), tenant.phase
    effects = script.step(ROWS[name](tenant))
    assert sum(other.phase in TURN for other in script.node.on("gpu0")) <= 1
    now = script.node.tenants.get("trainer")
    if name.endswith("*"):
        assert stored(script) == record, f"{name} changed something"
    if now is None:
        return "-"
    if now.phase is not phase:
        return LETTERS[now.phase]
    if decisions(script.node) != before or stored(script) != record:
        return "="
    return ":" if effects else "."


def stored(script: Script) -> dict[str, Any]:
    """All that is stored, but the count of steps."""
    return {**script.node.to_json(), "seq": None}


def test_the_rows_are_all() -> None:
    """No kind of event is left out, none of message, none of timer."""
    _, tenant = scene("U")
    events = [row(tenant) for row in ROWS.values()]
    assert {type(event) for event in events} == set(get_args(Event))
    said = {type(event.message) for event in events if isinstance(event, Said)}
    assert said == set(get_args(TenantMessage))
    assert {event.timer.kind for event in events if isinstance(event, Fired)} == set(TimerKind)


def test_every_cell() -> None:
    """Each cell is what cells.txt says."""
    is_written(FILE, LEGEND, ROWS, COLUMNS, cell)


def is_written(
    file: Path,
    legend: str,
    rows: Iterable[str],
    columns: Iterable[str],
    cell: Callable[[str, str], str],
) -> None:
    """Each cell of the table is what the file says, and no other is in it."""
    width = max(map(len, rows))
    table = [f"{'':{width}}  {' '.join(columns)}"]
    table += [f"{name:{width}}  {' '.join(cell(name, c) for c in columns)}" for name in rows]
    today = legend + "\n" + "\n".join(table) + "\n"
    if WRITE:
        file.write_text(today)
    written = file.read_text().splitlines()
    differs = [line for line in today.splitlines() if line not in written]
    if differs or len(today.splitlines()) != len(written):
        told = [f"differs from {file.name}:", table[0], *differs]
        pytest.fail("\n".join(told), pytrace=False)
