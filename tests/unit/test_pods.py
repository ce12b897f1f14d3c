"""What the kernel says of a pod's process."""

import os
import select
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim_phases.events import Headroom
from claim_phases.node import Device, Membership, Node
from dra_driver import pods
from dra_driver.checkpoint import Prepared
from dra_driver.config import Role
from dra_driver.host_memory import hierarchy
from dra_driver.pods import (
    Place,
    PodRoster,
    addresses_of_routes,
    claims_of_mounts,
    place_of_cgroup,
)

POD = "5c4b1b5e-3a86-4a4e-9c70-6f3d7a1f1d9e"
CLAIM = "0e1bd4d5-33cf-4f0c-a8ae-16d1b0a8a6c4"
CONTAINER = "9f" * 32


@pytest.mark.parametrize(
    "content",
    [
        f"0::/kubepods/burstable/pod{POD}/{CONTAINER}\n",
        f"0::/kubepods/burstable/pod{POD}/{CONTAINER}/a-group-of-its-own\n",
        f"11:memory:/n2/kubepods/pod{POD}/{CONTAINER}\n1:name=systemd:/n2/kubepods/pod{POD}/{CONTAINER}\n",
    ],
)
def test_the_pod_and_the_container_are_in_the_cgroup(content: str) -> None:
    assert place_of_cgroup(content) == Place(POD, CONTAINER)


def test_systemd_writes_them_otherwise() -> None:
    slice_ = f"kubepods-besteffort-pod{POD.replace('-', '_')}.slice"
    content = (
        f"0::/kubepods.slice/kubepods-besteffort.slice/{slice_}/cri-containerd-{CONTAINER}.scope"
    )
    assert place_of_cgroup(content) == Place(POD, f"cri-containerd-{CONTAINER}.scope")


@pytest.mark.parametrize("content", ["", "0::/\n", "0::/system.slice/podman.service\n"])
def test_other_processes_are_in_no_pod(content: str) -> None:
    assert place_of_cgroup(content) is None


def test_the_claims_of_a_container_are_in_its_mounts() -> None:
    mounts = f"""\
900 880 0:52 / / rw,relatime - overlay overlay rw
910 900 0:25 /tandem-gpu.io/claims/{CLAIM}/socket /run/tandem/socket ro,nosuid - tmpfs tmpfs rw
911 900 0:61 /published /run/tandem/weights rw,nosuid - tmpfs tandem rw
"""
    assert claims_of_mounts(mounts) == {CLAIM}
    assert claims_of_mounts("900 880 0:52 / /claims/x/socket rw - overlay overlay rw") == set()


def test_the_addresses_of_a_pod_are_those_that_are_local() -> None:
    routes = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.244.0.0/24 2 0 2
        +-- 10.244.0.0/28 2 0 2
           |-- 10.244.0.0
              /24 link UNICAST
           |-- 10.244.0.7
              /32 host LOCAL
        |-- 10.244.0.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
"""
    assert addresses_of_routes(routes) == {"10.244.0.7"}


def test_a_zombie_is_no_container_of_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cgroup may still be the pod's (version 2), and its mounts cannot be read: EINVAL."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    pidfd = os.pidfd_open(pid)
    try:
        select.select([pidfd], [], [])  # it has ended, and is not waited for yet
        monkeypatch.setattr(pods, "_place", lambda one: Place(POD, "c") if one == pid else None)
        assert pods._containers(POD) == {}
    finally:
        os.close(pidfd)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("role", "drops", "moved"),
    [
        (Role(need=70, residual=10), False, 120),
        (Role(need=70, residual=10), True, None),  # an engine: who knows how much is its KV cache
        (Role(need=None, residual=10), False, None),
        (Role(need=70, residual=10, host=20), False, 40),
        (Role(need=70, residual=10, host=20), True, 40),
        (Role(need=70, residual=10, host=0), False, 0),
    ],
)
def test_what_parking_moves_is_all_but_the_residual_unless_it_is_said(
    role: Role, drops: bool, moved: int | None
) -> None:
    """Of two devices."""
    assert pods._moved(role, 2, drops=drops) == moved


class Nobody:
    """An API server that knows nothing."""

    async def claim(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return None

    async def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return None


def test_an_address_is_not_a_pod_s_that_has_ended() -> None:
    """It may be another pod's soon. Whose memory is found is still known by the pod's name."""

    def prepared(_: str) -> Prepared | None:
        return None

    roster = PodRoster(Node("boot", {"gpu-0": Device("gpu-0", 1)}), prepared, Nobody(), None)
    who = Membership("ns/trainer", "trainer", f"{POD}/1:1", ("gpu-0",), None, 5)
    roster._pods[POD] = pods._Pod(who, CLAIM, CONTAINER, frozenset({"10.244.0.7"}))
    assert roster.tenant_of_caller("ip:10.244.0.7") == "ns/trainer"
    assert roster.life(who) == ()
    assert roster.tenant_of_caller("ip:10.244.0.7") == ""
    assert roster.budget("ns/trainer", "gpu-0") == 5
    roster.forget(CLAIM)
    assert roster.budget("ns/trainer", "gpu-0") == 0


def test_the_memory_is_that_of_the_pod_whose_life_it_is(tmp_path: Path) -> None:
    """Of two pods of one name, one after the other; and of none before it said hello."""
    memory = hierarchy("25 23 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    assert memory is not None
    memory = replace(memory, mount=tmp_path)
    roster = PodRoster(Node("boot", {}), lambda _: None, Nobody(), memory)
    for pod, used in ((POD, 90), (CLAIM, 30)):
        folder = tmp_path / f"pod{pod}"
        folder.mkdir()
        (folder / "memory.max").write_text("100\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("inactive_file 5\n")
        who = Membership("ns/trainer", "trainer", f"{pod}/1:1", ("gpu-0",), None, 5)
        assert roster.headroom(who) is None
        roster._pods[pod] = pods._Pod(who, CLAIM, CONTAINER, frozenset(), f"/pod{pod}")
        assert roster.headroom(who) == Headroom("ns/trainer", 100 - used + 5, 100)
