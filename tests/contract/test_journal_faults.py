"""The arbiter and its journal: full, damaged, unreadable, from the future; it never begins anew."""

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from claim_phases.node import STATE_VERSION
from tests.contract.node_lab import Node, node


@pytest.fixture
def lab() -> Iterator[Node]:
    with node() as made:
        made.claim("claim", "a", "b")
        yield made


def test_a_full_filesystem_ends_the_arbiter_and_the_next_goes_on(lab: Node) -> None:
    """ENOSPC in the midst of turns: no command of that step left, and none is forgotten."""
    arbiter = lab.arbiter(module="tests.contract.cramped_arbiter")
    a, b = lab.tenant("a"), lab.tenant("b")
    a.say(do="rounds", number=40)
    ended = arbiter.out.wait(lambda line: "status" in line)
    assert ended["status"] == 2
    assert (
        "turns.journal: the state cannot be stored (No space left on device): make room"
        in (ended["last"])
    )
    lab.arbitrates(arbiter)
    a.out.wait_for(did="rounds")
    assert b.acquire() == 41
    epochs = [epoch for epoch, _ in lab.turns()]
    assert epochs == list(range(1, 41)) or epochs == list(range(1, 42))


def test_an_arbiter_that_finds_no_room_at_all_says_so(lab: Node) -> None:
    arbiter = lab.arbiter("--from-the-start", module="tests.contract.cramped_arbiter", ready=False)
    ended = arbiter.out.wait(lambda line: "status" in line)
    assert (ended["status"], ended["lines"]) == (2, 1)
    assert "the state cannot be stored (No space left on device): make room" in ended["last"]
    lab.arbitrates(arbiter)
    assert lab.tenant("a").acquire() == 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    """In the end of line of the newest record: what it says must not be forgotten."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x20
    path.write_bytes(content)


def of_the_future(path: Path) -> None:
    newest = path.read_bytes().splitlines()[-1].partition(b" ")[2]
    body = json.dumps({**json.loads(newest), "state_version": 99, "more": "to know"}).encode()
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))


def gone(path: Path) -> None:
    path.unlink()


def no_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


SAYS: dict[Callable[[Path], None], str] = {
    cut: "20 bytes and no whole record: end the tenants of this node, then remove the files turns",
    emptied: "0 bytes and no whole record: end the tenants of this node",
    flipped: "is damaged: end the tenants of this node, then remove the files turns.*",
    of_the_future: f"state version 99, this arbiter reads {STATE_VERSION}: run the arbiter that",
    gone: "is gone, and turns were arbitrated here since the node was started: end the tenants",
    no_file: "cannot be read (Is a directory): make it readable",
}


@pytest.mark.parametrize("damage", SAYS, ids=lambda damage: damage.__name__)
def test_a_journal_that_does_not_tell_stops_the_start_in_one_line(
    lab: Node, damage: Callable[[Path], None]
) -> None:
    arbiter = lab.arbiter()
    a = lab.tenant("a")
    assert a.acquire() == 1
    arbiter.kill()
    damage(lab.journal)
    again = lab.arbiter(ready=False)
    assert again.end() == 2
    (line,) = again.out.text
    assert line.startswith(str(lab.journal))
    assert SAYS[damage] in line
    a.say(do="state")
    assert a.out.wait_for(state=True)["holds"]
