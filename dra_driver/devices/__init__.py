"""What the driver measures on a device, whatever the device is."""

from collections.abc import Callable, Collection, Mapping
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


Blocks = Mapping[int, int]
"""Bytes of blocks of a device, by their numbers: a block that two processes map has one number."""


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
