"""Worlds in which something has happened already: what follows can be walked through, the whole
could not be.
"""

from collections.abc import Container

from tests.model.records import Spec
from tests.model.world import Action, World

BY_ITSELF = frozenset(
    {"hear", "say", "lost", "connect", "work", "freeze", "thaw", "answer", "scan", "settle"}
)


def settle(world: World, but: Container[Action] = ()) -> None:
    """All that happens by itself, but for this."""
    while moves := [a for a in world.progress() if a[0] in BY_ITSELF and a not in but]:
        world.do(moves[0])


def in_turns(spec: Spec, *holders: str) -> World:
    """These have turns, and all others have begun to ask for one."""
    world = World(spec)
    for name in holders:
        settle(world)
        world.do(("want", name))
    settle(world)
    assert all(world.agents[name].tenancy.holds for name in holders)
    for name in world.agents:
        if name not in holders:
            world.do(("want", name))
    return world
