"""Devices of tests in which nobody is frozen."""

from collections.abc import Callable, Collection
from pathlib import Path


class Unfrozen:
    """Half of dra_driver.devices.Device."""

    def freeze(self, of_tenant: Callable[[], Collection[int]], folder: Path) -> int:
        raise AssertionError(f"{folder} is to be frozen")

    def settle(self, folder: Path) -> int | None:
        raise AssertionError(f"{folder} is to be settled")

    def thaw(self, lives: Callable[[], bool], folder: Path) -> None:
        raise AssertionError(f"{folder} is to be thawed")

    def discard(self, folder: Path) -> None:
        raise AssertionError(f"{folder} is to be discarded")
