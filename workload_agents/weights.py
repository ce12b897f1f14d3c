"""Weights on their way from a trainer to an engine: files on the claim's tmpfs.

    DIRECTORY/v7/*.safetensors
    DIRECTORY/v7/manifest.json  {"version": 7, "files": {"a.safetensors": {"bytes": 8, "crc32": 1}}}
    DIRECTORY/latest -> v7

A version gets its name by one rename when it is whole, and `latest` is switched by another, so a
reader sees all of a version or nothing of it. One writer per claim. Nothing is synced to a disk:
the files are on a tmpfs, and a reboot ends both tenants.

The reader and the writer are different pods, so to the reader the directory is untrusted input.
"""

import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workload_agents.errors import WeightsError

KEPT: Final = 2
"""Versions that stay: an engine may still read the last one while the next is being published."""

_LATEST: Final = "latest"
_MANIFEST: Final = "manifest.json"
_MANIFEST_MAX: Final = 1 << 20  # bytes
_BLOCK: Final = 1 << 20  # bytes
_VERSION_NAME: Final = re.compile(r"v([1-9][0-9]{0,17})", re.ASCII)
# Only safetensors: an engine would also load *.bin and *.pt, which are pickles.
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors", re.ASCII)
_PARTIAL: Final = ".partial"
_PARTIAL_LATEST: Final = ".latest"


@dataclass(frozen=True)
class Published:
    """A version that is whole."""

    version: int
    path: Path


@dataclass(frozen=True)
class _Entry:
    """A file as the manifest describes it."""

    nbytes: int
    crc32: int


class _Unusable(Exception):
    """Why a version must not be loaded: the end of a WeightsError's sentence."""


def publish(directory: Path, version: int, write: Callable[[Path], None]) -> Published:
    """Publish what `write` leaves in an empty directory: one or more *.safetensors, nothing else.

    Versions count from 1 (0 stands for the weights that the engine started with) and only grow.
    Versions older than the last two are removed; while `write` runs, up to three are there.
    Raises WeightsError; what `write` raises passes through, and nothing is published then.
    """
    last = latest(directory)
    if version < 1:
        raise WeightsError(
            f"weights version {version} cannot be published: versions count from 1, and 0 stands "
            "for the weights that the engine started with"
        )
    if last is not None and version <= last:
        raise WeightsError(
            f"weights version {version} cannot be published: {directory} is at version {last}, "
            "and versions only grow"
        )
    path = directory / f"v{version}"
    partial = directory / _PARTIAL
    # What a writer that died left behind: it never became the latest, so nobody reads it.
    for leftover in (partial, path):
        if leftover.exists():
            shutil.rmtree(leftover)
    partial.mkdir()
    try:
        write(partial)
        _write_manifest(partial, version)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _point_latest(directory, path.name)
    _prune(directory, version)
    return Published(version, path)


def latest(directory: Path) -> int | None:
    """The newest version published, None if there is none yet. One readlink: no file is opened.

    Raises WeightsError when `latest` is not what `publish` leaves.
    """
    try:
        target = str((directory / _LATEST).readlink())
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise WeightsError(f"{directory / _LATEST} cannot be read: {exc.strerror}") from exc
    name = _VERSION_NAME.fullmatch(target)
    if name is None:
        raise WeightsError(
            f"{directory / _LATEST} leads to {target[:80]!r}, which names no version"
        )
    return int(name[1])


def verified(directory: Path, version: int) -> Published:
    """The version, every file of it named, sized and checksummed as its manifest says.

    Reads every byte. Raises WeightsError.
    """
    path = directory / f"v{version}"
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _verify(folder, version)
        finally:
            os.close(folder)
    except _Unusable as exc:
        raise WeightsError(
            f"weights version {version} in {directory} must not be loaded: {exc}; publish a newer "
            "version"
        ) from exc
    except OSError as exc:
        raise WeightsError(
            f"weights version {version} in {directory} cannot be read: {exc.strerror}; publish a "
            "newer version"
        ) from exc
    return Published(version, path)


def _write_manifest(folder: Path, version: int) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        if not _FILE_NAME.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            raise WeightsError(
                f"weights version {version} cannot be published: {path.name!r} is not a plain "
                "*.safetensors file"
            )
        # safetensors makes its files readable to the owner only; the engine may be another user.
        path.chmod(0o644)
        with path.open("rb", buffering=0) as file:
            entry = _read(file.fileno(), path.stat().st_size)
        files[path.name] = {"bytes": entry.nbytes, "crc32": entry.crc32}
    if not files:
        raise WeightsError(f"weights version {version} cannot be published: no file was written")
    manifest = json.dumps({"version": version, "files": files}, indent=1)
    (folder / _MANIFEST).write_text(manifest + "\n", encoding="utf-8")
    folder.chmod(0o755)


def _point_latest(directory: Path, name: str) -> None:
    link = directory / _PARTIAL_LATEST
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    link.replace(directory / _LATEST)


def _prune(directory: Path, newest: int) -> None:
    names = (_VERSION_NAME.fullmatch(path.name) for path in directory.iterdir())
    versions = sorted(int(name[1]) for name in names if name)
    for version in [one for one in versions if one <= newest][:-KEPT]:
        shutil.rmtree(directory / f"v{version}")


def _verify(folder: int, version: int) -> None:
    files = _parse_manifest(_read_manifest(folder), version)
    present = set(os.listdir(folder)) - {_MANIFEST}
    if missing := sorted(files.keys() - present):
        raise _Unusable(f"{missing[0]} is missing")
    if extra := sorted(present - files.keys()):
        raise _Unusable(f"{extra[0][:80]!r} is not in the manifest")
    for name, entry in sorted(files.items()):
        file = _open(folder, name, entry.nbytes)
        try:
            actual = _read(file, entry.nbytes)
        finally:
            os.close(file)
        if actual != entry:
            raise _Unusable(
                f"{name} has crc32 {actual.crc32:#010x} over {actual.nbytes} bytes, not "
                f"{entry.crc32:#010x} over {entry.nbytes}"
            )


def _read_manifest(folder: int) -> bytes:
    file = _open(folder, _MANIFEST, None)
    with os.fdopen(file, "rb") as manifest:
        content = manifest.read(_MANIFEST_MAX + 1)
    if len(content) > _MANIFEST_MAX:
        raise _Unusable(f"{_MANIFEST} is larger than {_MANIFEST_MAX} bytes")
    return content


def _parse_manifest(content: bytes, version: int) -> Mapping[str, _Entry]:
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise _Unusable(f"{_MANIFEST} is not JSON") from exc
    match manifest:
        case {"version": int(stated), "files": dict(files), **rest} if files and not rest:
            pass
        case _:
            raise _Unusable(f"{_MANIFEST} does not hold a version and its files, and nothing else")
    if stated != version or isinstance(stated, bool):
        raise _Unusable(f"{_MANIFEST} is of version {str(stated)[:80]}")
    return {_plain(name): _parse_entry(name, entry) for name, entry in files.items()}


def _plain(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise _Unusable(f"{_MANIFEST} names {name[:80]!r}, which is not a plain *.safetensors name")
    return name


def _parse_entry(name: str, entry: object) -> _Entry:
    match entry:
        case {"bytes": int(nbytes), "crc32": int(crc32), **rest} if nbytes >= 0 and not rest:
            return _Entry(nbytes, crc32)
        case _:
            raise _Unusable(f"{_MANIFEST} does not give {name} its bytes and its crc32")


def _open(folder: int, name: str, nbytes: int | None) -> int:
    """A descriptor of a regular file, of the given size where one is given."""
    try:
        # O_NONBLOCK: opening a FIFO would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=folder)
    except OSError as exc:
        raise _Unusable(f"{name} cannot be opened: {exc.strerror}") from exc
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and nbytes in (None, found.st_size):
        return file
    os.close(file)
    if not stat.S_ISREG(found.st_mode):
        raise _Unusable(f"{name} is not a regular file")
    raise _Unusable(f"{name} has {found.st_size} bytes, not {nbytes}")


def _read(file: int, nbytes: int) -> _Entry:
    """Size and checksum; of a file that grows meanwhile no more is read than it takes to tell."""
    block = memoryview(bytearray(_BLOCK))
    read = crc32 = 0
    while read <= nbytes and (count := os.readv(file, [block])):
        read += count
        crc32 = zlib.crc32(block[:count], crc32)
    return _Entry(read, crc32)
