"""tandem top on a terminal, while the node goes on."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WITHIN_S = 30.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Screen:
    """What a command draws on a terminal of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", terminal: int) -> None:
        self.process = process
        self._terminal = terminal

    def wait(self, words: str) -> None:
        """Wait until a line that matches is drawn; what was drawn before it is forgotten."""
        seen = ""
        until = time.monotonic() + WITHIN_S
        while not re.search(words, seen):
            left = max(0.0, until - time.monotonic())
            assert select.select([self._terminal], [], [], left)[0], f"no {words!r}: {seen[-2000:]}"
            seen += os.read(self._terminal, 4096).decode(errors="replace")
            seen = ESCAPES.sub("", seen)


@contextmanager
def screen(*arguments: object) -> Iterator[Screen]:
    terminal, its = pty.openpty()
    command = [sys.executable, "-m", "tandem", *map(str, arguments)]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=env) as process:
        os.close(its)
        try:
            yield Screen(process, terminal)
        finally:
            process.kill()
            os.close(terminal)


def tell(path: Path, **event: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"t": time.monotonic(), **event}) + "\n")


def phase(path: Path, to: str) -> None:
    about = {"from": "Parked", "to": to, "epoch": 1, "devices": ["gpu0"], "weights": None}
    tell(path, kind="phase", tenant="trainer", **about)


def test_top_is_drawn_again_when_something_happens(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    tell(events, kind="start", boot_id=BOOT_ID, epoch=0)
    phase(events, "Waiting")
    with screen("top", tmp_path) as top:
        top.wait(r"trainer +Waiting")
        phase(events, "Running")
        top.wait(r"trainer +Running")
        events.rename(tmp_path / "events.before.jsonl")
        phase(events, "Faulted")
        top.wait(r"trainer +Faulted")
        top.process.send_signal(signal.SIGINT)
        assert top.process.wait(WITHIN_S) == 0
