"""Writes the lock files from pyproject.toml, or (--check) says whether they still belong to it.

requirements.lock is for all; that of the images is a part of it. Other arguments go to
`uv pip compile`: pins stay as they are without `--upgrade` or `--upgrade-package NAME`.
"""

import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
IMAGES_LOCK = ROOT / "hack" / "images" / "requirements.lock"
IMAGES_EXTRAS = ("agent", "cli", "driver", "extender")


def header(pyproject: dict[str, Any]) -> str:
    """The lock's first line, a digest of what it is resolved from: staleness shows offline."""
    project = pyproject["project"]
    inputs = [
        project["requires-python"],
        project["dependencies"],
        project["optional-dependencies"],
        pyproject["dependency-groups"],
        pyproject["tool"]["uv"],
    ]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return f"# made by hack/lock; sha256 of its inputs in pyproject.toml: {digest}\n"


def main(arguments: list[str]) -> int:
    pyproject = tomllib.loads(PYPROJECT.read_text())
    first = header(pyproject)
    if arguments == ["--check"]:
        stale = [path for path in (LOCK, IMAGES_LOCK) if _first_line(path) != first]
        for path in stale:
            name = path.relative_to(ROOT)
            print(f"{name}: older than the dependencies in pyproject.toml; run hack/lock")
        return 1 if stale else 0

    groups = [part for name in pyproject["dependency-groups"] for part in ("--group", name)]
    extras = [part for name in IMAGES_EXTRAS for part in ("--extra", name)]
    status = _compile(LOCK, first, ["--all-extras", *groups, *arguments])
    return status or _compile(IMAGES_LOCK, first, [*extras, "--constraint", LOCK.name])


def _first_line(path: Path) -> str:
    with path.open() as lock:
        return lock.readline()


def _compile(path: Path, first: str, arguments: list[str]) -> int:
    compile_ = ["uv", "pip", "compile", "pyproject.toml", "--universal", *arguments]
    flags = ["--generate-hashes", "--no-emit-index-url", "--no-header", "--quiet"]
    output = ["--output-file", str(path.relative_to(ROOT))]
    done = subprocess.run([*compile_, *flags, *output], cwd=ROOT, check=False)
    if done.returncode == 0:
        path.write_text(first + path.read_text())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
