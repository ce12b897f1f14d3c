"""Tells a person what goes on."""

import sys
import time
from typing import Final

_EVERY_S: Final = 15.0


class Progress:
    """Lines on stderr; within a long step one line that changes, or a few where no terminal is."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._open = False

    def say(self, text: str) -> None:
        """A step begins, or something must be known."""
        self._close()
        print(text, file=sys.stderr, flush=True)
        self._began = self._told = time.monotonic()

    def more(self, text: str) -> None:
        """How far the step has come."""
        now = time.monotonic()
        line = f"      {now - self._began:4.0f} s  {text}"
        if self._terminal:
            print(f"\r\x1b[K{line[:100]}", end="", file=sys.stderr, flush=True)
            self._open = True
        elif now - self._told >= _EVERY_S:
            self._told = now
            print(line, file=sys.stderr, flush=True)

    def _close(self) -> None:
        if self._open:
            print(file=sys.stderr)
            self._open = False
