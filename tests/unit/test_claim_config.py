"""The opaque configuration of a claim: refused whole, with every fault named."""

from typing import Any

import pytest

from claim_phases.escalation import Rung, Step
from claim_phases.policies import Objectives, PolicyName
from dra_driver.config import Agreement, ConfigError, Role, agreement

MIB = 1 << 20
API = {"apiVersion": "tandem-gpu.io/v1alpha1"}
GOOD = {
    **API,
    "kind": "ClaimConfig",
    "job": "grpo",
    "weights": "160Mi",
    "roles": {"rollout": {"need": "196Mi", "residual": "8Mi"}, "trainer": {"residual": 0}},
}
CLASS = {**API, "kind": "ClassConfig", "weights": "1Gi", "residual": "64Mi"}


def opaque(source: str, parameters: object, driver: str = "tandem-gpu.io") -> dict[str, Any]:
    return {"source": source, "opaque": {"driver": driver, "parameters": parameters}}


def claim(*configs: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": "grpo-gpu"},
        "status": {"allocation": {"devices": {"results": [], "config": list(configs)}}},
    }


def faults(*configs: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        agreement(claim(*configs))
    told = str(refused.value)
    assert "\n" not in told
    return told


def test_what_a_claim_says_within_what_the_class_allows() -> None:
    agreed = agreement(claim(opaque("FromClass", CLASS), opaque("FromClaim", GOOD)))
    roles = {"rollout": Role(196 * MIB, 8 * MIB), "trainer": Role(None, 0)}
    assert agreed == Agreement("grpo", 160 * MIB, 64 * MIB, roles)
    assert agreed.role("rollout") == roles["rollout"]
    assert agreed.role("evaluator") is None


def test_a_role_may_say_what_parking_moves_to_the_host() -> None:
    roles = {"trainer": {"need": "204Mi", "residual": "8Mi", "host": "186Mi"}}
    agreed = agreement(claim(opaque("FromClaim", GOOD | {"roles": roles})))
    assert agreed.role("trainer") == Role(204 * MIB, 8 * MIB, 186 * MIB)
    roles["trainer"]["host"] = "205Mi"
    told = faults(opaque("FromClaim", GOOD | {"roles": roles}))
    assert told == f"roles.trainer.host: must be at most need ({204 * MIB} bytes)"


def test_a_claim_that_says_nothing_takes_what_the_class_allows() -> None:
    agreed = agreement(claim(opaque("FromClass", CLASS)))
    assert agreed == Agreement("grpo-gpu", 1024 * MIB, 64 * MIB)
    assert agreed.role("whatever") == Role(None, 64 * MIB)


def turns(of_claim: dict[str, Any], of_class: dict[str, Any]) -> Objectives:
    configs = (
        opaque("FromClass", CLASS | {"turns": of_class}),
        opaque("FromClaim", GOOD | {"turns": of_claim}),
    )
    return agreement(claim(*configs)).objectives


def test_the_class_chooses_the_policy_and_a_claim_another_where_it_may() -> None:
    fair = {"policy": "fair", "weight": 2.0, "leaveSeconds": 30.0}
    assert turns({}, {}) == Objectives()
    assert turns({}, fair) == Objectives(PolicyName.FAIR, leave_s=30.0)
    assert turns({"weight": 1.5}, fair).weight == 1.5
    assert turns({}, {"leaseSeconds": 60.0}) == Objectives(lease_s=60.0)
    assert turns({"policy": "harvest"}, {}) == Objectives(PolicyName.HARVEST, leave_s=10.0)
    allowed = {"policies": ["slowdown"], "priority": -1}
    chosen = turns({"policy": "slowdown", "slowdown": 1.5}, allowed)
    assert chosen == Objectives(PolicyName.SLOWDOWN, priority=-1, slowdown=1.5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"policy": "fair"}, "turns.policy: fair, the DeviceClass allows fifo, harvest"),
        ({"policy": "fastest"}, "turns.policy: Input should be 'fifo', "),
        ({"weight": 1.5}, "turns.weight: 1.5, the DeviceClass allows 1"),
        ({"weight": 5e-324}, "turns.weight: Input should be greater than or equal to 0.001"),
        ({"weight": float("nan")}, "turns.weight: Input should be "),
        ({"priority": 10**400}, "turns.priority: Input should be "),
        ({"priority": 1}, "turns.priority: 1, the DeviceClass allows 0"),
        ({"slowdown": 0.9}, "turns.slowdown: "),
        ({"leaveSeconds": 1}, "turns.leaveSeconds: unknown key"),
        ({"leaseSeconds": 1}, "turns.leaseSeconds: unknown key"),
    ],
)
def test_a_claims_turns_stay_within_what_the_class_allows(
    change: dict[str, Any], told: str
) -> None:
    assert told in faults(opaque("FromClass", CLASS), opaque("FromClaim", GOOD | {"turns": change}))


def escalation(*steps: str) -> dict[str, Any]:
    return opaque(
        "FromClass",
        CLASS | {"escalation": [{"step": step, "afterSeconds": 5} for step in steps]},
    )


def test_the_class_says_what_is_done_about_tenants_at_fault() -> None:
    steps = ("ask", "checkpoint", "evict", "kill", "taint-no-schedule", "taint-no-execute")
    assert agreement(claim(escalation(*steps))).ladder == tuple(Rung(step, 5.0) for step in Step)


@pytest.mark.parametrize(
    "steps", [("taint-no-execute",), ("taint-no-execute", "taint-no-schedule")]
)
def test_a_device_s_other_pods_are_not_evicted_first(steps: tuple[str, ...]) -> None:
    told = "escalation: taint-no-execute evicts every pod of the device: let a taint-no-schedule "
    assert told in faults(escalation(*steps))


def test_other_drivers_parameters_are_their_own() -> None:
    agreed = agreement(claim(opaque("FromClaim", {"kind": "GpuConfig"}, "gpu.example.com")))
    assert agreed.roles == {}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"job": "größe"}, "job: must be a name of lower-case letters"),
        ({"jobs": "x"}, "jobs: unknown key"),
        ({"weights": 1.5}, "weights: must be a size such as 384Mi, got 1.5"),
        ({"weights": "2Gi"}, "weights: 2147483648 bytes, the DeviceClass allows 1073741824"),
        ({"roles": {}}, "roles: "),
        ({"roles": {"rollout": {}}}, "roles.rollout.residual: is missing"),
        ({"roles": {"rollout": {"residual": "65Mi"}}}, "roles.rollout.residual: 68157440 bytes"),
        ({"roles": {"rollout": {"residual": 8, "need": 8}}}, "must be less than need (8 bytes)"),
        ({"kind": "ClaimConfg"}, "kind"),
        ({"apiVersion": "tandem-gpu.io/v2"}, "apiVersion"),
    ],
)
def test_a_fault_is_named_by_its_path(change: dict[str, Any], told: str) -> None:
    assert told in faults(opaque("FromClass", CLASS), opaque("FromClaim", GOOD | change))


def test_every_fault_is_told_at_once() -> None:
    told = faults(opaque("FromClaim", GOOD | {"job": 3, "weights": "x", "more": 1}))
    assert all(word in told for word in ("job", "weights", "more"))


def test_limits_are_the_classes_word_alone() -> None:
    assert "may not stand there" in faults(opaque("FromClaim", CLASS | {"weights": "9Gi"}))
    assert "may not stand there" in faults(opaque("FromClass", GOOD))
    assert "its second" in faults(opaque("FromClaim", GOOD), opaque("FromClaim", GOOD))


@pytest.mark.parametrize("raw", [None, [], "ClaimConfig", 7, {}])
def test_what_is_no_configuration_is_refused(raw: object) -> None:
    faults(opaque("FromClaim", raw))
