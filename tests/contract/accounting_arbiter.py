"""The real arbiter whose file of events has accounts in it every few lines, or is begun anew.

python -m tests.contract.accounting_arbiter --node FILE --every BYTES --file-max BYTES
"""

import argparse
from pathlib import Path

from dra_driver import event_log, node_file
from dra_driver.__main__ import serve


def main() -> None:
    """Arbitrate until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", type=Path, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--file-max", type=int, required=True)
    arguments = parser.parse_args()
    event_log.ACCOUNTS_EVERY = arguments.every  # type: ignore[misc]
    event_log.FILE_MAX = arguments.file_max  # type: ignore[misc]
    serve(node_file.load(arguments.node))


if __name__ == "__main__":
    main()
