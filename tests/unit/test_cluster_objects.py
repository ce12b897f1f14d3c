"""What the cluster's demo reads out of Kubernetes' objects."""

from typing import Any

import pytest

from claim_phases.phases import Phase
from hack import cluster_objects
from hack.cluster_objects import Failure
from tandem.results import AgreedTenant, Agreement

MIB = 1 << 20
Raw = dict[str, Any]


def pod(name: str = "rollout", phase: str = "Running", **status: Any) -> Raw:
    metadata = {"name": name, "uid": f"uid-{name}", "annotations": {"tandem-gpu.io/role": name}}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase} | status}


def container(name: str, restarts: int = 0, last: Raw | None = None, **state: Any) -> Raw:
    return {"name": name, "restartCount": restarts, "state": state, "lastState": last or {}}


def claim(holder: str, phase: str = "Running") -> Raw:
    tenants = [
        {"name": "default/rollout", "role": "rollout", "phase": "Parked", "epoch": 6},
        {"name": "default/trainer", "role": "trainer", "phase": phase, "epoch": 7},
    ]
    data = {"epoch": 7, "holder": holder, "tenants": tenants}
    results = [
        {"request": "gpu", "driver": "tandem-gpu.io", "pool": "node1", "device": "gpu-0"},
        {"request": "nic", "driver": "nic.example", "pool": "node1", "device": "nic-0"},
    ]
    parameters = {
        "apiVersion": "tandem-gpu.io/v1alpha1",
        "kind": "ClaimConfig",
        "job": "digits",
        "roles": {"rollout": {"residual": "8Mi"}, "trainer": {"need": "9Mi", "residual": "4Mi"}},
    }
    opaque = {"driver": "tandem-gpu.io", "parameters": parameters}
    config = [{"source": "FromClaim", "opaque": opaque}]
    return {
        "metadata": {"name": "grpo"},
        "status": {
            "allocation": {"devices": {"results": results, "config": config}},
            "devices": [{"driver": "tandem-gpu.io", "device": "gpu-0", "data": data}],
        },
    }


class TestFailure:
    @pytest.mark.parametrize(
        "healthy",
        [
            pod(phase="Pending"),
            pod(containerStatuses=[container("engine", restarts=4, running={})]),
            pod(containerStatuses=[container("engine", waiting={"reason": "PodInitializing"})]),
            pod(phase="Succeeded", containerStatuses=[container("t", terminated={"exitCode": 0})]),
        ],
    )
    def test_a_pod_that_may_still_do_its_work_has_none(self, healthy: Raw) -> None:
        assert cluster_objects.failure(healthy) is None

    def test_a_container_that_ended_is_named_with_its_exit_code(self) -> None:
        ended = container("trainer", terminated={"exitCode": 137, "reason": "OOMKilled"})
        failed = pod("trainer", "Failed", containerStatuses=[ended])
        told = "container trainer of pod trainer ended with exit code 137 (OOMKilled)"
        assert cluster_objects.failure(failed) == Failure(told, "trainer")

    def test_a_container_that_does_not_start_is_named_with_the_reason(self) -> None:
        last = {"terminated": {"exitCode": 1, "reason": "Error"}}
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s\n restarting"}
        failed = pod(initContainerStatuses=[container("model", 2, last, waiting=waiting)])
        assert cluster_objects.failure(failed) == Failure(
            "container model of pod rollout does not start: CrashLoopBackOff (back-off 10s"
            " restarting), it ended with exit code 1",
            "model",
        )

    def test_a_container_that_is_started_again_and_again_is_named(self) -> None:
        last = {"terminated": {"exitCode": 137, "reason": "RestartingAllContainers"}}
        failed = pod(containerStatuses=[container("engine", 5, last, running={})])
        assert cluster_objects.failure(failed) == Failure(
            "container engine of pod rollout was started again 5 times: it ended with exit code"
            " 137 (RestartingAllContainers)",
            "engine",
        )

    def test_a_pod_that_was_not_admitted_tells_why(self) -> None:
        failed = pod(phase="Failed", reason="UnexpectedAdmissionError", message="no claim")
        told = "pod rollout failed: UnexpectedAdmissionError: no claim"
        assert cluster_objects.failure(failed) == Failure(told)


class TestState:
    def test_a_gated_pod_says_so(self) -> None:
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        assert cluster_objects.state(pod(phase="Pending", conditions=[gated])) == "SchedulingGated"

    def test_containers_that_do_not_simply_run_are_named(self) -> None:
        statuses = [
            container("tandem-agent", running={}) | {"started": False},
            container("engine", waiting={"reason": "PodInitializing"}),
        ]
        told = cluster_objects.state(pod(phase="Pending", containerStatuses=statuses))
        assert told == "Pending (tandem-agent starting, engine PodInitializing)"
        assert cluster_objects.state(pod(containerStatuses=[container("a", running={})])) == (
            "Running"
        )

    def test_a_container_has_a_log_once_it_was_started(self) -> None:
        waits = pod(containerStatuses=[container("t", waiting={"reason": "PodInitializing"})])
        runs = pod(containerStatuses=[container("t", running={})])
        ended = pod(containerStatuses=[container("t", terminated={"exitCode": 0})])
        pods = (pod(), waits, runs, ended)
        started = [cluster_objects.was_started(one, "t") for one in pods]
        assert started == [False, False, True, True]
        assert [cluster_objects.has_ended(one, "t") for one in pods] == [False, False, False, True]
        assert not cluster_objects.has_ended(ended, "another")


class TestClaim:
    def test_the_holder_is_told_with_its_phase(self) -> None:
        trainer = cluster_objects.holder(claim("default/trainer"))
        assert trainer == ("default/trainer", Phase.RUNNING)
        assert cluster_objects.holder(claim("")) is None
        assert cluster_objects.holder({"status": {}}) is None
        assert cluster_objects.holder({}) is None

    def test_what_was_agreed_is_judged_by_role(self) -> None:
        pods = [pod("rollout"), pod("trainer")]
        sizes = {"gpu-0": 232 * MIB, "gpu-1": 1}
        assert cluster_objects.agreed(claim(""), pods, sizes) == Agreement(
            job="digits",
            devices={"gpu-0": 232 * MIB},
            tenants={
                "rollout": AgreedTenant(devices=("gpu-0",), residual=8 * MIB),
                "trainer": AgreedTenant(devices=("gpu-0",), residual=4 * MIB),
            },
        )

    def test_the_devices_are_those_of_the_drivers_configuration(self) -> None:
        file = "devices:\n  gpu-0: {simulated: 232Mi}\n"
        objects: list[Raw] = [
            {"kind": "Service"},
            {"kind": "ConfigMap", "data": {"driver.yaml": file}},
        ]
        assert cluster_objects.simulated(objects) == {"gpu-0": 232 * MIB}

    def test_a_recorded_description_tells_of_its_holder(self) -> None:
        described = "    Data:\n      Holder:  default/trainer\n"
        assert cluster_objects.describes(described, "default/trainer")
        assert not cluster_objects.describes(described, "default/train")
        assert not cluster_objects.describes(described, "default/rollout")
        assert cluster_objects.describes(described, "")


def test_what_kubernetes_shows_is_told_in_the_order_of_time() -> None:
    regarding = {"kind": "Pod", "name": "rollout"}
    events: list[Raw] = [
        {"reason": "b", "note": "2nd", "regarding": regarding, "eventTime": "2026-11-29T10:00:02Z"},
        {
            "reason": "a",
            "note": "1st",
            "regarding": regarding,
            "eventTime": None,
            "deprecatedLastTimestamp": "2026-11-29T10:00:01Z",
        },
    ]
    restarted = pod(containerStatuses=[container("a", 1), container("b", 2)])
    restarted["spec"]["nodeName"] = "node1"
    version = {"serverVersion": {"gitVersion": "v1.36.3"}}
    nodes = [{"metadata": {"name": "node1"}}]
    held = claim("default/trainer")
    assert cluster_objects.told(version, nodes, [restarted], held, events) == {
        "version": "v1.36.3",
        "nodes": ["node1"],
        "pods": {"rollout": {"phase": "Running", "node": "node1", "restarts": 3}},
        "claim": {"devices": held["status"]["devices"]},
        "events": [
            {"reason": "a", "note": "1st", "regarding": "pod/rollout"},
            {"reason": "b", "note": "2nd", "regarding": "pod/rollout"},
        ],
    }


DESCRIBED = """\
NAME      READY   STATUS            RESTARTS   AGE
rollout   0/2     SchedulingGated   0          3s

Name:         grpo
Status:
  Allocation:
    Devices:
      Results:
        Device:  gpu-0
  Devices:
    Data:
      Holder:  default/trainer
    Device:    gpu-0
Events:        <none>


Name:             rollout
Status:           Pending
Conditions:
  Type           Status
  PodScheduled   False
Events:
  Type    Reason             Age   From                    Message
  ----    ------             ----  ----                    -------
  Normal  WaitingForPartner  3s    tandem-gpu.io/extender  no pod has role trainer
  Normal  Pulled             3s    kubelet                 already present
"""


def test_the_excerpt_of_a_moment_is_what_is_about_turns() -> None:
    assert [*cluster_objects.excerpt(DESCRIBED)] == [
        "NAME      READY   STATUS            RESTARTS   AGE",
        "rollout   0/2     SchedulingGated   0          3s",
        "Name:         grpo",
        "  Devices:",
        "    Data:",
        "      Holder:  default/trainer",
        "    Device:    gpu-0",
        "Name:             rollout",
        "  Normal  WaitingForPartner  3s    tandem-gpu.io/extender  no pod has role trainer",
    ]
