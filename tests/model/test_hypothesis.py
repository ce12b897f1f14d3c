"""Long histories of larger worlds, with every fault at once; then whoever waits is answered."""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from claim_phases.escalation import Rung, Step
from claim_phases.policies import Objectives, PolicyName
from claim_phases.tenancy import Park, Restore
from tests.model.records import Spec, TenantSpec, is_first
from tests.model.world import OF_THE_ARBITER, Action, World

CHAOS = settings(
    max_examples=600,
    stateful_step_count=60,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

DEVICES = ("gpu0", "gpu1", "gpu2")
NAMES = ("a", "b", "c", "d")
LADDERS = (
    (),
    (Rung(Step.CHECKPOINT, 5.0),),
    (Rung(Step.ASK, 5.0), Rung(Step.CHECKPOINT, 5.0), Rung(Step.KILL, 5.0)),
    (Rung(Step.ASK, 5.0), Rung(Step.TAINT_NO_SCHEDULE, 5.0), Rung(Step.KILL, 5.0)),
)
OBJECTIVES = (
    Objectives(),
    Objectives(PolicyName.HARVEST, leave_s=5.0),
    Objectives(PolicyName.PRIORITY, priority=1),
    Objectives(PolicyName.FAIR, weight=2.0),
    Objectives(PolicyName.SLOWDOWN, leave_s=30.0),
)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """2 to 4 tenants on 1 to 3 devices of 100 bytes; most do not fit beside each other."""
    devices = DEVICES[: draw(st.integers(1, 3))]
    tenants = tuple(
        TenantSpec(
            name,
            tuple(sorted(draw(st.sets(st.sampled_from(devices), min_size=1)))),
            draw(st.sampled_from([60, 75, 40, 25, None])),
            draw(st.sampled_from([5, 0])),
            pieces=draw(st.booleans()),
            memory=draw(st.sampled_from([None, 60, 160])),
            ladder=draw(st.sampled_from(LADDERS)),
            objectives=draw(st.sampled_from(OBJECTIVES)),
        )
        for name in NAMES[: draw(st.integers(2, 4))]
    )
    return Spec(tuple((device, 100) for device in devices), tenants)


class Chaos(RuleBasedStateMachine):
    """Everything that can happen to a world, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    @initialize(spec=specs())
    def begin(self, spec: Spec) -> None:
        self.world = World(spec)

    def teardown(self) -> None:
        if self.world is not None and self.world.sound:
            self.world.calm()

    # -- what happens by itself -----------------------------------------------------------------

    @rule(data=st.data(), steps=st.integers(1, 20))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        for _ in range(steps):
            if soon := [a for a in self._world().progress() if a[0] != "fire"]:
                self._world().do(data.draw(st.sampled_from(soon)))

    @rule(users=st.booleans())
    def settle(self, users: bool) -> None:
        """All that is under way comes to its end, in order."""
        for step in range(60):
            if not self._next(step, users=users):
                return

    def _next(self, step: int, *, users: bool) -> bool:
        actions = [a for a in self._world().progress() if a[0] != "fire"]
        wishes = [a for a in actions if a[0] in ("want", "leave")]
        soon = [a for a in actions if a not in wishes] or (wishes if users else [])
        if soon:
            self._world().do(soon[step % len(soon) if soon is wishes else 0])
        return bool(soon)

    @rule(more=st.integers(0, 5))
    def time_passes(self, more: int) -> None:
        for _ in range(1 + more):
            timers = self._world().timers
            if timers:
                kind, subject = min(timers, key=lambda key: timers[key][1])
                self._world().do(("fire", kind.value, subject))

    @rule(data=st.data())
    def a_timer_is_early(self, data: st.DataObject) -> None:
        if early := [a for a in self._world().progress() if a[0] == "fire"]:
            self._world().do(data.draw(st.sampled_from(early)))

    # -- faults ---------------------------------------------------------------------------------

    @rule(data=st.data())
    def a_fault(self, data: st.DataObject) -> None:
        possible = self._faults()
        verb = data.draw(st.sampled_from(sorted({str(action[0]) for action in possible})[::-1]))
        self._world().do(data.draw(st.sampled_from([a for a in possible if a[0] == verb])))

    @rule(verb=st.sampled_from(["cheat", "lag", "fail"]), park=st.booleans())
    def memory_goes_wrong(self, verb: str, park: bool) -> None:
        """The next time that there is something to park or restore."""
        for step in range(60):
            for name, agent in self._world().agents.items():
                of_that_kind = agent.commands[:1] and isinstance(
                    agent.commands[0], Park if park else Restore
                )
                if of_that_kind and agent.frozen is None:
                    self._world().do((verb if park else "fail", name))
                    return
            if not self._next(step, users=True):
                return

    @rule(data=st.data(), crash_in=st.integers(0, 30))
    def the_arbiter_crashes(self, data: st.DataObject, crash_in: int) -> None:
        world = self._world()
        if actions := [a for a in world.progress() if a[0] in OF_THE_ARBITER]:
            action = data.draw(st.sampled_from(actions))
            world.do(action, crash_in % world.crash_points(action))

    def _faults(self) -> list[Action]:
        world = self._world()
        found: list[Action] = []
        for device, _ in world.spec.devices:
            found += [("stranger", device, size) for size in (1, 30, 100)]
            if world.strangers.get(device):
                found.append(("stranger", device, 0))
            found.append(("breakdown", device))
        found += [("cannot", *order) for order in world.due()]
        for name, agent in world.agents.items():
            if not agent.alive:
                continue
            found.append(("die", name))
            if agent.open:
                found.append(("break", name))
            if agent.frozen is not None:
                continue
            found += [("agent_crash", name), ("intrude", name)]
            if agent.waits:
                found.append(("unwant", name))
            if agent.spec.memory is not None:
                found.append(("crowd", name))
            found += [
                (fault, name, way, index)
                for fault in ("drop", "echo", "overtake")
                for way in ("said", "heard")
                for index in range(is_first(agent, way), len(getattr(agent, way)))
            ]
        return found

    def _world(self) -> World:
        assert self.world is not None
        return self.world


@pytest.mark.timeout(600)
def test_chaos() -> None:
    """Every invariant holds in every state, and the end of chaos answers all who wait."""
    run_state_machine_as_test(Chaos, settings=CHAOS)
