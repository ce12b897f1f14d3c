"""How much slower a job is beside another than alone: what the accounts say, and what it was.

The accounts estimate it from the one run that there is. Here the same job is run alone as well, and
a clock that is none of the arbiter's times both.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tandem.accounts_view import to_json
from tandem.books import Books
from tests.contract.node_lab import WITHIN_S, Node, Tenant, node

ITERATIONS = 10
WORK_S = 0.1
ROLES = ("rollout", "trainer")


class Job:
    """A trainer and its rollout, each of which asks for the device when the other has had it."""

    def __init__(self, lab: Node, name: str) -> None:
        self.tenants: list[Tenant] = [lab.tenant(f"{name}-{role}", name) for role in ROLES]

    def run(self, iterations: int) -> float:
        """Return the seconds that it took."""
        began = time.monotonic()
        for _ in range(iterations):
            for tenant in self.tenants:
                tenant.acquire()
                work()
                tenant.yield_turn()
        return time.monotonic() - began


def work() -> None:
    """Last as long whoever else works: the device is what they share, and not the cores."""
    over = threading.Event()
    threading.Timer(WORK_S, over.set).start()
    assert over.wait(WITHIN_S)


@contextmanager
def running(job: Job) -> Iterator[None]:
    """It runs since before this block, and until after it."""
    begun, over = threading.Event(), threading.Event()

    def iterate() -> None:
        while not over.is_set():
            job.run(1)
            begun.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    try:
        assert begun.wait(WITHIN_S)
        yield
    finally:
        over.set()
        thread.join(WITHIN_S)


@contextmanager
def jobs(*names: str) -> Iterator[tuple[Node, list[Job]]]:
    """Jobs on one device, whose arbiter keeps its accounts where `tandem top` reads them."""
    with node() as lab:
        for name in names:
            lab.claim(name, *(f"{name}-{role}" for role in ROLES))
        lab.told = lab.folder / "events.jsonl"
        lab.arbiter(ready=False)
        yield lab, [Job(lab, name) for name in names]


def told(lab: Node, job: str) -> list[float]:
    """The slowdown of each of the job's tenants, as `tandem top` and `tandem explain` tell it."""
    with closing(Books(lab.folder)) as books:
        tenants = to_json(books.at(time.monotonic()))["tenants"]
    found = [one for one in tenants if one["job"] == job]
    assert [one["turns"] for one in found] == [ITERATIONS] * len(ROLES)
    return [one["slowdown"] for one in found]


def test_the_slowdown_that_is_told_is_the_one_that_a_run_alone_shows() -> None:
    """At any time one of the job's two tenants wants the device, so their slowdown is the job's.

    What is told counts the swaps between the two as well, which the job pays alone too.
    """
    with jobs("a") as (lab, (a,)):
        alone_s = a.run(ITERATIONS)
        alone = told(lab, "a")
    with jobs("a", "b") as (lab, (a, b)), running(b):
        beside_s = a.run(ITERATIONS)
        beside = told(lab, "a")
    slower = beside_s / alone_s
    assert slower > 1.5  # they do share something
    assert alone == pytest.approx([1.0] * len(ROLES), rel=0.25)
    by_accounts = [one / before for one, before in zip(beside, alone, strict=True)]
    assert by_accounts == pytest.approx([slower] * len(ROLES), rel=0.25)
