"""Generates the Python code of the .proto files, beside them, and the docs' diagram of the phases.

--check says which of it is stale.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from hack import phases_diagram

ROOT = Path(__file__).resolve().parent.parent
PROTOS = [
    "claim_phases/turns.proto",
    *(f"dra_driver/kubelet_api/{name}.proto" for name in ("dra", "health", "registration")),
]


def generate(into: Path) -> None:
    # Relative to the root, so that the generated imports are absolute ones of the package.
    outputs = ["--python_out", "--grpc_python_out", "--mypy_out", "--mypy_grpc_out"]
    options = ["--mypy_opt=quiet", "--mypy_grpc_opt=quiet,only_async"]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *options]
    subprocess.run([*command, *(f"{o}={into}" for o in outputs), *PROTOS], cwd=ROOT, check=True)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: hack/generate [--check]")
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {
            path.relative_to(scratch): path.read_bytes()
            for path in sorted(Path(scratch).rglob("*_pb2*"))
        }
    fresh[Path("docs/phases.svg")] = phases_diagram.draw().encode()
    stale = [
        name
        for name, content in fresh.items()
        if not (ROOT / name).exists() or (ROOT / name).read_bytes() != content
    ]
    if arguments:
        for name in stale:
            print(f"{name}: not what hack/generate makes today; run hack/generate")
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_bytes(fresh[name])
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
