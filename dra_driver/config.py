"""The opaque configuration of claims and of the DeviceClass: tandem-gpu.io/v1alpha1.

A claim says what its tenants need; the class says how much of it a claim may ask for. Only what
the allocation marks as FromClass is taken for the class's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from claim_phases.escalation import Rung, Step
from claim_phases.policies import Objectives, PolicyName
from dra_driver.fields import Capacity, Name, Size, Strict, fault
from dra_driver.names import CONFIG_API, DRIVER

MIB: Final = 1 << 20
HARVEST_LEAVES_S: Final = 10.0


class ConfigError(Exception):
    """The configuration cannot be used; every fault in one line, each with its path."""


class RoleConfig(Strict):
    """A tenant's footprint on each of its devices: `need` while it runs, `residual` while parked.

    Bytes. Without a `need` the tenant waits until every other one has left the device. `host`: what
    parking moves from the device into the pod's memory, where that is less than all of the rest.
    """

    need: Capacity | None = None
    residual: Size
    host: Size | None = None


Policy = Annotated[PolicyName, Field(strict=False)]
Weight = Annotated[float, Field(ge=0.001, le=1000)]
Priority = Annotated[int, Field(ge=-1000, le=1000)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]


class TurnsConfig(Strict):
    """What a claim says of its turns; `claim_phases.policies.Objectives` says what it means."""

    policy: Policy | None = None
    weight: Weight | None = None
    priority: Priority | None = None
    slowdown: Annotated[float, Field(ge=1, le=1e6)] = Objectives().slowdown


class ClassTurnsConfig(Strict):
    """What an admin says of the turns of a class's claims.

    `policy` is that of claims that choose none, `policies` what they may choose instead (`harvest`
    always), `weight` and `priority` the most that they may ask for. `leaveSeconds`: from being told
    that others wait until the turn is taken; without it only those that harvest have a bound.
    `leaseSeconds`: how long a session may be lost until the turn is taken; the driver's else.
    """

    policy: Policy = PolicyName.FIFO
    policies: Sequence[Policy] = ()
    weight: Weight = 1.0
    priority: Priority = 0
    leaveSeconds: Seconds | None = None  # noqa: N815
    leaseSeconds: Seconds | None = None  # noqa: N815


class StepConfig(Strict):
    """A step about a tenant at fault, so long after the one before (the first: the fault)."""

    step: Annotated[Step, Field(strict=False)]
    afterSeconds: Seconds  # noqa: N815


class ClaimConfig(Strict):
    """What a user says of a claim. `weights`: bytes of the tmpfs for published weights."""

    apiVersion: Literal["tandem-gpu.io/v1alpha1"]  # noqa: N815 - Kubernetes' spelling
    kind: Literal["ClaimConfig"]
    job: Name
    weights: Capacity | None = None
    turns: TurnsConfig = TurnsConfig()
    roles: Annotated[dict[Name, RoleConfig], Field(min_length=1, max_length=16)]


class ClassConfig(Strict):
    """What an admin allows: the most that a claim may ask for, in bytes.

    `escalation` is what is done about tenants that are at fault, until their memory is back. To
    evict whoever shares the device comes after keeping others from it.
    """

    apiVersion: Literal["tandem-gpu.io/v1alpha1"]  # noqa: N815
    kind: Literal["ClassConfig"]
    weights: Capacity = 1024 * MIB
    residual: Size = 1024 * MIB
    turns: ClassTurnsConfig = ClassTurnsConfig()
    escalation: Annotated[Sequence[StepConfig], Field(max_length=16)] = ()

    @field_validator("escalation")
    @classmethod
    def _spares_co_tenants_at_first(cls, given: Sequence[StepConfig]) -> Sequence[StepConfig]:
        steps = [one.step for one in given]
        if Step.TAINT_NO_EXECUTE in steps:
            before = steps[: steps.index(Step.TAINT_NO_EXECUTE)]
            if Step.TAINT_NO_SCHEDULE not in before:
                raise ValueError(
                    "taint-no-execute evicts every pod of the device: let a taint-no-schedule "
                    "come before it"
                )
        return given


@dataclass(frozen=True, slots=True)
class Role:
    """A role's footprint on each device, in bytes; None is what was not told."""

    need: int | None
    residual: int
    host: int | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was agreed on for a claim: the user's wishes within the admin's limits.

    `roles` is empty when the claim names none: any role may come then, with `residual`.
    """

    job: str
    weights: int
    residual: int
    roles: Mapping[str, Role] = field(default_factory=dict)
    objectives: Objectives = Objectives()
    ladder: tuple[Rung, ...] = ()

    def role(self, name: str) -> Role | None:
        """The role's footprint; None when the claim has no such role."""
        return self.roles.get(name) if self.roles else Role(None, self.residual)


_PARAMETERS: Final = TypeAdapter[ClaimConfig | ClassConfig](
    Annotated[ClaimConfig | ClassConfig, Field(discriminator="kind")]
)


def agreement(claim: Mapping[str, Any]) -> Agreement:
    """Read the opaque parameters of an allocated ResourceClaim (a raw dict). Raises ConfigError."""
    configs = claim["status"]["allocation"]["devices"].get("config", [])
    of_class, of_claim = ClassConfig(apiVersion=CONFIG_API, kind="ClassConfig"), None
    faults: list[str] = []
    for number, config in enumerate(configs):
        opaque = config.get("opaque")
        if opaque is None or opaque["driver"] != DRIVER:
            continue
        where = f"{config['source']} config {number}"
        parsed = _parse(opaque.get("parameters"), where, faults)
        if isinstance(parsed, ClassConfig) and config["source"] == "FromClass":
            of_class = parsed
        elif isinstance(parsed, ClaimConfig) and config["source"] == "FromClaim":
            if of_claim is not None:
                faults.append(f"{where}: a claim has one ClaimConfig, this is its second")
            of_claim = parsed
        elif parsed is not None:
            faults.append(f"{where}: a {parsed.kind} may not stand there")
    if of_claim is not None:
        faults += _beyond(of_claim, of_class)
    if faults:
        raise ConfigError("; ".join(faults))
    ladder = tuple(Rung(one.step, one.afterSeconds) for one in of_class.escalation)
    if of_claim is None:
        return Agreement(
            claim["metadata"]["name"],
            of_class.weights,
            of_class.residual,
            {},
            _objectives(TurnsConfig(), of_class.turns),
            ladder,
        )
    return Agreement(
        of_claim.job,
        of_claim.weights or of_class.weights,
        of_class.residual,
        {name: Role(role.need, role.residual, role.host) for name, role in of_claim.roles.items()},
        _objectives(of_claim.turns, of_class.turns),
        ladder,
    )


def _objectives(claim: TurnsConfig, limits: ClassTurnsConfig) -> Objectives:
    policy = claim.policy or limits.policy
    harvests = policy is PolicyName.HARVEST
    return Objectives(
        policy,
        min(1.0, limits.weight) if claim.weight is None else claim.weight,
        min(0, limits.priority) if claim.priority is None else claim.priority,
        claim.slowdown,
        limits.leaveSeconds or (HARVEST_LEAVES_S if harvests else None),
        limits.leaseSeconds,
    )


def _parse(raw: object, where: str, faults: list[str]) -> ClaimConfig | ClassConfig | None:
    try:
        return _PARAMETERS.validate_python(raw)
    except ValidationError as exc:
        told = (fault(_path(e["loc"]), e["type"], e["msg"]) for e in exc.errors())
        faults += [f"{where}: {one}" for one in told]
        return None


def _path(loc: Sequence[int | str]) -> tuple[int | str, ...]:
    """Without the union's tag, which stands first where the kind was understood."""
    return tuple(loc[1:] if loc and loc[0] in ("ClaimConfig", "ClassConfig") else loc) or ("kind",)


def _beyond(claim: ClaimConfig, limits: ClassConfig) -> list[str]:
    turns, most = claim.turns, limits.turns
    beyond = []
    allowed = {most.policy, PolicyName.HARVEST, *most.policies}
    if turns.policy is not None and turns.policy not in allowed:
        beyond.append(
            f"turns.policy: {turns.policy}, the DeviceClass allows {', '.join(sorted(allowed))}"
        )
    if turns.weight is not None and turns.weight > most.weight:
        beyond.append(f"turns.weight: {turns.weight:g}, the DeviceClass allows {most.weight:g}")
    if turns.priority is not None and turns.priority > most.priority:
        beyond.append(f"turns.priority: {turns.priority}, the DeviceClass allows {most.priority}")
    if claim.weights is not None and claim.weights > limits.weights:
        beyond.append(f"weights: {claim.weights} bytes, the DeviceClass allows {limits.weights}")
    for name, role in claim.roles.items():
        where = f"roles.{name}.residual"
        if role.residual > limits.residual:
            beyond.append(
                f"{where}: {role.residual} bytes, the DeviceClass allows {limits.residual}"
            )
        if role.need is not None and role.residual >= role.need:
            beyond.append(f"{where}: must be less than need ({role.need} bytes)")
        if role.need is not None and role.host is not None and role.host > role.need:
            beyond.append(f"roles.{name}.host: must be at most need ({role.need} bytes)")
    return beyond
