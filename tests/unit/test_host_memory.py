"""What the kernel's files say of a pod's memory, in both versions of cgroups."""

from pathlib import Path

import pytest

from dra_driver.host_memory import Account, Hierarchy, hierarchy

V1 = """\
30 23 0:27 / / rw - overlay overlay rw
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
"""
V2 = "25 23 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = V1 + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
IN_A_CONTAINER = """\
700 690 0:32 /kubepods/pod1/9f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
710 690 0:32 / /host/cgroup/memory ro - cgroup cgroup rw,memory
"""
PROCESS = {
    V1: "9:name=systemd:/other\n4:memory:/kubepods/pod1/9f\n0::/\n",
    V2: "0::/kubepods/pod1/9f\n",
}
FILES = {
    V1: {
        "memory.limit_in_bytes": "1000\n",
        "memory.usage_in_bytes": "700\n",
        "memory.stat": "cache 9\ninactive_file 7\ntotal_inactive_file 200\ntotal_active_file 50\n",
    },
    V2: {
        "memory.max": "1000\n",
        "memory.current": "700\n",
        "memory.stat": "shmem 9\ninactive_file 200\nactive_file 40\nslab_reclaimable 10\n",
    },
}
NO_LIMIT = {
    V1: ("memory.limit_in_bytes", "9223372036854771712\n"),
    V2: ("memory.max", "max\n"),
}
VERSIONS = pytest.mark.parametrize("mounts", [V1, V2], ids=["v1", "v2"])


def pod(mounts: str, root: Path, **changed: str) -> Hierarchy:
    """The hierarchy of these mounts, below `root`, with one pod."""
    found = hierarchy(mounts)
    assert found is not None
    folder = root / "kubepods" / "pod1"
    folder.mkdir(parents=True)
    for name, content in (FILES[mounts] | changed).items():
        (folder / name).write_text(content)
    return Hierarchy(root, found.version)


@VERSIONS
def test_what_can_be_taken_back_is_left(mounts: str, tmp_path: Path) -> None:
    found = pod(mounts, tmp_path)
    assert found.path(PROCESS[mounts]) == "/kubepods/pod1/9f"
    assert found.account("/kubepods/pod1") == Account(left=1000 - (700 - 250), limit=1000)


@VERSIONS
def test_without_a_limit_nothing_is_known(mounts: str, tmp_path: Path) -> None:
    assert pod(mounts, tmp_path, **dict([NO_LIMIT[mounts]])).account("/kubepods/pod1") is None


@VERSIONS
def test_of_a_pod_that_is_gone_nothing_is_known(mounts: str, tmp_path: Path) -> None:
    assert pod(mounts, tmp_path).account("/kubepods/pod2") is None


def test_a_pod_may_use_more_than_a_limit_that_was_lowered(tmp_path: Path) -> None:
    account = pod(V2, tmp_path, **{"memory.max": "300\n"}).account("/kubepods/pod1")
    assert account == Account(left=0, limit=300)


@pytest.mark.parametrize(
    ("mounts", "where"),
    [
        (V1, "/sys/fs/cgroup/memory"),
        (V2, "/sys/fs/cgroup"),
        (HYBRID, "/sys/fs/cgroup/memory"),
        (IN_A_CONTAINER, "/host/cgroup/memory"),
    ],
    ids=["v1", "v2", "hybrid", "in a container"],
)
def test_the_hierarchy_is_where_it_is_mounted_whole(mounts: str, where: str) -> None:
    found = hierarchy(mounts)
    assert found is not None
    assert found.mount == Path(where)


def test_a_part_of_a_hierarchy_knows_no_other_pods() -> None:
    assert hierarchy(IN_A_CONTAINER.splitlines()[0]) is None
