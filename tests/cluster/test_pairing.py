"""Pairs on a real Kubernetes of two nodes: gated, told, placed together, and what goes wrong."""

import json
import re
import time
from typing import Any

import pytest

from hack.cluster_commands import Raw
from tests.cluster.kube import UP_S, WITHIN_S, Kube
from tests.cluster.lab import ROLES, Namespace, claim, half

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(UP_S + 300),
    pytest.mark.usefixtures("tandem"),
]

SYSTEM = "tandem-system"
GATE = "tandem-gpu.io/pair"


def plain(name: str, memory: str = "16Mi", **spec: Any) -> Raw:
    """A pod that has nothing to do with Tandem."""
    container = {
        "name": "main",
        "image": "localhost/pause:local",
        "resources": {"requests": {"memory": memory}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def extender(kube: Kube, replicas: int) -> None:
    """Let so many run, and wait until it is so."""
    system = Namespace(kube, SYSTEM)
    timeout = f"--timeout={WITHIN_S}s"
    system.kubectl("scale", "deployment/tandem-extender", f"--replicas={replicas}")
    if replicas:
        system.kubectl("rollout", "status", "deployment/tandem-extender", timeout)
    else:
        system.kubectl("wait", "--for=delete", "pod", "-l", "app=tandem-extender", timeout)


def memory_of_a_node(kube: Kube) -> int:
    """Bytes that pods may request of each node; both are alike."""
    nodes = kube.get("nodes")["items"]
    (amount,) = {node["status"]["allocatable"]["memory"] for node in nodes}
    return int(amount.removesuffix("Ki")) << 10


def test_a_pair_is_held_back_until_it_is_whole_and_lands_on_one_node(lab: Namespace) -> None:
    lab.create(claim(), half("rollout"))
    assert "no pod has role trainer of ResourceClaim grpo" in lab.told(
        "rollout", "WaitingForPartner"
    )
    rollout = lab.pod("rollout")
    assert rollout["spec"]["schedulingGates"] == [{"name": GATE}]
    began = time.monotonic()
    lab.create(half("trainer"))
    lab.ready("rollout", "trainer")
    pair_s = time.monotonic() - began
    assert lab.node_of("rollout") == lab.node_of("trainer")
    assert "together with pod rollout" in lab.told("trainer", "Paired")

    # A half that is made anew goes where the other one runs.
    node = lab.node_of("trainer")
    lab.delete("pod", "rollout")
    lab.create(half("rollout"))
    lab.ready("rollout")
    assert lab.node_of("rollout") == node

    lab.create(plain("one"), plain("two"))
    began = time.monotonic()
    lab.ready("one", "two")
    plain_s = time.monotonic() - began
    print(
        f"from the second half's creation to both Ready: {pair_s:.1f} s; "
        f"two pods without Tandem: {plain_s:.1f} s"
    )


def test_a_pair_that_fits_no_one_node_waits_with_the_numbers(lab: Namespace) -> None:
    part = str(memory_of_a_node(lab.kube) * 2 // 5)
    for number in (1, 2):
        where = {"kubernetes.io/hostname": f"node{number}"}
        lab.create(plain(f"filler-{number}", part, nodeSelector=where))
        lab.ready(f"filler-{number}")
    lab.create(claim(), half("rollout", memory=part), half("trainer", memory=part))
    for name in ("rollout", "trainer"):
        message = lab.told(name, "WaitingForRoom")
        assert "no node has room for rollout and trainer together" in message
        assert re.search(
            r"node1: memory: \S+Gi asked, \S+Gi of \S+Gi free; node2: memory: ", message
        )
    assert lab.pod("rollout")["spec"]["schedulingGates"] == [{"name": GATE}]
    lab.delete("pod", "filler-2")
    assert (lab.node_of("rollout"), lab.node_of("trainer")) == ("node2", "node2")


def test_a_strangers_gate_is_left_alone(lab: Namespace) -> None:
    # kueue#9482
    gates = [{"name": "example.com/quota"}]
    lab.create(claim(), half("rollout"), half("trainer", schedulingGates=gates))
    assert "example.com/quota of pod trainer" in lab.told("rollout", "WaitingForGate")
    assert lab.pod("rollout")["spec"]["schedulingGates"] == [{"name": GATE}]
    # Nothing is kept for them: another pair may have the node meanwhile.
    lab.create(claim("other"), *(half(role, "other", name=f"other-{role}") for role in ROLES))
    lab.node_of("other-rollout")
    patch = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    lab.kubectl("patch", "pod", "trainer", "--type=json", f"-p={json.dumps(patch)}")
    assert lab.node_of("rollout") == lab.node_of("trainer") != lab.node_of("other-rollout")


def test_pods_that_were_deleted_while_the_extender_was_away_hold_nothing(lab: Namespace) -> None:
    # HAMi#2923
    for job in ("one", "two"):
        lab.create(claim(job), *(half(role, job, name=f"{job}-{role}") for role in ROLES))
    nodes = {lab.node_of(f"{job}-rollout") for job in ("one", "two")}
    assert nodes == {"node1", "node2"}
    lab.create(claim("three"), *(half(role, "three", name=f"three-{role}") for role in ROLES))
    assert "asks 1 device(s) of class tandem-gpu, 0 of 1 free" in lab.told(
        "three-rollout", "WaitingForRoom"
    )
    freed = lab.node_of("one-trainer")
    extender(lab.kube, 0)
    lab.delete("pod", "one-rollout")
    lab.delete("pod", "one-trainer")
    extender(lab.kube, 1)
    assert lab.node_of("three-rollout") == lab.node_of("three-trainer") == freed


def test_while_the_extender_is_away_only_pods_that_ask_for_turns_are_refused(
    lab: Namespace,
) -> None:
    # slurm-operator#189
    extender(lab.kube, 0)
    try:
        lab.create(plain("unrelated"))
        lab.ready("unrelated")
        system = Namespace(lab.kube, "kube-system")
        system.create(plain("unrelated"))
        system.ready("unrelated")
        system.delete("pod", "unrelated")
        assert 'failed calling webhook "pods.tandem-gpu.io"' in lab.refused(half("rollout"))
    finally:
        extender(lab.kube, 1)  # its own pod is admitted too
    lab.create(claim(), half("rollout"))
    lab.told("rollout", "WaitingForPartner")


def test_the_sidecar_is_admitted_under_restriction_quota_and_limits(lab: Namespace) -> None:
    # linkerd2#2750
    label = "pod-security.kubernetes.io/enforce=restricted"
    lab.kube("kubectl", "label", "namespace", lab.name, label)
    hard = {"requests.cpu": "4", "limits.cpu": "4", "requests.memory": "4Gi"}
    hard |= {"limits.memory": "4Gi", "pods": "4"}
    limits = {
        "type": "Container",
        "default": {"cpu": "200m", "memory": "128Mi", "ephemeral-storage": "1Gi"},
        "defaultRequest": {"cpu": "100m", "memory": "64Mi"},
        "max": {"cpu": "1", "memory": "1Gi"},
    }
    lab.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "quota"},
            "spec": {"hard": hard},
        },
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "limits"},
            "spec": {"limits": [limits]},
        },
    )
    engine = half("rollout")
    engine["metadata"]["annotations"]["tandem-gpu.io/engine"] = "vllm"
    engine["spec"]["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = engine["spec"]["containers"]
    container["args"] = ["--host=127.0.0.1", "--port=8100", "--enable-sleep-mode"]
    container["env"] = [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}]
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    lab.create(claim(), engine)
    admitted = lab.pod("rollout")["spec"]
    (agent,) = admitted["initContainers"]
    assert agent["name"] == "tandem-agent"
    assert agent["resources"]["limits"] == agent["resources"]["requests"]
    assert admitted["containers"][0]["restartPolicyRules"]

    container["args"] = []
    engine["metadata"]["name"] = "refused"
    complaint = lab.refused(engine)
    for missing in ("--host 127.0.0.1", "--port", "--enable-sleep-mode"):
        assert f"needs {missing}" in complaint


def test_a_pod_says_what_is_wrong_with_its_claim(lab: Namespace) -> None:
    wrong = claim()
    wrong["spec"]["devices"]["config"][0]["opaque"]["parameters"]["roles"] = {"Rollout": {}}
    lab.create(half("rollout"))
    assert lab.told("rollout", "WaitingForClaim").startswith("ResourceClaim grpo does not exist")
    lab.create(wrong)
    assert "roles.Rollout: must be a name" in lab.told("rollout", "InvalidClaim")
    lab.delete("resourceclaim", "grpo")
    lab.create(claim(), half("trainer"))
    lab.ready("rollout", "trainer")
