"""What must be true of each step that the arbiter takes, by what was the case before it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from claim_phases.events import (
    Condition,
    ConditionKind,
    Effect,
    Event,
    PhaseChanged,
    Said,
    Send,
    Tell,
)
from claim_phases.messages import Release, TurnLost, Yield
from claim_phases.node import Tenant
from claim_phases.phases import ASIDE, TURN, Phase
from claim_phases.policies import AGING_S, PolicyName
from tests.model.invariants import Violation
from tests.model.records import LIMITS, Truth

if TYPE_CHECKING:
    from tests.model.world import World


@dataclass(frozen=True)
class Step:
    """A step that is about to be taken.

    `truth`: what the measurement that is taken in saw. Of each tenant before the step: its phase,
    and what it might hold `beyond` its residual budget without a turn. `queue`: who waited, and of
    those `begun` had begun to restore.
    """

    world: "World"
    event: Event
    truth: Truth | None
    phases: dict[str, Phase]
    beyond: dict[str, int]
    queue: tuple[str, ...]
    begun: frozenset[str]

    @classmethod
    def of(cls, world: "World", event: Event, truth: Truth | None) -> Self:
        """Before it is taken."""
        tenants = world.node.tenants
        return cls(
            *(world, event, truth),
            phases={name: tenant.phase for name, tenant in tenants.items()},
            beyond={name: tenant.beyond for name, tenant in tenants.items()},
            queue=tuple(world.node.queue),
            begun=frozenset(name for name, tenant in tenants.items() if tenant.ahead),
        )

    def check(self, effects: list[Effect]) -> None:
        """It has been taken, and these are to be carried out. Raises Violation."""
        self._check_order()
        self._check_loss(effects)
        self._check_told(effects)

    def _check_told(self, effects: list[Effect]) -> None:
        phases = dict(self.phases)
        for effect in effects:
            if isinstance(effect, Tell):
                match effect.what:
                    case PhaseChanged(name, before, after):
                        if (before, after) == (Phase.WAITING, Phase.RESTORING):
                            self._check_grant(name, phases)
                        phases[name] = after if after is not None else Phase.PARKED
                    case Condition(kind, message, str(name), str()) if kind in (
                        ConditionKind.FAULTED,
                        ConditionKind.INTRUDER,
                    ):
                        self._check_blame(name, message)
                    case Condition(ConditionKind.NO_ROOM, message, str(name)) if (
                        "could not park" in message and name not in self._seen().cramped
                    ):
                        raise Violation(f"{name} could park, and is refused: {message}")
                    case _:
                        pass

    def _check_grant(self, name: str, phases: dict[str, Phase]) -> None:
        """None is Running until the former's memory is measured free or its processes are dead."""
        seen = self.truth
        if seen is None:
            raise Violation(f"{name} was granted without a measurement")
        spec = self.world.agents[name].spec
        granted = self.world.agents[name]
        own = granted.held + min(granted.extra, seen.extras[name])
        life = (name, self.world.node.tenants[name].who.incarnation)
        # Of its host memory a newer reading may have told than that of the devices.
        if name in seen.cramped and not granted.can_park and life not in self.world.ran:
            raise Violation(f"{name} was granted its first turn, and could not park again")
        for device in spec.devices:
            if device in seen.broken:
                raise Violation(f"{name} was granted {device}, which could not be measured")
            limit = own if self.beyond.get(name) else spec.residual
            for other in self.world.node.on(device):
                if other.name == name:
                    continue
                phase = phases.get(other.name, Phase.PARKED)
                resident = phase is Phase.YIELDED and other.who.need is not None
                if not resident and phase not in ASIDE:
                    raise Violation(f"{name} was granted beside {other.name}, {phase} on {device}")
                agent = self.world.agents[other.name]
                # One that kept some may be told, later in this step, to give it up.
                beyond = max(other.beyond, self.beyond.get(other.name, 0))
                may_hold = (other.who.need or 0) if resident else other.residual + beyond
                limit += may_hold
                if agent.honest and agent.alive and agent.held > may_hold:
                    raise Violation(
                        f"{name} was granted while {other.name}, {phase}, holds {agent.held} of "
                        f"{device}"
                    )
            used = self._held_since(seen, device)
            if used > limit:
                raise Violation(
                    f"{name} was granted where {used} of {device} are in use and {limit} allowed"
                )

    def _check_order(self) -> None:
        """The head of the queue reserves its devices: served first, or nobody is on them.

        Who has begun to restore ahead of its turn comes before all.
        """
        node = self.world.node
        for index, name in enumerate(self.queue):
            if (
                name in node.queue
                or name in self.begun
                or name not in node.tenants
                or node.tenants[name].phase not in TURN
            ):
                continue
            for place, first in enumerate(self.queue):
                if first not in node.queue or node.failed(node.tenants[first]):
                    continue
                comes_first = self._comes_first(
                    node.tenants[first], node.tenants[name], earlier=place < index
                )
                if comes_first and node.tenants[first] in node.beside(node.tenants[name]):
                    raise Violation(f"{name} was granted before {first}, which came first")

    def _comes_first(self, one: Tenant, other: Tenant, *, earlier: bool) -> bool:
        """Who is first of two by one policy, unless that is a job's time; or does not harvest."""
        first, second = one.who.objectives, other.who.objectives
        if first.policy is second.policy and first.policy in (PolicyName.FIFO, PolicyName.HARVEST):
            return earlier
        waited = [self.world.now - each.asked_at for each in (one, other)]
        if max(waited) >= LIMITS.patience_s:
            return False
        if first.policy is second.policy is PolicyName.PRIORITY:
            mine, its = (
                each.priority + waited_s // AGING_S
                for each, waited_s in zip((first, second), waited, strict=True)
            )
            return mine > its or (mine == its and earlier)
        return second.harvests and not first.harvests

    def _check_loss(self, effects: list[Effect]) -> None:
        """A tenant whose turn was taken learns it at its next call."""
        match self.event:
            case Said(name, Yield(epoch)) if self.phases.get(name) is Phase.FAULTED:
                agent = self.world.agents[name]
                told = [e.message for e in effects if isinstance(e, Send) and e.tenant == name]
                if (
                    agent.tenancy.leaving
                    and epoch == self.world.node.tenants[name].epoch
                    and not any(isinstance(message, TurnLost | Release) for message in told)
                ):
                    raise Violation(f"{name} yields a turn that was taken, and is not told")
            case _:
                pass

    def _held_since(self, seen: Truth, device: str) -> int:
        """What is in use, without that which strangers and intruders took after the reading."""
        used = min(seen.strangers.get(device, 0), self.world.strangers.get(device, 0))
        for agent in self.world.agents.values():
            if device in agent.spec.devices:
                used += agent.held + min(agent.extra, seen.extras[agent.name])
        return used

    def _check_blame(self, name: str, message: str) -> None:
        """No tenant is blamed for memory of others: it holds more than its budget itself."""
        seen = self._seen()
        held = max(seen.tenants[name, d] for d in self.world.agents[name].spec.devices)
        tenant = self.world.node.tenants.get(name)
        if held <= (tenant.budget if tenant is not None else 0):
            raise Violation(f"blamed for what others hold: {message}")

    def _seen(self) -> Truth:
        assert self.truth is not None
        return self.truth
