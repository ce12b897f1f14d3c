"""A tenant that keeps more of its device each time that it parks, measured by a real arbiter."""

import mmap
from pathlib import Path

from tests.contract.node_lab import Child, Node, Tenant, node
from tests.device_memory import device_memory

BUDGET = 2 << 20
LEAK = 100 << 10


def watched(lab: Node, arbiter: Child) -> None:
    """The watch has attributed the device's memory since now: it found this process's there."""
    mine = device_memory(on_device(lab, arbiter), mmap.PAGESIZE)
    lab.events.wait_for(kind="condition", condition="ForeignMemory", device="gpu0")
    mine.close()
    lab.events.wait_for(kind="condition", condition="Cleared", device="gpu0")


def on_device(lab: Node, arbiter: Child) -> str:
    return str(Path(f"/proc/{arbiter.pid}/root{lab.devices['gpu0']}"))


def park(lab: Node, arbiter: Child, leaking: Tenant, other: Tenant) -> None:
    """One has a turn and is parked for the other, which leaves when the watch has looked."""
    leaking.acquire()
    other.say(do="acquire")
    leaking.out.wait(lambda line: "wanted" in line)
    leaking.yield_turn()
    other.acquired()
    watched(lab, arbiter)
    other.yield_turn()


def test_a_leak_is_told_while_the_tenant_is_well_within_its_budget() -> None:
    with node(watch_s=0.05) as lab:
        lab.claim("claim", "a", "b", residual=BUDGET)
        arbiter = lab.arbiter()
        a, b = lab.tenant("a"), lab.tenant("b")
        a.say(do="leak", device=on_device(lab, arbiter), bytes=LEAK)
        a.out.wait_for(did="leak")
        for _ in range(BUDGET // LEAK - 1):
            park(lab, arbiter, a, b)
        told = [e for e in lab.events.seen if e.get("condition") == "ResidualGrowing"]
        assert [(one["tenant"], one["device"]) for one in told] == [("a", "gpu0")]
        assert 0 < told[0]["bytes"] < BUDGET - LEAK
        assert told[0]["message"].endswith("restart it before then")
        assert not [e for e in lab.events.seen if e.get("condition") in ("Faulted", "Intruder")]
