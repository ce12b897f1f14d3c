"""An arbiter whose state lies on a full filesystem, and the one after it that has room.

    python -m tests.contract.cramped_arbiter --node FILE [--from-the-start]

Runs in the arbiter's own mount namespace: the state directory gets a small tmpfs, filled but for a
few records. The first arbiter runs until it ends of that; then the room is made, and another takes
its place. Prints the first one's exit status, and its last line.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

PAGES = 64
LEFT = 4
PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", type=Path, required=True)
    parser.add_argument("--from-the-start", action="store_true")
    arguments = parser.parse_args()
    state = Path(json.loads(arguments.node.read_text())["state_dir"])
    state.mkdir(mode=0o700)
    size = f"size={PAGES * PAGE},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tandem", state], check=True)
    filler = state / "filler"
    filler.write_bytes(bytes((PAGES - (0 if arguments.from_the_start else LEFT)) * PAGE))
    arbiter = [sys.executable, "-m", "dra_driver", "--node", str(arguments.node)]
    ended = subprocess.run(arbiter, stderr=subprocess.PIPE, text=True, check=False)
    said = ended.stderr.splitlines()
    print(
        json.dumps({"status": ended.returncode, "last": said[-1], "lines": len(said)}), flush=True
    )
    filler.unlink()
    os.execv(sys.executable, arbiter)  # noqa: S606


if __name__ == "__main__":
    main()
