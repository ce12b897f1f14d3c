"""The image of driver, extender and sidecar, beside its Python; the Dockerfile says the same."""

import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = "/opt/tandem"
LIBRARY: Final = f"{HOME}/lib/libsimdevice.so"
REQUIREMENTS: Final = "hack/images/requirements.lock"
USER: Final = "65532:65532"
ENV: Final = {"PYTHONPATH": HOME, "PYTHONUNBUFFERED": "1"}


def packages() -> list[str]:
    """The packages of the distribution: folders here, and in HOME."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    include: list[str] = pyproject["tool"]["setuptools"]["packages"]["find"]["include"]
    return [pattern.removesuffix("*") for pattern in include]
