"""The arbiter as a process among processes: who may speak, whose turn it is, what it survives."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.nobody import as_nobody
from tests.contract.node_lab import Child, Node, Tenant, node

RAW = ["-m", "tests.contract.raw_peer"]
HEIR = ["-m", "tests.contract.heir"]
MOMENTS = ["stored", "answered"]


@pytest.fixture
def lab() -> Iterator[Node]:
    with node() as made:
        made.claim("claim", "a", "b")
        yield made


def handed_over(lab: Node, first: Tenant, second: Tenant) -> None:
    """`first` is in its turn; `second` takes the next, and the next but one is the first's."""
    second.say(do="acquire")
    first.out.wait(lambda line: "wanted" in line)
    first.yield_turn()
    second.acquired()
    assert no_overlap(lab)


def no_overlap(lab: Node) -> bool:
    """By the arbiter's own telling: nobody is granted the node's one device while another has it.

    A tenant that ended while it was parked is verified too, and keeps nobody else from running.
    """
    holding = {"Restoring", "Running", "Quiescing", "Releasing", "Verifying", "Faulted"}
    phases: dict[str, str] = {}
    for event in lab.events.seen:
        if event.get("kind") == "phase":
            phases[event["tenant"]] = event["to"]
            others = [phase for name, phase in phases.items() if name != event["tenant"]]
            if event["to"] == "Restoring":
                assert not holding & set(others), lab.events
            elif event["to"] == "Running":
                assert not {"Restoring", "Running"} & set(others), lab.events
    return True


# -- who may speak ------------------------------------------------------------------------------


def test_a_turn_passes_between_two_processes(lab: Node) -> None:
    lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    assert a.acquire() == 1
    handed_over(lab, a, b)
    handed_over(lab, b, a)
    lab.phase("a", "Running", epoch=3)
    assert lab.turns() == [(1, "a"), (2, "b"), (3, "a")]


def test_yielding_parks_nothing_while_nobody_waits(lab: Node) -> None:
    lab.arbiter()
    a = lab.tenant("a")
    assert a.acquire() == 1
    a.yield_turn()
    assert a.acquire() == 2
    assert [line["memory"] for line in a.out.seen if "memory" in line] == ["restore"]


def test_a_stranger_is_refused_in_words(lab: Node) -> None:
    lab.arbiter()
    stranger = lab.stranger([*RAW, "hello", str(lab.sockets["claim"]), "a"])
    answer = stranger.out.wait_for(heard="Refused")
    assert answer["reason"].startswith(f"process {stranger.pid} belongs to no tenant of this claim")


def test_a_tenant_cannot_speak_as_another(lab: Node) -> None:
    lab.arbiter()
    b = lab.tenant("b")
    epoch = b.acquire()
    impostor = lab.registered("a", [*RAW, "as_another", str(lab.sockets["claim"]), "b", str(epoch)])
    assert "this pod's role is 'a'" in impostor.out.wait_for(heard="Refused")["reason"]
    b.say(do="state")
    assert b.out.wait_for(state=True)["holds"]
    assert lab.turns() == [(epoch, "b")]


def test_a_tenant_cannot_speak_through_another_claims_socket() -> None:
    with node() as lab:
        lab.claim("one", "a")
        lab.claim("two", "b")
        lab.arbiter()
        visitor = lab.registered("a", [*RAW, "hello", str(lab.sockets["two"]), "a"])
        assert "no tenant of this claim" in visitor.out.wait_for(heard="Refused")["reason"]


def test_a_reused_pid_is_another_process(lab: Node) -> None:
    """A connection outlives who made it; the pid that the kernel tells of it may be given again."""
    lab.arbiter()
    maker = lab.stranger([*HEIR, str(lab.sockets["claim"]), "a", "accepted"])
    maker.popen.wait()
    a_process_of_a(lab, maker.pid)
    maker.say(do="go")
    assert "belongs to no tenant" in maker.out.wait_for(heard="Refused")["reason"]


def test_who_is_gone_when_the_arbiter_looks_is_not_who_has_the_pid_by_then(lab: Node) -> None:
    arbiter = lab.arbiter()
    arbiter.popen.send_signal(signal.SIGSTOP)
    maker = lab.stranger([*HEIR, str(lab.sockets["claim"]), "a", "connected"])
    maker.popen.wait()
    a_process_of_a(lab, maker.pid)
    arbiter.popen.send_signal(signal.SIGCONT)
    maker.say(do="go")
    assert maker.out.wait(lambda line: "heard" in line or "ended" in line) == {"ended": "closed"}


def a_process_of_a(lab: Node, pid: int) -> None:
    """Start a process of tenant a that has this pid."""
    for _ in range(50):  # something else may be quicker and get it
        give_again(pid)
        process = lab.registered("a", ["-c", "input()"])
        if process.pid == pid:
            return
        process.kill()
        lab.forget("a")
    pytest.skip(f"pid {pid} could not be had again")


def give_again(pid: int) -> None:
    """Have the kernel give this pid to the next process."""
    try:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    except OSError as exc:
        pytest.skip(f"the next pid cannot be chosen: {exc}")


def test_the_inner_socket_knows_nobody(lab: Node) -> None:
    lab.arbiter()
    (inner,) = (lab.folder / "state" / "inner").iterdir()
    assert (inner.parent.stat().st_mode & 0o777, inner.parent.stat().st_uid) == (
        0o700,
        os.geteuid(),
    )
    past_the_relay = lab.registered("a", [*RAW, "hello", str(inner), "a"])
    assert past_the_relay.out.wait_for(heard="Refused")["reason"].startswith(
        "the connection did not come through a claim's socket"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_the_inner_socket_is_out_of_another_users_reach(lab: Node) -> None:
    lab.arbiter()
    (inner,) = (lab.folder / "state" / "inner").iterdir()
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect({str(inner)!r})"
    command = as_nobody([sys.executable, "-Ic", connect])
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PermissionError" in ended.stderr


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        pytest.param(["hello", "b"], "says role 'b', and this pod's role is 'a'", id="role"),
        pytest.param(["hello", "a", "7.0"], "protocol '7.0' is not served", id="protocol"),
        pytest.param(["no_hello"], "the first message must be a hello", id="no hello"),
        pytest.param(["silent_stream"], "no hello within 5 s", id="nothing"),
        pytest.param(["unknown", "a"], "a message that protocol", id="unknown"),
    ],
)
def test_who_does_not_speak_the_protocol_is_told(lab: Node, deed: list[str], words: str) -> None:
    arbiter = lab.arbiter()
    name, *rest = deed
    peer = lab.registered("a", [*RAW, name, str(lab.sockets["claim"]), *rest])
    assert words in peer.out.wait_for(heard="Refused")["reason"]
    assert peer.out.wait(lambda line: "ended" in line)["ended"] == "OK"
    serves_another(lab, arbiter)


def test_a_process_with_a_name_that_is_no_text_is_served(lab: Node) -> None:
    lab.arbiter()
    peer = lab.registered("a", [*RAW, "strange_name", str(lab.sockets["claim"]), "a"])
    peer.out.wait_for(heard="Welcome")


def test_a_second_process_of_a_tenant_does_not_take_its_session(lab: Node) -> None:
    lab.arbiter()
    a = lab.tenant("a")
    a.acquire()
    second = lab.registered("a", [*RAW, "hello", str(lab.sockets["claim"]), "a"])
    refusal = second.out.wait_for(heard="Refused")["reason"]
    assert refusal.startswith(f"process {a.pid} has the session of a")
    a.say(do="state")
    assert a.out.wait_for(state=True)["holds"]


# -- what it endures ----------------------------------------------------------------------------


def serves_another(lab: Node, arbiter: Child) -> None:
    """Whatever happened, the other tenant takes its turn, from the same arbiter."""
    b = lab.tenant("b")
    b.acquire()
    b.yield_turn()
    assert arbiter.popen.poll() is None


def test_garbage_is_hung_up_on(lab: Node) -> None:
    arbiter = lab.arbiter()
    peer = lab.registered("a", [*RAW, "garbage", str(lab.sockets["claim"])])
    peer.out.wait(lambda line: "ended" in line)
    serves_another(lab, arbiter)


def test_an_oversized_message_ends_its_stream(lab: Node) -> None:
    arbiter = lab.arbiter()
    peer = lab.registered("a", [*RAW, "oversized", str(lab.sockets["claim"]), "a"])
    assert peer.out.wait(lambda line: "ended" in line)["ended"] == "RESOURCE_EXHAUSTED"
    serves_another(lab, arbiter)


@pytest.mark.parametrize("who", ["a", "stranger"])
def test_a_thousand_silent_connections_are_not_kept(lab: Node, who: str) -> None:
    arbiter = lab.arbiter()
    before = descriptors(arbiter)
    command = [*RAW, "silent", str(lab.sockets["claim"]), "1000"]
    options = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))}
    peer = lab.stranger(command, **options) if who == "stranger" else lab.registered(who, command)
    assert peer.out.wait_for(connected=1000)
    serves_another(lab, arbiter)
    # Of each connection that is kept there are the relay's two ends and the server's.
    assert descriptors(arbiter) - before < 3 * 2 * 8 + 16


def descriptors(arbiter: Child) -> int:
    return len(os.listdir(f"/proc/{arbiter.pid}/fd"))


def test_a_flood_of_hellos_leaves_room_for_others(lab: Node) -> None:
    arbiter = lab.arbiter()
    peer = lab.registered("a", [*RAW, "flood", str(lab.sockets["claim"]), "a"])
    peer.out.wait_for(flooding=True)
    b = lab.tenant("b")
    for _ in range(10):
        b.acquire()
        b.yield_turn()
    peer.kill()
    lab.phase("a", "Gone")
    a = lab.tenant("a")
    b.acquire()
    handed_over(lab, b, a)
    assert arbiter.popen.poll() is None


def test_who_does_not_read_is_cut_off(lab: Node) -> None:
    arbiter = lab.arbiter()
    peer = lab.registered("a", [*RAW, "deaf", str(lab.sockets["claim"]), "a"])
    assert peer.out.wait(lambda line: "ended" in line)["ended"] != "OK"
    arbiter.out.wait_text("the session of a is cut off: it does not read")
    serves_another(lab, arbiter)


# -- restarts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize(
    ("tenant", "phase"),
    [
        ("b", "Waiting"),
        ("a", "Yielded"),
        ("a", "Quiescing"),
        ("a", "Releasing"),
        ("a", "Verifying"),
        ("b", "Restoring"),
        ("b", "Running"),
    ],
)
def test_a_killed_arbiter_goes_on_where_it_was(
    lab: Node, tenant: str, phase: str, when: str
) -> None:
    """Killed in a handover from a to b: the same epochs go on, and no turns overlap."""
    crashing = lab.arbiter(
        *["--tenant", tenant, "--phase", phase, "--when", when],
        module="tests.contract.crashing_arbiter",
    )
    a, b = lab.tenant("a"), lab.tenant("b")
    assert a.acquire() == 1
    lab.phase("a", "Running")  # what is told is written after its step: a kill could take it along
    if phase == "Yielded":  # with nobody waiting; otherwise the same step tells it to release
        a.say(do="yield")
    early = (phase, when) in {("Yielded", "stored"), ("Waiting", "stored")}
    if (phase, when) == ("Yielded", "answered"):
        lab.phase("a", "Yielded")
    if (phase, when) != ("Yielded", "stored"):
        b.say(do="acquire")
    if early:
        assert crashing.end() == -signal.SIGKILL
        lab.arbiter()
    if (phase, when) == ("Yielded", "stored"):
        b.say(do="acquire")
    if phase != "Yielded":
        a.out.wait_for(wanted=1)
        a.say(do="yield")
    if (phase, when) == ("Running", "answered"):
        assert b.acquired() == 2
        b.say(do="yield")
    if not early:
        assert crashing.end() == -signal.SIGKILL
        lab.arbiter()
    if (phase, when) != ("Running", "answered"):
        assert b.acquired() == 2
        b.say(do="yield")
    for tenant_that_yielded in (a, b):
        tenant_that_yielded.out.wait_for(did="yield")
    assert a.acquire() == 3
    lab.phase("a", "Running", epoch=3)
    assert lab.turns() == [(1, "a"), (2, "b"), (3, "a")]
    assert no_overlap(lab)


def test_the_running_tenant_does_not_notice_a_restart(lab: Node) -> None:
    arbiter = lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    assert a.acquire() == 1
    for number in (signal.SIGKILL, signal.SIGTERM):
        arbiter.kill(number)
        a.say(do="state")
        assert a.out.wait_for(state=True)["holds"]
        arbiter = lab.arbiter()
    handed_over(lab, a, b)
    lab.phase("b", "Running", epoch=2)
    assert lab.turns() == [(1, "a"), (2, "b")]
    assert [line["memory"] for line in a.out.seen if "memory" in line] == ["restore", "park"]


def test_what_was_asked_while_the_arbiter_was_away_is_made_up_for(lab: Node) -> None:
    arbiter = lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    assert a.acquire() == 1
    arbiter.kill()
    a.say(do="yield")
    b.say(do="acquire")
    lab.arbiter()
    assert b.acquired() == 2
    a.out.wait_for(did="yield")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_second_arbiter_waits_for_the_first(lab: Node, number: signal.Signals) -> None:
    """grpc#17122: the first, when it ends, must not remove its successor's sockets."""
    first = lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    assert a.acquire() == 1
    second = lab.arbiter(ready=False)
    second.out.wait_text("another arbiter has this node")
    first.kill(number)
    lab.arbitrates(second)
    assert lab.sockets["claim"].exists()
    handed_over(lab, a, b)
    lab.phase("b", "Running", epoch=2)
    assert lab.turns() == [(1, "a"), (2, "b")]


def test_a_damaged_journal_stops_the_start(lab: Node) -> None:
    lab.arbiter().kill()
    content = lab.journal.read_bytes()
    lab.journal.write_bytes(b"x" + content[1:] + content)
    arbiter = lab.arbiter(ready=False)
    assert arbiter.end() == 2
    assert "line 1 is damaged: end the tenants of this node" in arbiter.out.text[-1]
    assert lab.journal.read_bytes() == b"x" + content[1:] + content


def test_an_arbiter_that_cannot_store_ends_and_goes_on_later(lab: Node) -> None:
    """Its journal is full in the middle of a handover: no command of that step leaves."""
    limit = 8192
    arbiter = lab.arbiter(
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)
        )
    )
    a, b = lab.tenant("a"), lab.tenant("b")
    a.say(do="rounds", number=50)
    assert arbiter.end() == 2
    assert "the state cannot be stored (File too large)" in arbiter.out.text[-1]
    lab.arbiter()
    a.out.wait_for(did="rounds")
    b.acquire()


# -- deaths of tenants --------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["Waiting", "Restoring", "Running"])
def test_the_next_tenant_dies(lab: Node, phase: str) -> None:
    lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    a.acquire()
    if phase == "Restoring":
        b.say(do="slow", memory="restore")
        b.out.wait_for(did="slow")
    b.say(do="acquire")
    a.out.wait_for(wanted=1)
    if phase != "Waiting":
        a.yield_turn()
    lab.phase("b", phase)
    b.kill()
    lab.phase("b", "Gone")
    if phase == "Waiting":
        a.yield_turn()
    a.acquire()
    assert no_overlap(lab)


@pytest.mark.parametrize("phase", ["Running", "Yielded", "Releasing"])
def test_the_former_tenant_dies(lab: Node, phase: str) -> None:
    lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    a.acquire()
    if phase == "Releasing":
        a.say(do="slow", memory="park")
        a.out.wait_for(did="slow")
    if phase == "Yielded":
        a.yield_turn()
    else:
        b.say(do="acquire")
        a.out.wait_for(wanted=1)
    if phase == "Releasing":
        a.yield_turn()
    lab.phase("a", phase)
    a.kill()
    if phase == "Yielded":
        b.say(do="acquire")
    assert b.acquired() == 2
    assert no_overlap(lab)


def test_a_tenant_begins_anew_while_the_other_waits(lab: Node) -> None:
    lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    a.acquire()
    b.say(do="acquire")
    a.out.wait_for(wanted=1)
    a.kill()
    b.acquired()
    lab.forget("a")
    handed_over(lab, b, lab.tenant("a"))


# -- the device ---------------------------------------------------------------------------------


def test_no_grant_before_the_memory_is_measured_free(lab: Node) -> None:
    """The device stays occupied after the release: b waits, and a is not blamed."""
    arbiter = lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    a.acquire()
    a.say(do="slow", memory="park")
    a.out.wait_for(did="slow")
    b.say(do="acquire")
    a.out.wait_for(wanted=1)
    a.yield_turn()
    lab.phase("a", "Releasing")
    held = Path(f"/proc/{arbiter.pid}/root{lab.devices['gpu0']}/held")
    held.write_bytes(b"x" * 4096)
    a.say(do="go")
    lab.phase("a", "Verifying")
    assert lab.turns() == [(1, "a")]
    held.unlink()
    assert b.acquired() == 2
    measured = [event for event in lab.events.seen if event["kind"] == "measured"]
    assert [(event["tenant"], event["used"], event["free"]) for event in measured] == [
        ("a", 0, True)
    ]


# -- on behalf of others ------------------------------------------------------------------------


@pytest.mark.parametrize("holder_first", [True, False])
def test_the_holders_own_request_is_refused_at_once_while_others_wait(
    lab: Node, *, holder_first: bool
) -> None:
    lab.arbiter()
    a, b = lab.tenant("a"), lab.tenant("b")
    assert a.acquire() == 1
    holders, others = {"caller": f"pid:{a.pid}"}, {"caller": f"pid:{os.getpid()}"}
    for options in [holders, others] if holder_first else [others, holders]:
        b.say(do="acquire", **options)
    refusal = b.refused()
    assert (refusal["failed"], refusal["holder"]) == ("TurnRefused", "a")
    a.out.wait(lambda line: "wanted" in line)
    a.yield_turn()
    assert b.acquired() == 2


def test_a_tenant_that_hangs_in_its_turn_is_killed_where_the_admin_wants_it() -> None:
    """It is stopped, which is found out when the arbiter starts again and it does not come back."""
    with node(lease_s=0.2) as lab:
        lab.claim("claim", "a", "b", escalation=[{"step": "kill", "after_s": 0.01}])
        arbiter = lab.arbiter()
        a, b = lab.tenant("a"), lab.tenant("b")
        assert a.acquire() == 1
        b.say(do="acquire")
        lab.phase("b", "Waiting")
        a.popen.send_signal(signal.SIGSTOP)
        arbiter.kill()
        lab.arbiter()
        told = lab.events.wait_for(kind="condition", condition="Escalated", tenant="a")
        assert told["message"].endswith(": its processes are killed")
        assert b.acquired() == 2
        assert a.popen.wait() == -signal.SIGKILL
