"""The observer in a cluster: whose memory it is, by the kernel's record of the process's cgroup."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem import observer
from tests.contract.pod_memory import MIB

ROOT = Path(__file__).resolve().parents[2]
UID = "0f4a2d5e-1c7b-4a39-9d42-6b1f0c2e8a71"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make cgroups")
def test_memory_is_the_pods_in_whose_cgroup_its_holder_is(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.mkdir()
    unshare = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        [*unshare, sys.executable, "-m", "tests.contract.pod_memory", str(device)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    samples = [json.loads(line) for line in done.stdout.splitlines()]
    assert samples, "no cgroup hierarchy to try it in"
    for sample in samples:
        held = {tenant: by["gpu-0"] for tenant, by in sample["tenants"].items()}
        assert held == {"rollout": 3 * MIB, "trainer": 4 * MIB}, sample
        strange = sorted(one["bytes"] for one in sample["strangers"])
        assert strange == [8 * MIB, 16 * MIB], sample  # another pod's, and no pod's


@pytest.mark.parametrize(
    ("cgroups", "uid"),
    [
        (f"0::/kubepods/burstable/pod{UID}/4f6c\n", UID),
        (f"0::/node1/kubepods/pod{UID}/4f6c/child\n", UID),
        (f"9:pids:/\n4:memory:/kubepods/besteffort/pod{UID}/4f6c\n0::/\n", UID),
        (f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-0.scope\n", UID),
        (f"0::/kubepods/pod{UID}\n", UID),
        (f"0::/kubepods/podling{UID}/4f6c\n", ""),
        (f"0::/kubepods/pod{UID}0/4f6c\n", ""),
        ("0::/system.slice/cron.service\n", ""),
        ("", ""),
    ],
)
def test_the_pods_uid_is_read_from_each_form_of_cgroup(cgroups: str, uid: str) -> None:
    assert observer._pod_uid(cgroups) == uid
