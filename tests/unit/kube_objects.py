"""Objects as an API server gives them, for tests: only what these are about."""

import copy
from typing import Any

from scheduler_extender.names import DRIVER, GATE, ROLE

Raw = dict[str, Any]


def pod(
    name: str,
    role: str | None = None,
    *,
    claims: tuple[str, ...] = ("grpo",),
    gates: tuple[str, ...] | None = None,
    node: str = "",
    cpu: str = "1",
    memory: str = "1Gi",
    namespace: str = "lab",
    created: str = "2026-11-29T12:00:00Z",
    ending: bool = False,
    **spec: Any,
) -> Raw:
    """A pod; one that has a role and no node is gated unless said otherwise."""
    if gates is None:
        gates = (GATE,) if role is not None and not node else ()
    metadata: Raw = {
        "uid": f"uid-{namespace}-{name}",
        "namespace": namespace,
        "name": name,
        "creationTimestamp": created,
    }
    if role is not None:
        metadata["annotations"] = {ROLE: role}
    if ending:
        metadata["deletionTimestamp"] = "2026-11-29T13:00:00Z"
    requests = {"cpu": cpu, "memory": memory}
    names = [{"name": f"c{number}"} for number in range(len(claims))]
    return {
        "metadata": metadata,
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": requests, "claims": names}}],
            "resourceClaims": [
                {"name": f"c{number}", "resourceClaimName": claim}
                for number, claim in enumerate(claims)
            ],
            **({"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}),
            **({"nodeName": node} if node else {}),
            **spec,
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


def without_gate(raw: Raw) -> Raw:
    """The pod, its gates removed."""
    changed = copy.deepcopy(raw)
    del changed["spec"]["schedulingGates"]
    return changed


def on_node(raw: Raw, node: str) -> Raw:
    """The pod, bound to a node."""
    changed = copy.deepcopy(raw)
    changed["spec"].pop("schedulingGates", None)
    changed["spec"]["nodeName"] = node
    return changed


def claim(
    name: str = "grpo",
    *roles: str,
    count: int = 1,
    namespace: str = "lab",
    node: str = "",
    devices: tuple[str, ...] = ("gpu-0",),
    capacity: dict[str, str] | None = None,
) -> Raw:
    """A ResourceClaim; with a node it is allocated there."""
    exactly: Raw = {"deviceClassName": "tandem-gpu", "allocationMode": "ExactCount", "count": count}
    if capacity is not None:
        exactly["capacity"] = {"requests": capacity}
    spec: Raw = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if roles:
        parameters = {
            "apiVersion": "tandem-gpu.io/v1alpha1",
            "kind": "ClaimConfig",
            "job": "grpo",
            "roles": {role: {"need": "196Mi", "residual": "8Mi"} for role in roles},
        }
        spec["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    made: Raw = {
        "metadata": {"uid": f"uid-{name}", "namespace": namespace, "name": name},
        "spec": {"devices": spec},
    }
    if node:
        made["status"] = {"allocation": allocation(node, *devices, capacity=capacity)}
    return made


def allocation(node: str, *devices: str, capacity: dict[str, str] | None = None) -> Raw:
    """An allocation of devices of a node."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    consumed = {} if capacity is None else {"consumedCapacity": capacity}
    return {
        "devices": {
            "results": [
                {"request": "gpu", "driver": DRIVER, "pool": node, "device": device, **consumed}
                for device in devices
            ]
        },
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def node(name: str, *, cpu: str = "8", memory: str = "16Gi", **spec: Any) -> Raw:
    """A node that has room for much."""
    return {
        "metadata": {
            "uid": f"uid-{name}",
            "name": name,
            "labels": {"kubernetes.io/hostname": name},
        },
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}},
    }


def slice_(node_name: str, *devices: str, generation: int = 1, **device: Any) -> Raw:
    """The node's ResourceSlice of our driver."""
    return {
        "metadata": {"uid": f"uid-{node_name}-{generation}", "name": f"{node_name}-{generation}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": name, **device} for name in devices],
        },
    }
