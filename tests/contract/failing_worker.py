"""An engine worker whose sleep and wake_up fail once when told to: for test_vllm_adapter.py."""

import os
from pathlib import Path

from hack.simdevice.simdevice_worker import SimulatedDeviceWorker


class FailingWorker(SimulatedDeviceWorker):
    """The call NAME raises if the file FAILURES/NAME is there, and removes it."""

    def sleep(self, level: int = 1) -> None:
        _fail_if_told("sleep")
        super().sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        for tag in tags or []:
            _fail_if_told(f"wake_up.{tag}")
        super().wake_up(tags)


def _fail_if_told(name: str) -> None:
    told = Path(os.environ["FAILURES"]) / name
    if told.exists():
        told.unlink()
        raise RuntimeError("injected: out of memory")
