"""Messages to protobuf and back."""

from dataclasses import fields
from typing import get_args

import pytest

from claim_phases import messages, turns_pb2, wire
from claim_phases.messages import (
    Acquire,
    ArbiterMessage,
    Cancel,
    Failed,
    Freed,
    Granted,
    Hello,
    Noted,
    Quiesced,
    Refused,
    Release,
    Released,
    Restored,
    Room,
    TenantMessage,
    TurnLost,
    Wanted,
    Warned,
    Welcome,
    Yield,
)
from claim_phases.phases import Phase
from claim_phases.turns_pb2 import FromArbiter, FromTenant
from claim_phases.wire import WireError

BIG = 2**63

FROM_TENANT: list[TenantMessage] = [
    *(Hello("rollout", phase, 7, BIG, caller="pid:12") for phase in Phase),
    Hello("trainer"),
    Hello("trainer", pieces=True, ahead=True),
    Acquire(BIG, "ip:10.0.0.7"),
    Acquire(1),
    Cancel(BIG),
    Yield(7),
    Quiesced(7),
    Freed(7),
    Released(7),
    Released(7, BIG),
    Restored(7),
    Restored(7, 0),
    Restored(7, 12),
    Failed(7, "the engine answers 500"),
]
FROM_ARBITER: list[ArbiterMessage] = [
    *(Welcome(phase, 7) for phase in Phase),
    Granted(7, BIG),
    Noted(7),
    Release(7),
    Release(7, pieces=True),
    Release(7, keep=BIG),
    Room(7, BIG),
    Wanted(7),
    Refused(0, "no such claim"),
    Refused(BIG, "it would wait for itself", "trainer"),
    TurnLost(7, "its session was lost"),
    Warned("Intruder: it holds 30 MiB"),
]


@pytest.mark.parametrize("message", FROM_TENANT, ids=repr)
def test_what_a_tenant_says_arrives_as_it_was(message: TenantMessage) -> None:
    """Through bytes and back."""
    sent = wire.tenant_to_wire(message).SerializeToString()
    assert wire.tenant_from_wire(FromTenant.FromString(sent)) == message


@pytest.mark.parametrize("message", FROM_ARBITER, ids=repr)
def test_what_the_arbiter_says_arrives_as_it_was(message: ArbiterMessage) -> None:
    """Through bytes and back."""
    sent = wire.arbiter_to_wire(message).SerializeToString()
    assert wire.arbiter_from_wire(FromArbiter.FromString(sent)) == message


def test_no_message_is_left_out() -> None:
    """Each kind is tried above, and the .proto has a field for each and no more."""
    assert {type(message) for message in FROM_TENANT} == set(get_args(TenantMessage))
    assert {type(message) for message in FROM_ARBITER} == set(get_args(ArbiterMessage))
    assert len(FromTenant.DESCRIPTOR.fields) == len(get_args(TenantMessage))
    assert len(FromArbiter.DESCRIPTOR.fields) == len(get_args(ArbiterMessage))


@pytest.mark.parametrize("kind", [*get_args(TenantMessage), *get_args(ArbiterMessage)])
def test_the_fields_are_the_same_on_both_sides(kind: type) -> None:
    """A field that only one side has would be lost without a word."""
    ours = [field.name for field in fields(getattr(messages, kind.__name__))]
    theirs = turns_pb2.DESCRIPTOR.message_types_by_name[kind.__name__]
    assert sorted(ours) == sorted(field.name for field in theirs.fields)


def test_an_unknown_message_is_an_error() -> None:
    """Of a later version, say: a field that this one does not have."""
    later = b"\xfa\x01\x02\x08\x07"  # field 31, a message
    with pytest.raises(WireError, match=r"does not know: use the same Tandem version"):
        wire.tenant_from_wire(FromTenant.FromString(later))
    with pytest.raises(WireError, match=r"does not know: use the same Tandem version"):
        wire.arbiter_from_wire(FromArbiter.FromString(later))


def test_an_unknown_phase_is_an_error() -> None:
    """Named, and cut: it may be anything."""
    sent = wire.tenant_to_wire(Hello("rollout"))
    sent.hello.phase = "Dancing" * 100
    with pytest.raises(WireError, match=r"^hello names the unknown phase '(Dancing){5}Danci'$"):
        wire.tenant_from_wire(sent)


@pytest.mark.parametrize(
    "size", [wire.REASON_MAX - 1, wire.REASON_MAX, wire.REASON_MAX + 1, 50_000]
)
def test_long_texts_are_cut(size: int) -> None:
    """What a peer says in words ends in logs and in other people's errors."""
    failed = wire.tenant_from_wire(wire.tenant_to_wire(Failed(1, "ü" * size)))
    assert failed == Failed(1, "ü" * min(size, wire.REASON_MAX))
    hello = wire.tenant_from_wire(wire.tenant_to_wire(Hello("r" * size, caller="p" * size)))
    assert isinstance(hello, Hello)
    assert len(hello.role) == len(hello.caller) == min(size, wire.REASON_MAX)
