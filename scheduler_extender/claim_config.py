"""Which roles a claim's configuration names. The node's driver judges the rest of it."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scheduler_extender.names import DRIVER

# An RFC 1123 label.
Label = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class ConfigError(Exception):
    """The configuration cannot be used; every fault in one line, each with its path."""


class _ClaimConfig(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    api_version: Literal["tandem-gpu.io/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["ClaimConfig"]
    roles: Annotated[dict[Label, Any], Field(min_length=1)]


def roles(configs: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The roles of a claim's one ClaimConfig; none when it has no such thing. Raises ConfigError.

    `configs` is the claim's `spec.devices.config`.
    """
    found: frozenset[str] | None = None
    for number, config in enumerate(configs):
        opaque = config.get("opaque") or {}
        if opaque.get("driver") != DRIVER:
            continue
        where = f"spec.devices.config[{number}].opaque.parameters"
        if found is not None:
            raise ConfigError(f"{where}: a claim has one ClaimConfig, this is its second")
        found = frozenset(_parse(opaque.get("parameters"), where).roles)
    return found or frozenset()


def _parse(parameters: object, where: str) -> _ClaimConfig:
    try:
        return _ClaimConfig.model_validate(parameters)
    except ValidationError as exc:
        faults = (_fault(error["loc"], error["type"], error["msg"]) for error in exc.errors())
        raise ConfigError("; ".join(f"{where}{fault}" for fault in faults)) from exc


def _fault(loc: tuple[int | str, ...], kind: str, message: str) -> str:
    path = "".join(f".{part}" for part in loc if part != "[key]")
    match kind:
        case "missing":
            return f"{path}: is missing"
        case "string_pattern_mismatch":
            return f"{path}: must be a name of lower-case letters, digits and inner hyphens"
        case _:
            return f"{path}: {message}"
