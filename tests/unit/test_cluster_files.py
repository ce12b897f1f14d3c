"""Copies of what grows on a node, made while others write, restart and begin new files."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from claim_phases.accounts import Accounts
from dra_driver.event_log import recorded
from hack.cluster_files import NodeEvents, PodLogs
from tandem import run_files
from tandem.run_files import ArbiterStart, PhaseChange

ROLES = {"default/trainer": "trainer"}


def start(t: float) -> str:
    return json.dumps({"t": t, "kind": "start", "boot_id": "b", "epoch": 1}) + "\n"


def phase(t: float, tenant: str) -> str:
    about = {"from": "Waiting", "to": "Restoring", "epoch": 1, "devices": ["gpu-0"]}
    about |= {"weights": None}
    return json.dumps({"t": t, "kind": "phase", "tenant": tenant} | about) + "\n"


class Copying:
    """A driver's file and its copy."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "driver.jsonl"
        self._copy = run_files.events(folder)
        self._folder = folder
        self.events: NodeEvents | None = None

    def open(self) -> None:
        self.events = NodeEvents(self.source, self._folder / run_files.EVENTS, ROLES)

    def write(self, text: str) -> None:
        with self.source.open("a") as file:
            file.write(text)

    def copied(self) -> list[tuple[float, str | None]]:
        """When, and by whom, of what is new in the copy."""
        assert self.events is not None
        self.events.copy()
        found: list[tuple[float, str | None]] = []
        for event in self._copy.read():
            assert isinstance(event, ArbiterStart | PhaseChange)
            found.append((event.t, event.tenant if isinstance(event, PhaseChange) else None))
        return found


@pytest.fixture(name="copying")
def _copying(tmp_path: Path) -> Iterator[Copying]:
    copying = Copying(tmp_path)
    yield copying
    if copying.events is not None:
        copying.events.close()


def test_tenants_are_called_by_their_roles(copying: Copying) -> None:
    copying.open()
    assert copying.copied() == []
    copying.write(start(1.0) + phase(2.0, "default/trainer") + phase(3.0, "other/trainer"))
    assert copying.copied() == [(1.0, None), (2.0, "trainer"), (3.0, "other/trainer")]
    assert copying.copied() == []


def test_of_accounts_there_are_those_of_this_run_by_its_names(
    copying: Copying, tmp_path: Path
) -> None:
    copying.open()
    hello = {"job": "default/grpo", "role": "trainer", "life": "1", "devices": ["gpu-0"]}
    lines = [
        {"t": 1.0, "kind": "tenant", "tenant": "default/trainer", **hello},
        {"t": 2.0, "kind": "accounts", "accounts": Accounts().to_json()},
        {"t": 3.0, "kind": "start", "boot_id": "b", "epoch": 1, "tenants": ["default/trainer"]},
    ]
    copying.write("".join(json.dumps(line) + "\n" for line in lines))
    assert copying.events is not None
    copying.events.copy()
    assert set(recorded(tmp_path / run_files.EVENTS).tenants) == {"trainer"}


def test_what_was_told_before_is_of_another_run(copying: Copying) -> None:
    copying.write(phase(1.0, "default/trainer"))
    copying.open()
    copying.write(phase(2.0, "default/trainer"))
    assert copying.copied() == [(2.0, "trainer")]


def test_a_line_counts_once_it_is_complete(copying: Copying) -> None:
    copying.open()
    line = phase(1.0, "default/trainer")
    copying.write(line[:20])
    assert copying.copied() == []
    copying.write(line[20:])
    assert copying.copied() == [(1.0, "trainer")]


def test_nothing_is_lost_when_the_driver_begins_a_new_file(copying: Copying) -> None:
    copying.open()
    copying.write(phase(1.0, "default/trainer"))
    assert copying.copied() == [(1.0, "trainer")]
    copying.write(phase(2.0, "default/trainer"))
    copying.source.rename(copying.source.with_suffix(".before.jsonl"))
    copying.write(phase(3.0, "default/trainer"))
    assert copying.copied() == [(2.0, "trainer"), (3.0, "trainer")]


def test_a_run_in_which_nobody_said_anything_has_its_file_too(copying: Copying) -> None:
    copying.open()
    assert run_files.read_run(copying.source.parent).changes == ()


UID = "0f4a2d5e-1c7b-4a39-9d42-6b1f0c2e8a71"
AT = "2026-11-29T18:46:57.123456789Z"


def test_what_each_life_of_a_container_printed_is_kept(tmp_path: Path) -> None:
    pods, copies = tmp_path / "pods", tmp_path / "logs"
    copies.mkdir()
    folder = pods / f"default_rollout_{UID}" / "engine"
    folder.mkdir(parents=True)
    logs = PodLogs(pods, copies)
    first = folder / "0.log"
    first.write_text(f"{AT} stdout F one\n{AT} stderr P half of ")
    logs.copy("default", "rollout", UID)
    with first.open("a") as file:
        file.write(f"a line\n{AT} stderr F two\n")
    logs.copy("default", "rollout", UID)
    first.unlink()  # as all of the pod's containers are started anew
    (folder / "1.log").write_text(f"{AT} stdout F again\n")
    other = pods / f"default_rollout_{UID[::-1]}" / "engine"
    other.mkdir(parents=True)
    (other / "0.log").write_text(f"{AT} stdout F of a pod that had the name before\n")
    logs.copy("default", "rollout", UID)
    logs.close()
    told = {path.name: path.read_text() for path in copies.iterdir()}
    assert told == {
        "rollout.engine.1.log": "one\nhalf of a linetwo\n",
        "rollout.engine.2.log": "again\n",
    }
    assert logs.last_words("rollout", "engine", 1) == ["again"]
    assert logs.last_words("rollout", "agent", 1) == []


def test_the_last_words_are_those_of_the_last_life_that_said_any(tmp_path: Path) -> None:
    (tmp_path / "a.b.9.log").write_text("1\n2\n3\n")
    (tmp_path / "a.b.10.log").write_text("4\n5\n")
    (tmp_path / "a.b.11.log").touch()
    assert PodLogs(tmp_path, tmp_path).last_words("a", "b", 2) == ["4", "5"]
