"""What is prepared, on disk: whole or refused."""

import json
import os
from pathlib import Path

import pytest

from dra_driver.checkpoint import Allocated, Checkpoint, CheckpointError, Prepared
from dra_driver.config import Agreement, Role

ONE = Prepared(
    uid="5c4b1b5e-3a86-4a4e-9c70-6f3d7a1f1d9e",
    namespace="team-a",
    name="grpo",
    results=(Allocated("gpu", "node-1", "gpu-0", None), Allocated("gpu", "node-1", "gpu-1", "s")),
    agreement=Agreement("grpo", 1 << 20, 1 << 10, {"trainer": Role(None, 0)}),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.json"


def test_what_was_put_is_there_for_the_next_driver(path: Path) -> None:
    Checkpoint(path).put(ONE)
    again = Checkpoint(path)
    assert list(again) == [ONE]
    assert again.get(ONE.uid) == ONE
    again.remove(ONE.uid)
    again.remove(ONE.uid)
    assert list(Checkpoint(path)) == []


def test_nothing_changes_when_it_cannot_be_written(path: Path) -> None:
    checkpoint = Checkpoint(path)
    path.mkdir()
    (path / "in the way").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        checkpoint.put(ONE)
    assert checkpoint.get(ONE.uid) is None
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 1}', '{"version":1,"claims":[{}]}']
)
def test_a_file_that_is_none_stops_the_driver(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(CheckpointError, match=r"checkpoint\.json: is not a checkpoint"):
        Checkpoint(path)


def test_a_later_version_is_not_guessed_at(path: Path) -> None:
    path.write_text(json.dumps({"version": 2, "claims": []}))
    with pytest.raises(CheckpointError, match="has version 2, this driver knows 1"):
        Checkpoint(path)


def test_the_file_is_its_owner_s_alone(path: Path) -> None:
    Checkpoint(path).put(ONE)
    assert os.stat(path).st_mode & 0o077 == 0  # noqa: PTH116
