"""The turns' journal: what a crash, a full filesystem and damage leave of it."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from claim_phases.node import Device, Node
from dra_driver import journal
from dra_driver.devices import Blocks, Reading
from dra_driver.journal import Journal, JournalError, read
from dra_driver.serving import load_node
from tests.model.script import Script
from tests.unfrozen import Unfrozen

BOOT = "a-boot"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "turns.journal"


def written(path: Path, *records: dict[str, Any]) -> bytes:
    """A journal with these records; returns its content."""
    first, *others = records
    with Journal(path, first) as store:
        for record in others:
            store.append(record)
    return path.read_bytes()


def test_the_newest_record_counts(path: Path) -> None:
    written(path, {"epoch": 1}, {"epoch": 2}, {"epoch": 3})
    assert read(path) == {"epoch": 3}


def test_there_is_none_before_the_first_arbiter(path: Path) -> None:
    assert read(path) is None


@pytest.mark.parametrize("kept", range(1, 21))
def test_a_torn_last_line_is_a_record_whose_commands_never_left(path: Path, kept: int) -> None:
    whole = written(path, {"epoch": 1})
    both = written(path, {"epoch": 1}, {"epoch": 2})
    assert len(both) - len(whole) == 21
    path.write_bytes(both[: len(whole) + kept])
    assert read(path) == {"epoch": 1}


def test_a_damaged_line_in_the_middle_stops(path: Path) -> None:
    content = written(path, {"epoch": 1}, {"epoch": 2}, {"epoch": 3})
    path.write_bytes(content.replace(b'"epoch":2', b'"epoch":7'))
    with pytest.raises(JournalError, match=r"turns\.journal: line 2 is damaged: end the tenants"):
        read(path)


def test_a_damaged_last_line_that_is_not_torn_stops(path: Path) -> None:
    content = written(path, {"epoch": 1}, {"epoch": 2})
    path.write_bytes(content.replace(b'"epoch":2', b'"epoch":7'))
    with pytest.raises(JournalError, match="line 2 is damaged"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"0a1b2c3d {"], ids=["empty", "torn"])
def test_a_journal_without_a_whole_record_stops(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(JournalError, match=rf"{len(content)} bytes and no whole record"):
        read(path)


def test_a_new_arbiter_begins_the_file_anew_behind_a_torn_line(path: Path) -> None:
    content = written(path, {"epoch": 1})
    path.write_bytes(content + b"0a1b2c3d {")
    stored = read(path)
    assert stored is not None
    assert written(path, stored) == content


def handover() -> list[dict[str, Any]]:
    """The node's records in the midst of a handover: those of its last three steps."""
    script = Script()
    records = []
    for command in """\
connect rollout need=80 residual=5
connect trainer need=70 residual=3
say rollout acquire 1
measured gpu0 used=0
say rollout restored 1
say trainer acquire 1
say rollout yield 1
say rollout released 1
measured gpu0 used=5""".splitlines():
        script.run(command)
        records.append(json.loads(json.dumps(script.node.to_json())))
    return records[-3:]


def test_cut_at_any_byte_it_goes_on_from_a_whole_record_or_stops(path: Path) -> None:
    records = handover()
    content = written(path, *records)
    ends = [number for number, byte in enumerate(content, start=1) if byte == ord("\n")]
    assert len(ends) == len(records)
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        whole = sum(end <= size for end in ends)
        if whole:
            assert read(path) == records[whole - 1]
        else:
            with pytest.raises(JournalError, match=rf"{size} bytes and no whole record"):
                read(path)


def test_a_bit_that_flipped_in_any_byte_stops(path: Path) -> None:
    """It is one line that says where; and the file stays as it was found."""
    content = written(path, *handover())
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(
            JournalError, match=r"^\S+turns\.journal: line \d is damaged: end the"
        ) as it:
            read(path)
        assert "\n" not in str(it.value)
        assert path.read_bytes() == flipped


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_journal_that_may_not_be_read_stops(path: Path) -> None:
    written(path, {"epoch": 1})
    path.chmod(0)
    with pytest.raises(JournalError, match="cannot be read"):
        read(path)


def test_a_journal_that_is_no_file_stops(path: Path) -> None:
    path.mkdir()
    with pytest.raises(JournalError, match=r"turns\.journal cannot be read \(Is a directory\)"):
        read(path)


def test_compaction_keeps_the_newest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMPACT_AT", 200)
    with Journal(path, {"epoch": 0}) as store:
        for epoch in range(1, 100):
            store.append({"epoch": epoch})
            assert read(path) == {"epoch": epoch}
            assert path.stat().st_size <= 200
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("limit", [30, 60], ids=["in the middle of a line", "at its end"])
def test_a_record_that_cannot_be_stored_raises(path: Path, limit: int) -> None:
    """In a process of its own, whose files must not grow: the write fails as on a full tmpfs."""
    script = """
import sys
from pathlib import Path
from dra_driver.journal import Journal, JournalError
with Journal(Path(sys.argv[1]), {"epoch": 1}) as store:
    for epoch in (2, 3, 4):
        try:
            store.append({"epoch": epoch})
        except JournalError as exc:
            print(exc)
            break
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, path],
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == (
        f"{path}: the state cannot be stored (File too large): make room for it; an arbiter that "
        f"starts then goes on from the record before\n"
    )
    stored = read(path)
    assert stored is not None
    assert stored["epoch"] == (1 if limit == 30 else 2)


def test_a_directory_that_is_gone_raises(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="No such file or directory"):
        Journal(tmp_path / "gone" / "turns.journal", {})


# -- the node behind it -------------------------------------------------------------------------


class Gpu(Unfrozen):
    """A device of 100 bytes."""

    name = "gpu0"

    def __init__(self, used: int) -> None:
        self._used = used

    def read(self) -> Reading:
        return Reading(used=self._used, total=100)

    def holders(self) -> dict[int, Blocks]:
        return {}


def loaded(path: Path, boot_id: str = BOOT, used: int = 7) -> Node:
    return load_node(path, {"gpu0": Gpu(used)}, boot_id)


def test_a_new_node_takes_what_is_used_for_foreign(path: Path) -> None:
    assert loaded(path) == Node(BOOT, {"gpu0": Device("gpu0", total=100, baseline=7)})


def test_a_stored_node_goes_on(path: Path) -> None:
    node = Node(BOOT, {"gpu0": Device("gpu0", total=100)}, epoch=41)
    written(path, node.to_json())
    assert loaded(path) == node


def test_a_journal_that_is_gone_is_no_new_node(path: Path) -> None:
    """Whoever computes on the device still would be taken for what was there at first."""
    written(path, Node(BOOT, {}).to_json())
    journal.keep(path, BOOT)
    assert loaded(path).epoch == 0
    path.unlink()
    with pytest.raises(JournalError) as told:
        loaded(path)
    assert str(told.value) == (
        f"{path} is gone, and turns were arbitrated here since the node was started: end the "
        f"tenants of this node, then remove the files turns.* there"
    )
    assert loaded(path, "another-boot").epoch == 0


def test_a_journal_that_cannot_be_vouched_for_is_not_begun(tmp_path: Path) -> None:
    (tmp_path / "turns.kept").mkdir()
    with pytest.raises(JournalError, match=r"turns\.kept: .* cannot be stored \(Is a directory\)"):
        journal.keep(tmp_path / "turns.journal", BOOT)


def test_a_reboot_ends_every_tenant_and_keeps_the_old_journal(path: Path) -> None:
    content = written(path, Node("another-boot", {}, epoch=41).to_json())
    assert loaded(path).epoch == 0
    assert path.with_suffix(".before-reboot").read_bytes() == content


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"state_version": 99}, "state version 99"),
        ({}, "state version None"),
        ({**json.loads(json.dumps(Node(BOOT, {}).to_json())), "queue": None}, "not a whole"),
    ],
    ids=["of another version", "of none", "in part"],
)
def test_a_node_that_is_not_understood_stops(path: Path, record: Any, why: str) -> None:
    content = written(path, record)
    with pytest.raises(JournalError, match=rf"turns\.journal: {why}"):
        loaded(path)
    assert path.read_bytes() == content
