"""The node file: devices, claims and limits of a node whose tenants somebody else starts."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from claim_phases.escalation import Rung, Step
from claim_phases.policies import Objectives, PolicyName
from claim_phases.turns import Limits

_SOCKET_DIR_MAX = 107 - len("/inner/01234567")
"""Bytes: sockaddr_un holds 108 with the closing zero, and that is the longest name in it."""


_NUMBER_MAX = 1_000_000


class NodeFileError(Exception):
    """The node file is not what it should be: every fault, one a line."""


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant as the claim's configuration describes it. Bytes on each device."""

    devices: tuple[str, ...]
    need: int | None
    residual: int
    objectives: Objectives = Objectives()
    ladder: tuple[Rung, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A claim: where its socket is, and who takes turns through it."""

    socket_dir: Path
    tenants: dict[str, TenantSpec]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """All that an arbiter needs to be told. `devices` are the directories of simulated devices."""

    state_dir: Path
    events: Path
    processes: Path
    devices: dict[str, Path]
    claims: dict[str, ClaimSpec]
    limits: Limits


def load(path: Path) -> NodeSpec:
    """Read a node file; NodeFileError names every fault."""
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise NodeFileError(f"{path}: {exc}") from exc
    if not isinstance(raw, dict):
        raise NodeFileError(f"{path}: must hold an object, got {raw!r}")
    reader = _Reader()
    spec = _node(reader, raw)
    if reader.faults:
        raise NodeFileError("\n".join(f"{path}: {fault}" for fault in reader.faults))
    return spec


class _Reader:
    """Takes values out of parsed JSON. What is wrong is noted, and something harmless returned."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def object(
        self, raw: Any, where: str, keys: set[str], optional: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """An object with these keys and no others; what is missing, or null, is None."""
        known = dict(self.entries(raw, where))
        given = {key for key, value in known.items() if value is not None}
        inside = f"{where}." if where else ""
        if isinstance(raw, dict):
            self.faults += [f"{inside}{k}: is missing" for k in sorted(keys - given - optional)]
        self.faults += [f"{inside}{key}: is not known" for key in sorted(known.keys() - keys)]
        return {key: known.get(key) for key in keys}

    def entries(self, raw: Any, where: str) -> Iterator[tuple[str, Any]]:
        """The entries of an object whose keys are names."""
        if isinstance(raw, dict):
            yield from raw.items()
        elif raw is not None:
            self.faults.append(f"{where}: must be an object, got {raw!r}")

    def path(self, raw: Any, where: str) -> Path:
        if isinstance(raw, str) and raw.startswith("/"):
            return Path(raw)
        if raw is not None:
            self.faults.append(f"{where}: must be an absolute path, got {raw!r}")
        return Path("/")

    def socket_dir(self, raw: Any, where: str) -> Path:
        path = self.path(raw, where)
        if len(bytes(path)) > _SOCKET_DIR_MAX:
            self.faults.append(
                f"{where}: {len(bytes(path))} bytes are too long for a socket in it, the kernel "
                f"takes {_SOCKET_DIR_MAX}: choose a shorter one"
            )
        return path

    def size(self, raw: Any, where: str) -> int:
        if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
            return raw
        if raw is not None:
            self.faults.append(f"{where}: must be bytes, got {raw!r}")
        return 0


def _node(reader: _Reader, raw: Any) -> NodeSpec:
    keys = {"state_dir", "events", "processes", "devices", "claims", "limits"}
    node = reader.object(raw, "", keys)
    devices = {
        name: reader.path(
            reader.object(device, f"devices.{name}", {"simulated"})["simulated"],
            f"devices.{name}.simulated",
        )
        for name, device in reader.entries(node["devices"], "devices")
    }
    claims = {
        name: _claim(reader, claim, f"claims.{name}", devices)
        for name, claim in reader.entries(node["claims"], "claims")
    }
    first_with: dict[str, str] = {}
    for name, claim in claims.items():
        for tenant in claim.tenants:
            if tenant in first_with:
                reader.faults.append(
                    f"claims.{name}.tenants.{tenant}: claim {first_with[tenant]} has a tenant of "
                    f"this name: give each its own"
                )
            first_with.setdefault(tenant, name)
    return NodeSpec(
        state_dir=reader.socket_dir(node["state_dir"], "state_dir"),
        events=reader.path(node["events"], "events"),
        processes=reader.path(node["processes"], "processes"),
        devices=devices,
        claims=claims,
        limits=_limits(reader, node["limits"]),
    )


def _claim(reader: _Reader, raw: Any, where: str, devices: dict[str, Path]) -> ClaimSpec:
    claim = reader.object(raw, where, {"socket_dir", "tenants"})
    return ClaimSpec(
        reader.socket_dir(claim["socket_dir"], f"{where}.socket_dir"),
        {
            name: _tenant(reader, tenant, f"{where}.tenants.{name}", devices)
            for name, tenant in reader.entries(claim["tenants"], f"{where}.tenants")
        },
    )


def _tenant(reader: _Reader, raw: Any, where: str, devices: dict[str, Path]) -> TenantSpec:
    keys = {"devices", "need", "residual", "turns", "escalation"}
    tenant = reader.object(raw, where, keys, optional=frozenset({"need", "turns", "escalation"}))
    names = tenant["devices"]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        if names is not None:
            reader.faults.append(f"{where}.devices: must name at least one device, got {names!r}")
        names = []
    for name in names:
        if name not in devices:
            reader.faults.append(f"{where}.devices: there is no device {name}")
    if len(set(names)) < len(names):
        reader.faults.append(f"{where}.devices: names a device twice")
    need = tenant["need"]
    return TenantSpec(
        devices=tuple(names),
        need=None if need is None else reader.size(need, f"{where}.need"),
        residual=reader.size(tenant["residual"], f"{where}.residual"),
        objectives=_objectives(reader, tenant["turns"] or {}, f"{where}.turns"),
        ladder=_ladder(reader, tenant["escalation"] or [], f"{where}.escalation"),
    )


def _objectives(reader: _Reader, raw: Any, where: str) -> Objectives:
    keys = {field.name for field in fields(Objectives)}
    given = reader.object(raw, where, keys, optional=frozenset(keys))
    found = {key: value for key, value in given.items() if value is not None}
    try:
        found["policy"] = PolicyName(found.get("policy", PolicyName.FIFO))
    except ValueError as exc:
        reader.faults.append(f"{where}.policy: {exc}")
    for key in found.keys() - {"policy"}:
        number = found[key]
        least = -_NUMBER_MAX if key == "priority" else 0
        if isinstance(number, bool) or not isinstance(number, int | float):
            reader.faults.append(f"{where}.{key}: must be a number, got {number!r}")
        elif not least < number < _NUMBER_MAX:
            reader.faults.append(f"{where}.{key}: must be > 0 and < 1e6, got {number!r}")
    return Objectives(**found)


def _ladder(reader: _Reader, raw: Any, where: str) -> tuple[Rung, ...]:
    try:
        ladder = tuple(Rung(Step(one["step"]), float(one["after_s"])) for one in raw)
        if not all(0 < rung.after_s < _NUMBER_MAX for rung in ladder):
            raise ValueError("after_s must be > 0 and < 1e6")
    except (KeyError, OverflowError, TypeError, ValueError) as exc:
        reader.faults.append(f"{where}: must be a list of step and after_s ({exc!r})")
        return ()
    return ladder


def _limits(reader: _Reader, raw: Any) -> Limits:
    known = {field.name for field in fields(Limits)}
    given = {}
    for key, value in reader.entries(raw, "limits"):
        if key not in known:
            reader.faults.append(f"limits.{key}: is not known")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            reader.faults.append(f"limits.{key}: must be seconds, got {value!r}")
        elif not 0 < value < math.inf:
            reader.faults.append(f"limits.{key}: must be > 0, got {value!r}")
        else:
            given[key] = float(value)
    return Limits(**given)
