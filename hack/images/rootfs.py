"""This machine's own Python as the root of an image: no registry is asked.

The same interpreter at the same path, so that a virtual environment made from it works in a pod
that mounts it at its own path.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from hack.images.layer import Entry, File, Folder, Link, Text, tree

_PROGRAMS: Final = (
    *("sh", "cat", "chmod", "cp", "date", "df", "env", "false", "grep", "head", "id", "ls"),
    *("lscpu", "mkdir", "mv", "nproc", "ps", "readlink", "rm", "sed", "sleep", "sort", "stat"),
    *("tail", "tee", "test", "touch", "true", "wc"),
)
"""lscpu: vLLM asks it for the machine's cores."""

_LIBRARIES: Final = (
    *("libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libnsl.so.1", "libnss_dns.so.2"),
    *("libnss_files.so.2", "libpthread.so.0", "libresolv.so.2", "librt.so.1", "libstdc++.so.6"),
    *("libnuma.so.1", "libutil.so.1"),
)
"""What a manylinux wheel may expect of a system (PEP 600), what the C library loads itself, and
libnuma, which vLLM's kernels for the CPU need.
"""

_UNUSED: Final = frozenset(
    {"ensurepip", "idlelib", "lib2to3", "test", "tests", "tkinter", "turtledemo"}
)
_UNUSED_MODULES: Final = ("_ctypes_test", "_test", "_tkinter", "xxlimited")
_MERGED: Final = ("bin", "lib", "lib64", "sbin")
_USERS: Final = """\
root:x:0:0:root:/root:/bin/sh
tandem:x:65532:65532:tandem:/home/tandem:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/sh
"""
_GROUPS: Final = "root:x:0:\ntandem:x:65532:\nnogroup:x:65534:\n"
_SHARED: Final = re.compile(r"(?:=> |^\s+)(/\S+) \(0x", re.MULTILINE)


def entries() -> dict[str, Entry]:
    """The image's files."""
    found: dict[str, Entry] = {
        **{f"/{name}": Link(f"usr/{name}") for name in _MERGED},
        **{f"/usr/{name}": Folder() for name in _MERGED},
        **{f"/{name}": Folder() for name in ("dev", "home/tandem", "proc", "root", "run", "sys")},
        **{f"/{name}": Folder(0o1777) for name in ("tmp", "var/tmp")},
        "/var/run": Link("../run"),
        "/etc/passwd": Text(_USERS),
        "/etc/group": Text(_GROUPS),
        "/etc/nsswitch.conf": Text("hosts: files dns\n"),
    }
    python = Path(os.path.realpath(sys.executable))
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    unused = _UNUSED | {Path(sysconfig.get_config_var("LIBPL")).name}  # to embed it in C programs
    for library in sorted(standard):
        found |= {
            path: entry
            for path, entry in tree(Path(library), library, without=unused).items()
            if not Path(path).name.startswith(_UNUSED_MODULES)
        }
    files = [entry.source for entry in found.values() if isinstance(entry, File)]
    binaries = [python, *(file for file in files if file.suffix == ".so")]
    for name in _PROGRAMS:
        program = shutil.which(name, path="/usr/bin:/bin")
        if program is not None:
            binaries.append(Path(program).resolve())
            found[f"/usr/bin/{name}"] = File(binaries[-1])
    found[str(python)] = File(python)
    for name in {"python", "python3", python.name}:
        for folder in {Path("/usr/bin"), python.parent}:
            found.setdefault(str(folder / name), Link(str(python)))
    shared = set(_shared_objects(binaries))
    system = {path.parent for path in shared if path.name.startswith("libc.so")}
    extra = [folder / name for folder in system for name in _LIBRARIES]
    shared |= {path for path in extra if path.exists()}
    shared |= set(_shared_objects(sorted(shared)))
    # As the loader asks for them; /lib and /lib64 are links into /usr, here as there.
    found |= {str(path.parent.resolve() / path.name): File(path) for path in shared}
    return found


def _shared_objects(binaries: Iterable[Path]) -> Iterator[Path]:
    """The libraries that the loader would take for them, itself too."""
    told = subprocess.run(
        ["ldd", *map(str, binaries)], check=False, capture_output=True, text=True
    ).stdout
    for path in _SHARED.findall(told):
        yield Path(path)
