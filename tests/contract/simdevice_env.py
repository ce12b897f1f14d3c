"""Programs on a simulated device of their own: a private mount namespace with one tmpfs in it."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "TANDEM_SIMDEVICE_LIB"  # a libsimdevice.so that was built already


def library(folder: Path) -> Path:
    """The library that the environment names, else one built into the folder."""
    if (built := os.environ.get(LIBRARY)) is not None:
        return Path(built)
    subprocess.run([ROOT / "hack/simdevice/build.sh", folder], check=True)
    return folder / "libsimdevice.so"


def on_device(directory: Path, size: int, argv: Sequence[str]) -> list[str]:
    """The command that runs argv where a tmpfs of `size` bytes is mounted at `directory`.

    Raises RuntimeError, in one line, when this machine does not let us mount.
    """
    private = ["unshare", "--mount"]
    if os.geteuid() != 0:
        private = ["unshare", "--user", "--map-root-user", "--mount"]
    # Huge pages make a block of 1 MiB three times as fast; not every kernel has them.
    mount = """
    mount -t tmpfs -o "size=$1,huge=within_size" simdevice "$2" 2>/dev/null ||
        mount -t tmpfs -o "size=$1" simdevice "$2" || exit
    shift 2
    exec "$@"
    """
    within = [*private, "sh", "-c", mount, "sh", str(size), str(directory)]
    tried = subprocess.run([*within, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise RuntimeError(
            f"cannot mount a tmpfs in a namespace of its own ({' '.join(tried.stderr.split())}): "
            "run as root, or allow unprivileged user namespaces"
        )
    return [*within, *argv]


def environment(
    directory: Path | str, preload: Path | None = None, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What a process on the device gets; without `preload` it only looks on."""
    device = {"SIMDEVICE_DIR": str(directory), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if preload is not None:
        device["LD_PRELOAD"] = str(preload)
    return {**os.environ, **device, **(extra or {})}


def python(source: str, preload: Path | None = None) -> list[str]:
    """argv of a program in Python. The library is preloaded into it alone, not into unshare."""
    program = [sys.executable, "-c", source]
    return program if preload is None else ["env", f"LD_PRELOAD={preload}", *program]
