"""The kubelet's calls over real gRPC, on real mounts; the API server is a dict."""

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from claim_phases.node import Device
from dra_driver import kubelet, mounts
from dra_driver.checkpoint import Checkpoint, CheckpointError
from dra_driver.claims import Claims
from dra_driver.devices import Reading
from dra_driver.devices.simulated import SimulatedDevice
from dra_driver.kubelet_api import dra_pb2 as dra
from dra_driver.kubelet_api import health_pb2 as health
from dra_driver.kubelet_api import registration_pb2 as registration
from dra_driver.kubelet_api.dra_pb2_grpc import DRAPluginStub
from dra_driver.kubelet_api.health_pb2_grpc import DRAResourceHealthStub
from dra_driver.kubelet_api.registration_pb2_grpc import RegistrationStub
from dra_driver.layout import Layout
from dra_driver.peers import Relay
from dra_driver.roster import NotNow

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs: needs root")

MIB = 1 << 20
CONFIG = {
    "apiVersion": "tandem-gpu.io/v1alpha1",
    "kind": "ClaimConfig",
    "job": "grpo",
    "weights": "1Mi",
    "roles": {"trainer": {"residual": "1Mi"}},
}


def uid(number: int) -> str:
    return f"5c4b1b5e-3a86-4a4e-9c70-{number:012x}"


def resource_claim(
    number: int, device: str = "gpu-0", config: dict[str, Any] = CONFIG
) -> dict[str, Any]:
    result = {"request": "gpu", "driver": "tandem-gpu.io", "pool": "node-1", "device": device}
    opaque = {"driver": "tandem-gpu.io", "parameters": config}
    return {
        "metadata": {"name": f"claim-{number}", "namespace": "team-a", "uid": uid(number)},
        "status": {
            "allocation": {
                "devices": {
                    "results": [result],
                    "config": [{"source": "FromClaim", "opaque": opaque}],
                }
            }
        },
    }


@dataclass
class Host:
    """A node's folders, and what the API server knows."""

    layout: Layout
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: int = 0
    away: int = 0
    patience_s: float = 0.0
    device: Device = field(default_factory=lambda: Device("gpu-0", 4 * MIB))

    def has(self, claim: dict[str, Any]) -> dra.Claim:
        """The API server has this claim; the kubelet's word for it."""
        meta = claim["metadata"]
        self.objects[meta["name"]] = claim
        return dra.Claim(namespace=meta["namespace"], uid=meta["uid"], name=meta["name"])

    async def fetch(self, namespace: str, name: str) -> dict[str, Any] | None:
        self.asked += 1
        if self.asked <= self.away:
            raise NotNow("the API server does not answer")
        await asyncio.sleep(0)
        return self.objects.get(name)

    def cdi(self, number: int) -> dict[str, Any] | None:
        path = self.layout.cdi / f"tandem-gpu.io-claim_{uid(number)}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def mounted(self) -> set[str]:
        """The claims whose weights are mounted."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        inside = f"{self.layout.claims}/"
        return {
            line.split()[4].removeprefix(inside).partition("/")[0]
            for line in lines
            if line.split()[4].startswith(inside)
        }


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        root = Path(folder)
        layout = Layout(root / "run", root / "plugin", root / "registry", root / "cdi")
        for path in (layout.run, layout.plugin, layout.registry, layout.cdi):
            path.mkdir()
        mounts.mount_tmpfs(layout.device("gpu-0"), 4 * MIB, part=layout.memory("gpu-0"))
        try:
            yield Host(layout)
        finally:
            mounts.unmount(layout.device("gpu-0"))
            for claim in layout.claims.glob("*/weights"):
                mounts.unmount(claim)


@dataclass
class Kubelet:
    """The kubelet's end."""

    channel: grpc.aio.Channel

    async def prepare(self, *claims: dra.Claim) -> dict[str, dra.NodePrepareResourceResponse]:
        answer = await DRAPluginStub(self.channel).NodePrepareResources(
            dra.NodePrepareResourcesRequest(claims=claims)
        )
        return dict(answer.claims)

    async def unprepare(self, *claims: dra.Claim) -> dict[str, str]:
        answer = await DRAPluginStub(self.channel).NodeUnprepareResources(
            dra.NodeUnprepareResourcesRequest(claims=claims)
        )
        return {key: one.error for key, one in answer.claims.items()}


@asynccontextmanager
async def driver(host: Host, instance: str = "pod-1") -> AsyncIterator[Kubelet]:
    """A driver that serves this node, found by its registration as the kubelet finds it."""
    layout = host.layout
    relay = Relay(layout.run / "nowhere", lambda _: "")
    claims = Claims(
        layout,
        Checkpoint(layout.checkpoint),
        relay,
        host.fetch,
        ["gpu-0"],
        "node-1",
        lambda _: None,
        host.patience_s,
    )
    await claims.resume()
    plugin, watch = kubelet.Plugin(claims), kubelet.Health("node-1", [host.device])
    async with kubelet.serving(layout, instance, plugin, watch):
        register = layout.registry / f"tandem-gpu.io-{instance}-reg.sock"
        # The kubelet's authority (k/k#112597).
        options = [("grpc.default_authority", "localhost")]
        async with grpc.aio.insecure_channel(f"unix:{register}", options) as channel:
            info = await RegistrationStub(channel).GetInfo(registration.InfoRequest())
            await RegistrationStub(channel).NotifyRegistrationStatus(
                registration.RegistrationStatus(plugin_registered=True)
            )
        assert (info.type, info.name) == ("DRAPlugin", "tandem-gpu.io")
        assert "v1.DRAPlugin" in info.supported_versions
        async with grpc.aio.insecure_channel(f"unix:{info.endpoint}", options) as channel:
            yield Kubelet(channel)
    relay.close()
    assert not register.exists()


def make_deep(folder: Path) -> None:
    """Deeper than what Python's rmtree can remove."""
    subprocess.run(["mkdir", "-p", "d/" * 1500], cwd=folder, check=True)


def assert_provided(by_target: dict[str, dict[str, Any]]) -> None:
    folders = {target: Path(one["hostPath"]) for target, one in by_target.items()}
    assert (folders["/run/tandem/socket"] / "turns.sock").is_socket()
    assert folders["/run/tandem/weights"].is_dir()
    assert folders["/run/tandem/device"].is_dir()


async def test_a_claim_is_prepared_and_unprepared(host: Host) -> None:
    claim = host.has(resource_claim(1))
    async with driver(host) as node:
        (device,) = (await node.prepare(claim))[uid(1)].devices
        assert (list(device.request_names), device.device_name) == (["gpu"], "gpu-0")
        assert device.cdi_device_ids == [f"tandem-gpu.io/claim={uid(1)}-gpu-0"]
        cdi = host.cdi(1)
        assert cdi is not None
        (edits,) = (one["containerEdits"] for one in cdi["devices"])
        assert device.cdi_device_ids == [f"{cdi['kind']}={cdi['devices'][0]['name']}"]
        by_target = {one["containerPath"]: one for one in edits["mounts"]}
        assert "ro" in by_target["/run/tandem/socket"]["options"]
        assert_provided(by_target)
        assert host.mounted() == {uid(1)}
        weights = os.statvfs(by_target["/run/tandem/weights"]["hostPath"])
        assert weights.f_blocks * weights.f_frsize == MIB
        assert await node.unprepare(claim) == {uid(1): ""}
        assert await node.unprepare(claim) == {uid(1): ""}
    assert host.cdi(1) is None
    assert host.mounted() == set()
    assert list(host.layout.claims.iterdir()) == []


async def test_two_pods_of_a_claim_that_start_together(host: Host) -> None:
    claim = host.has(resource_claim(1))
    async with driver(host) as node:
        first, second = await asyncio.gather(node.prepare(claim), node.prepare(claim))
        assert first == second
        assert host.asked == 1
        await node.unprepare(claim)


async def test_a_replayed_prepare_brings_back_what_a_reboot_took(host: Host) -> None:
    claim = host.has(resource_claim(1))
    async with driver(host) as node:
        before = await node.prepare(claim)
        written = host.cdi(1)
    host.objects.clear()  # also while the API server is away
    mounts.unmount(host.layout.weights(uid(1)))
    (host.layout.cdi / f"tandem-gpu.io-claim_{uid(1)}.json").unlink()
    async with driver(host, "pod-2") as node:
        assert host.cdi(1) == written
        assert host.mounted() == {uid(1)}
        assert await node.prepare(claim) == before
        await node.unprepare(claim)


async def test_a_device_has_one_claim_at_a_time(host: Host) -> None:
    """A force-deleted pod's claim is allocated again before the kubelet ended it here."""
    one, two = host.has(resource_claim(1)), host.has(resource_claim(2))
    async with driver(host) as node:
        answers = await node.prepare(one, two)
        errors = {key: answer.error for key, answer in answers.items()}
        (refused,) = [key for key, error in errors.items() if error]
        assert "gpu-0 is still used by claim team-a/claim-" in errors[refused]
        assert host.mounted() == {uid(1), uid(2)} - {refused}
        other = two if refused == uid(2) else one
        await node.unprepare(one if other is two else two)
        assert (await node.prepare(other))[other.uid].error == ""
        await node.unprepare(other)


async def test_a_claim_with_admin_access_looks_on_and_is_in_nobody_s_way(host: Host) -> None:
    """dra-driver-nvidia-gpu#817."""
    admins = resource_claim(2)
    admins["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    looking, tenants = host.has(admins), host.has(resource_claim(1))
    async with driver(host) as node:
        assert (await node.prepare(looking))[uid(2)].error == ""
        assert (await node.prepare(tenants))[uid(1)].error == ""
        cdi = host.cdi(2)
        assert cdi is not None
        (mount,) = cdi["devices"][0]["containerEdits"]["mounts"]
        assert (mount["containerPath"], "ro" in mount["options"]) == (
            "/run/tandem/devices/gpu-0",
            True,
        )
        assert host.mounted() == {uid(1)}
        await node.unprepare(looking)
        assert (await node.prepare(tenants))[uid(1)].error == ""
        await node.unprepare(tenants)


async def test_what_pods_left_on_a_device_is_not_the_next_claim_s(host: Host) -> None:
    claim = host.has(resource_claim(1))
    async with driver(host) as node:
        await node.prepare(claim)
        memory = host.layout.memory("gpu-0")
        (memory / "left").write_bytes(b"x" * MIB)
        make_deep(memory)
        await node.unprepare(claim)
        assert list(memory.iterdir()) == []
        assert memory.stat().st_mode & 0o7777 == 0o1777
        assert SimulatedDevice("gpu-0", host.layout.device("gpu-0")).read().used == 0


async def test_an_api_server_that_is_away_for_a_moment_is_asked_again(host: Host) -> None:
    claim = host.has(resource_claim(1))
    host.away, host.patience_s = 1, 30.0
    async with driver(host) as node:
        assert (await node.prepare(claim))[uid(1)].error == ""
        assert host.asked == 2
        await node.unprepare(claim)


async def test_an_api_server_that_stays_away_is_told(host: Host) -> None:
    claim = host.has(resource_claim(1))
    host.away = 9
    async with driver(host) as node:
        answer = (await node.prepare(claim))[uid(1)]
        assert answer.error == "the API server does not answer"


async def test_a_device_that_is_not_configured_any_more_stops_the_driver(host: Host) -> None:
    claim = host.has(resource_claim(1))
    async with driver(host) as node:
        await node.prepare(claim)
    stored = host.layout.checkpoint.read_text()
    host.layout.checkpoint.write_text(stored.replace("gpu-0", "gpu-9"))
    with pytest.raises(CheckpointError, match="uses gpu-9, which is not configured any more"):
        async with driver(host):
            pass


@pytest.mark.parametrize(
    ("claim", "told"),
    [
        (resource_claim(1, config=CONFIG | {"weights": "9" * 400}), "weights: must be less than"),
        (resource_claim(1, config=CONFIG | {"jbo": "x"}), "jbo: unknown key"),
        (resource_claim(1, device="gpu-7"), "this node has no device gpu-7"),
        (resource_claim(2) | {"status": {}}, "is not allocated"),
    ],
)
async def test_what_is_refused_is_told_and_leaves_nothing(
    host: Host, claim: dict[str, Any], told: str
) -> None:
    wrong = host.has(claim)
    async with driver(host) as node:
        answer = (await node.prepare(wrong))[wrong.uid]
        assert told in answer.error
        assert "\n" not in answer.error
        assert list(answer.devices) == []
        assert list(host.layout.claims.iterdir()) == []
        # and the mended claim is prepared
        mended = host.has(resource_claim(1))
        assert (await node.prepare(mended))[uid(1)].error == ""
        await node.unprepare(mended)


async def test_a_claim_of_the_same_name_is_another_claim(host: Host) -> None:
    former = host.has(resource_claim(1))
    former.uid = uid(9)
    async with driver(host) as node:
        answer = await node.prepare(former)
        assert "the API server has none with UID" in answer[uid(9)].error


async def test_a_prepare_that_failed_poisons_nothing(host: Host) -> None:
    """dra-driver-cpu#169: the folder of CDI files cannot be written for a while."""
    claim = host.has(resource_claim(1))
    path = host.layout.cdi / f"tandem-gpu.io-claim_{uid(1)}.new"
    async with driver(host) as node:
        path.mkdir()  # in the way
        (path / "x").touch()
        assert "Is a directory" in (await node.prepare(claim))[uid(1)].error
        assert host.mounted() == set()
        assert not host.layout.checkpoint.exists()
        (path / "x").unlink()
        path.rmdir()
        assert (await node.prepare(claim))[uid(1)].error == ""
        await node.unprepare(claim)


async def test_what_was_not_finished_is_swept_away(host: Host) -> None:
    layout = host.layout
    mounts.mount_tmpfs(layout.weights(uid(3)), MIB, part=layout.published(uid(3)))
    (layout.cdi / f"tandem-gpu.io-claim_{uid(4)}.json").write_text("{}")
    async with driver(host):
        assert list(layout.claims.iterdir()) == []
        assert list(layout.cdi.iterdir()) == []
        assert host.mounted() == set()


async def test_a_device_that_failed_is_unhealthy_until_it_is_back(host: Host) -> None:
    async with driver(host) as node:
        stub = DRAResourceHealthStub(node.channel)
        for failed, state in [
            ("", health.HEALTHY),
            ("device gpu-0: it fell off the bus", health.UNHEALTHY),
            ("", health.HEALTHY),
        ]:
            host.device.failed = failed
            call = stub.NodeWatchResources(health.NodeWatchResourcesRequest())
            (told,) = (await anext(aiter(call))).devices
            assert (told.device.pool_name, told.device.device_name) == ("node-1", "gpu-0")
            assert (told.health, told.message) == (state, failed)
            call.cancel()


def test_a_mount_that_is_there_keeps_what_it_holds(host: Host) -> None:
    memory = host.layout.memory("gpu-0")
    (memory / "block").write_bytes(b"x" * 5000)
    mounts.mount_tmpfs(host.layout.device("gpu-0"), 4 * MIB, part=memory)
    used = SimulatedDevice("gpu-0", host.layout.device("gpu-0")).read()
    assert used == Reading(used=8192, total=4 * MIB)
