"""Memory of a simulated device without torch: what its library does for torch's storages."""

import mmap
import os


def device_memory(directory: str, size: int) -> mmap.mmap:
    """A block of the device mounted there. Raises OSError when it is full."""
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
