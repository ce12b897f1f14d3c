"""The wheel as a user's training image gets it: built, installed without extras, imported."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["claim_phases", "dra_driver", "scheduler_extender", "tandem", "workload_agents"]

# All that the wheel without extras brings along; grpcio brings typing-extensions.
REQUIRED = ["grpcio", "protobuf", "safetensors", "typing-extensions"]
# What an image with nothing but the wheel must never load:
FORBIDDEN = ["aiohttp", "click", "dra_driver", "kubernetes", "torch", "vllm"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools writes beside the sources."""
    scratch = tmp_path_factory.mktemp("wheel")
    source = scratch / "source"
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, source / package, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    _run("uv", "build", "--wheel", "--offline", "--no-build-isolation", "-o", scratch, source)
    (built,) = scratch.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with the wheel and REQUIRED, as locked."""
    environment = tmp_path_factory.mktemp("bare")
    python = environment / "bin" / "python"
    _run("uv", "venv", "--quiet", "--clear", "--python", sys.executable, environment)
    lock = (ROOT / "requirements.lock").read_text()
    pins = re.findall(rf"^(?:{'|'.join(REQUIRED)})==.*\n(?: .*\n)*", lock, re.MULTILINE)
    locked = environment / "required.lock"
    locked.write_text("".join(pins))
    # Offline: hack/env has filled uv's cache from the same lock.
    install = ["uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(python)]
    _run(*install, "--require-hashes", "-r", locked)
    _run(*install, wheel)
    return python


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[:3]} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    sources = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == sources
    assert {f"claim_phases/turns{end}" for end in (".proto", "_pb2.py", "_pb2_grpc.py")} <= names


def test_the_metadata_names_the_extras(wheel: Path) -> None:
    metadata = _metadata(wheel)
    assert metadata["Name"] == "tandem-gpu"
    assert set(metadata.get_all("Provides-Extra", [])) == {"agent", "cli", "driver", "extender"}


def test_without_extras_it_requires_no_more_than_a_training_image_should_carry(
    bare_python: Path,
) -> None:
    listed = json.loads(_run("uv", "pip", "list", "--python", bare_python, "--format", "json"))
    assert {package["name"] for package in listed} == {"tandem-gpu", *REQUIRED}
    _run("uv", "pip", "check", "--python", bare_python)


def test_import_tandem_loads_neither_torch_nor_the_driver_nor_an_extra(bare_python: Path) -> None:
    program = "import json, sys, tandem; print(json.dumps([tandem.__file__, *sys.modules]))"
    file, *modules = json.loads(_run(bare_python, "-I", "-c", program))
    assert not Path(file).is_relative_to(ROOT)
    assert {name.partition(".")[0] for name in modules} & set(FORBIDDEN) == set()
    assert {"claim_phases", "workload_agents"} <= set(modules)


def test_import_tandem_loads_no_extra_where_all_are_installed() -> None:
    """The same in the environment of development, where a careless import would succeed."""
    program = "import json, sys, tandem; print(json.dumps([*sys.modules]))"
    modules = json.loads(_run(sys.executable, "-c", program))
    assert {name.partition(".")[0] for name in modules} & set(FORBIDDEN) == set()
