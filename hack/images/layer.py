"""A layer of an image: a tar whose bytes depend on nothing but its entries."""

import io
import os
import py_compile
import stat
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PRUNED = frozenset({"__pycache__", "site-packages", "dist-packages"})


@dataclass(frozen=True)
class File:
    """A copy of a file here; a Python module brings its byte code."""

    source: Path


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True)
class Text:
    """A small file."""

    content: str


@dataclass(frozen=True)
class Folder:
    """A folder. Those above an entry come by themselves, with mode 755."""

    mode: int = 0o755


Entry = File | Link | Text | Folder
Entries = Mapping[str, Entry]
"""By absolute path in the image."""


def tree(source: Path, target: str, without: frozenset[str] = frozenset()) -> dict[str, Entry]:
    """The files and links below `source`, to be found below `target`, less what Python caches."""
    found: dict[str, Entry] = {}
    for folder, folders, files in os.walk(source):
        folders[:] = sorted(set(folders) - _PRUNED - without)
        inside = PurePosixPath(target) / Path(folder).relative_to(source)
        for name in sorted(files + [f for f in folders if Path(folder, f).is_symlink()]):
            path = Path(folder, name)
            found[str(inside / name)] = (
                Link(str(path.readlink())) if path.is_symlink() else File(path)
            )
    return found


def write(entries: Entries, output: Path) -> None:
    """Write the layer."""
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(output, "w") as tar:
        folders: dict[str, Folder] = {}
        for path in entries:
            folders |= {str(parent): Folder() for parent in PurePosixPath(path).parents}
        del folders["/"]
        everything = folders | {**entries}
        for path in sorted(everything):
            for name, info, content in _members(path, everything[path], Path(scratch)):
                info.name = name.lstrip("/")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def _members(
    path: str, entry: Entry, scratch: Path
) -> Iterator[tuple[str, tarfile.TarInfo, bytes]]:
    """Owned by root, without times, readable by all and writable by none but the owner."""
    info = tarfile.TarInfo()
    match entry:
        case Folder(mode):
            info.type, info.mode = tarfile.DIRTYPE, mode
            yield path, info, b""
        case Link(target):
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
            yield path, info, b""
        case Text(content):
            yield path, info, content.encode()
        case File(source):
            executable = source.stat().st_mode & stat.S_IXUSR
            info.mode = 0o755 if executable else 0o644
            yield path, info, source.read_bytes()
            if source.suffix == ".py":
                code = _byte_code(source, path, scratch)
                if code is not None:
                    pure = PurePosixPath(path)
                    cached = f"{pure.stem}.{sys.implementation.cache_tag}.pyc"
                    yield str(pure.parent / "__pycache__" / cached), tarfile.TarInfo(), code


def _byte_code(source: Path, path: str, scratch: Path) -> bytes | None:
    """Valid whatever the source's time is; None for what does not compile (templates, Python 2)."""
    output = scratch / "code.pyc"
    try:
        py_compile.compile(
            str(source),
            cfile=str(output),
            dfile=path,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    except py_compile.PyCompileError:
        return None
    return output.read_bytes()
