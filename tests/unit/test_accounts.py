"""The accounts: exact figures of small stories, and of any story the same as the plainest sum."""

import json
import random
from collections import Counter
from itertools import pairwise

import pytest

from claim_phases import accounts as module
from claim_phases.accounts import OTHERS, Accounts, Cause, Group, Why
from claim_phases.phases import Phase

S = 1_000_000_000
A, B = Group("a", "trainer"), Group("b", "rollout")
DEVICE = ("gpu0",)


def node(*tenants: tuple[str, Group], devices: tuple[str, ...] = DEVICE) -> Accounts:
    made = Accounts()
    made.started(100.0, "boot", [])
    for name, group in tenants:
        made.joined(100.0, name, group, f"{name}-1", devices)
    return made


def follow(accounts: Accounts, *story: tuple[float, str, Phase | None]) -> Accounts:
    for t, tenant, phase in story:
        devices = accounts.tenants[tenant].devices
        accounts.changed(t, tenant, phase, devices)
    return accounts


def handover() -> Accounts:
    """x runs for 10 s, while y waits for the last 4; then 1 s is swapped, and y runs for 5."""
    return follow(
        node(("x", A), ("y", B)),
        (100.0, "x", Phase.WAITING),
        (100.0, "x", Phase.RESTORING),
        (102.0, "x", Phase.RUNNING),
        (108.0, "y", Phase.WAITING),
        (112.0, "x", Phase.YIELDED),
        (112.0, "x", Phase.QUIESCING),
        (112.25, "x", Phase.RELEASING),
        (112.5, "x", Phase.VERIFYING),
        (113.0, "x", Phase.PARKED),
        (113.0, "y", Phase.RESTORING),
        (115.0, "y", Phase.RUNNING),
    )


def test_a_handover_to_the_nanosecond() -> None:
    told = handover().at(120.0)
    x, y = told.tenants["x"].account, told.tenants["y"].account
    assert x.spent == {
        Phase.RESTORING: 2 * S,
        Phase.RUNNING: 10 * S,
        Phase.QUIESCING: S // 4,
        Phase.RELEASING: S // 4,
        Phase.VERIFYING: S // 2,
        Phase.PARKED: 7 * S,
    }
    assert (x.lost, x.slowdown, x.turns) == ({}, 1.0, 1)
    assert y.lost == {Cause(Why.TURN, A): 4 * S, Cause(Why.SWAP): 1 * S}
    assert (y.running, y.waited, y.swapped) == (5 * S, 4 * S, 1 * S)  # its start is not lost
    assert y.slowdown == 2.0
    device = told.devices["gpu0"]
    assert (device.known, device.busy, device.exposed) == (20 * S, 19 * S, 1 * S)


def test_a_second_restore_is_lost_and_exposed_and_a_start_is_neither() -> None:
    told = follow(
        handover(),
        (120.0, "x", Phase.WAITING),
        (121.0, "y", Phase.QUIESCING),
        (121.0, "y", Phase.RELEASING),
        (121.5, "y", Phase.VERIFYING),
        (121.5, "y", Phase.PARKED),
        (121.5, "x", Phase.RESTORING),
        (122.0, "x", Phase.RUNNING),
    )
    x = told.tenants["x"].account
    assert x.lost == {Cause(Why.TURN, B): 1 * S, Cause(Why.SWAP): 1 * S}
    assert told.devices["gpu0"].exposed == 2 * S
    told.joined(123.0, "x", A, "x-2", DEVICE)  # its processes began anew
    follow(told, (123.0, "x", Phase.WAITING), (123.0, "x", Phase.RESTORING))
    assert told.at(130.0).devices["gpu0"].exposed == 2 * S
    assert told.at(130.0).tenants["x"].account.lost == x.lost


def test_who_waits_for_a_start_for_a_fault_and_for_nobody() -> None:
    told = follow(
        node(("x", A), ("y", B)),
        (100.0, "y", Phase.WAITING),
        (101.0, "x", Phase.RESTORING),
        (103.0, "x", Phase.RUNNING),
        (104.0, "x", Phase.FAULTED),
        (112.0, "x", None),
    ).at(128.0)
    assert told.tenants["y"].account.lost == {
        Cause(Why.NOBODY): (1 + 16) * S,
        Cause(Why.START, A): 2 * S,
        Cause(Why.TURN, A): 1 * S,
        Cause(Why.FAULT, A): 8 * S,
    }
    assert told.devices["gpu0"].exposed == 0
    assert told.past[A].spent[Phase.FAULTED] == 8 * S


def test_two_that_run_share_the_blame_to_the_last_nanosecond() -> None:
    told = node(("wide", A), devices=("gpu0", "gpu1"))
    told.joined(100.0, "one", B, "1", ("gpu0",))
    told.joined(100.0, "two", Group("c", "rollout"), "1", ("gpu1",))
    follow(told, (100.0, "one", Phase.RUNNING), (100.0, "two", Phase.RUNNING))
    follow(told, (100.0, "wide", Phase.WAITING), (100.000000003, "one", Phase.YIELDED))
    lost = told.at(101.0).tenants["wide"].account
    assert lost.lost == {
        Cause(Why.TURN, B): 2,
        Cause(Why.TURN, Group("c", "rollout")): 1 + S - 3,
    }
    assert lost.device[Phase.WAITING] == 2 * S


def test_who_has_left_is_added_to_its_group_and_comes_back_with_an_account_of_its_own() -> None:
    told = follow(handover(), (116.0, "y", None))
    told.joined(117.0, "y", B, "y-2", DEVICE)
    assert told.past[B].running == 1 * S
    assert told.tenants["y"].account.spent == {}
    assert told.at(118.0).groups()[B].spent[Phase.PARKED] == (8 + 1) * S


def test_a_restart_drops_who_is_not_there_any_more_and_keeps_the_others() -> None:
    told = handover()
    told.started(117.0, "boot", ["y"])
    assert (set(told.tenants), told.past[A].running) == ({"y"}, 10 * S)
    assert told.at(118.0).tenants["y"].account.running == 3 * S


def test_a_reboot_ends_every_tenant_when_it_was_last_heard_of() -> None:
    told = handover()
    told.started(3.0, "another boot", [])
    assert told.tenants == {}
    assert told.groups()[B].running == 0  # it began to run with the last event
    assert told.at(5.0).devices["gpu0"].known == (15 + 2) * S


def test_a_time_before_the_last_one_counts_as_the_last() -> None:
    told = follow(handover(), (114.0, "y", Phase.YIELDED))
    assert told.at(114.5).tenants["y"].account.running == 0


def test_what_is_kept_is_bounded_and_nothing_of_it_is_lost() -> None:
    told = node(("w", A))
    t, count = 100.0, module.GROUPS_MAX + module.CAUSES_MAX
    for number in range(count):
        told.joined(t, f"p{number}", Group(f"job-{number}", "trainer"), "1", DEVICE)
        follow(told, (t, f"p{number}", Phase.RUNNING), (t, "w", Phase.WAITING))
        t += 1.0
        follow(told, (t, f"p{number}", None), (t, "w", Phase.PARKED))
    lost = told.tenants["w"].account.lost
    assert (len(told.past), len(lost)) == (module.GROUPS_MAX + 1, module.CAUSES_MAX)
    assert sum(lost.values()) == count * S
    assert told.past[OTHERS].running == (count - module.GROUPS_MAX) * S
    assert told.groups().keys() - {A} == told.past.keys()


@pytest.mark.parametrize("damage", [{"version": 2}, {"tenants": {"x": {}}}, {"devices": None}])
def test_accounts_that_are_not_whole_are_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="accounts"):
        Accounts.from_json(handover().to_json() | damage)


# -- any story ----------------------------------------------------------------------------------

NAMES = {"p": ("gpu0",), "q": ("gpu0",), "r": ("gpu0", "gpu1"), "s": ("gpu1",)}
Story = list[tuple[int, str, Phase | None]]


def any_story(seed: int) -> Story:
    """Any phase may follow any other here: the sums must hold for what no table allows too."""
    at_random = random.Random(seed)
    story: Story = []
    now = 0
    for _ in range(300):
        now += at_random.choice((0, 1, 7, S, 3 * S + 1))
        phase = None if at_random.random() < 0.03 else at_random.choice(list(Phase))
        story.append((now, at_random.choice(list(NAMES)), phase))
    return story


def plainly(story: Story) -> tuple[Counter[tuple[str, Phase]], Counter[str], Counter[str]]:
    """Between two events each adds the time between to what it sees then.

    Returns what was spent by name and phase, what was lost by name, what was exposed by device.
    """
    spent: Counter[tuple[str, Phase]] = Counter()
    lost: Counter[str] = Counter()
    exposed: Counter[str] = Counter()
    phases: dict[str, Phase] = {}
    ran: set[str] = set()
    for (now, name, phase), (after, _, _) in pairwise(story):
        if phase is None:
            phases.pop(name, None)
            ran.discard(name)
        else:
            phases[name] = phase
            ran |= {name} if phase is Phase.RUNNING else set()
        starting = {n for n, p in phases.items() if p is Phase.RESTORING and n not in ran}
        for one, its in phases.items():
            spent[one, its] += after - now
            if its is Phase.WAITING or (its is Phase.RESTORING and one not in starting):
                lost[one] += after - now
        for device in ("gpu0", "gpu1"):
            on = {n: p for n, p in phases.items() if device in NAMES[n]}
            if (
                not {Phase.RUNNING, Phase.FAULTED} & set(on.values())
                and not starting & set(on)
                and any(p in SWAPPING for p in on.values())
                and any(p in (Phase.WAITING, Phase.RESTORING) for p in on.values())
            ):
                exposed[device] += after - now
    return spent, lost, exposed


SWAPPING = {Phase.QUIESCING, Phase.RELEASING, Phase.VERIFYING, Phase.RESTORING}


@pytest.mark.parametrize("seed", range(20))
def test_of_any_story_the_sums_are_those_of_the_plainest_way_to_add(seed: int) -> None:
    """Also when the accounts were stored and read again in the middle, at every event."""
    story = any_story(seed)
    whole, stored = Accounts(), Accounts()
    for now, name, phase in story:
        for accounts in (whole, stored):
            accounts.changed(now / S, name, phase, NAMES[name])
        stored = Accounts.from_json(json.loads(json.dumps(stored.to_json())))
    assert stored.to_json() == whole.to_json()
    spent, lost, exposed = plainly(story)
    told = whole.at(story[-1][0] / S)
    for name, devices in NAMES.items():
        group = told.groups().get(Group("", name), module.Account())
        assert group.spent == {p: s for (n, p), s in spent.items() if n == name and s}
        assert sum(group.lost.values()) == lost[name]
        assert group.device == {
            phase: passed * len(devices) for phase, passed in group.spent.items()
        }
    assert {name: one.exposed for name, one in told.devices.items()} == {
        name: exposed[name] for name in told.devices
    }
