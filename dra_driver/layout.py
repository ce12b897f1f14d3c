"""Where things lie on a node, and where a pod finds its part of them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

IN_POD: Final = Path("/run/tandem")


@dataclass(frozen=True, slots=True)
class Layout:
    """Host paths; the driver's container mounts them at the same places.

    Attributes:
        run: what ends with a reboot, turns and mounts among it. Its mounts must propagate to the
            host, or the container runtime finds empty folders.
        plugin: what must survive a reboot, and the socket that the kubelet calls.
        registry: where the kubelet looks for plugins.
        cdi: where the container runtime reads CDI specifications.
    """

    run: Path
    plugin: Path
    registry: Path
    cdi: Path

    @property
    def state(self) -> Path:
        """The turns' journal and the arbiter's inner socket; nobody else may enter."""
        return self.run / "state"

    @property
    def frozen(self) -> Path:
        """What frozen tenants hold: as much as devices do, so not in memory."""
        return self.plugin / "frozen"

    @property
    def events(self) -> Path:
        """What the arbiter tells, as JSON lines."""
        return self.run / "events.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.plugin / "checkpoint.json"

    @property
    def library(self) -> Path:
        """The folder of the simulated device's library, for the pods."""
        return self.run / "lib"

    def device(self, name: str) -> Path:
        """Where a simulated device's tmpfs is mounted."""
        return self.run / "devices" / name

    def memory(self, name: str) -> Path:
        """The part of it that pods get: without the mount it is missing, and no pod starts."""
        return self.device(name) / "memory"

    @property
    def claims(self) -> Path:
        return self.run / "claims"

    def claim(self, uid: str) -> Path:
        return self.claims / uid

    def socket(self, uid: str) -> Path:
        """The folder of the claim's socket."""
        return self.claim(uid) / "socket"

    def weights(self, uid: str) -> Path:
        """Where the claim's tmpfs for weights is mounted."""
        return self.claim(uid) / "weights"

    def published(self, uid: str) -> Path:
        """The part of it that pods get, as with `memory`."""
        return self.weights(uid) / "published"


def node_layout() -> Layout:
    """The layout of a node, as the manifests mount it."""
    return Layout(
        run=Path("/run/tandem-gpu.io"),
        plugin=Path("/var/lib/kubelet/plugins/tandem-gpu.io"),
        registry=Path("/var/lib/kubelet/plugins_registry"),
        cdi=Path("/var/run/cdi"),
    )


def replace_file(path: Path, content: bytes) -> None:
    """Write it whole or not at all, and durably. Raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
