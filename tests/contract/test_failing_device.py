"""A device that fails while tenants use it: its tmpfs is replaced under the arbiter's eyes."""

from collections.abc import Iterator

import pytest

from tests.contract.node_lab import Child, Node, Tenant, node

WHY = "was unmounted or replaced"
LOST = "what it held there is lost"


@pytest.fixture
def lab() -> Iterator[Node]:
    """Two devices, a pair of tenants on each."""
    with node(devices=2, watch_s=0.1, blocked_s=0.5) as made:
        made.claim("claim", "a", "b", devices=["gpu0"])
        made.claim("other", "c", "d", devices=["gpu1"])
        yield made


def fails(lab: Node, arbiter: Child) -> None:
    """gpu0 fails, and that is told."""
    lab.break_device(arbiter, "gpu0")
    told = lab.events.wait_for(kind="condition", condition="DeviceFailed", device="gpu0")
    assert WHY in told["message"]
    assert told["message"].endswith("no turn is granted on it until it answers again")


def answers(lab: Node, arbiter: Child) -> None:
    """gpu0 is back, and that is told."""
    lab.mend_device(arbiter, "gpu0")
    told = lab.events.wait_for(kind="condition", condition="Cleared", device="gpu0")
    assert told["message"] == "gpu0 answers again"


def refused(tenant: Tenant) -> None:
    """It asks, and is told why there is no turn."""
    tenant.say(do="acquire")
    refusal = tenant.refused()
    assert refusal["failed"] == "TurnRefused"
    assert "gpu0 failed (device gpu0: " in refusal["why"]


def passes(first: Tenant, second: Tenant) -> None:
    """`first` is in its turn; `second` takes the next."""
    second.say(do="acquire")
    first.out.wait(lambda line: "wanted" in line)
    first.yield_turn()
    second.acquired()


def test_the_holder_is_told_and_the_nodes_other_device_goes_on(lab: Node) -> None:
    arbiter = lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    c, d = lab.tenant("c", "other"), lab.tenant("d", "other")
    a.acquire()
    c.acquire()
    fails(lab, arbiter)
    lab.phase("a", "Faulted")
    a.out.wait_for(memory="park")
    a.say(do="yield")
    lost = a.refused()
    assert lost["failed"] == "TurnLost"
    assert lost["why"].endswith(LOST)
    refused(b)
    passes(c, d)
    passes(d, c)
    lab.phase("a", "Verifying")  # it parked, and nobody can say whether it has left
    answers(lab, arbiter)
    lab.phase("a", "Parked")
    b.acquire()
    passes(b, a)
    assert arbiter.popen.poll() is None


def test_a_failure_that_a_measurement_for_a_turn_finds_is_not_taken_for_free() -> None:
    """No watch comes: the release and the grant are measured on the path of the turn."""
    with node(blocked_s=0.5) as lab:
        lab.claim("claim", "a", "b")
        arbiter = lab.arbiter()
        a, b = lab.tenant("a"), lab.tenant("b")
        a.acquire()
        b.say(do="acquire")
        a.out.wait(lambda line: "wanted" in line)
        lab.break_device(arbiter, "gpu0")
        a.yield_turn()
        lab.events.wait_for(kind="condition", condition="DeviceFailed", device="gpu0")
        assert "gpu0 failed (device gpu0: " in b.refused()["why"]
        assert lab.turns() == [(1, "a")]
        assert arbiter.popen.poll() is None


def test_a_loser_that_ends_holds_no_more(lab: Node) -> None:
    arbiter = lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    a.acquire()
    fails(lab, arbiter)
    a.kill()
    lab.phase("a", "Gone")
    refused(b)
    answers(lab, arbiter)
    b.acquire()


def test_the_next_arbiter_knows_of_it_and_starts_without_the_device(lab: Node) -> None:
    arbiter = lab.arbiter()
    a, c = lab.tenant("a"), lab.tenant("c", "other")
    a.acquire()
    c.acquire()
    fails(lab, arbiter)
    lab.phase("a", "Verifying")
    arbiter.kill()
    arbiter = lab.arbiter(absent=["gpu0"])
    refused(a)
    c.yield_turn()
    c.acquire()
    again = [e for e in lab.events.seen if e.get("condition") == "DeviceFailed"]
    assert len(again) == 1


def test_a_device_that_was_known_and_cannot_be_opened_is_a_failed_one(lab: Node) -> None:
    lab.arbiter().kill()
    lab.arbiter(absent=["gpu0"])
    told = lab.events.wait_for(kind="condition", condition="DeviceFailed", device="gpu0")
    assert "nothing is mounted at" in told["message"]
    refused(lab.tenant("a"))
    lab.tenant("c", "other").acquire()


def test_a_device_that_was_never_measured_stops_the_start(lab: Node) -> None:
    """How much of it belongs to others cannot be known."""
    arbiter = lab.arbiter(ready=False, absent=["gpu0"])
    assert arbiter.end() == 2
    assert "device gpu0: nothing is mounted at" in arbiter.out.text[-1]
