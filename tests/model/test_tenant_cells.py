"""Each thing that happens to a tenant's machine in each of its phases, as test_cells for the node.

What each cell leads to is written in tenant_cells.txt. After a change that is meant, write it anew,
as the transcripts (see test_transcripts), and read the difference.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from claim_phases.messages import (
    ArbiterMessage,
    Granted,
    Noted,
    Refused,
    Release,
    Room,
    TurnLost,
    Wanted,
    Warned,
    Welcome,
)
from claim_phases.phases import Phase
from claim_phases.tenancy import Act, Tenancy
from tests.model.test_cells import LETTERS, is_written

FILE = Path(__file__).parent / "tenant_cells.txt"
LEGEND = """\
# Each thing that happens to a tenant's machine, in each of its phases: the phase that follows.
#
#   .  nothing is changed and nothing is done
#   :  nothing is changed; something is said, answered or done
#   =  the phase stays; something else that the machine knows changes
#
# The tenant is in its turn of epoch 5, or after it; parked and waiting ones had it.
# A: it waits, and restores into room ahead of its turn. B: it is restoring, and its turn was taken.
# N: it yielded, and the arbiter has not said that it knows. G: it could not park (F: nor restore).
#
# "old" is of an epoch or a request before, "new" of one to come. What has a * must change nothing.
"""
OLD, NOW, NEW, REQUEST = 4, 5, 9, 20


def fresh() -> Tenancy:
    tenancy = Tenancy("trainer", pieces=True)
    tenancy.opened()
    tenancy.heard(Welcome(Phase.PARKED, 0))
    return tenancy


def restoring() -> Tenancy:
    tenancy = fresh()
    tenancy.want(REQUEST - 1)
    tenancy.heard(Granted(NOW, REQUEST - 1))
    return tenancy


def running() -> Tenancy:
    tenancy = restoring()
    tenancy.restored(NOW, None)
    return tenancy


def yielded(*, noted: bool = True) -> Tenancy:
    tenancy = running()
    tenancy.leave()
    if noted:
        tenancy.heard(Noted(NOW))
    return tenancy


def releasing() -> Tenancy:
    """Under the epoch of its turn."""
    tenancy = yielded()
    tenancy.heard(Release(NOW))
    return tenancy


def parked() -> Tenancy:
    tenancy = releasing()
    tenancy.parked(NOW)
    return tenancy


def waiting(*, ahead: bool = False) -> Tenancy:
    tenancy = parked()
    if ahead:
        tenancy.epoch = OLD
    tenancy.want(REQUEST)
    if ahead:
        tenancy.heard(Room(NOW, 10))
    return tenancy


def abandoned() -> Tenancy:
    tenancy = restoring()
    tenancy.heard(TurnLost(NOW, "it took too long"))
    return tenancy


def faulted(*, parks: bool = False) -> Tenancy:
    tenancy = releasing() if parks else restoring()
    (tenancy.park_failed if parks else tenancy.restore_failed)(NOW, "no room")
    return tenancy


COLUMNS: dict[str, Callable[[], Tenancy]] = {
    "P": parked,
    "W": waiting,
    "A": lambda: waiting(ahead=True),
    "R": restoring,
    "B": abandoned,
    "U": running,
    "Y": yielded,
    "N": lambda: yielded(noted=False),
    "L": releasing,
    "F": faulted,
    "G": lambda: faulted(parks=True),
}
MESSAGES: dict[str, ArbiterMessage] = {
    "welcome": Welcome(Phase.PARKED, NOW),
    "granted, old *": Granted(OLD, REQUEST),
    "granted again *": Granted(NOW, REQUEST),
    "granted": Granted(NEW, REQUEST),
    "release, old *": Release(OLD),
    "release": Release(NOW),
    "release, new": Release(NEW),
    "room, old *": Room(OLD, 30),
    "room again": Room(NOW, 30),
    "room": Room(NEW, 30),
    "wanted, old *": Wanted(OLD),
    "wanted": Wanted(NOW),
    "wanted, new *": Wanted(NEW),
    "lost, old *": TurnLost(OLD, "it hung"),
    "lost": TurnLost(NOW, "it hung"),
    "lost, new": TurnLost(NEW, "it hung"),
    "noted, old *": Noted(OLD),
    "noted": Noted(NOW),
    "refused, old *": Refused(1, "no room"),
    "refused": Refused(REQUEST, "no room"),
    "refused, for itself": Refused(REQUEST, "it waits for itself", "trainer"),
    "session refused": Refused(0, "start it again"),
    "warned": Warned("Intruder: it holds too much"),
}
ROWS: dict[str, Callable[[Tenancy], list[Act]]] = {
    **{name: lambda it, said=said: it.heard(said) for name, said in MESSAGES.items()},  # type: ignore[misc]
    "a new stream": lambda it: it.opened(),
    "its user asks": lambda it: it.want(NEW + REQUEST),
    "its user asks no more": lambda it: it.unwant(),
    "its user leaves": lambda it: it.leave(),
    "some is parked, old *": lambda it: it.freed(OLD),
    "some is parked": lambda it: it.freed(NOW),
    "parked, old": lambda it: it.parked(OLD),
    "parked": lambda it: it.parked(NOW),
    "parked in part": lambda it: it.parked(NOW, 10),
    "cannot park, old *": lambda it: it.park_failed(OLD, "no room"),
    "cannot park": lambda it: it.park_failed(NOW, "no room"),
    "restored, old": lambda it: it.restored(OLD, None),
    "restored": lambda it: it.restored(NOW, None),
    "cannot restore, old": lambda it: it.restore_failed(OLD, "no room"),
    "cannot restore": lambda it: it.restore_failed(NOW, "no room"),
}
GIVES = {"granted", "restored"}
"""What alone a turn may begin with."""


def cell(name: str, column: str) -> str:
    """What comes of it; no cell raises, and none makes a tenant believe that it has a turn."""
    tenancy = COLUMNS[column]()
    before, held = dict(vars(tenancy)), tenancy.holds
    acts = ROWS[name](tenancy)
    after: dict[str, Any] = vars(tenancy)
    assert name in GIVES or held or not tenancy.holds, f"{name} gave {column} a turn"
    assert tenancy.epoch >= before["epoch"], f"{name} took {column} back to an older epoch"
    if name.endswith("*"):
        assert after == before, f"{name} changed something"
    if after["phase"] is not before["phase"]:
        return LETTERS[after["phase"]]
    if after != before:
        return "="
    return ":" if acts else "."


def test_the_rows_and_columns_are_all() -> None:
    """No kind of message is left out, and no phase that a tenant knows."""
    assert {type(message) for message in MESSAGES.values()} == set(get_args(ArbiterMessage))
    known = {COLUMNS[column]().phase for column in COLUMNS}
    assert set(Phase) - known == {Phase.QUIESCING, Phase.VERIFYING}, "these are the arbiter's alone"
    assert {COLUMNS[column]().epoch for column in COLUMNS} == {NOW}


def test_every_cell() -> None:
    """Each cell is what tenant_cells.txt says."""
    is_written(FILE, LEGEND, ROWS, COLUMNS, cell)
