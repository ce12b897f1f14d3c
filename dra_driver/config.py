"""The opaque configuration of claims and of the DeviceClass: tandem-gpu.io/v1alpha1.

A claim says what its tenants need; the class says how much of it a claim may ask for. Only what
the allocation marks as FromClass is taken for the class's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dra_driver.fields import Capacity, Name, Size, Strict, fault
from dra_driver.names import CONFIG_API, DRIVER

MIB: Final = 1 << 20


class ConfigError(Exception):
    """The configuration cannot be used; every fault in one line, each with its path."""


class RoleConfig(Strict):
    """A tenant's footprint on each of its devices: `need` while it runs, `residual` while parked.

    Bytes. Without a `need` the tenant waits until every other one has left the device.
    """

    need: Capacity | None = None
    residual: Size


class ClaimConfig(Strict):
    """What a user says of a claim. `weights`: bytes of the tmpfs for published weights."""

    apiVersion: Literal["tandem-gpu.io/v1alpha1"]  # noqa: N815 - Kubernetes' spelling
    kind: Literal["ClaimConfig"]
    job: Name
    weights: Capacity | None = None
    roles: Annotated[dict[Name, RoleConfig], Field(min_length=1, max_length=16)]


class ClassConfig(Strict):
    """What an admin allows: the most that a claim may ask for, in bytes."""

    apiVersion: Literal["tandem-gpu.io/v1alpha1"]  # noqa: N815
    kind: Literal["ClassConfig"]
    weights: Capacity = 1024 * MIB
    residual: Size = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Role:
    """A role's footprint on each device, in bytes; `need` is None when it was not told."""

    need: int | None
    residual: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was agreed on for a claim: the user's wishes within the admin's limits.

    `roles` is empty when the claim names none: any role may come then, with `residual`.
    """

    job: str
    weights: int
    residual: int
    roles: Mapping[str, Role] = field(default_factory=dict)

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
    if of_claim is None:
        return Agreement(claim["metadata"]["name"], of_class.weights, of_class.residual)
    return Agreement(
        of_claim.job,
        of_claim.weights or of_class.weights,
        of_class.residual,
        {name: Role(role.need, role.residual) for name, role in of_claim.roles.items()},
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
    beyond = []
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
    return beyond
