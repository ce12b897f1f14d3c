"""Torch memory on a simulated device, as a session parks and restores it."""

import asyncio
from collections.abc import Callable
from typing import Any

import torch

from workload_agents.adapters.torch_storage import TorchMemory

BLOCK_MIB = 16


class Blocks:
    """So many MiB, which are taken at the first restore."""

    def __init__(self, mib: int) -> None:
        torch.set_num_threads(1)
        self._count = mib // BLOCK_MIB
        self._blocks: list[Any] = []
        self._memory = TorchMemory()

    async def park(self) -> None:
        """Copy all of it out."""
        await asyncio.to_thread(self._memory.park)

    async def restore(self) -> int | None:
        """Copy the rest of it in."""
        await asyncio.to_thread(self._restore)
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
        await asyncio.to_thread(self._memory.park, freed, keep)
        return self._memory.taken

    async def restore_ahead(self, size: int) -> None:
        """Copy some of it in."""
        await asyncio.to_thread(self._memory.restore_ahead, size)
