"""What programs of each version of the protocol said and heard, with the arbiter of today."""

import json
from pathlib import Path
from typing import Any

import pytest

from claim_phases.messages import PROTOCOL
from dra_driver.arbiter import served
from tests.contract import node_lab
from tests.contract.conversation import (
    RECORDED,
    SCHEMA,
    Conversation,
    Said,
    Schema,
    Step,
    schema_of_today,
)

FIRST = "0.1"
CONVERSATIONS = sorted(RECORDED.glob("*/*.jsonl"))
VERSIONS = sorted({path.parent.name for path in CONVERSATIONS})
OF_SERVED = [path for path in CONVERSATIONS if served(path.parent.name)]


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def read(path: Path) -> tuple[dict[str, Any], list[Step]]:
    """What a recorded conversation begins with, and its steps."""
    head, *steps = map(json.loads, path.read_text().splitlines())
    return head, steps


def essence(step: Step) -> Step:
    """A step without what may differ: words for people, and the version of who answers."""
    if "hears" not in step:
        return step
    heard: Said = step["hears"]
    return {
        **step,
        "hears": {
            kind: {
                key: "(words)" if key == "reason" else value
                for key, value in values.items()
                if (kind, key) != ("welcome", "protocol")
            }
            for kind, values in heard.items()
        },
    }


@pytest.mark.parametrize("path", OF_SERVED, ids=name_of)
def test_a_recorded_conversation_goes_as_it_went(path: Path) -> None:
    """Message by message, as a program of that version would read them."""
    head, steps = read(path)
    schema = Schema((path.parent / SCHEMA).read_text())
    with node_lab.node(**head["limits"]) as lab:
        lab.claim("claim", "a", "b", **head.get("claim", {}))
        played = Conversation(lab, schema, lab.arbiter()).play(steps)
        for number, (step, today) in enumerate(zip(steps, played, strict=True), start=2):
            assert essence(today) == essence(step), f"{path.name}:{number}"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_version_is_served_or_refused_in_words(version: str) -> None:
    """A version that falls out of service stays recorded: its programs are told so."""
    _, steps = read(RECORDED / version / "handover.jsonl")
    first = 1 + next(number for number, step in enumerate(steps) if "hears" in step)
    schema = Schema((RECORDED / version / SCHEMA).read_text())
    with node_lab.node() as lab:
        lab.claim("claim", "a", "b")
        *_, answer = Conversation(lab, schema, lab.arbiter()).play(steps[:first])
    refusal = f"protocol '{version}' is not served"
    assert (refusal in str(answer)) != served(version)
    assert ("welcome" in answer["hears"]) == served(version)


def minor(version: str) -> int:
    major, _, number = version.partition(".")
    assert major == PROTOCOL.partition(".")[0]
    return int(number)


def test_each_version_that_is_served_is_recorded() -> None:
    """A version that is not yet: `hack/env python -m tests.contract.record_turns`."""
    wanted = {PROTOCOL, f"0.{max(minor(FIRST), minor(PROTOCOL) - 1)}"}
    assert wanted <= set(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recordings_of_a_version_have_all_of_its_messages(version: str) -> None:
    """Each kind that its schema knows was said, or heard, at least once."""
    schema = Schema((RECORDED / version / SCHEMA).read_text())
    kinds: dict[str, set[str]] = {"says": set(), "hears": set()}
    for path in (RECORDED / version).glob("*.jsonl"):
        for step in read(path)[1]:
            for way, seen in kinds.items():
                seen |= set(step.get(way, {}))
    assert (kinds["says"], kinds["hears"]) == schema.kinds()


def test_the_messages_change_with_the_version_and_not_within_it() -> None:
    """Raise PROTOCOL; or, while this version is not finished, remove its recordings and record."""
    recorded = Schema((RECORDED / PROTOCOL / SCHEMA).read_text())
    assert recorded.fields() == Schema(schema_of_today()).fields()


@pytest.mark.parametrize("protocol", ["", "0", f"0.{minor(PROTOCOL) + 1}", "1.0", "v0.1", "x" * 90])
def test_an_unknown_version_is_refused_in_words(protocol: str) -> None:
    with node_lab.node() as lab:
        lab.claim("claim", "a")
        lab.arbiter()
        command: list[Any] = ["-m", "tests.contract.raw_peer", "hello", lab.sockets["claim"], "a"]
        peer = lab.registered("a", [*map(str, command), protocol])
        reason = peer.out.wait_for(heard="Refused")["reason"]
    assert f"protocol {protocol[:20]!r} is not served, this node speaks {PROTOCOL}" in reason
