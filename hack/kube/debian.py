"""What comes from Debian: installed where it is missing."""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hack.kube.errors import LocalkubeError

CNI_PLUGINS: Final = Path("/usr/lib/cni")
_PACKAGES: Final = {
    "containernetworking-plugins": f"{CNI_PLUGINS}/ptp",
    "iproute2": "ip",
    "iptables": "iptables",
    "libnuma1": f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/libnuma.so.1",
    "runc": "runc",
}
"""What is needed of each: a program, or a file. libnuma is for the engine in the pods."""


def install_missing(say: Callable[[str], None]) -> None:
    """Install the packages of which something is not there. Raises LocalkubeError."""
    missing = [package for package, needed in _PACKAGES.items() if not _exists(needed)]
    if not missing:
        return
    names = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise LocalkubeError(f"this machine lacks {names}, and has no apt-get: install them")
    say(f"Debian packages that are missing, by apt-get: {names}")
    _apt_get("update")
    _apt_get("install", "--yes", "--no-install-recommends", *missing)


def _exists(needed: str) -> bool:
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    return Path(needed).exists() or shutil.which(needed, path=path) is not None


def _apt_get(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "--quiet", *arguments],
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        command = " ".join(["apt-get", *arguments])
        raise LocalkubeError(f"`{command}` failed; its last words:\n{done.stdout[-2000:]}")
