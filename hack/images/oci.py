"""OCI images in one tar, as `ctr images import` reads it."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_OCI: Final = "application/vnd.oci.image"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """What an image consists of; the layers are tars, the lowest first."""

    name: str
    layers: Sequence[Path]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    entrypoint: Sequence[str] = ()


def write(images: Sequence[Image], output: Path) -> dict[str, str]:
    """Write the images; return their digests by name, which change with their content."""
    layers: dict[str, Path] = {}
    documents: dict[str, bytes] = {}
    manifests = []
    for image in images:
        described = [_layer(path) for path in image.layers]
        layers |= {one["digest"]: path for one, path in zip(described, image.layers, strict=True)}
        config = _json(
            architecture=_ARCHITECTURES[platform.machine()],
            os="linux",
            config=_config(image),
            rootfs={"type": "layers", "diff_ids": [one["digest"] for one in described]},
        )
        manifest = _json(
            schemaVersion=2,
            mediaType=f"{_OCI}.manifest.v1+json",
            config=_descriptor("config.v1+json", config),
            layers=described,
        )
        documents |= {_digest(content): content for content in (config, manifest)}
        name = {"annotations": {"io.containerd.image.name": image.name}}
        manifests.append(_descriptor("manifest.v1+json", manifest) | name)
    with tarfile.open(output, "w") as tar:
        _add(tar, "oci-layout", _json(imageLayoutVersion="1.0.0"))
        _add(tar, "index.json", _json(schemaVersion=2, manifests=manifests))
        for digest, content in documents.items():
            _add(tar, _blob_name(digest), content)
        for digest, path in layers.items():
            info = tarfile.TarInfo(_blob_name(digest))
            info.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(info, file)
    return {
        image.name: manifest["digest"] for image, manifest in zip(images, manifests, strict=True)
    }


def _config(image: Image) -> dict[str, Any]:
    """How its containers run."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env = {"PATH": path} | dict(image.env)
    config: dict[str, Any] = {"Env": [f"{name}={value}" for name, value in env.items()]}
    if image.user:
        config["User"] = image.user
    if image.entrypoint:
        config["Entrypoint"] = list(image.entrypoint)
    return config


def _json(**values: Any) -> bytes:
    return json.dumps(values).encode()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _layer(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    size = path.stat().st_size
    return {"mediaType": f"{_OCI}.layer.v1.tar", "digest": digest, "size": size}


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(content), "size": len(content)}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
