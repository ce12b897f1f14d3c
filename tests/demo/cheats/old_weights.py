"""From the third version on the engine finds the one before under the new number, well signed."""

import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from workload_agents import weights

publish = weights.publish


def publish_older(
    directory: Path, version: int, write: Callable[[Path], None]
) -> weights.Published:
    def write_older(folder: Path) -> None:
        for file in (directory / f"v{version - 1}").glob("*.safetensors"):
            shutil.copy(file, folder)

    return publish(directory, version, write if version < 3 else write_older)


weights.publish = publish_older
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
