"""Who is next under each policy, by a real arbiter: the order in which its tenants get their turns.

Each claim is a job of one tenant, and says what it asks for as a user's would. Where a policy goes
by time, the spans that decide are a tenth of a second and more, beside messages of a few
milliseconds, and only the order is looked at.
"""

import threading
from typing import Any

import pytest

from tests.contract.node_lab import WITHIN_S, Child, Node, Tenant, node
from tests.contract.test_turn import PREAMBLE, ends, go

HOLD_S = 0.4

USER = """
with tandem.turn("a") as turn:
    tell(epoch=turn.epoch)
    while not turn._held().session.wanted:  # the library knows that somebody waits
        time.sleep(0.001)
    tell(should_yield=turn.should_yield())
    while not turn.should_yield():
        time.sleep(0.001)
    tell(should_yield=True)
    with turn.yielded():
        pass
    tell(epoch=turn.epoch)
"""
"""Code of a user that leaves when it is asked to, and goes on afterwards."""


def claims(lab: Node, **objectives: dict[str, Any]) -> None:
    """A claim for each tenant, of its name, and the arbiter."""
    for name, turns in objectives.items():
        lab.claim(name, name, turns=turns)
    lab.arbiter()


def user(lab: Node, source: str) -> Child:
    """The process of the tenant `a`, which runs this."""
    env = {"TANDEM_SOCKET_DIR": str(lab.sockets["a"].parent)}
    return lab.registered("a", ["-c", PREAMBLE + source], env=env, stderr=-2)


def asks(lab: Node, name: str, tenant: Tenant) -> None:
    """It waits from now on, behind those that asked before.

    An earlier wait of it that no test waited for would be taken for this one.
    """
    tenant.say(do="acquire")
    lab.phase(name, "Waiting")


def asks_again(tenant: Tenant) -> None:
    """It yields to one that waits, and wants its turn back before its memory is.

    So whoever is granted then was chosen among all that want the device.
    """
    tenant.say(do="slow", memory="park")
    tenant.say(do="yield")
    tenant.out.wait_for(memory="park")
    tenant.say(do="acquire")
    tenant.say(do="go")


def let_pass(seconds: float) -> None:
    """Let the time of a turn pass: there is nothing to wait for but that."""
    over = threading.Event()
    threading.Timer(seconds, over.set).start()
    assert over.wait(WITHIN_S)


def served(lab: Node, **tenants: Tenant) -> str:
    """Who gets the next turn, by its own word."""
    name = lab.events.wait_for(kind="phase", to="Running")["tenant"]
    tenants[name].acquired()
    return str(name)


def phases(lab: Node) -> list[tuple[str, str]]:
    """The tenants that changed, and to which phase, in order."""
    changes = (line for line in lab.events.seen if line["kind"] == "phase")
    return [(line["tenant"], line["to"]) for line in changes]


# -- fair -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("weight", "order"), [(2, "abaaba"), (1, "ababab")])
def test_fair_gives_the_next_turn_to_who_had_least_for_its_weight(weight: int, order: str) -> None:
    """Both want the device all the time, and a turn of b lasts a quarter longer.

    At weight 2 the second turn of a leaves it at 1 to the 1.25 of b, and it is served again, though
    b asked before it; the third at 1.5, and b is next. At weight 1 the second leaves it at 2.
    """
    with node() as lab:
        claims(lab, a={"policy": "fair", "weight": weight}, b={"policy": "fair"})
        tenants = {name: lab.tenant(name, name) for name in "ab"}
        tenants["a"].say(do="acquire")
        turns = served(lab, **tenants)
        asks(lab, "b", tenants["b"])
        while len(turns) < len(order):
            holder = turns[-1]
            let_pass(HOLD_S if holder == "a" else 1.25 * HOLD_S)
            asks_again(tenants[holder])
            turns += served(lab, **tenants)
        assert turns == order


# -- priority -------------------------------------------------------------------------------------


def test_priority_serves_the_highest_first_whoever_asked_first() -> None:
    """They ask in the order of b, c, d, and each is higher than the one before."""
    with node() as lab:
        rising = {name: {"policy": "priority", "priority": n} for n, name in enumerate("bcd")}
        claims(lab, a={}, **rising)
        tenants = {name: lab.tenant(name, name) for name in "abcd"}
        tenants["a"].say(do="acquire")
        turns = served(lab, **tenants)
        for name in "bcd":
            asks(lab, name, tenants[name])
        while len(turns) < 4:
            tenants[turns[-1]].yield_turn()
            turns += served(lab, **tenants)
        assert turns == "adcb"


def test_priority_tells_a_holder_to_leave_for_a_higher_one_and_not_for_a_lower() -> None:
    """A lower one waits until the holder has nothing to do: to that it says should_yield, no."""
    with node() as lab:
        levels = {"b": 0, "a": 1, "c": 2}
        claims(lab, **{name: {"policy": "priority", "priority": n} for name, n in levels.items()})
        b, c = lab.tenant("b", "b"), lab.tenant("c", "c")
        a = user(lab, USER)
        a.out.wait_for(epoch=1)
        lab.phase("a", "Waiting")
        asks(lab, "b", b)
        assert a.out.wait(lambda line: "should_yield" in line)["should_yield"] is False
        c.say(do="acquire")
        a.out.wait_for(should_yield=True)
        assert c.acquired() == 2
        lab.phase("a", "Waiting")
        c.yield_turn()
        a.out.wait_for(epoch=3)  # before b, which asked before both
        ends(a)
        assert b.acquired() == 4


# -- harvest --------------------------------------------------------------------------------------


def test_harvest_gets_its_turn_when_nobody_else_wants_one() -> None:
    """It asked first, and b, and a once more, are served before it."""
    with node() as lab:
        claims(lab, a={}, b={}, h={"policy": "harvest"})
        tenants = {name: lab.tenant(name, name) for name in "abh"}
        turns = ""
        tenants["a"].say(do="acquire")
        turns += served(lab, **tenants)
        asks(lab, "h", tenants["h"])
        asks(lab, "b", tenants["b"])
        asks_again(tenants["a"])
        turns += served(lab, **tenants)
        tenants["b"].yield_turn()
        turns += served(lab, **tenants)
        tenants["a"].yield_turn()
        turns += served(lab, **tenants)
        assert turns == "abah"


def test_harvest_is_no_reason_for_others_to_leave() -> None:
    """The holder's should_yield says no while only a harvester waits, and yes for another."""
    with node() as lab:
        claims(lab, a={}, b={}, h={"policy": "harvest"})
        b, h = lab.tenant("b", "b"), lab.tenant("h", "h")
        a = user(lab, USER)
        a.out.wait_for(epoch=1)
        lab.phase("a", "Waiting")
        asks(lab, "h", h)
        assert a.out.wait(lambda line: "should_yield" in line)["should_yield"] is False
        b.say(do="acquire")
        a.out.wait_for(should_yield=True)
        assert b.acquired() == 2
        lab.phase("a", "Waiting")
        b.yield_turn()
        a.out.wait_for(epoch=3)  # before h, which asked before both
        ends(a)
        assert h.acquired() == 4


def test_harvest_leaves_a_resident_alone_that_is_back_soon() -> None:
    """It asks while the device is yielded, and gets it once that was for no short time.

    Until then the resident need not park.
    """
    with node(gap_s=1000.0) as lab:
        claims(lab, a={}, h={"policy": "harvest"})
        h = lab.tenant("h", "h")
        a = user(
            lab,
            """
with tandem.turn("a") as turn:
    with turn.yielded(next_s=500.0):
        tell(yielded=True)
        hear()
    tell(epoch=turn.epoch)
""",
        )
        a.out.wait_for(yielded=True)
        asks(lab, "h", h)
        go(a)
        a.out.wait_for(epoch=2)
        ends(a)
        assert h.acquired() == 3
        lab.phase("h", "Running")
        of_a = [phase for name, phase in phases(lab) if name == "a"]
        assert of_a[:5] == ["Waiting", "Restoring", "Running", "Yielded", "Running"]


def test_harvest_leaves_when_another_asks_and_is_none_the_worse() -> None:
    with node() as lab:
        claims(lab, a={"policy": "harvest", "leave_s": 2 * WITHIN_S}, b={})
        b = lab.tenant("b", "b")
        a = user(lab, USER)
        a.out.wait_for(epoch=1)
        assert b.acquire() == 2
        assert a.out.wait(lambda line: "should_yield" in line)["should_yield"] is True
        b.yield_turn()
        a.out.wait_for(epoch=3)
        ends(a)
        lab.phase("a", "Gone")
        assert not [line for line in lab.events.seen if line["kind"] == "condition"]


def test_harvest_that_stays_loses_its_turn() -> None:
    """Its next call says so; the other is served when it has parked, and it may ask again."""
    with node() as lab:
        claims(lab, a={"policy": "harvest", "leave_s": 0.05}, b={})
        b = lab.tenant("b", "b")
        a = user(
            lab,
            """
try:
    with tandem.turn("a") as turn:
        tell(epoch=turn.epoch)
        while True:  # it is told to leave, and goes on
            turn.should_yield()
            time.sleep(0.001)
except tandem.TurnLost as exc:
    caught(exc)
with tandem.turn("a") as turn:
    tell(epoch=turn.epoch)
""",
        )
        a.out.wait_for(epoch=1)
        b.say(do="acquire")
        why = a.out.wait_for(caught="TurnLost")["why"]
        assert why.endswith("taken from a: others waited, and it did not leave in 0.05 s")
        lab.events.wait_for(kind="condition", condition="Overstayed", tenant="a")
        assert b.acquired() == 2
        lab.phase("b", "Running")
        told = phases(lab)
        assert told.index(("a", "Parked")) < told.index(("b", "Running"))
        b.yield_turn()
        a.out.wait_for(epoch=3)
        ends(a)


# -- slowdown -------------------------------------------------------------------------------------


def test_slowdown_serves_the_stricter_bound_first() -> None:
    """Neither has had a turn; b asked first, and may be slowed a hundred thousand times as much."""
    with node() as lab:
        lax, strict = ({"policy": "slowdown", "slowdown": bound} for bound in (100_000.0, 1.0))
        claims(lab, a={}, b=lax, c=strict)
        a, b, c = (lab.tenant(name, name) for name in "abc")
        a.acquire()
        asks(lab, "b", b)
        asks(lab, "c", c)
        a.yield_turn()
        assert c.acquired() == 2
        c.yield_turn()
        assert b.acquired() == 3


@pytest.mark.parametrize("asking", ["bc", "cb"])
def test_slowdown_serves_first_who_was_slowed_most(asking: str) -> None:
    """Of equal bounds. Before, c waited for as long as b ran: nearly all of its time."""
    with node() as lab:
        claims(lab, a={}, b={"policy": "slowdown"}, c={"policy": "slowdown"})
        a, b, c = (lab.tenant(name, name) for name in "abc")
        asks(lab, "b", b)
        assert b.acquired() == 1
        asks(lab, "c", c)
        let_pass(HOLD_S)
        b.yield_turn()
        assert c.acquired() == 2
        c.yield_turn()
        assert a.acquire() == 3
        for name in asking:
            asks(lab, name, {"b": b, "c": c}[name])
        a.yield_turn()
        assert c.acquired() == 4
        c.yield_turn()
        assert b.acquired() == 5
