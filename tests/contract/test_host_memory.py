"""Real processes in a real pod's cgroup: what the kernel counts, and who gets a turn for it."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from claim_phases.turns import Limits
from dra_driver import serving
from dra_driver.checkpoint import Allocated, Prepared
from dra_driver.config import Agreement, Role
from dra_driver.devices import Blocks, Reading
from dra_driver.host_memory import Hierarchy, hierarchy
from dra_driver.pods import PodRoster
from tests.unfrozen import Unfrozen

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes cgroups: needs root")

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
POD = "5c4b1b5e-3a86-4a4e-9c70-6f3d7a1f1d9e"
CLAIM = "0e1bd4d5-33cf-4f0c-a8ae-16d1b0a8a6c4"
WITHIN_S = 20.0

# Joins the cgroup, then sees the claim's socket as a container does.
_POD = 'echo $$ >"$1/cgroup.procs" && mount --bind "$2" "$3" && shift 3 && exec "$@"'

_HOLDS = """\
import mmap, os, sys
anonymous = mmap.mmap(-1, 32 << 20)
anonymous.write(bytes([1]) * len(anonymous))
shared = os.memfd_create("shared")  # as a tmpfs
os.write(shared, bytes([1]) * (16 << 20))
with open(sys.argv[1], "wb") as file:
    file.write(bytes([1]) * (64 << 20))
print("holds", flush=True)
input()
"""


@dataclass(frozen=True)
class Pod:
    """A pod's cgroup, with the one of its container inside."""

    memory: Hierarchy
    folder: Path

    @property
    def container(self) -> Path:
        return self.folder / "main"

    @property
    def path(self) -> str:
        return f"/{self.folder.relative_to(self.memory.mount)}"

    def limit(self, size: int) -> None:
        (self.folder / self.memory.version.limit).write_text(str(size))


@pytest.fixture
def pod() -> Iterator[Pod]:
    memory = hierarchy(Path("/proc/self/mountinfo").read_text())
    if memory is None:
        pytest.skip("no hierarchy of cgroups is mounted whole")
    with _folder(memory.mount) as root:
        parents = [root, root / "kubepods", root / "kubepods" / f"pod{POD}"]
        for folder in (*parents[1:], parents[-1] / "main"):
            folder.mkdir()
            if memory.version.controller == "":  # version 2 asks to be told
                (folder.parent / "cgroup.subtree_control").write_text("+memory")
        made = Pod(memory, parents[-1])
        try:
            yield made
        finally:
            for folder in (made.container, *parents[:0:-1]):
                folder.rmdir()


@contextmanager
def _folder(within: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tandem-test-", dir=within))
    try:
        yield folder
    finally:
        folder.rmdir()


def test_anonymous_and_shared_memory_count_and_page_cache_does_not(
    pod: Pod, tmp_path: Path
) -> None:
    if subprocess.check_output(["stat", "-f", "-c", "%T", tmp_path], text=True) == "tmpfs\n":
        pytest.skip(f"{tmp_path} has no page cache: it is a tmpfs")
    pod.limit(512 * MIB)
    join = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(pod.container)]
    holder = [*join, sys.executable, "-c", _HOLDS, str(tmp_path / "file")]
    pipe = subprocess.PIPE
    with subprocess.Popen(holder, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        account = pod.memory.account(pod.path)
        used = int((pod.folder / pod.memory.version.usage).read_text())
        process.communicate("\n")
    assert used > (32 + 16 + 64) * MIB
    assert account is not None
    assert account.limit == 512 * MIB
    assert 48 * MIB <= account.limit - account.left < (48 + 32) * MIB  # the rest is Python's


def test_a_pod_without_a_limit_of_its_own_is_not_known(pod: Pod) -> None:
    assert pod.memory.account(pod.path) is None


# -- a turn for it ------------------------------------------------------------------------------


class Empty(Unfrozen):
    """A device of 1 GiB on which nobody holds anything."""

    name = "gpu-0"

    def read(self) -> Reading:
        return Reading(used=0, total=1 << 30)

    def holders(self) -> dict[int, Blocks]:
        return {}


class Api:
    """The API server: one claim, reserved for one pod."""

    async def claim(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return {
            "metadata": {"uid": CLAIM},
            "status": {"reservedFor": [{"uid": POD, "name": "trainer"}]},
        }

    async def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        annotations = {"tandem-gpu.io/role": "trainer"}
        return {"metadata": {"uid": POD, "annotations": annotations}}


@dataclass(frozen=True)
class Tenant:
    """A scripted tenant (scripted_tenant.py)."""

    process: asyncio.subprocess.Process

    async def ask(self, **command: Any) -> dict[str, Any]:
        """Have it do something, and wait until it tells how that went."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.said("did", "failed")

    async def said(self, *keys: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            while line := await self.process.stdout.readline():
                told: dict[str, Any] = json.loads(line)
                if any(key in told for key in keys):
                    return told
        raise AssertionError("it ended")


@asynccontextmanager
async def trainer_in(pod: Pod, folder: Path, *, need: int) -> AsyncIterator[Tenant]:
    """A tenant in the pod, and the arbiter of its node, which are on the same machine."""
    socket, seen = folder / "claims" / CLAIM / "socket", folder / "seen"
    for made in (socket, seen):
        made.mkdir(parents=True)
    agreement = Agreement("grpo", 0, 0, {"trainer": Role(need, 4 * MIB)})
    prepared = Prepared(CLAIM, "ns", "grpo", (Allocated("gpu", "node", "gpu-0", None),), agreement)
    devices = {"gpu-0": Empty()}
    with serving.opened(folder / "state", devices) as state:
        roster = PodRoster(state.node, {CLAIM: prepared}.get, Api(), pod.memory)
        async with serving.arbitrating(
            *(state, devices, roster, Limits(), folder / "events", lambda _: None),
            folder / "frozen",
        ) as running:
            await running.relay.serve(CLAIM, socket)
            tenant = await asyncio.create_subprocess_exec(
                *("unshare", "--mount", "sh", "-c", _POD, "sh"),
                *(str(pod.container), str(socket), str(seen)),
                *(sys.executable, "-m", "tests.contract.scripted_tenant"),
                *("trainer", str(seen / "turns.sock")),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            try:
                made_up = Tenant(tenant)
                assert (await made_up.said("did", "failed"))["did"] == "open"
                yield made_up
            finally:
                tenant.kill()
                await tenant.wait()


async def test_a_pod_that_could_not_park_gets_no_turn_until_its_limit_is_raised(pod: Pod) -> None:
    pod.limit(512 * MIB)
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        async with trainer_in(pod, Path(folder), need=510 * MIB) as trainer:
            refused = await trainer.ask(do="acquire")
            assert refused["failed"] == "TurnRefused"
            assert "that moves 506.0 MiB into its pod's memory, which has" in refused["why"]
            assert "left within its limit of 512.0 MiB: raise the limit by" in refused["why"]
            told = list(map(json.loads, (Path(folder) / "events").read_text().splitlines()))
            conditions = [one for one in told if one["kind"] == "condition"]
            assert [one["condition"] for one in conditions] == ["NoRoom", "Refused"]
            assert conditions[0]["tenant"] == "ns/trainer"
            pod.limit(1024 * MIB)  # as the kubelet does when a pod is resized in place
            assert (await trainer.ask(do="acquire"))["epoch"] == 1
            await trainer.ask(do="yield")
            pod.limit(512 * MIB)
            assert (await trainer.ask(do="acquire"))["epoch"] == 2  # it could go on anyway
