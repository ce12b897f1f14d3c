"""Processes in the cgroups of pods, and outside, that hold memory of a device; prints samples.

    unshare --mount --pid --fork --mount-proc python -m tests.contract.pod_memory DEVICE

DEVICE is an empty folder: a tmpfs is mounted on it. The kernel's own hierarchies are used, so this
needs root; each gets one folder, which is gone afterwards, and leads to one sample.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tandem import observer
from tests.device_memory import device_memory

MIB = 1 << 20
ROLLOUT = "0f4a2d5e-1c7b-4a39-9d42-6b1f0c2e8a71"
TRAINER = "7be1c9d0-55aa-4f0e-8f0b-d3c2a1b09f8e"
OTHER = "c2b1a0f9-0d1e-4c3b-8a79-5e4d3c2b1a09"
UNDERSCORED = TRAINER.replace("-", "_")

HELD = {
    f"kubepods/burstable/pod{ROLLOUT}/engine": 2 * MIB,
    f"kubepods/burstable/pod{ROLLOUT}/sidecar": MIB,
    f"kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-0.scope": 4 * MIB,
    f"kubepods/besteffort/pod{OTHER}/main": 8 * MIB,
    "": 16 * MIB,
}
"""Bytes by the cgroup of their holder; the last is in none of ours."""


def hierarchies() -> list[Path]:
    """Where cgroups can be made: `pids` or `freezer` of version 1, and version 2."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split()
        if kind == "cgroup2" or {"pids", "freezer"} & set(options.split(",")):
            found.append(Path(left.split()[4]))
    return found


@contextlib.contextmanager
def holding(device: Path, cgroup: str, size: int, within: Path) -> Iterator[None]:
    """A process that holds `size` bytes and sits in the folder `cgroup` of `within`."""
    folder = within / cgroup if cgroup else None
    if folder is not None:
        folder.mkdir(parents=True)
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        if folder is not None:
            (folder / "cgroup.procs").write_text("0")
        held = device_memory(str(device), size)
        os.write(told, b"x")
        signal.pause()
        os._exit(len(held))
    os.read(ready, 1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while folder is not None and folder != within:
            with contextlib.suppress(OSError):  # another holder's parent
                folder.rmdir()
            folder = folder.parent


def main() -> None:
    """One hierarchy after the other."""
    device = Path(sys.argv[1])
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tandem", str(device)]
    subprocess.run(command, check=True)
    listed = device / "pods.json"
    listed.write_text(json.dumps({"rollout": [ROLLOUT], "trainer": [OTHER[::-1], TRAINER]}))
    for hierarchy in hierarchies():
        within = Path(tempfile.mkdtemp(prefix="tandem-test-", dir=hierarchy))
        with contextlib.ExitStack() as stack:
            stack.callback(within.rmdir)
            for cgroup, size in HELD.items():
                stack.enter_context(holding(device, cgroup, size, within))
            node = [observer.Device.of("gpu-0", device)]
            sample = observer.Observer(node, observer.Pods(listed)).sample()
            print(json.dumps({"hierarchy": str(hierarchy)} | sample))


if __name__ == "__main__":
    main()
