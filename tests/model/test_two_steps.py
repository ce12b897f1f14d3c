"""Room for tenants that span several nodes: somebody beside the queue may have a say in a grant.

A coordinator is to grant them in two steps (docs/architecture.md). Here it stands between the
machine's judgement that a tenant may have its turn and the grant; the rest of the machine is as it
is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from claim_phases.events import Usage
from claim_phases.node import Node, Tenant
from claim_phases.turns import Turns
from tests.model.begun import settle
from tests.model.records import LIMITS
from tests.model.walk import Faults, walk
from tests.model.world import World
from tests.model.worlds import pair

SPANS = "a"


@dataclass
class Coordinator:
    """What one node tells it, and what it answers: this node reserved, the others have too."""

    reserved: bool = False
    committed: bool = False


class Coordinated(Turns):
    """Reserves for the tenant that spans nodes; its grant is the coordinator's to give."""

    def __init__(self, node: Node, coordinator: Coordinator) -> None:
        super().__init__(node, LIMITS)
        self._coordinator = coordinator

    def _grant_into_room(
        self,
        tenant: Tenant,
        residents: list[Tenant],
        keepers: list[Tenant],
        usages: Mapping[str, Usage],
    ) -> None:
        if tenant.name == SPANS and not self._coordinator.committed:
            self._coordinator.reserved = True
            return
        super()._grant_into_room(tenant, residents, keepers, usages)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def world(coordinator: Coordinator) -> World:
    """The one that spans nodes has asked, and then the other."""
    made = World(pair(2), lambda node: Coordinated(node, coordinator))
    settle(made)
    made.do(("want", "a"))
    settle(made)
    made.do(("want", "b"))
    settle(made)
    return made


def holds(world: World) -> set[str]:
    return {name for name, agent in world.agents.items() if agent.tenancy.holds}


def look(world: World) -> None:
    world.do(("fire", "watch", ""))
    settle(world)


def test_what_is_reserved_is_kept_from_those_behind(world: World, coordinator: Coordinator) -> None:
    assert coordinator.reserved
    look(world)
    assert holds(world) == set()
    assert world.node.queue == ["a", "b"]


def test_a_commit_grants_what_is_measured_then(world: World, coordinator: Coordinator) -> None:
    coordinator.committed = True
    look(world)
    assert holds(world) == {"a"}


def test_a_roll_back_is_a_cancel_and_the_next_is_served(world: World) -> None:
    world.do(("unwant", "a"))
    settle(world)
    assert holds(world) == {"b"}


def test_a_reservation_outlives_the_arbiter(world: World, coordinator: Coordinator) -> None:
    coordinator.reserved = False
    world.do(("crash",))
    world.do(("restart",))
    settle(world)
    look(world)
    assert coordinator.reserved
    assert (holds(world), world.node.queue) == (set(), ["a", "b"])


def test_every_history_keeps_to_the_invariants_while_nobody_commits(
    coordinator: Coordinator,
) -> None:
    world = World(pair(1), lambda node: Coordinated(node, coordinator))
    walked = walk(world, Faults(cancels=1, crashes=1))
    assert coordinator.reserved
    assert walked.states > 1000
