"""What a container of a claim gets, as a CDI specification (CNCF CDI 0.5.0). One file a claim.

The runtime reads the file at each start of a container, and adds it to each container that lists
the claim; so nothing in it tells one pod of the claim from another.
"""

import json
from pathlib import Path
from typing import Any, Final

from dra_driver.checkpoint import Prepared
from dra_driver.layout import IN_POD, Layout
from dra_driver.names import DRIVER

VERSION: Final = "0.5.0"
KIND: Final = f"{DRIVER}/claim"
LIBRARY: Final = "libsimdevice.so"

_SAFE: Final = ("rbind", "nosuid", "nodev")


def device_id(prepared: Prepared, device: str) -> str:
    """The name by which the kubelet hands the claim's device to the runtime."""
    return f"{KIND}={_device(prepared, device)}"


def specification(prepared: Prepared, layout: Layout) -> dict[str, Any]:
    """The claim's file."""
    edits = _looking if prepared.admin else _taking_turns
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [
            {"name": _device(prepared, device), "containerEdits": edits(prepared, device, layout)}
            for device in prepared.devices
        ],
        "containerEdits": {},
    }


def _taking_turns(prepared: Prepared, device: str, layout: Layout) -> dict[str, Any]:
    """A tenant's. It has one simulated device, since the library takes one."""
    return {
        "env": [
            f"TANDEM_SOCKET_DIR={IN_POD}/socket",
            f"TANDEM_WEIGHTS_DIR={IN_POD}/weights",
            f"SIMDEVICE_DIR={IN_POD}/device",
            f"LD_PRELOAD={IN_POD}/lib/{LIBRARY}",
        ],
        "mounts": [
            # Read-only: connecting works, putting another socket in its place does not.
            _mount(layout.socket(prepared.uid), "socket", "ro", "noexec"),
            _mount(layout.published(prepared.uid), "weights", "rw", "noexec"),
            _mount(layout.memory(device), "device", "rw"),
            _mount(layout.library, "lib", "ro"),
        ],
    }


def _looking(_: Prepared, device: str, layout: Layout) -> dict[str, Any]:
    """Of a claim with admin access: what is in use can be measured, and nothing taken."""
    return {"mounts": [_mount(layout.memory(device), f"devices/{device}", "ro", "noexec")]}


def write(prepared: Prepared, layout: Layout) -> None:
    """Write the claim's file, whole or not at all. Raises OSError."""
    path = _path(prepared.uid, layout)
    # A name that the runtime does not take for a specification, until it is whole.
    fresh = path.with_suffix(".new")
    try:
        fresh.write_text(json.dumps(specification(prepared, layout), indent=1) + "\n")
        fresh.rename(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def remove(uid: str, layout: Layout) -> None:
    """Remove the claim's file, if there is one. Raises OSError."""
    _path(uid, layout).unlink(missing_ok=True)


def left_over(layout: Layout) -> list[str]:
    """The UIDs of claims that have a file."""
    prefix = f"{DRIVER}-claim_"
    return [path.stem.removeprefix(prefix) for path in layout.cdi.glob(f"{prefix}*.json")]


def _device(prepared: Prepared, device: str) -> str:
    return f"{prepared.uid}-{device}"


def _path(uid: str, layout: Layout) -> Path:
    return layout.cdi / f"{DRIVER}-claim_{uid}.json"


def _mount(host: Path, name: str, *options: str) -> dict[str, Any]:
    return {
        "hostPath": str(host),
        "containerPath": str(IN_POD / name),
        "options": [*_SAFE, *options],
    }
