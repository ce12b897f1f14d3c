"""Runs on a simulated device: parks and restores what it holds, and does the same by hand.

    python -P -m hack.benchmarks._copying MIB ROUNDS

Prints a line of JSON for each round: the seconds of each thing.
"""

import ctypes
import json
import mmap
import sys
import time
from itertools import pairwise
from typing import Any

import torch

from hack.benchmarks.copy import BLOCK_MIB
from workload_agents.adapters.torch_storage import TorchMemory

BLOCK = BLOCK_MIB << 20


def run(blocks: int, rounds: int) -> None:
    """Each round parks, does the same by hand while the device is empty, and restores."""
    torch.set_num_threads(1)
    host = _host_memory(blocks)
    held = [_block().fill_(number % 251) for number in range(blocks)]
    memory = TorchMemory()
    memory.hold(held)
    for _ in range(rounds):
        began = time.perf_counter()
        memory.park()
        parked = time.perf_counter()
        seconds = by_hand(host)
        resumed = time.perf_counter()
        memory.restore()
        restored = time.perf_counter()
        told = {**seconds, "park": parked - began, "restore": restored - resumed}
        print(json.dumps(told), flush=True)
    if any(not bool((block == number % 251).all()) for number, block in enumerate(held)):
        raise RuntimeError("what was restored is not what was parked")


def by_hand(host: list[Any]) -> dict[str, float]:
    """The same with memcpy: with pages that are there, and with taking and giving them back."""
    blocks = []
    times = [time.perf_counter()]
    for place in host:
        blocks.append(_block())
        _memcpy(blocks[-1], place)
    times.append(time.perf_counter())
    for place, block in zip(host, blocks, strict=True):
        _memcpy(block, place)
    times.append(time.perf_counter())
    for place, block in zip(host, blocks, strict=True):
        _memcpy(place, block)
    times.append(time.perf_counter())
    for place in host:
        _memcpy(place, blocks.pop())
    times.append(time.perf_counter())
    names = ("take_and_copy_in", "copy_in", "copy_out", "copy_out_and_give_back")
    return {name: end - begin for name, (begin, end) in zip(names, pairwise(times), strict=True)}


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
