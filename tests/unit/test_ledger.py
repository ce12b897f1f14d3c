"""Promises: how they begin, and everything that ends them."""

from typing import Any

import pytest

from scheduler_extender import objects
from scheduler_extender.ledger import PROMISED_FOR_S, Ledger
from scheduler_extender.objects import Pod
from tests.unit import kube_objects as make

ROLLOUT = objects.pod(make.pod("rollout", "rollout"))
TRAINER = objects.pod(make.pod("trainer", "trainer"))


def by_uid(*raws: dict[str, Any]) -> dict[str, Pod]:
    return {(pod := objects.pod(raw)).uid: pod for raw in raws}


def promised() -> Ledger:
    ledger = Ledger()
    ledger.promise([ROLLOUT, TRAINER], "n1", now=100.0)
    return ledger


WAITING = by_uid(make.pod("rollout", "rollout"), make.pod("trainer", "trainer"))


def test_a_promise_is_by_uid() -> None:
    ledger = promised()
    assert ledger.node_of(ROLLOUT.uid) == "n1"
    assert ledger.node_of("another of this name") is None


@pytest.mark.parametrize(
    "rollout",
    [
        make.pod("rollout", "rollout", node="n1"),
        make.pod("rollout", "rollout", ending=True),
        make.pod("rollout", "rollout") | {"status": {"phase": "Failed"}},
    ],
    ids=["bound", "ending", "ended"],
)
def test_what_is_seen_ends_a_promise(rollout: dict[str, Any]) -> None:
    ledger = promised()
    ledger.settle(WAITING | by_uid(rollout), now=101.0)
    assert ledger.node_of(ROLLOUT.uid) is None
    assert ledger.node_of(TRAINER.uid) == "n1"


def test_a_pod_that_was_deleted_while_nobody_looked_holds_nothing() -> None:
    # HAMi#2923: a ledger kept the pods that were deleted while the extender was down.
    ledger = promised()
    ledger.settle({}, now=101.0)
    assert ledger.promises() == ()


def test_a_promise_ends_by_itself_and_its_node_is_remembered() -> None:
    ledger = promised()
    assert ledger.next_end() == 100.0 + PROMISED_FOR_S
    ledger.settle(WAITING, now=99.0 + PROMISED_FOR_S)
    assert ledger.node_of(ROLLOUT.uid) == "n1"
    ledger.settle(WAITING, now=100.0 + PROMISED_FOR_S)
    assert ledger.promises() == ()
    assert ledger.next_end() is None
    assert ledger.in_vain([ROLLOUT, TRAINER], "n1") == 2
    assert ledger.in_vain([ROLLOUT], "n2") == 0
    ledger.settle({}, now=1000.0)
    assert ledger.in_vain([ROLLOUT, TRAINER], "n1") == 0


def test_the_same_promise_again_does_not_prolong_it() -> None:
    ledger = promised()
    ledger.promise([ROLLOUT], "n1", now=200.0)
    assert ledger.next_end() == 100.0 + PROMISED_FOR_S
    ledger.promise([ROLLOUT, TRAINER], "n2", now=200.0)
    assert ledger.next_end() == 200.0 + PROMISED_FOR_S
    assert ledger.node_of(ROLLOUT.uid) == "n2"


def test_a_promise_can_be_withdrawn() -> None:
    ledger = promised()
    ledger.withdraw([ROLLOUT, ROLLOUT])
    assert [one.pod for one in ledger.promises()] == [TRAINER]
