"""The API that user code calls, in processes of their own, beside a rival for the same device."""

import signal
import time
from collections.abc import Iterator

import pytest

from tests.contract.node_lab import Child, Node, Tenant, node

PREAMBLE = """
import asyncio, json, os, sys, threading, time
import tandem

def tell(**what):
    sys.stdout.write(json.dumps(what) + "\\n")  # in one write: other threads tell too
    sys.stdout.flush()

def hear():
    return sys.stdin.readline().strip()

def caught(exc):
    tell(caught=type(exc).__name__, why=str(exc))
"""


@pytest.fixture
def lab() -> Iterator[Node]:
    with node() as made:
        made.claim("claim", "a", "b")
        made.arbiter()
        yield made


def program(lab: Node, source: str, name: str = "a", **env: str) -> Child:
    """A registered process that runs this source."""
    env = {"TANDEM_SOCKET_DIR": str(lab.sockets["claim"].parent), **env}
    return lab.registered(name, ["-c", PREAMBLE + source], env=env, stderr=-2)


def go(child: Child) -> None:
    child.say()


def rival_runs(b: Tenant) -> int:
    """The rival waits for its turn, has it and frees it."""
    epoch = b.acquire()
    b.yield_turn()
    return epoch


def ends(child: Child, status: int = 0) -> None:
    """It ended with this status, and said nothing that it was not asked for."""
    assert child.end() == status, child.out
    assert child.out.text == []


def test_a_block_is_a_turn(lab: Node) -> None:
    b = lab.tenant("b")
    a = program(
        lab,
        """
with tandem.turn("a") as turn:
    tell(epoch=turn.epoch, wanted=turn.should_yield())
    while not turn.should_yield():
        time.sleep(0.001)
    with turn.yielded():
        tell(yielded=True, wanted=turn.should_yield())
        hear()
    tell(epoch=turn.epoch)
tell(left=True)
""",
    )
    assert a.out.wait_for(epoch=1)["wanted"] is False
    assert b.acquire() == 2
    assert a.out.wait_for(yielded=True)["wanted"] is False
    go(a)
    b.out.wait_for(wanted=2)
    b.yield_turn()
    a.out.wait_for(epoch=3)
    a.out.wait_for(left=True)
    ends(a)
    assert lab.turns() == [(1, "a"), (2, "b"), (3, "a")]


def test_a_block_is_not_left_for_the_sake_of_a_lower_priority() -> None:
    with node() as lab:
        lab.claim("claim", "a", turns={"policy": "priority", "priority": 1})
        lab.claim("low", "b", turns={"policy": "priority"})
        lab.arbiter()
        b = lab.tenant("b", "low")
        a = program(
            lab,
            """
with tandem.turn("a") as turn:
    tell(inside=True)
    hear()
    tell(wanted=turn.should_yield())
    with turn.yielded(next_s=0.5):
        hear()
    tell(epoch=turn.epoch)
""",
        )
        a.out.wait_for(inside=True)
        b.say(do="acquire")
        lab.phase("b", "Waiting")
        go(a)
        assert a.out.wait(lambda line: "wanted" in line)["wanted"] is False
        lab.phase("b", "Running")
        go(a)
        b.out.wait_for(wanted=2)
        b.yield_turn()
        a.out.wait_for(epoch=3)
        ends(a)


def test_the_same_on_an_event_loop(lab: Node) -> None:
    b = lab.tenant("b")
    a = program(
        lab,
        """
async def main():
    async with tandem.turn("a") as turn:
        tell(epoch=turn.epoch)
        async with turn.yielded():
            await asyncio.to_thread(hear)
        tell(epoch=turn.epoch)
    tell(left=True)

asyncio.run(main())
""",
    )
    a.out.wait_for(epoch=1)
    assert b.acquire() == 2
    go(a)
    b.out.wait_for(wanted=2)
    b.yield_turn()
    a.out.wait_for(epoch=3)
    a.out.wait_for(left=True)
    ends(a)


def test_a_cancelled_wait_leaves_no_request_behind(lab: Node) -> None:
    b = lab.tenant("b")
    assert b.acquire() == 1
    a = program(
        lab,
        """
async def enter():
    async with tandem.turn("a") as turn:
        tell(epoch=turn.epoch)

async def main():
    waiting = asyncio.create_task(enter())
    await asyncio.to_thread(hear)
    waiting.cancel()
    try:
        await waiting
    except asyncio.CancelledError:
        tell(cancelled=True)
    await asyncio.to_thread(hear)
    await enter()

asyncio.run(main())
""",
    )
    b.out.wait_for(wanted=1)
    go(a)
    a.out.wait_for(cancelled=True)
    lab.phase("a", "Parked")
    b.yield_turn()
    assert rival_runs(b) == 2
    go(a)
    a.out.wait_for(epoch=3)
    ends(a)


def test_a_wait_ends_at_its_deadline(lab: Node) -> None:
    b = lab.tenant("b")
    assert b.acquire() == 1
    a = program(
        lab,
        """
try:
    with tandem.turn("a", timeout_s=0.1):
        pass
except tandem.TurnTimeout as exc:
    caught(exc)
""",
    )
    assert a.out.wait_for(caught="TurnTimeout")["why"].startswith("a waited 0.1 s for its turn")
    ends(a)
    b.yield_turn()
    assert rival_runs(b) == 2


def test_a_wait_for_the_arbiter_ends_at_the_same_deadline(lab: Node) -> None:
    a = program(
        lab,
        """
try:
    with tandem.turn("a", timeout_s=0.1):
        pass
except tandem.TurnTimeout as exc:
    caught(exc)
""",
        TANDEM_SOCKET_DIR=str(lab.folder),
    )
    a.out.wait_for(caught="TurnTimeout")
    ends(a)


@pytest.mark.parametrize("role", ["a", "c"], ids=["a stranger", "another role"])
def test_who_gets_no_turn_is_told_why(lab: Node, role: str) -> None:
    source = f"""
for _ in range(2):
    try:
        with tandem.turn("{role}"):
            pass
    except tandem.TurnRefused as exc:
        caught(exc)
"""
    if role == "a":
        env = {"TANDEM_SOCKET_DIR": str(lab.sockets["claim"].parent)}
        a = lab.stranger(["-c", PREAMBLE + source], env=env, stderr=-2)
    else:
        a = program(lab, source)
    words = "belongs to no tenant of this claim" if role == "a" else "this pod's role is 'a'"
    assert words in a.out.wait_for(caught="TurnRefused")["why"]
    assert words in a.out.wait_for(caught="TurnRefused")["why"]
    ends(a)


def test_a_process_of_no_claim_is_told(lab: Node) -> None:
    source = """
del os.environ["TANDEM_SOCKET_DIR"]
try:
    with tandem.turn("a"):
        pass
except tandem.TandemError as exc:
    caught(exc)
os.environ["WORLD_SIZE"] = "2"
try:
    tandem.turn("a")
except tandem.TandemError as exc:
    caught(exc)
"""
    a = program(lab, source)
    assert a.out.wait_for(caught="TandemError")["why"].startswith("TANDEM_SOCKET_DIR is not set")
    assert a.out.wait_for(caught="TandemError")["why"].startswith("a has WORLD_SIZE=2")
    ends(a)


def test_an_exception_leaves_the_block_and_the_turn(lab: Node) -> None:
    b = lab.tenant("b")
    a = program(
        lab,
        """
try:
    with tandem.turn("a") as turn:
        try:
            with turn.yielded():
                raise ValueError("inside yielded")
        except ValueError as exc:
            tell(holds=turn.epoch)  # granted again before the exception went on
        raise KeyError("inside the turn")
except KeyError as exc:
    caught(exc)
hear()
""",
    )
    a.out.wait_for(holds=2)
    a.out.wait_for(caught="KeyError")
    assert rival_runs(b) == 3
    go(a)
    ends(a)


def test_ctrl_c_interrupts_a_wait(lab: Node) -> None:
    b = lab.tenant("b")
    assert b.acquire() == 1
    a = program(
        lab,
        """
try:
    with tandem.turn("a"):
        pass
except KeyboardInterrupt:
    tell(interrupted=True)
hear()
with tandem.turn("a") as turn:
    tell(epoch=turn.epoch)
    try:
        with turn.yielded():
            tell(yielded=True)
            hear()
    except KeyboardInterrupt:
        tell(interrupted="yielded")
""",
    )
    b.out.wait_for(wanted=1)
    a.popen.send_signal(signal.SIGINT)
    a.out.wait_for(interrupted=True)
    lab.phase("a", "Parked")  # the request is gone too
    b.yield_turn()
    assert rival_runs(b) == 2
    go(a)
    a.out.wait_for(epoch=3)
    a.out.wait_for(yielded=True)
    assert b.acquire() == 4
    a.popen.send_signal(signal.SIGINT)
    a.out.wait_for(interrupted="yielded")  # though b has the turn and keeps it
    ends(a)


def test_one_block_at_a_time(lab: Node) -> None:
    a = program(
        lab,
        """
def attempt(what):
    try:
        what()
    except tandem.TandemError as exc:
        caught(exc)

def enter(role="a"):
    with tandem.turn(role) as turn:
        tell(epoch=turn.epoch)

def yielded_twice():
    with turn.yielded():
        with turn.yielded():
            tell(wrong=True)

with tandem.turn("a") as turn:
    attempt(enter)
    attempt(turn.__enter__)
    attempt(yielded_twice)
    thread = threading.Thread(target=attempt, args=[enter], name="other")
    thread.start()
    thread.join()
    attempt(lambda: enter("b"))
    tell(holds=turn.epoch)
attempt(turn.should_yield)
thread = threading.Thread(target=enter)
thread.start()
thread.join()
enter()
""",
    )
    in_use = "the turn of a is in use by a block of thread MainThread"
    for words in (
        in_use,
        in_use,
        "the turn of a is yielded already",
        in_use,
        "this process takes turns as a, so it cannot as b",
        "the turn of a is not held here",
    ):
        assert a.out.wait_for(caught="TandemError")["why"].startswith(words)
    # Nobody else waits, so every block finds the turn as the one before left it.
    a.out.wait_for(holds=2)
    a.out.wait_for(epoch=3)
    a.out.wait_for(epoch=4)
    ends(a)
    assert not any("wrong" in line for line in a.out.seen)


HOLDS = """
import torch
weights, parking = torch.arange(1000.0), threading.Event()

def held():
    if threading.current_thread() is not threading.main_thread():
        tell(parks=weights.untyped_storage().size())
        parking.wait()
    return weights
"""


def test_memory_parks_while_the_users_thread_waits_elsewhere(lab: Node) -> None:
    """And a user's thread that wants the turn back meanwhile gets it, restored, after the rival."""
    b = lab.tenant("b")
    a = program(
        lab,
        HOLDS
        + """
def let_park():
    hear()
    parking.set()

with tandem.turn("a") as turn:
    turn.hold(held)
    with turn.yielded():
        tell(yielded=True)
        hear()
        threading.Thread(target=let_park).start()
    tell(epoch=turn.epoch, equal=torch.equal(weights, torch.arange(1000.0)))
""",
    )
    a.out.wait_for(yielded=True)
    b.say(do="acquire")
    a.out.wait_for(parks=4000)
    lab.phase("a", "Releasing")
    go(a)  # the user's thread asks for the turn, while the session's still parks
    go(a)
    assert b.acquired() == 2
    b.out.wait_for(wanted=2)
    b.yield_turn()
    assert a.out.wait_for(epoch=3)["equal"]
    ends(a)


def test_a_turn_that_was_taken_is_told_at_the_next_call() -> None:
    """A stopped process keeps no session over its lease; its memory stays while its code runs."""
    with node(lease_s=0.2) as lab:
        lab.claim("claim", "a", "b")
        arbiter = lab.arbiter()
        a = program(
            lab,
            HOLDS
            + """
parking.set()
try:
    with tandem.turn("a") as turn:
        turn.hold(held)
        tell(epoch=turn.epoch)
        hear()
        tell(bytes_in_block=weights.untyped_storage().size())
        while not turn.should_yield():
            time.sleep(0.001)
except tandem.TurnLost as exc:
    caught(exc)
try:
    with tandem.turn("a") as turn:
        tell(epoch=turn.epoch, equal=torch.equal(weights, torch.arange(1000.0)))
        raise ValueError("of the user's")
except ValueError as exc:
    tell(notes=getattr(exc, "__notes__", []))
""",
        )
        a.out.wait_for(epoch=1)
        a.popen.send_signal(signal.SIGSTOP)
        arbiter.kill()
        lab.arbiter()
        lab.events.wait_for(kind="condition", condition="SessionLost", tenant="a")
        a.popen.send_signal(signal.SIGCONT)
        lab.phase("a", "Quiescing")
        go(a)
        assert a.out.wait(lambda line: "bytes_in_block" in line)["bytes_in_block"] == 4000
        lost = a.out.wait_for(caught="TurnLost")["why"]
        assert lost.startswith("the turn of epoch 1 was taken from a: its session was lost")
        assert a.out.wait_for(epoch=2)["equal"]
        assert a.out.wait(lambda line: "notes" in line)["notes"] == []
        ends(a)


@pytest.mark.parametrize(
    "source",
    [
        'with tandem.turn("a"):\n    pass',
        'with tandem.turn("a"):\n    sys.exit()',
        'with tandem.turn("a") as turn:\n    with turn.yielded():\n        sys.exit()',
        "tandem.turn('a').__enter__()",
    ],
    ids=["after a block", "inside", "yielded", "never left"],
)
def test_a_process_ends_at_once_and_quietly(lab: Node, source: str) -> None:
    a = program(lab, f"{source}\n")
    began = time.monotonic()
    ends(a)
    assert time.monotonic() - began < 10.0
    lab.phase("a", "Gone")


@pytest.mark.parametrize("signalled", [signal.SIGINT, None], ids=["as it waits", "inside"])
def test_an_interrupt_does_not_wait_for_an_arbiter_that_is_away(
    signalled: signal.Signals | None,
) -> None:
    """Whether it comes as the block is left, or leaves the block itself."""
    with node() as lab:
        lab.claim("claim", "a")
        arbiter = lab.arbiter()
        a = program(
            lab,
            f"""
from workload_agents.session import Session

yield_turn = Session.yield_turn

async def told(self, next_s):
    tell(leaves=True)
    await yield_turn(self, next_s)

Session.yield_turn = told
try:
    with tandem.turn("a"):
        tell(inside=True)
        hear()
        if {signalled is None}:
            raise KeyboardInterrupt
except KeyboardInterrupt:
    tell(interrupted=True)
""",
        )
        a.out.wait_for(inside=True)
        arbiter.kill()
        go(a)
        a.out.wait_for(leaves=True)
        if signalled is not None:
            a.popen.send_signal(signalled)
        a.out.wait_for(interrupted=True)
        ends(a)


def test_an_interrupt_as_the_block_is_left_frees_the_turn_all_the_same(lab: Node) -> None:
    """It comes before the session's thread has heard that the block is left."""
    b = lab.tenant("b")
    a = program(
        lab,
        """
hand_over = asyncio.BaseEventLoop.call_soon_threadsafe

def interrupted(*args, **kwargs):
    asyncio.BaseEventLoop.call_soon_threadsafe = hand_over
    raise KeyboardInterrupt

try:
    with tandem.turn("a"):
        asyncio.BaseEventLoop.call_soon_threadsafe = interrupted
except KeyboardInterrupt:
    tell(interrupted=True)
hear()
""",
    )
    a.out.wait_for(interrupted=True)
    assert b.acquire() == 2
    go(a)
    ends(a)


def test_a_forked_child_takes_no_turns(lab: Node) -> None:
    """pydgraph#75: a fork after an RPC. Nothing hangs, and the parent's session stays its own."""
    a = program(
        lab,
        """
import warnings
warnings.simplefilter("ignore")
with tandem.turn("a") as turn:
    child = os.fork()
    if child == 0:
        try:
            turn.should_yield()
        except tandem.TandemError as exc:
            caught(exc)
        sys.exit(7)  # runs what was registered for the exit
    tell(child=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    with turn.yielded():
        pass
    tell(epoch=turn.epoch)
""",
    )
    why = a.out.wait_for(caught="TandemError")["why"]
    assert why.startswith(f"the turn of a belongs to process {a.pid}, which forked this one")
    a.out.wait_for(child=7)
    a.out.wait_for(epoch=2)
    assert a.end() == 0


def test_workers_that_were_forked_in_a_turn_keep_its_memory_and_nobody_is_granted() -> None:
    """pydgraph#75: a DataLoader's, which live while the turn is yielded. They inherit what the
    trainer holds of the device, count as its own, and nothing hangs.
    """
    with node(verify_s=0.2, watch_s=0.05) as lab:
        lab.claim("claim", "a", "b")
        arbiter = lab.arbiter()
        b = lab.tenant("b")
        a = program(
            lab,
            """
import torch.utils.data
from tests.device_memory import device_memory
SIZE = 4 << 20
with tandem.turn("a") as turn:
    block = device_memory(os.environ["DEVICE"], SIZE)
    loader = torch.utils.data.DataLoader(range(8), num_workers=2, persistent_workers=True)
    tell(sum=sum(int(one) for one in loader))
    block.close()
    with turn.yielded():
        tell(yielded=True)
        hear()
        tell(sum=sum(int(one) for one in loader))
        del loader
        tell(workers=False)
    tell(epoch=turn.epoch)
""",
            DEVICE=f"/proc/{arbiter.pid}/root{lab.devices['gpu0']}",
        )
        a.out.wait_for(sum=28)
        a.out.wait_for(yielded=True)
        b.say(do="acquire")
        lab.phase("a", "Faulted")
        told = lab.events.wait(lambda event: event.get("condition") == "Faulted")
        assert "4.0 MiB of gpu0 are still its" in told["message"]
        go(a)
        a.out.wait_for(sum=28)
        a.out.wait_for(workers=False)
        assert b.acquired() == 2
        b.yield_turn()
        a.out.wait_for(epoch=3)
        ends(a)
        assert lab.turns() == [(1, "a"), (2, "b"), (3, "a")]


def test_memory_parks_while_the_process_ends(lab: Node) -> None:
    """Python's own pool takes no work any more; the rival must get its turn all the same."""
    b = lab.tenant("b")
    a = program(
        lab,
        """
import atexit, torch
weights = torch.arange(1000.0)
with tandem.turn("a") as turn:
    turn.hold(weights)

def at_exit():
    tell(ending=True)
    hear()

atexit.register(at_exit)
""",
    )
    a.out.wait_for(ending=True)
    assert b.acquire() == 2
    go(a)
    ends(a)
