"""The wall clock that Python code reads, off by what a file says: a clock that others may step.

Python imports this by itself where the folder is on PYTHONPATH. The C of libraries reads the
machine's clock as before: stepping that one would step it for everybody on the machine.
"""

import mmap
import os
import struct
import time

_real, _real_ns = time.time, time.time_ns
_OFFSET = struct.Struct("d")


def _step(path: str) -> None:
    with open(path, "rb") as file:  # noqa: PTH123 - before the program, so as little as can be
        shared = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)

    def offset() -> float:
        return float(_OFFSET.unpack_from(shared)[0])

    time.time = lambda: _real() + offset()
    time.time_ns = lambda: _real_ns() + int(offset() * 1e9)


if path := os.environ.get("TANDEM_CHAOS_CLOCK"):
    _step(path)
