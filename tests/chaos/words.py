"""What the tenants of a run say of themselves: a line of JSON into one pipe for all."""

import json
import os
import time
from pathlib import Path


class Words:
    """The writing end; a line is shorter than PIPE_BUF, so lines never mix."""

    def __init__(self, who: str, pipe: Path) -> None:
        self._who = who
        self._pipe = os.open(pipe, os.O_WRONLY)

    def say(self, says: str, *, epoch: int = 0, why: str = "", updates: int = 0) -> None:
        """Say it now, by CLOCK_MONOTONIC."""
        line = {
            "t": time.monotonic(),
            "who": self._who,
            "says": says,
            "epoch": epoch,
            "why": why[:1000],
            "updates": updates,
        }
        os.write(self._pipe, (json.dumps(line) + "\n").encode())
