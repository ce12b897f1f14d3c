"""What comes after a tenant was frozen that had yielded: a world too large to be walked through
from its beginning.
"""

from dataclasses import replace

import pytest

from claim_phases.messages import Restored
from claim_phases.tenancy import Act, Say, Tenancy
from claim_phases.turns import Turns
from tests.model.begun import settle
from tests.model.records import LIMITS, TenantSpec
from tests.model.walk import Faults, walk
from tests.model.world import Action, World
from tests.model.worlds import frozen

LEAVES: list[Action] = [
    *[("leave", "b"), ("say", "b"), ("hear", "b"), ("fire", "watch", "")],
    *[("hear", "b"), ("say", "b"), ("work", "b")],
]
THAWS: Action = ("say", "b")
"""b leaves; then it says so, and a is to go on."""

FAULTS = [
    Faults(),
    Faults(crashes=1, breaks=1),
    Faults(failures=1, breaks=1),
]

CONNECTS: Action = ("connect", "a")
LOST = {CONNECTS}


class ToldOnce(Tenancy):
    """Says nothing of what is still resident as it is granted."""

    def _granted(self, epoch: int) -> list[Act]:
        return [
            act
            for act in super()._granted(epoch)
            if not (isinstance(act, Say) and isinstance(act.message, Restored))
        ]


def told_once(spec: TenantSpec) -> Tenancy:
    return ToldOnce(spec.name, pieces=spec.pieces)


def yielded_and_frozen(world: World) -> World:
    """a yielded, and knows nothing of what followed: that b asked, that its lease ran out, that it
    was frozen, and that b has its turn.
    """
    world.agents["b"].turns_left = 1
    world.do(CONNECTS)
    for step in [("want", "a"), ("leave", "a"), ("break", "a"), ("want", "b")]:
        settle(world, LOST)
        world.do(step)
    for timer in ("lease", "ladder"):
        settle(world, LOST)
        world.do(("fire", timer, "a"))
    settle(world, LOST)
    assert world.agents["a"].frozen == 60
    assert world.agents["b"].tenancy.holds
    return world


@pytest.mark.timeout(300)
@pytest.mark.parametrize("faults", FAULTS)
def test_it_goes_on_and_nobody_waits_for_ever(faults: Faults) -> None:
    spec = replace(frozen(), turns_each=2)
    walked = walk(yielded_and_frozen(World(spec)), faults)
    assert not walked.stuck, walked.stuck[0]
    assert walked.states > 400


def test_one_that_dies_as_it_is_to_go_on_leaves_nobody_waiting() -> None:
    """Nor does an arbiter that did not live to have it go on."""
    world = yielded_and_frozen(World(replace(frozen(), turns_each=2)))
    for step in LEAVES:
        world.do(step)
    points = range(world.crash_points(THAWS))
    assert len(points) > 3
    for point in points:
        crashed = world.clone()
        crashed.do(THAWS, point)
        walked = walk(crashed, Faults(deaths=1))
        assert not walked.stuck, walked.stuck[0]
        assert walked.states > 1000


def test_one_that_does_not_tell_that_it_is_whole_waits_for_ever() -> None:
    """The arbiter takes it for displaced, and waits for its restore; it asks again, and is told
    what it was told already.
    """
    spec = replace(frozen(), turns_each=2)
    world = World(spec, lambda node: Turns(node, LIMITS), told_once)
    assert walk(yielded_and_frozen(world), Faults()).stuck
