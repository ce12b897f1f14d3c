"""Gives the nodes their images: there is no registry to pull from."""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hack.images import build, oci
from hack.images.oci import Image
from hack.kube import builds, spaces
from hack.kube.builds import Programs
from hack.kube.errors import LocalkubeError
from hack.kube.layout import CONTAINERD_SOCKET, Layout, Node

_CTR: Final = ("--address", CONTAINERD_SOCKET, "--namespace", "k8s.io")
_IMPORT: Final = (*_CTR, "images", "import", "--local")


@contextlib.contextmanager
def built(programs: Programs) -> Iterator[list[Image]]:
    """The images, built; their files are there as long as the context lasts."""
    cache = builds.cache()
    with tempfile.TemporaryDirectory(dir=cache, prefix="building.") as scratch:
        try:
            made = build.images(cache, programs.pause, Path(scratch))
        except build.BuildError as exc:
            raise LocalkubeError(str(exc)) from exc
        yield made


@contextlib.contextmanager
def importing(
    layout: Layout, nodes: Sequence[Node], made: Sequence[Image], programs: Programs
) -> Iterator[list[str]]:
    """While other things happen, import the images that a node does not have; yields their names.

    They are there when the context has ended.
    """
    known = imported(layout)
    with tempfile.TemporaryDirectory(dir=layout.state, prefix="images.") as scratch:
        tar = Path(scratch) / "images.tar"
        digests = oci.write(made, tar)
        lacking = {node: digests.items() - known.get(node.name, {}).items() for node in nodes}
        running = {node: _import(node, programs, tar) for node in nodes if lacking[node]}
        try:
            yield sorted({name for lacks in lacking.values() for name, _ in lacks})
            for node, process in running.items():
                _, told = process.communicate()
                if process.returncode != 0:
                    raise LocalkubeError(f"{node.name} does not import the images: {told}")
        finally:
            for process in running.values():
                process.kill()
                process.wait()
    known |= {node.name: digests for node in nodes}
    layout.images.write_text(json.dumps(known, indent=1))


def imported(layout: Layout) -> dict[str, dict[str, str]]:
    """The digest of each image on each node."""
    try:
        known: dict[str, dict[str, str]] = json.loads(layout.images.read_text())
    except FileNotFoundError:
        return {}
    return known


def _import(node: Node, programs: Programs, tar: Path) -> subprocess.Popen[str]:
    holding = spaces.recall(node.cluster.process(node.holder))
    assert holding is not None
    command = spaces.entering(holding.pid, [str(programs.containerd / "ctr"), *_IMPORT, str(tar)])
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
