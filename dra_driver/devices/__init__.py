"""What the driver measures on a device, whatever the device is."""

from dataclasses import dataclass
from typing import Protocol


class DeviceError(RuntimeError):
    """A device that cannot be measured, in one line: which one, why, what to do."""


@dataclass(frozen=True)
class Reading:
    used: int  # bytes
    total: int  # bytes


class Device(Protocol):
    name: str

    def read(self) -> Reading:
        """Raises DeviceError: then what tenants have on the device counts as lost."""

    def holders(self) -> dict[int, int]:
        """Bytes of this device that each process maps, by pid; only processes that map any.

        Memory that two processes map counts for both. What `read` calls used and no holder maps is
        unknown: it belongs to a process that may not be looked at. Raises DeviceError.
        """
