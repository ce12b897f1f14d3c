"""An idle wait, watched from outside: /proc counts how often each thread went to sleep."""

import time
from pathlib import Path

from claim_phases.turns import Limits
from tests.contract.node_lab import node

WINDOW_S = 5.0
ONCE_A_SECOND = WINDOW_S + 2  # both ends of the window may cut a second

# gRPC's own, which none of its event engine's settings that were tried stops (seen with 1.85): its
# timer list wakes once a second also when it is empty (timer_list.cc, kMaxQueueWindowDuration), on
# a thread of its pool; a thread that did something then looks for more work after 15 ms, and each
# time 1.3 times as long after (work_stealing_thread_pool.cc), which makes twelve times in a second.
GRPC_POOL = {"event_engine", "lifeguard"}
GRPC_POOL_MOST = 12 * ONCE_A_SECOND


def sleeps(pid: int) -> dict[tuple[str, str], int]:
    """How often each thread of a process went to sleep by itself, by its number and name."""
    counts = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        counts[task.name, status["Name"]] = int(status["voluntary_ctxt_switches"])
    return counts


def test_no_timer_wakes_an_idle_wait_more_than_once_a_second() -> None:
    """Three processes wait: the arbiter, the tenant whose turn it is, the one that waits for it.

    The node's own look for intruders is left out: it is the only periodic timer of ours, and its
    period is looked at.
    """
    assert Limits().watch_s >= 1.0
    with node(watch_s=3600.0) as lab:
        lab.claim("claim", "a", "b")
        arbiter, a, b = lab.arbiter(), lab.tenant("a"), lab.tenant("b")
        a.acquire()
        b.say(do="acquire")
        a.out.wait_for(wanted=1)
        watched = {"arbiter": arbiter.pid, "runs": a.pid, "waits": b.pid}
        before = {who: sleeps(pid) for who, pid in watched.items()}
        time.sleep(WINDOW_S)  # what is tested is that nothing happens
        restless = {}
        for who, pid in watched.items():
            for thread, count in sleeps(pid).items():
                slept = count - before[who].get(thread, 0)
                if slept > (GRPC_POOL_MOST if thread[1] in GRPC_POOL else ONCE_A_SECOND):
                    restless[who, *thread] = slept
        assert not restless, f"sleeps in {WINDOW_S:g} s"
        a.yield_turn()
        assert b.acquired() == 2  # it was a wait, and it ends
