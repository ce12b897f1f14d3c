"""Records conversations in this version of the protocol, for those that come after it:

    hack/env python -m tests.contract.record_turns

writes tests/recorded/turns/<version>/. Run it when a version is finished, and commit what it wrote;
a recorded version is never written anew, since programs that speak it are out there.
"""

import json
from dataclasses import dataclass
from typing import Any

from claim_phases.messages import (
    PROTOCOL,
    Acquire,
    Cancel,
    Failed,
    Freed,
    Hello,
    Quiesced,
    Released,
    Restored,
    TenantMessage,
    Yield,
)
from claim_phases.phases import Phase
from claim_phases.wire import tenant_to_wire
from tests.contract import conversation, node_lab
from tests.contract.conversation import HELD, RECORDED, SCHEMA, Conversation, Schema, Step


def says(tenant: str, *messages: TenantMessage) -> list[Step]:
    """It says these."""
    return [{"tenant": tenant, "says": conversation.said(tenant_to_wire(m))} for m in messages]


def hears(tenant: str, number: int = 1) -> list[Step]:
    """It hears so many messages."""
    return [{"tenant": tenant, "hears": None}] * number


def does(tenant: str, deed: str) -> list[Step]:
    """It opens or breaks its session, takes or frees memory."""
    return [{"tenant": tenant, "does": deed}]


def comes(tenant: str) -> list[Step]:
    """Its first hello."""
    return [*does(tenant, "open"), *says(tenant, Hello(tenant)), *hears(tenant)]


def runs(tenant: str, request: int, epoch: int) -> list[Step]:
    """From the acquire to Running."""
    return [*says(tenant, Acquire(request)), *hears(tenant), *says(tenant, Restored(epoch))]


def leaves(tenant: str, epoch: int) -> list[Step]:
    """It yields to somebody who waits, and parks."""
    return [
        *says(tenant, Yield(epoch)),
        *hears(tenant),
        *says(tenant, Quiesced(epoch), Released(epoch)),
    ]


def quiet(*tenants: str) -> list[Step]:
    """Nothing else was said to them: the answer to a word of an epoch that never was comes next."""
    return [step for tenant in tenants for step in [*says(tenant, Yield(99)), *hears(tenant)]]


@dataclass(frozen=True)
class Scenario:
    about: str
    steps: list[Step]
    limits: dict[str, float]
    claim: dict[str, Any]


def scenario(
    about: str, *parts: list[Step], claim: dict[str, Any] | None = None, **limits: float
) -> Scenario:
    """The parts one after the other; `claim` is what the tenants' claim says."""
    return Scenario(about, [step for part in parts for step in part], limits, claim or {})


RESTART: list[Step] = [{"arbiter": "restart"}]

SCENARIOS = {
    "handover": scenario(
        "A turn passes from a to b and back.",
        *(comes("a"), comes("b"), runs("a", 1, 1)),
        *(says("b", Acquire(1)), hears("a"), leaves("a", 1), hears("b"), says("b", Restored(2, 7))),
        *(says("a", Acquire(2)), hears("b"), leaves("b", 2), hears("a"), says("a", Restored(3))),
        quiet("a", "b"),
    ),
    "resident": scenario(
        "A yield parks nothing; what is said twice, or late, is answered and changes nothing.",
        *(comes("a"), runs("a", 1, 1), says("a", Yield(1)), hears("a")),
        *(says("a", Yield(1)), hears("a"), says("a", Acquire(2)), hears("a")),
        *(says("a", Acquire(2), Yield(1)), hears("a"), says("a", Released(1)), quiet("a")),
    ),
    "comes_again_soon": scenario(
        "a says with its yield when it will want the turn next.",
        *(comes("a"), runs("a", 1, 1), says("a", Yield(1, next_s=2.5)), hears("a")),
        *(says("a", Acquire(2)), hears("a"), quiet("a")),
    ),
    "restores_ahead": scenario(
        "b restores into what is free while a parks, before its turn.",
        *(comes("a"), does("b", "open"), says("b", Hello("b", pieces=True)), hears("b")),
        *(runs("a", 1, 1), does("a", "hold"), says("b", Acquire(1)), hears("a")),
        *(says("a", Yield(1)), hears("a"), says("a", Quiesced(1)), hears("b")),
        *(does("a", "free"), says("a", Freed(1)), hears("b")),
        *(says("a", Released(1)), hears("b"), says("b", Restored(3)), quiet("a", "b")),
    ),
    "keeps_some": scenario(
        "b parks what a needs, and keeps the rest, also over a session that breaks.",
        *(comes("a"), does("b", "open"), says("b", Hello("b", pieces=True)), hears("b")),
        *(runs("b", 1, 1), does("b", "hold"), says("a", Acquire(1)), hears("b")),
        *(says("b", Yield(1)), hears("b"), says("b", Quiesced(1), Released(1, HELD)), hears("a")),
        *(says("a", Restored(2)), does("b", "break"), does("b", "open")),
        *(says("b", Hello("b", epoch=1, pieces=True, ahead=True)), hears("b")),
        *(does("b", "break"), does("b", "free"), does("b", "open")),
        *(says("b", Hello("b", epoch=1, pieces=True)), hears("b"), quiet("a", "b")),
        claim={"need": 10 << 20},
    ),
    "given_up": scenario(
        "b waits no longer, so a stays resident.",
        *(comes("a"), comes("b"), runs("a", 1, 1), says("b", Acquire(1)), hears("a")),
        *(says("b", Cancel(1)), quiet("b"), says("a", Yield(1)), hears("a"), quiet("a", "b")),
    ),
    "comes_back": scenario(
        "Sessions break, the arbiter is killed: the turn and the place in the queue stay.",
        *(comes("a"), comes("b"), runs("a", 1, 1), says("b", Acquire(1)), hears("a")),
        *(does("a", "break"), does("a", "open")),
        *(says("a", Hello("a", Phase.RUNNING, 1)), hears("a", 2)),
        *(does("a", "break"), does("b", "break"), RESTART, does("b", "open")),
        *(says("b", Hello("b", Phase.WAITING, request=1)), hears("b"), does("a", "open")),
        *(says("a", Hello("a", Phase.RUNNING, 1)), hears("a", 2)),
        *(leaves("a", 1), hears("b"), says("b", Restored(2)), quiet("a", "b")),
    ),
    "yields_meanwhile": scenario(
        "a yields into a session that broke; its hello makes up for that.",
        *(comes("a"), comes("b"), runs("a", 1, 1), says("b", Acquire(1)), hears("a")),
        *(does("a", "break"), does("a", "open")),
        *(says("a", Hello("a", Phase.YIELDED, 1)), hears("a", 2)),
        *(says("a", Quiesced(1), Released(1)), hears("b"), quiet("a")),
    ),
    "restore_fails": scenario(
        "a cannot restore: it is told to release what there is, and asks again.",
        *(
            comes("a"),
            says("a", Acquire(1)),
            hears("a"),
            says("a", Failed(1, "no room")),
            hears("a"),
        ),
        *(says("a", Quiesced(1), Released(1)), runs("a", 2, 2), quiet("a")),
    ),
    "park_fails": scenario(
        "a cannot park: b is refused with the reason, and served when a has parked after all.",
        *(comes("a"), comes("b"), runs("a", 1, 1), says("b", Acquire(1)), hears("a")),
        *(says("a", Yield(1)), hears("a"), says("a", Failed(1, "requests in flight")), hears("b")),
        *(says("b", Acquire(2)), says("a", Released(1)), hears("b"), quiet("a")),
        blocked_s=0.2,
    ),
    "waits_for_itself": scenario(
        "b asks on behalf of a, which holds the turn.",
        *(comes("a"), comes("b"), runs("a", 1, 1), quiet("a")),
        *(says("b", Acquire(1, "pid:{a}")), hears("b"), quiet("a", "b")),
    ),
    "turn_lost": scenario(
        "a is away for longer than its lease, and learns that its turn was taken.",
        *(comes("a"), runs("a", 1, 1), quiet("a"), does("a", "break")),
        [{"until": {"kind": "phase", "tenant": "a", "to": "Faulted"}}],
        *(does("a", "open"), says("a", Hello("a", Phase.RUNNING, 1)), hears("a", 3)),
        *(says("a", Restored(1)), hears("a"), says("a", Quiesced(1), Released(1))),
        *(runs("a", 2, 2), quiet("a")),
        lease_s=0.2,
    ),
    "intruder": scenario(
        "a takes memory without a turn, is warned, and is served when it has left.",
        *(comes("a"), comes("b"), does("a", "hold"), hears("a"), does("a", "free")),
        [{"until": {"kind": "phase", "tenant": "a", "to": "Parked"}}],
        *(runs("a", 1, 1), quiet("a", "b")),
        watch_s=0.2,
    ),
    "speaks_of_another_node": scenario(
        "a's epoch is none of this node's: its session is refused.",
        *(does("a", "open"), says("a", Hello("a", Phase.RUNNING, 7)), hears("a")),
    ),
}


def record(what: Scenario, schema: Schema) -> list[dict[str, Any]]:
    """Play it with the arbiter of today."""
    head: dict[str, Any] = {"about": what.about, "limits": what.limits}
    if what.claim:
        head["claim"] = what.claim
    with node_lab.node(**what.limits) as lab:
        lab.claim("claim", "a", "b", **what.claim)
        talk = Conversation(lab, schema, lab.arbiter())
        return [head, *talk.play(what.steps)]


def main() -> None:
    folder = RECORDED / PROTOCOL
    if (folder / SCHEMA).exists():
        raise SystemExit(f"{folder} is there: a recorded version stays as it was")
    folder.mkdir(parents=True, exist_ok=True)  # one that was broken off has no schema
    text = conversation.schema_of_today()
    for name, what in SCENARIOS.items():
        lines = record(what, Schema(text))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        print(f"{folder.name}/{name}: {len(lines) - 1} steps")
    (folder / SCHEMA).write_text(text)


if __name__ == "__main__":
    main()
