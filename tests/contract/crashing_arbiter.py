"""The real arbiter with a journal that kills it at a given record.

    python -m tests.contract.crashing_arbiter --node FILE --tenant a --phase Quiescing --when stored

`stored`: right after the record is stored, before anything that follows from it leaves. `answered`:
its messages left and were answered, and nothing of the answer is stored.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

from dra_driver import node_file
from dra_driver.__main__ import serve
from dra_driver.journal import Journal


def crashing(tenant: str, phase: str, when: str) -> type[Journal]:
    """A journal type; the process dies at the first record that has `tenant` in `phase`."""

    class CrashingJournal(Journal):
        stored = False

        def append(self, record: dict[str, Any]) -> None:
            if self.stored and when == "answered":
                os.kill(os.getpid(), signal.SIGKILL)
            super().append(record)
            self.stored |= record["tenants"].get(tenant, {}).get("phase") == phase
            if self.stored and when == "stored":
                os.kill(os.getpid(), signal.SIGKILL)

    return CrashingJournal


def main() -> None:
    """Arbitrate until the record comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", type=Path, required=True)
    parser.add_argument("--tenant", required=True)
    parser.add_argument("--phase", required=True)
    parser.add_argument("--when", choices=["stored", "answered"], required=True)
    arguments = parser.parse_args()
    journal = crashing(arguments.tenant, arguments.phase, arguments.when)
    serve(node_file.load(arguments.node), journal_type=journal)


if __name__ == "__main__":
    main()
