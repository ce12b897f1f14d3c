"""What must be true of the repository's files as such."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = re.compile(
    r"\bpypi\.(?:org|io)\b|\bpythonhosted\.org\b|\bcrates\.io\b|\bnpmjs\.|\bproxy\.golang\.org\b"
    r"|--(?:extra-)?index-url[= ]|--find-links[= ]|\bdeb\.debian\.org\b"
)
MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(?:root|work|farm|home/\w+|Users/\w+|tmp/\w+)/")


def _files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize("pattern", [REGISTRY, MACHINE_PATH], ids=["registry", "machine path"])
def test_no_file_names_a_registry_or_a_path_of_one_machine(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in _files()
        for match in pattern.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_the_patterns_see_what_they_are_for() -> None:
    assert REGISTRY.search("https://" + "pypi" + ".org/simple")
    assert REGISTRY.search("-" + "-index-url https://example.org")
    assert MACHINE_PATH.search("cd " + "/home" + "/alice/tandem")
    assert not MACHINE_PATH.search("see docs/work/order, ~/work/x and $TMP/root/y")


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _tables(text: str) -> list[list[list[str]]]:
    """The body rows of each Markdown table, as cells without back quotes."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return [
        [
            [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
            for line in block.splitlines()[2:]
        ]
        for block in blocks
    ]


def _names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def _cell(text: str) -> set[str]:
    return {canonicalize_name(name) for name in text.split(", ")}


def test_the_documented_extras_are_those_of_the_distribution() -> None:
    project = _pyproject()["project"]
    declared = {"(none)": project["dependencies"], **project["optional-dependencies"]}
    installation, _, _ = _tables((ROOT / "docs/dependencies.md").read_text())
    documented = {extra: brings for extra, _, brings in installation}
    assert documented.keys() == declared.keys()
    for extra, requirements in declared.items():
        brings = set() if documented[extra].startswith("nothing") else _cell(documented[extra])
        assert brings == _names(requirements), extra


def test_every_direct_dependency_is_explained_and_no_other() -> None:
    pyproject = _pyproject()
    project = pyproject["project"]
    _, why, development = _tables((ROOT / "docs/dependencies.md").read_text())

    installed = {name for extra in project["optional-dependencies"].values() for name in extra}
    explained = {name for row in why for name in _cell(row[0])}
    assert explained == _names([*project["dependencies"], *installed])

    groups = pyproject["dependency-groups"]
    for group, requirements in groups.items():
        explained = {name for row in development if row[1] == group for name in _cell(row[0])}
        assert explained == _names(requirements), group


def test_the_lower_bounds_allow_no_runtime_that_the_generated_code_refuses() -> None:
    stub = (ROOT / "claim_phases/turns_pb2_grpc.py").read_text()
    generated_grpc = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", stub)
    messages = (ROOT / "claim_phases/turns_pb2.py").read_text()
    generated_protobuf = re.search(r"^# Protobuf Python Version: ([\d.]+)$", messages, re.MULTILINE)
    assert generated_grpc
    assert generated_protobuf
    bounds = {
        requirement.name: next(s.version for s in requirement.specifier if s.operator == ">=")
        for requirement in map(Requirement, _pyproject()["project"]["dependencies"])
    }
    assert Version(bounds["grpcio"]) >= Version(generated_grpc.group(1))
    assert Version(bounds["protobuf"]) >= Version(generated_protobuf.group(1))


def test_each_test_that_the_docs_name_is_there() -> None:
    named = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        file = ""
        for path, name in re.findall(r"`([\w/]*?(?:\.py)?)::(test_\w+)`", page.read_text()):
            file = path or file
            named.append((file, name))
    assert len(named) >= 10
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"def {name}\(", (ROOT / file).read_text())
    ]
    assert missing == []
