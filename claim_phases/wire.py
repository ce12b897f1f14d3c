"""Messages to and from protobuf. The names of fields are the same on both sides."""

import re
from dataclasses import fields
from typing import Any, TypeVar, get_args

from claim_phases import messages, turns_pb2
from claim_phases.messages import ArbiterMessage, TenantMessage
from claim_phases.phases import Phase

REASON_MAX = 1000
"""Longest text that is taken over from a peer, in characters; what is longer is cut."""

_M = TypeVar("_M")


class WireError(Exception):
    """A message that this version of the protocol does not know."""


def _field_of(message: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", message.__name__).lower()


_TENANT: dict[str, type[TenantMessage]] = {_field_of(cls): cls for cls in get_args(TenantMessage)}
_ARBITER: dict[str, type[ArbiterMessage]] = {
    _field_of(cls): cls for cls in get_args(ArbiterMessage)
}


def tenant_to_wire(message: TenantMessage) -> turns_pb2.FromTenant:
    """Encode what a tenant says."""
    return turns_pb2.FromTenant(**_encode(message))


def arbiter_to_wire(message: ArbiterMessage) -> turns_pb2.FromArbiter:
    """Encode what the arbiter says."""
    return turns_pb2.FromArbiter(**_encode(message))


def tenant_from_wire(wire: turns_pb2.FromTenant) -> TenantMessage:
    """Decode what a tenant says; WireError when it is nothing known."""
    return _decode(wire, _TENANT)


def arbiter_from_wire(wire: turns_pb2.FromArbiter) -> ArbiterMessage:
    """Decode what the arbiter says; WireError when it is nothing known."""
    return _decode(wire, _ARBITER)


def _encode(message: object) -> dict[str, Any]:
    values = {f.name: getattr(message, f.name) for f in fields(message)}  # type: ignore[arg-type]
    inner = getattr(turns_pb2, type(message).__name__)
    return {_field_of(type(message)): inner(**{k: v for k, v in values.items() if v is not None})}


def _decode(wire: Any, known: dict[str, type[_M]]) -> _M:
    name = wire.WhichOneof("message")
    if name is None:
        raise WireError(
            f"a message that protocol {messages.PROTOCOL} does not know: use the same Tandem "
            f"version on both sides"
        )
    inner, cls = getattr(wire, name), known[name]
    values: dict[str, Any] = {}
    for f in fields(cls):  # type: ignore[arg-type]
        value = getattr(inner, f.name)
        if f.name == "phase":
            try:
                value = Phase(value)
            except ValueError:
                raise WireError(f"{name} names the unknown phase {value[:40]!r}") from None
        elif f.name in ("weights", "next_s") and not inner.HasField(f.name):
            value = None
        elif isinstance(value, str):
            value = value[:REASON_MAX]
        values[f.name] = value
    return cls(**values)
