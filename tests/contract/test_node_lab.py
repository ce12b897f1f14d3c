"""What the tests' own node does when a test fails."""

import os

import pytest

from tests.contract import node_lab


def test_a_pipe_that_a_process_keeps_is_told_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_lab, "WITHIN_S", 0.1)
    reading, writing = os.pipe()
    lines = node_lab.Lines(os.fdopen(reading))
    with pytest.raises(AssertionError, match="some process still has the other end"):
        lines.close()
    os.close(writing)
    monkeypatch.undo()
    lines.close()
