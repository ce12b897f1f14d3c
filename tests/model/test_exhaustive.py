"""Every history of small worlds, up to the number of faults that each world is about."""

import pytest

from tests.model.begun import in_turns
from tests.model.walk import Faults, Walked, walk
from tests.model.world import World
from tests.model.worlds import BEGUN, UNRELIABLE, WORLDS

FLOOR = {
    "two turns each": 7_500,
    "room for both": 8_000,
    "a wide tenant": 8_000,
    "the arbiter crashes": 11_000,
    "a session breaks, a lease lapses": 46_000,
    "a fault is escalated": 23_000,
    "a tenant dies": 20_000,
    "an agent begins anew": 9_000,
    "memory commands fail": 14_000,
    "a release that is none": 15_000,
    "accounting lags": 12_000,
    "a stranger comes and leaves": 13_000,
    "a device fails and comes back": 9_000,
    "one of two devices fails": 8_000,
    "a tenant of a failed device dies": 11_000,
    "a tenant intrudes": 15_000,
    "a tenant at fault is frozen": 6_000,
    "a tenant cannot be frozen, or thawed": 6_000,
    "one harvests": 8_000,
    "one harvests for too long": 8_500,
    "each has its priority": 5_000,
    "messages come again": 3_000,
    "waits are given up": 16_000,
    "each restores while the other parks": 4_500,
    "what is kept is too much for a third": 12_000,
    "overlapping, the arbiter crashes": 6_500,
    "overlapping, a session breaks": 12_000,
    "overlapping, an agent begins anew": 8_000,
    "overlapping, a memory command fails": 1_500,
    "overlapping, a release that is none": 800,
    "overlapping, a tenant intrudes": 5_000,
    "overlapping, messages come again": 8_000,
    "overlapping, a stranger comes": 3_500,
    "overlapping, accounting lags": 3_000,
    "overlapping, a wait is given up": 3_000,
    "a pod's memory is short": 13_000,
    "two have turns, a wide one waits, the arbiter crashes": 25_000,
    "a wide one has its turn, two wait, a session breaks": 13_000,
    "one of three keeps some, a session breaks": 29_000,
    "one of three has its turn, each its priority, the arbiter crashes": 13_000,
    "a message is lost, and a session breaks": 30_000,
    "a message overtakes another": 15_000,
    "overlapping, a message is lost": 4_500,
    "overlapping, a message overtakes another": 2_000,
}
"""Fewer states than these, and a world has lost what it is about."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WORLDS)
def test_every_history(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each invariant holds in each state, and in none somebody waits for ever."""
    spec, faults = WORLDS[name]
    walked = walked_through(name, World(spec), faults, capsys)
    assert not walked.stuck, walked.stuck[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BEGUN)
def test_every_history_of_three_from_their_turns_on(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the first hello on there are too many."""
    spec, holders, faults = BEGUN[name]
    walked = walked_through(name, in_turns(spec, *holders), faults, capsys)
    assert not walked.stuck, walked.stuck[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", UNRELIABLE)
def test_every_history_of_an_unreliable_stream(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each invariant holds in each state."""
    spec, faults = UNRELIABLE[name]
    walked_through(name, World(spec), faults, capsys)


def walked_through(
    name: str, world: World, faults: Faults, capsys: pytest.CaptureFixture[str]
) -> Walked:
    walked = walk(world, faults)
    with capsys.disabled():
        print(f"\n{name}: {walked.states} states, {walked.edges} steps ", end="")
    assert walked.states >= FLOOR[name]
    return walked
