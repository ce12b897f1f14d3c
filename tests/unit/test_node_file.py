"""The node file: what is read from it, and that every fault is reported together."""

import json
from pathlib import Path
from typing import Any

import pytest

from claim_phases.policies import Objectives, PolicyName
from claim_phases.turns import Limits
from dra_driver.node_file import ClaimSpec, NodeFileError, NodeSpec, TenantSpec, load

GOOD: dict[str, Any] = {
    "state_dir": "/run/tandem/state",
    "events": "/run/tandem/events.jsonl",
    "processes": "/run/tandem/processes.json",
    "devices": {"gpu0": {"simulated": "/run/tandem/gpu0"}},
    "claims": {
        "grpo": {
            "socket_dir": "/run/tandem/grpo",
            "tenants": {
                "rollout": {"devices": ["gpu0"], "need": 300, "residual": 24},
                "trainer": {
                    "devices": ["gpu0"],
                    "need": None,
                    "residual": 8,
                    "turns": {"policy": "priority", "priority": -2},
                },
            },
        }
    },
    "limits": {"lease_s": 3, "verify_s": 0.5},
}


def faults(tmp_path: Path, raw: Any) -> list[str]:
    """Each fault, without the file's name in front."""
    path = tmp_path / "node.json"
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    with pytest.raises(NodeFileError) as raised:
        load(path)
    lines = str(raised.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return [line.removeprefix(f"{path}: ") for line in lines]


def test_a_node_file(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(GOOD))
    assert load(path) == NodeSpec(
        state_dir=Path("/run/tandem/state"),
        events=Path("/run/tandem/events.jsonl"),
        processes=Path("/run/tandem/processes.json"),
        devices={"gpu0": Path("/run/tandem/gpu0")},
        claims={
            "grpo": ClaimSpec(
                Path("/run/tandem/grpo"),
                {
                    "rollout": TenantSpec(("gpu0",), need=300, residual=24),
                    "trainer": TenantSpec(
                        ("gpu0",), None, 8, Objectives(PolicyName.PRIORITY, priority=-2)
                    ),
                },
            )
        },
        limits=Limits(lease_s=3.0, verify_s=0.5),
    )


def test_every_fault_is_reported_together(tmp_path: Path) -> None:
    tenant = {"devices": ["gpu1"], "need": -1, "residual": "8", "prioritty": 3}
    turns = {"policy": "first", "weight": 0, "priority": "high", "leave_s": True, "wait": 1}
    raw = {
        "state_dir": "state",
        "devices": {"gpu0": {"simulated": 5, "real": True}},
        "claims": {
            "grpo": {
                "socket_dir": f"/{'x' * 92}",
                "tenants": {"a": tenant, "b": {"devices": [], "turns": turns}},
            },
            "other": {"socket_dir": "/run/o", "tenants": {"a": GOOD["claims"]["grpo"], "c": 7}},
        },
        "processes": "/run/processes",
        "limits": {"lease_s": -1, "verify_s": "soon", "park_s": True, "stamina_s": 3},
        "events": None,
    }
    long = f"93 bytes are too long for a socket in it, the kernel takes {92}: choose a shorter one"
    assert set(faults(tmp_path, raw)) == {
        "events: is missing",
        "state_dir: must be an absolute path, got 'state'",
        "devices.gpu0.real: is not known",
        "devices.gpu0.simulated: must be an absolute path, got 5",
        f"claims.grpo.socket_dir: {long}",
        "claims.grpo.tenants.a.prioritty: is not known",
        "claims.grpo.tenants.a.devices: there is no device gpu1",
        "claims.grpo.tenants.a.need: must be bytes, got -1",
        "claims.grpo.tenants.a.residual: must be bytes, got '8'",
        "claims.grpo.tenants.b.residual: is missing",
        "claims.grpo.tenants.b.turns.policy: 'first' is not a valid PolicyName",
        "claims.grpo.tenants.b.turns.weight: must be > 0 and < 1e6, got 0",
        "claims.grpo.tenants.b.turns.priority: must be a number, got 'high'",
        "claims.grpo.tenants.b.turns.leave_s: must be a number, got True",
        "claims.grpo.tenants.b.turns.wait: is not known",
        "claims.grpo.tenants.b.devices: must name at least one device, got []",
        "claims.other.tenants.a: claim grpo has a tenant of this name: give each its own",
        "claims.other.tenants.a.devices: is missing",
        "claims.other.tenants.a.residual: is missing",
        "claims.other.tenants.a.socket_dir: is not known",
        "claims.other.tenants.a.tenants: is not known",
        "claims.other.tenants.c: must be an object, got 7",
        "limits.lease_s: must be > 0, got -1",
        "limits.verify_s: must be seconds, got 'soon'",
        "limits.park_s: must be seconds, got True",
        "limits.stamina_s: is not known",
    }


@pytest.mark.parametrize("raw", ["[]", '"x"', "7", "null"])
def test_a_file_that_is_no_object(tmp_path: Path, raw: str) -> None:
    assert faults(tmp_path, raw) == [f"must hold an object, got {json.loads(raw)!r}"]


def test_a_device_named_twice(tmp_path: Path) -> None:
    tenant = {"devices": ["gpu0", "gpu0"], "residual": 0}
    raw = {**GOOD, "claims": {"c": {"socket_dir": "/run/c", "tenants": {"a": tenant}}}}
    assert faults(tmp_path, raw) == ["claims.c.tenants.a.devices: names a device twice"]


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "{")
    assert fault.startswith("Expecting property name")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NodeFileError, match="No such file"):
        load(tmp_path / "node.json")
