"""The real arbiter with one bug, which a run must find.

python -m tests.chaos.broken grants-before-measuring --node FILE
"""

import argparse
import asyncio
import logging
from pathlib import Path
from typing import Any, Final

from claim_phases import turns
from claim_phases.node import Tenant
from claim_phases.phases import TURN, Signal
from dra_driver import node_file, serving
from dra_driver.__main__ import serve
from dra_driver.journal import Journal

LAG_S: Final = 0.5


class GrantsUnmeasured(turns.Turns):
    """Grants once the holder was told to release, and does not look at the device."""

    def _ask(self, tenant: Tenant, *, attribute: bool) -> None:
        self._do.grant(tenant, Signal.GRANT)


class ForgetsQueue(turns.Turns):
    """Begins with nobody waiting: whoever connects first asks first."""

    def _resumed(self) -> None:
        for name in list(self.node.queue):
            self._do.dequeue(self.node.tenants[name])
        super()._resumed()


class LateJournal(Journal):
    """Stores each record some time after what follows from it has left."""

    def append(self, record: dict[str, Any]) -> None:
        asyncio.get_running_loop().call_later(LAG_S, super().append, record)

    def close(self) -> None:
        """Leave it open: what is late would find it closed."""


BUGS: Final = ("grants-before-measuring", "stores-after-sending", "forgets-the-queue")


def main() -> None:
    """Arbitrate until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bug", choices=BUGS)
    parser.add_argument("--node", type=Path, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    spec = node_file.load(given.node)
    match given.bug:
        case "grants-before-measuring":
            turns.HOLDING = TURN  # type: ignore[attr-defined]
            serving.Turns = GrantsUnmeasured  # type: ignore[attr-defined]
            serve(spec)
        case "stores-after-sending":
            serve(spec, journal_type=LateJournal)
        case _:
            serving.Turns = ForgetsQueue  # type: ignore[attr-defined]
            serve(spec)


if __name__ == "__main__":
    main()
