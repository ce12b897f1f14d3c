"""The YAML file of a local run, parsed once: strict, and with every fault reported together."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError

from dra_driver.fields import Capacity, Name, Size, Strict, fault


class ConfigError(Exception):
    """The file cannot be used. `faults`: one line each, all that were found."""

    def __init__(self, path: Path, faults: Sequence[str]) -> None:
        super().__init__("\n".join(f"{path}: {fault}" for fault in faults))
        self.faults = tuple(faults)


Port = Annotated[int, Field(ge=1, le=65535)]


class TenantConfig(Strict):
    """A tenant: `need`, `residual` and `engine_weights` are bytes on each of its devices."""

    engine: Literal["vllm"] | None = None
    listen: Port | None = None
    engine_port: Port | None = None
    engine_weights: Capacity | None = None
    devices: Annotated[Sequence[Name], Field(min_length=1)]
    need: Capacity
    residual: Size
    command: Annotated[Sequence[str], Field(min_length=1)]
    env: dict[str, str] = Field(default_factory=dict)
    restart: Literal["always", "never"]


class LocalConfig(Strict):
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
        faults = [fault(error["loc"], error["type"], error["msg"]) for error in exc.errors()]
        raise ConfigError(path, faults) from exc
    if faults := list(_contradictions(config)):
        raise ConfigError(path, faults)
    return config


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
        if not tenant.engine and tenant.engine_weights is not None:
            yield f"{where}.engine_weights: only for a tenant with an engine"
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
