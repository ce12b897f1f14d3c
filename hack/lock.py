"""Writes requirements.lock from pyproject.toml, or (--check) says whether it still belongs to it.

Other arguments go to `uv pip compile`: pins stay as they are without `--upgrade` or
`--upgrade-package NAME`.
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
        with LOCK.open() as lock:
            fresh = lock.readline() == first
        if not fresh:
            print("requirements.lock: older than the dependencies in pyproject.toml; run hack/lock")
        return 0 if fresh else 1

    groups = [part for name in pyproject["dependency-groups"] for part in ("--group", name)]
    compile_ = ["uv", "pip", "compile", "pyproject.toml", "--all-extras", *groups, "--universal"]
    flags = ["--generate-hashes", "--no-emit-index-url", "--no-header", "--quiet"]
    output = ["--output-file", LOCK.name]
    done = subprocess.run([*compile_, *flags, *output, *arguments], cwd=ROOT, check=False)
    if done.returncode == 0:
        LOCK.write_text(first + LOCK.read_text())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
