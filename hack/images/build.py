"""The images of a local cluster, built from this machine and the lock; no registry is asked."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hack.images import contents, layer, rootfs
from hack.images.layer import Entries, Entry, File
from hack.images.oci import Image

PYTHON: Final = "localhost/python:local"
TANDEM: Final = "localhost/tandem:local"
PAUSE: Final = "localhost/pause:local"


class BuildError(Exception):
    """An image cannot be built; the first line says why."""


def images(cache: Path, pause: Path, scratch: Path) -> list[Image]:
    """Every image; what seldom changes comes from `cache`, the rest is written to `scratch`."""
    base = rootfs.entries()
    python = _cached(cache / f"layer-python-{_state(base)}.tar", lambda: base)
    requirements = contents.ROOT / contents.REQUIREMENTS
    key = _digest(requirements.read_bytes() + sys.version.encode())
    dependencies = _cached(
        cache / f"layer-requirements-{key}.tar", lambda: _install(requirements, scratch)
    )
    ours = scratch / "tandem.tar"
    layer.write(_ours(), ours)
    alone = scratch / "pause.tar"
    layer.write({"/pause": File(pause)}, alone)
    return [
        Image(PAUSE, [alone], entrypoint=["/pause"]),
        Image(PYTHON, [python]),
        Image(TANDEM, [python, dependencies, ours], env=contents.ENV, user=contents.USER),
    ]


def _ours() -> Entries:
    found: dict[str, Entry] = {contents.LIBRARY: File(Path(os.environ["TANDEM_SIMDEVICE_LIBRARY"]))}
    for package in contents.packages():
        found |= layer.tree(contents.ROOT / package, f"{contents.HOME}/{package}")
    return found


def _install(requirements: Path, scratch: Path) -> Entries:
    """The packages of the lock, as pip would install them in the Dockerfile."""
    target = scratch / "requirements"
    command = ["uv", "pip", "install", "--system-certs", "--quiet", "--no-deps"]
    command += ["--require-hashes", "--python", sys.executable, "--target", str(target)]
    done = subprocess.run(
        [*command, "-r", str(requirements)], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise BuildError(f"the packages of {contents.REQUIREMENTS} cannot be had:\n{done.stderr}")
    return layer.tree(target, contents.HOME)


def _cached(path: Path, entries: Callable[[], Entries]) -> Path:
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="building.") as building:
            fresh = Path(building) / path.name
            layer.write(entries(), fresh)
            fresh.rename(path)
    return path


def _state(entries: Entries) -> str:
    """A digest that changes when a file does."""
    told = []
    for path, entry in sorted(entries.items()):
        found = entry.source.stat() if isinstance(entry, File) else None
        told.append((path, repr(entry), found and (found.st_size, found.st_mtime_ns)))
    return _digest(json.dumps(told).encode() + Path(layer.__file__).read_bytes())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
