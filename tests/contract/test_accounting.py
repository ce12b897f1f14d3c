"""What the accounts say after real arbiters were killed and started: all of it, and once."""

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from claim_phases.accounts import Accounts, Group, Why
from claim_phases.phases import Phase
from dra_driver.event_log import before, fold, recorded
from tandem.books import Books, Changes
from tests.contract.node_lab import Node, node

ACCOUNTING = "tests.contract.accounting_arbiter"
JOB = "claim"


@pytest.fixture
def lab() -> Iterator[Node]:
    with node() as made:
        made.claim(JOB, "a", "b")
        made.told = made.folder / "events.jsonl"
        yield made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def from_the_beginning(path: Path) -> Accounts:
    """The accounts of each event of the file, whatever accounts are written in between."""
    accounts = Accounts()
    for line in lines(path):
        if line["kind"] != "accounts":
            accounts = fold(accounts, line)
    return accounts


def whole(accounts: Accounts, joined: dict[str, float]) -> bool:
    """Every nanosecond since its hello is in one phase of a tenant, and what it lost is told."""
    for name, tenant in accounts.at(0.0).tenants.items():
        account = tenant.account
        assert sum(account.spent.values()) == accounts.now - round(joined[name] * 1e9)
        assert sum(account.lost.values()) >= account.spent.get(Phase.WAITING, 0)
    return True


def passing(lab: Node, times: int, kill_every: int, *arguments: str) -> dict[str, float]:
    """Turns pass between a and b, while arbiters are killed and others take up the node.

    Returns when each said hello.
    """
    arbiter = lab.arbiter(*arguments, module=ACCOUNTING, ready=False)
    a, b = lab.tenant("a"), lab.tenant("b")
    joined = hellos(lab)
    for number in range(times):
        giver, taker = (b, a) if number % 2 else (a, b)
        giver.acquire()
        taker.say(do="acquire")
        giver.out.wait(lambda line: "wanted" in line)
        if number % kill_every == 0:
            arbiter.kill(signal.SIGKILL)
            arbiter = lab.arbiter(*arguments, module=ACCOUNTING, ready=False)
        giver.yield_turn()
        taker.acquired()
        taker.yield_turn()
    arbiter.kill(signal.SIGTERM)
    return joined


def hellos(lab: Node) -> dict[str, float]:
    told = [line for line in lines(lab.told) if line["kind"] == "tenant"]
    return {line["tenant"]: line["t"] for line in reversed(told)}


def test_killed_arbiters_lose_and_double_nothing(lab: Node) -> None:
    joined = passing(lab, 6, 1, "--every", "1500", "--file-max", str(1 << 20))
    told = lines(lab.told)
    kinds = [line["kind"] for line in told]
    assert kinds.count("start") == 7
    assert kinds.count("accounts") > 3
    accounts = recorded(lab.told)
    assert accounts.to_json() == from_the_beginning(lab.told).to_json()
    assert {name: one.group for name, one in accounts.tenants.items()} == {
        "a": Group(JOB, "a"),
        "b": Group(JOB, "b"),
    }
    assert whole(accounts, joined)
    # By the epochs that were told as Running, and not by the accounts.
    running = {(o["tenant"], o["epoch"]) for o in told if o.get("to") == "Running"}
    assert sum(one.account.turns for one in accounts.tenants.values()) == len(running) == 12


def test_accounts_outlive_the_file_that_they_were_made_from(lab: Node) -> None:
    """The file is begun anew over and over, and arbiters are killed meanwhile."""
    joined = passing(lab, 15, 5, "--every", str(1 << 20), "--file-max", "4000")
    kept = [*lines(before(lab.told)), *lines(lab.told)]
    assert not [line for line in kept if line["kind"] == "tenant"]  # their hello is long gone
    accounts = recorded(lab.told)
    assert whole(accounts, joined)
    assert sum(one.account.turns for one in accounts.tenants.values()) == 30
    waited = accounts.tenants["a"].account.lost
    assert {cause.whose for cause in waited if cause.why is Why.TURN} == {Group(JOB, "b")}


@pytest.mark.parametrize("phase", ["Restoring", "Running"])
@pytest.mark.parametrize("when", ["stored", "answered"])
def test_an_arbiter_that_died_before_it_told_is_made_up_for(
    lab: Node, phase: str, when: str
) -> None:
    """What was stored and not told counts from the next start; no time is missing."""
    crashing = lab.arbiter(
        *["--tenant", "b", "--phase", phase, "--when", when],
        module="tests.contract.crashing_arbiter",
        ready=False,
    )
    a, b = lab.tenant("a"), lab.tenant("b")
    a.acquire()
    b.say(do="acquire")
    a.out.wait(lambda line: "wanted" in line)
    a.say(do="yield")
    if (phase, when) == ("Running", "answered"):
        b.acquired()
        b.say(do="yield")
    assert crashing.end() == -signal.SIGKILL
    arbiter = lab.arbiter(ready=False)
    a.out.wait_for(did="yield")
    if (phase, when) != ("Running", "answered"):
        b.acquired()
        b.yield_turn()
    a.acquire()
    arbiter.kill(signal.SIGTERM)
    accounts = recorded(lab.told)
    assert accounts.to_json() == from_the_beginning(lab.told).to_json()
    assert whole(accounts, hellos(lab))
    assert accounts.tenants["b"].account.turns == 1


def test_a_reader_follows_a_file_that_is_begun_anew(lab: Node) -> None:
    lab.arbiter("--every", "1500", "--file-max", "4000", module=ACCOUNTING, ready=False)
    a = lab.tenant("a")
    turns = 0
    with closing(Books(lab.folder)) as books, Changes(lab.folder) as changes:
        while turns < 40:
            a.acquire()
            a.yield_turn()
            turns += 1
            while books.at(0.0).tenants["a"].account.turns < turns:
                assert books.read() or changes.wait(20.0)
        assert before(lab.told).is_file()
        assert books.at(0.0).to_json() == recorded(lab.told).at(0.0).to_json()
