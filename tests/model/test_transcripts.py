"""Each transcript is what the machine does today.

After a change of the protocol that is meant, write them anew and read the difference in git:

    TRANSCRIPTS=write hack/env python -m pytest tests/model/test_transcripts.py
"""

import difflib
import os
from pathlib import Path

import pytest

from tests.model.script import replay

FOLDER = Path(__file__).parent / "transcripts"
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))
WRITE = os.environ.get("TRANSCRIPTS") == "write"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    written = path.read_text()
    today = replay(written)
    if WRITE:
        path.write_text(today)
    elif today != written:
        lines = difflib.unified_diff(
            written.splitlines(), today.splitlines(), "as written", "as of today", lineterm="", n=8
        )
        pytest.fail("\n".join([f"{path.name} differs:", *lines]), pytrace=False)


def test_each_says_first_what_is_to_be_seen() -> None:
    assert len(TRANSCRIPTS) >= 14
    for path in TRANSCRIPTS:
        assert path.read_text().startswith("# "), path.name
