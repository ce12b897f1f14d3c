"""A tenant of two devices whose memory tells at each turn whether it is what it was.

    python -m tests.chaos.wide ROLE BYTES DEVICE DEVICE

Each block is filled with the newest link of a chain of digests, one a turn. Killed, it goes on from
the link that it stored last.
"""

import asyncio
import hashlib
import json
import mmap
import os
import sys
from pathlib import Path
from typing import Final

from tests.chaos.words import Words
from tests.device_memory import device_memory
from workload_agents.errors import TandemError
from workload_agents.session import Session

_PAUSE_S: Final = 0.01
REFUSED_MAX: Final = 3
"""Refusals in a row after which a tenant ends, for whoever started it to start it again."""


def link(updates: int) -> bytes:
    """The chain's link after so many updates."""
    made = b"\0" * 32
    for number in range(1, updates + 1):
        made = _next(made, number)
    return made


def _next(before: bytes, number: int) -> bytes:
    return hashlib.sha256(before + number.to_bytes(8)).digest()


class Blocks:
    """A block on each device; parked, its content is a copy in the host's memory."""

    def __init__(self, directories: list[str], size: int) -> None:
        self._directories = directories
        self._size = size
        self._blocks: list[mmap.mmap] = []
        self._copies: list[bytes] = []

    async def park(self) -> None:
        while self._blocks:
            block = self._blocks.pop()
            self._copies.append(block[:])
            block.close()

    async def restore(self) -> int | None:
        for directory in self._directories[len(self._blocks) :]:
            block = device_memory(directory, self._size)
            if self._copies:
                block[:] = self._copies.pop()
            self._blocks.append(block)
        return None

    def fill(self, made: bytes) -> None:
        for block in self._blocks:
            block[:] = made * (self._size // len(made))

    def hold(self, made: bytes) -> bool:
        """Whether each block holds that, and nothing else."""
        return all(block[:] == made * (self._size // len(made)) for block in self._blocks)


class Stored:
    """How far it came, on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.updates, self.link = 0, link(0)
        if path.exists():
            raw = json.loads(path.read_text())
            self.updates, self.link = raw["updates"], bytes.fromhex(raw["link"])

    def advance(self) -> None:
        self.updates += 1
        self.link = _next(self.link, self.updates)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"updates": self.updates, "link": self.link.hex()}))
        fresh.replace(self._path)


async def take_turns(role: str, size: int, directories: list[str], run: Path) -> None:
    """Until it is enough."""
    words = Words(role, run / "words")
    stored, blocks = Stored(run / f"{role}.json"), Blocks(directories, size)
    first, refused = True, 0
    words.say("waits")
    async with Session(Path(os.environ["TANDEM_SOCKET_DIR"]) / "turns.sock", role, blocks) as turns:
        while refused < REFUSED_MAX:
            words.say("waits")
            try:
                epoch = await turns.acquire()
                words.say("turn", epoch=epoch)
                if not first and not blocks.hold(stored.link):
                    words.say(
                        "broken", why=f"its memory is not what it was at update {stored.updates}"
                    )
                stored.advance()
                blocks.fill(stored.link)
                first, refused = False, 0
                ended = (run / "enough").exists()
                words.say("left", epoch=epoch, updates=stored.updates)
                if ended:
                    words.say("done", updates=stored.updates, why=stored.link.hex())
                    return
                await turns.yield_turn()
                await asyncio.sleep(_PAUSE_S)
            except TandemError as exc:
                refused += 1
                words.say("failed", why=f"{type(exc).__name__}: {exc}")


if __name__ == "__main__":
    role, size, *directories = sys.argv[1:]
    asyncio.run(take_turns(role, int(size), directories, Path(os.environ["TANDEM_CHAOS_RUN"])))
