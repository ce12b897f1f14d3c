"""The YAML file of a local run, parsed once: strict, and with every fault reported together."""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS = {
    None: 1,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}


class ConfigError(Exception):
    """The file cannot be used. `faults`: one line each, all that were found."""

    def __init__(self, path: Path, faults: Sequence[str]) -> None:
        super().__init__("\n".join(f"{path}: {fault}" for fault in faults))
        self.faults = tuple(faults)


def quantity(value: object) -> int:
    """Bytes of a Kubernetes quantity: `384Mi`, `1.5Gi`, `2G`, `0`. Raises ValueError."""
    match = _QUANTITY.fullmatch(str(value)) if type(value) in (int, str) else None
    if match is None:
        raise ValueError(f"must be a size such as 384Mi, got {value!r}")
    number, unit = match.groups()
    size = Decimal(number) * _UNITS[unit]
    if size != int(size):
        raise ValueError(f"must be a whole number of bytes, got {value!r}")
    return int(size)


Size = Annotated[int, BeforeValidator(quantity)]
Capacity = Annotated[int, BeforeValidator(quantity), Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
# RFC 1123 labels: these names become file names here and object names in a cluster.
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TenantConfig(_Strict):
    """A tenant: `need` and `residual` are bytes on each of its devices."""

    engine: Literal["vllm"] | None = None
    listen: Port | None = None
    engine_port: Port | None = None
    devices: Annotated[Sequence[Name], Field(min_length=1)]
    need: Capacity
    residual: Size
    command: Annotated[Sequence[str], Field(min_length=1)]
    env: dict[str, str] = Field(default_factory=dict)
    restart: Literal["always", "never"]


class LocalConfig(_Strict):
    """A job on simulated devices: sizes in bytes. `weights` is the size of the claim's tmpfs."""

    job: Name
    devices: Annotated[dict[Name, Capacity], Field(min_length=1)]
    weights: Capacity
    tenants: Annotated[dict[Name, TenantConfig], Field(min_length=1)]


def load(path: Path) -> LocalConfig:
    """Read and check the file. Raises ConfigError."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)  # noqa: S506 - a SafeLoader
    except OSError as exc:
        raise ConfigError(path, [f"cannot be read: {exc.strerror}"]) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(path, ["is not UTF-8 text"]) from exc
    except yaml.YAMLError as exc:
        raise ConfigError(path, [f"is not YAML: {' '.join(str(exc).split())}"]) from exc
    if not isinstance(raw, dict):
        raise ConfigError(path, ["must be a mapping with job, devices, weights and tenants"])
    try:
        config = LocalConfig.model_validate(raw)
    except ValidationError as exc:
        faults = [_fault(error["loc"], error["type"], error["msg"]) for error in exc.errors()]
        raise ConfigError(path, faults) from exc
    if faults := list(_contradictions(config)):
        raise ConfigError(path, faults)
    return config


def _fault(loc: tuple[int | str, ...], kind: str, message: str) -> str:
    where = ".".join(str(part) for part in loc if part != "[key]")
    match kind:
        case "extra_forbidden":
            return f"{where}: unknown key"
        case "missing":
            return f"{where}: is missing"
        case "string_pattern_mismatch":
            return f"{where}: must be a name of lower-case letters, digits and inner hyphens"
        case "string_type":
            return f"{where}: must be a string (put numbers in quotes)"
        case _:
            return f"{where}: {message.removeprefix('Value error, ')}"


def _contradictions(config: LocalConfig) -> Iterator[str]:
    ports: dict[int, str] = {}
    for name, tenant in config.tenants.items():
        where = f"tenants.{name}"
        unknown = [device for device in tenant.devices if device not in config.devices]
        if unknown:
            yield f"{where}.devices: {', '.join(unknown)} not in devices"
        if len(tenant.devices) > 1:
            yield f"{where}.devices: a tenant can use one simulated device, not several"
        if tenant.residual >= tenant.need:
            yield f"{where}.residual: must be less than need ({tenant.need} bytes)"
        for key, port in (("listen", tenant.listen), ("engine_port", tenant.engine_port)):
            if tenant.engine and port is None:
                yield f"{where}.{key}: is missing (an engine needs it)"
            if not tenant.engine and port is not None:
                yield f"{where}.{key}: only for a tenant with an engine"
            if port is not None and (taken := ports.setdefault(port, f"{where}.{key}")) != (
                f"{where}.{key}"
            ):
                yield f"{where}.{key}: port {port} is taken by {taken}"
        for device in set(tenant.devices) & set(config.devices):
            others = sum(
                other.residual
                for other_name, other in config.tenants.items()
                if other_name != name and device in other.devices
            )
            if tenant.need + others > config.devices[device]:
                yield (
                    f"{where}.need: {tenant.need} bytes beside the others' residuals of {others}"
                    f" do not fit {device} ({config.devices[device]} bytes)"
                )
    if all(tenant.restart == "always" for tenant in config.tenants.values()):
        yield "tenants: at least one needs `restart: never`, or the run would not end"


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys; here the second is a fault."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
