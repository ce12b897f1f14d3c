"""Turns between real pods, while what they rest on is killed: no overlap, and they go on."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hack.cluster_commands import Raw
from tests.cluster.kube import UP_S, WITHIN_S, Kube
from tests.cluster.lab import Namespace, claim
from tests.cluster.turns import Turns, container, kill, tenant

LEASE_S = 3
"""The class's own; the driver's is longer."""

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(UP_S + 300),
    pytest.mark.usefixtures("tandem"),
]


@pytest.fixture
def turns(lab: Namespace) -> Iterator[Turns]:
    """A rollout and a trainer that take turns; afterwards, no rule may have been broken."""
    lab.create(claim(need="170Mi"), tenant("rollout"), tenant("trainer"))
    made = Turns(lab, lab.node_of("trainer"))
    made.go_on("rollout", "trainer")
    yield made
    made.assert_one_at_a_time()


def test_the_claim_tells_who_has_the_turn(lab: Namespace, turns: Turns) -> None:
    found = lab.until(
        "resourceclaims",
        lambda one: any(  # at first one of them may not have said hello yet
            len(device["data"]["tenants"]) == 2
            for device in one.get("status", {}).get("devices", [])
        ),
    )
    (device,) = found["status"]["devices"]
    assert {one["role"] for one in device["data"]["tenants"]} == {"rollout", "trainer"}
    assert {one["name"] for one in device["data"]["tenants"]} == {
        f"{lab.name}/rollout",
        f"{lab.name}/trainer",
    }
    turns.go_on("rollout")


def test_the_drivers_pod_shows_the_node_as_the_docs_say(lab: Namespace, turns: Turns) -> None:
    of_node = f"--field-selector=spec.nodeName=node{turns.node}"
    system = ("-n", "tandem-system")
    (driver,) = lab.kube.get("pods", *system, "-l", "app=tandem-driver", of_node)["items"]

    def tandem(*words: str) -> str:
        where = (*system, "exec", driver["metadata"]["name"], "--")
        return lab.kube("kubectl", *where, "python3", "-m", "tandem", *words)

    shown = json.loads(tandem("top", "-o", "json"))
    names = {one["tenant"] for one in shown["tenants"]}
    assert {f"{lab.name}/rollout", f"{lab.name}/trainer"} <= names
    assert f"{lab.name}/trainer" in tandem("top")
    told = json.loads(tandem("explain", f"{lab.name}/trainer", "-o", "json"))
    assert told["tenant"] == f"{lab.name}/trainer"
    assert "</html>" in tandem("timeline", "--last", "60", "-o", "html")
    assert "traceEvents" in json.loads(tandem("timeline", "--last", "60", "-o", "perfetto"))
    turns.go_on("trainer")


def test_the_driver_is_killed_again_and_again(lab: Namespace, turns: Turns) -> None:
    for _ in range(3):
        kill(lab, "dra_driver --config")
        turns.go_on("rollout", "trainer")


def test_a_tenant_is_killed(lab: Namespace, turns: Turns) -> None:
    kill(lab, "tests.cluster.tenant trainer")
    turns.go_on("rollout", "trainer")


def test_the_kubelet_is_restarted(lab: Namespace, turns: Turns) -> None:
    lab.kube("restart", "kubelet")
    turns.go_on("rollout", "trainer")
    # It deletes the slices when it starts; a pod that comes now is prepared again.
    lab.delete("pod", "trainer")
    lab.create(tenant("trainer"))
    turns.go_on("trainer")


def test_half_a_pair_leaves_and_another_comes(lab: Namespace, turns: Turns) -> None:
    node = lab.node_of("rollout")
    lab.delete("pod", "trainer")
    turns.go_on("rollout")
    lab.create(tenant("trainer"))
    assert lab.node_of("trainer") == node
    turns.go_on("rollout", "trainer")


def test_an_intruder_is_named_and_nobody_is_granted_until_it_left(lab: Namespace) -> None:
    """As an engine that was started again alone, before its agent has a turn for it."""
    intruder = container("intruder", "-", "64")
    lab.create(claim(need="170Mi"), tenant("rollout"), tenant("trainer", 0, beside=(intruder,)))
    turns = Turns(lab, lab.node_of("trainer"))
    turns.go_on("rollout")
    lab.hears("trainer", lambda line: "intruder" in line, container="intruder")
    lab.tell("trainer", "intruder", "go")
    note = lab.told("trainer", "Intruder")
    assert "it holds 64.0 MiB of gpu-0 without a turn, where 8.0 MiB may be" in note
    lab.tell("trainer", "intruder", "stop")
    lab.hears("trainer", lambda line: line.get("intruder") == "left", container="intruder")
    lab.told("trainer", "Cleared")
    turns.go_on("rollout")
    turns.assert_nobody_granted_while_named()


def test_a_pod_that_could_not_park_is_told_and_the_other_goes_on(lab: Namespace) -> None:
    """Its limit is less than what parking would move; the rollout's pod has none."""
    cramped = tenant("trainer")
    (main,) = cramped["spec"]["containers"]
    main["resources"]["limits"] = {"memory": "160Mi"}
    lab.create(claim(need="170Mi"), tenant("rollout"), cramped)
    note = lab.told("trainer", "NoRoom")
    assert "that moves 162.0 MiB into its pod's memory, which has" in note
    assert "left within its limit of 160.0 MiB: raise the limit by at least" in note
    turns = Turns(lab, lab.node_of("rollout"))
    turns.go_on("rollout")
    assert turns.grants("trainer") == []
    turns.assert_one_at_a_time()


@pytest.fixture
def evicting(kube: Kube) -> Iterator[None]:
    """The class has tenants that are at fault evicted soon."""
    with _escalating(kube, evict=1):
        yield


@pytest.fixture
def freezing(kube: Kube) -> Iterator[None]:
    """The class has tenants that are at fault frozen soon."""
    with _escalating(kube, checkpoint=1):
        yield


@pytest.fixture
def tainting(kube: Kube) -> Iterator[None]:
    """The class has the devices of tenants that are at fault tainted, and later emptied."""
    with _escalating(kube, **{"taint-no-schedule": 1, "taint-no-execute": 20}):
        yield


@contextmanager
def _escalating(kube: Kube, **steps: int) -> Iterator[None]:
    (entry,) = kube.get("deviceclass", "tandem-gpu")["spec"]["config"]
    before = json.dumps(entry)
    ladder = [{"step": step, "afterSeconds": after} for step, after in steps.items()]
    entry["opaque"]["parameters"] |= {"escalation": ladder, "turns": {"leaseSeconds": LEASE_S}}
    _configure(kube, json.dumps(entry))
    yield
    _configure(kube, before)


def _configure(kube: Kube, entry: str) -> None:
    patch = f'{{"spec": {{"config": [{entry}]}}}}'
    kube("kubectl", "patch", "deviceclass", "tandem-gpu", "--type=merge", "-p", patch)


@pytest.mark.usefixtures("evicting")
def test_a_tenant_that_hangs_in_its_turn_is_evicted_and_the_other_goes_on(lab: Namespace) -> None:
    lab.create(claim(need="170Mi"), tenant("rollout"), tenant("trainer", 160, "hold"))
    turns = Turns(lab, lab.node_of("trainer"))
    turns.until("trainer", "Running", 1)
    lab.kube("exec", "--", "pkill", "-STOP", "-f", "tests.cluster.tenant trainer")
    kill(lab, "dra_driver --config")  # the one that starts misses its session
    assert f"lost its session for {LEASE_S} s" in lab.told("trainer", "SessionLost")
    assert lab.told("trainer", "Escalated").endswith(": its pod is to be evicted")
    lab.told("trainer", "Evicted")
    turns.go_on("rollout")
    turns.assert_one_at_a_time(allowed=("Faulted",))


@pytest.mark.usefixtures("freezing")
def test_a_tenant_that_hangs_in_its_turn_is_frozen_and_goes_on_after_the_others(
    lab: Namespace,
) -> None:
    lab.create(claim(need="170Mi"), tenant("rollout"), tenant("trainer", 160, "hold"))
    turns = Turns(lab, lab.node_of("trainer"))
    turns.until("trainer", "Running", 1)
    lab.kube("exec", "--", "pkill", "-STOP", "-f", "tests.cluster.tenant trainer")
    kill(lab, "dra_driver --config")  # the one that starts misses its session
    assert f"lost its session for {LEASE_S} s" in lab.told("trainer", "SessionLost")
    turns.until("rollout", "Running", 1)
    turns.until("trainer", "Running", 2)
    before = len(turns.grants("rollout"))
    lab.tell("trainer", "main", "go")  # it goes on where it stood
    turns.until("rollout", "Running", before + 1)
    turns.assert_one_at_a_time(allowed=("Faulted",))


@pytest.mark.usefixtures("tainting")
def test_a_device_that_a_hanging_tenant_keeps_is_tainted_until_its_pods_are_gone(
    lab: Namespace,
) -> None:
    lab.create(claim(need="170Mi"), tenant("rollout"), tenant("trainer", 160, "hold"))
    node = lab.node_of("trainer")
    turns = Turns(lab, node)
    turns.until("trainer", "Running", 1)
    lab.kube("exec", "--", "pkill", "-STOP", "-f", "tests.cluster.tenant trainer")
    _replace_drivers(lab)  # the new one misses its session
    told = lab.told("trainer", "Escalated")
    assert told.endswith(": a NoSchedule taint is to be set on gpu-0")
    first = _tainted(lab, node, "NoSchedule")
    _replace_drivers(lab)
    later = _tainted(lab, node, "NoSchedule", "NoExecute")
    # In between nothing was written: a taint keeps its time.
    assert later["metadata"]["generation"] == first["metadata"]["generation"] + 1
    assert _taints(later)["NoSchedule"] == _taints(first)["NoSchedule"]
    for pod in ("trainer", "rollout"):
        lab.told(pod, "DeviceTaintManagerEviction")
    _tainted(lab, node)
    lab.kubectl("wait", "--for=delete", f"--timeout={WITHIN_S}s", "pod/rollout", "pod/trainer")
    turns.assert_one_at_a_time(allowed=("Faulted",))
    lab.create(tenant("rollout"), tenant("trainer"))
    Turns(lab, lab.node_of("trainer")).go_on("rollout", "trainer")


def _replace_drivers(lab: Namespace) -> None:
    """As an upgrade does: a container that is killed often is started again only after a while."""
    drivers = ("-n", "tandem-system", "delete", "pod", "-l", "app=tandem-driver")
    lab.kube("kubectl", *drivers, f"--timeout={WITHIN_S}s", within_s=2 * WITHIN_S)


def _tainted(lab: Namespace, node: str, *effects: str) -> Raw:
    """Wait until the node's device has taints with these effects alone; its slice."""
    return lab.until(
        "resourceslices",
        lambda one: one["spec"].get("nodeName") == node and _taints(one).keys() == set(effects),
    )


def _taints(published: Raw) -> dict[str, Raw]:
    (device,) = published["spec"]["devices"]
    taints = device.get("taints", [])
    assert {taint["key"] for taint in taints} <= {"tandem-gpu.io/faulted"}
    return {taint["effect"]: taint for taint in taints}


def test_a_typo_in_the_configuration_is_told_on_the_pod(lab: Namespace) -> None:
    """dra-driver-nvidia-gpu#598."""
    wrong = claim()
    wrong["spec"]["devices"]["config"][0]["opaque"]["parameters"]["wieghts"] = "1Mi"
    lab.create(wrong, tenant("rollout"), tenant("trainer"))
    assert "wieghts: unknown key" in lab.told("rollout", "FailedPrepareDynamicResources")
