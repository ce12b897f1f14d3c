"""Torch memory on a simulated device, as a session parks and restores it."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import torch

from workload_agents.adapters.torch_storage import TorchMemory

BLOCK_MIB = 16


class Blocks:
    """So many MiB, which are taken at the first restore.

    `parked_s`, `restored_s`: seconds that the last park and the last restore took, in all pieces.
    """

    def __init__(self, mib: int) -> None:
        torch.set_num_threads(1)
        self._count = mib // BLOCK_MIB
        self._blocks: list[Any] = []
        self._memory = TorchMemory()
        self._ahead_s = 0.0
        self.parked_s = self.restored_s = 0.0

    async def park(self) -> None:
        """Copy all of it out."""
        self.parked_s = await _seconds(self._memory.park)

    async def restore(self) -> int | None:
        """Copy the rest of it in."""
        self.restored_s = self._ahead_s + await _seconds(self._restore)
        self._ahead_s = 0.0
        return None

    def _restore(self) -> None:
        self._memory.restore()
        if not self._blocks:
            size = BLOCK_MIB << 20
            self._blocks = [
                torch.empty(size, dtype=torch.uint8).fill_(n % 251) for n in range(self._count)
            ]
            self._memory.hold(self._blocks)
        for number, block in enumerate(self._blocks):
            if block[0] != number % 251 or block[-1] != number % 251:
                raise RuntimeError("what was restored is not what was parked")


class BlocksInPieces(Blocks):
    """A block may be restored while another tenant's go."""

    async def park_in_pieces(self, freed: Callable[[], None], keep: int) -> int:
        """`park` all but so many bytes, and tell how it goes on."""
        self.parked_s = await _seconds(self._memory.park, freed, keep)
        return self._memory.taken

    async def restore_ahead(self, size: int) -> None:
        """Copy some of it in."""
        self._ahead_s += await _seconds(self._memory.restore_ahead, size)


async def _seconds(copy: Callable[..., object], *arguments: object) -> float:
    """How long it took, in a thread of its own: a session must go on meanwhile."""

    def timed() -> float:
        begin = time.monotonic()
        copy(*arguments)
        return time.monotonic() - begin

    return await asyncio.to_thread(timed)
