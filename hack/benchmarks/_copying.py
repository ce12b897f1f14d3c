"""Runs on a simulated device: parks and restores what it holds, and does the same by hand.

    python -P -m hack.benchmarks._copying MIB ROUNDS

Prints a line of JSON for each round: for each thing its seconds, of this process's CPU time (of all
threads) and by the clock.
"""

import ctypes
import json
import mmap
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from hack.benchmarks.copy import BLOCK_MIB
from workload_agents.adapters.torch_storage import TorchMemory

BLOCK = BLOCK_MIB << 20

Time: TypeAlias = tuple[float, float]
"""This process's CPU time and the clock's, in seconds."""


def run(blocks: int, rounds: int) -> None:
    """Each round parks, does the same by hand while the device is empty, and restores."""
    torch.set_num_threads(1)
    host = _host_memory(blocks)
    held = [_block().fill_(number % 251) for number in range(blocks)]
    memory = TorchMemory()
    memory.hold(held)
    for _ in range(rounds):
        parking = [_now(), _do(memory.park)]
        by_hand = _by_hand(host)
        restoring = [_now(), _do(memory.restore)]
        told = {"park": parking, **by_hand, "restore": restoring}
        print(json.dumps({what: _between(*times) for what, times in told.items()}), flush=True)
    if any(not bool((block == number % 251).all()) for number, block in enumerate(held)):
        raise RuntimeError("what was restored is not what was parked")


def _by_hand(host: list[Any]) -> dict[str, list[Time]]:
    """The same with memcpy: with pages that are there, and with taking and giving them back."""
    blocks = []
    times = [_now()]
    for place in host:
        blocks.append(_block())
        _memcpy(blocks[-1], place)
    times.append(_now())
    for place, block in zip(host, blocks, strict=True):
        _memcpy(block, place)
    times.append(_now())
    for place, block in zip(host, blocks, strict=True):
        _memcpy(place, block)
    times.append(_now())
    del block
    for place in host:
        _memcpy(place, blocks.pop())
    times.append(_now())
    names = ("take_and_copy_in", "copy_in", "copy_out", "copy_out_and_give_back")
    return {name: list(pair) for name, pair in zip(names, pairwise(times), strict=True)}


def _now() -> Time:
    return time.process_time(), time.perf_counter()


def _do(work: Callable[[], object]) -> Time:
    """When it was done."""
    work()
    return _now()


def _between(begin: Time, end: Time) -> dict[str, float]:
    return {"cpu": end[0] - begin[0], "wall": end[1] - begin[1]}


def _block() -> Any:
    """Device memory."""
    return torch.empty(BLOCK, dtype=torch.uint8)


def _host_memory(blocks: int) -> list[Any]:
    """As many blocks of host memory, in one piece as the arena of `TorchMemory` is; pages there."""
    memory = mmap.mmap(-1, blocks * BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return list(torch.frombuffer(memory, dtype=torch.uint8).fill_(0).split(BLOCK))


def _memcpy(to: Any, source: Any) -> None:
    ctypes.memmove(to.data_ptr(), source.data_ptr(), BLOCK)


if __name__ == "__main__":
    run(int(sys.argv[1]) // BLOCK_MIB, int(sys.argv[2]))
