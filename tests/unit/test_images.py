"""The images: what is in them, and that users and the local cluster get the same."""

import re
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hack.images import contents, layer, oci
from hack.images.layer import Entry, File, Folder, Link, Text

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def _last_stage() -> list[str]:
    """The instructions that make the image, each on one line."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    return text[text.rindex("\nFROM ") :].splitlines()


def _instructions(name: str) -> list[list[str]]:
    return [line.split()[1:] for line in _last_stage() if line.startswith(f"{name} ")]


def test_the_dockerfile_copies_the_files_of_the_local_image() -> None:
    lock = f"{contents.HOME}/requirements.lock"
    assert _instructions("COPY") == [
        [contents.REQUIREMENTS, lock],
        ["--from=library", contents.LIBRARY, contents.LIBRARY],
        *([package, f"{contents.HOME}/{package}"] for package in contents.packages()),
    ]
    (install,) = _instructions("RUN")
    assert install[:2] == ["pip", "install"]
    assert {"--no-deps", "--require-hashes"} <= set(install)
    assert install[install.index("--target") + 1] == contents.HOME
    assert install[install.index("--requirement") + 1] == lock


def test_the_dockerfile_runs_as_the_local_image() -> None:
    (env,) = _instructions("ENV")
    assert dict(pair.split("=", 1) for pair in env) == contents.ENV
    assert _instructions("USER") == [[contents.USER]]


def test_what_the_dockerfile_copies_is_sent_to_the_builder() -> None:
    sent = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert sent == {*contents.packages(), contents.REQUIREMENTS, "hack/simdevice"}


def test_the_images_lock_is_a_part_of_the_lock_and_holds_every_extra_of_the_image() -> None:
    images = dict(PIN.findall((ROOT / contents.REQUIREMENTS).read_text()))
    everything = dict(PIN.findall((ROOT / "requirements.lock").read_text()))
    assert images.items() <= everything.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"]]
    wanted += [one for extra in ("agent", "cli", "driver", "extender") for one in extras[extra]]
    assert {canonicalize_name(Requirement(one).name) for one in wanted} <= images.keys()


@pytest.fixture
def entries(tmp_path: Path) -> dict[str, Entry]:
    module = tmp_path / "module.py"
    module.write_text("answer = 42\n")
    module.chmod(0o600)
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    return {
        "/opt/a/module.py": File(module),
        "/opt/program": File(program),
        "/bin": Link("usr/bin"),
        "/scratch": Folder(0o1777),
        "/etc/passwd": Text("root\n"),
    }


def test_a_layer_can_be_read_by_anybody_and_brings_byte_code(
    entries: dict[str, Entry], tmp_path: Path
) -> None:
    layer.write(entries, tmp_path / "layer.tar")
    with tarfile.open(tmp_path / "layer.tar") as tar:
        members = {member.name: member for member in tar}
    cached = next(name for name in members if name.endswith(".pyc"))
    assert cached.startswith("opt/a/__pycache__/module.cpython-")
    modes = {name: f"{member.mode:o}" for name, member in members.items() if name != cached}
    assert modes == {
        "bin": "777",
        "etc": "755",
        "etc/passwd": "644",
        "opt": "755",
        "opt/a": "755",
        "opt/a/module.py": "644",
        "opt/program": "755",
        "scratch": "1777",
    }
    assert {member.uid for member in members.values()} == {0}
    assert [*members].index("opt") < [*members].index("opt/a/module.py")


def test_a_layer_has_the_same_bytes_whenever_it_is_written(
    entries: dict[str, Entry], tmp_path: Path
) -> None:
    layer.write(entries, tmp_path / "first.tar")
    (tmp_path / "module.py").touch()
    layer.write(dict(reversed(entries.items())), tmp_path / "second.tar")
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()


def test_an_images_digest_tells_whether_its_content_changed(
    entries: dict[str, Entry], tmp_path: Path
) -> None:
    tar = tmp_path / "layer.tar"

    def digest() -> str:
        layer.write(entries, tar)
        image = oci.Image("localhost/x:local", [tar])
        return oci.write([image], tmp_path / "image.tar")[image.name]

    first = digest()
    assert digest() == first
    (tmp_path / "module.py").write_text("answer = 43\n")
    assert digest() != first


def test_a_tree_leaves_out_what_python_caches(tmp_path: Path) -> None:
    (tmp_path / "a" / "__pycache__").mkdir(parents=True)
    (tmp_path / "a" / "__pycache__" / "x.pyc").touch()
    (tmp_path / "a" / "x.py").touch()
    (tmp_path / "a" / "link").symlink_to("x.py")
    assert layer.tree(tmp_path, "/opt") == {
        "/opt/a/link": Link("x.py"),
        "/opt/a/x.py": File(tmp_path / "a" / "x.py"),
    }
