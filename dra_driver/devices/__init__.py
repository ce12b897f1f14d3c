"""What the driver measures on a device, whatever the device is."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class DeviceError(RuntimeError):
    """A device that cannot be measured, in one line: which one, why, what to do."""


class NoRoom(DeviceError):
    """The device has not the room."""


@dataclass(frozen=True)
class Reading:
    used: int  # bytes
    total: int  # bytes: what tenants may hold at most


Ranges = Sequence[tuple[int, int]]
"""Of bytes: the first, and the first after them."""

Blocks = Mapping[int, Ranges]
"""What of each block of a device; one that two processes map has one number."""


def covered(ranges: Iterable[tuple[int, int]]) -> int:
    """Bytes covered by ranges that may overlap: a page mapped twice counts once."""
    total = reached = 0
    for first, last in sorted(ranges):
        total += max(0, last - max(first, reached))
        reached = max(reached, last)
    return total


class Device(Protocol):
    name: str

    def read(self) -> Reading:
        """Raises DeviceError: then what tenants have on the device counts as lost."""

    def holders(self) -> dict[int, Blocks]:
        """What of this device each process maps, by pid; only processes that map any.

        What `read` calls used and no holder maps is unknown: it belongs to a process that may not
        be looked at. Raises DeviceError.
        """

    def freeze(self, of_tenant: Callable[[], Collection[int]], folder: Path) -> int:
        """Have a tenant's processes stand still, with what they hold of the device on the host: so
        many bytes. `of_tenant` names them all, and is asked until it names no more.

        The folder is theirs, for what has to be known until they are thawed; when they are frozen
        already nothing changes. Raises DeviceError: they go on as before.
        """

    def settle(self, folder: Path) -> int | None:
        """Bring a freeze or a thaw that was cut short to its end, or back: the bytes on the host of
        those that are frozen; None where none is, and all go on. Raises DeviceError.
        """

    def thaw(self, lives: Callable[[], bool], folder: Path) -> None:
        """Have them go on, with what they held. Nothing if none of them is left; as `discard` where
        by then their life is over.

        Raises DeviceError, NoRoom where that is the cause: they stand still as before.
        """

    def discard(self, folder: Path) -> None:
        """End those that are left of them; what they held is gone."""
