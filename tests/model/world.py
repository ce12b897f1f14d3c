"""A world for the protocol: the real machines of node and tenants, a fake wire, a truthful device.

Everything is deterministic: `progress` lists what could happen next, `do` lets it happen, and each
invariant is checked after it. The edges behave as `dra_driver.arbiter` and
`workload_agents.session` do: the node is stored before anything is sent, the sum of a device is
read within the step and its owners later, a session is a stream that may break, memory commands
run one at a time.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Self, TypeVar, cast

from claim_phases.events import (
    Arm,
    Connected,
    Discard,
    Effect,
    Event,
    Fired,
    Freeze,
    Frozen,
    Gone,
    Headroom,
    Kill,
    Lost,
    Measure,
    Measured,
    Resumed,
    Said,
    Send,
    Tell,
    Thaw,
    Thawed,
    Timer,
    TimerKind,
    Unread,
    Usage,
)
from claim_phases.messages import (
    ArbiterMessage,
    Granted,
    Hello,
    Released,
    TenantMessage,
)
from claim_phases.node import Device, Job, Membership, Node, Tenant
from claim_phases.phases import Phase
from claim_phases.tenancy import Act, Answer, Park, Restore, RestoreAhead, Say, Shut, Tenancy
from claim_phases.turns import Turns
from claim_phases.verdicts import WHOLE, causes
from tests.model.invariants import INVARIANTS, Invariant, Violation, decisions
from tests.model.records import LIMITS, Agent, Scan, Spec, TenantSpec, Truth, is_first
from tests.model.steps import Step

STEPS_AT_ONCE = 100
"""More steps than this from one event, without a timer in between, are a loop."""

IN_CALM = 500
"""The same for a whole world whose chaos left messages, commands and readings to be worked off."""

OF_THE_ARBITER = ("say", "lost", "gone", "scan", "fire", "answer", "restart")
"""What the arbiter takes a step for, of all that happens."""

Action = tuple[str | int, ...]
Order = tuple[str, str, str]
"""What is to be done to the processes of a tenant, and to which incarnation's."""
MachineFactory = Callable[[Node], Turns]
TenancyFactory = Callable[[TenantSpec], Tenancy]


def honest_tenancy(spec: TenantSpec) -> Tenancy:
    """The tenant's own machine."""
    return Tenancy(spec.name, pieces=spec.pieces)


class _Crash(Exception):
    """The arbiter dies here."""


@dataclass
class World:
    """See the module. `sends_first` is the seeded fault of storing after sending."""

    spec: Spec
    machine: MachineFactory = field(default=lambda node: Turns(node, LIMITS))
    tenancy: TenancyFactory = honest_tenancy
    sends_first: bool = False

    def __post_init__(self) -> None:
        devices = {name: Device(name, total) for name, total in self.spec.devices}
        self.turns: Turns | None = self.machine(Node("boot", devices))
        self.stored = self.node  # `_do_restart` reads it as a journal is read
        self.agents = {
            tenant.name: Agent(tenant, self.tenancy(tenant), self.spec.turns_each)
            for tenant in self.spec.tenants
        }
        self.strangers: dict[str, int] = {}
        self.lagging: dict[str, int] = {}
        self.broken: frozenset[str] = frozenset()
        self.timers: dict[tuple[TimerKind, str], tuple[Timer, float]] = {}
        self.scans: tuple[Scan, ...] = ()
        self.orders: tuple[Order, ...] = ()  # whom to freeze and to thaw
        self.answers: tuple[Frozen | Thawed, ...] = ()  # what came of that, as is yet to be learnt
        self.now = 0.0
        self.sound = True  # nothing was violated
        self.highest = 0  # the newest epoch that was ever stored or sent
        self.ran: frozenset[tuple[str, str]] = frozenset()  # lives that had a turn; with a limit
        self._lent = True  # the node is also what is stored, or a clone's: a step takes a copy
        self._shared: set[str] = set()  # tenants whose agents a clone has too
        self._crash_in = -1

    @property
    def node(self) -> Node:
        assert self.turns is not None
        return self.turns.node

    def clone(self) -> Self:
        """An independent copy: what both have in common is copied when one of them changes it."""
        self._lent, self._shared = True, set(self.agents)
        other = _copy(self)
        other.agents, other._shared = dict(self.agents), set(self.agents)
        other.strangers = dict(self.strangers)
        other.lagging = dict(self.lagging)
        other.timers = dict(self.timers)
        return other

    def _own(self, name: str) -> Agent:
        """The agent of a tenant, to change it."""
        if name in self._shared:
            self._shared.remove(name)
            agent = self.agents[name] = _copy(self.agents[name])
            agent.tenancy = _copy(agent.tenancy)
        return self.agents[name]

    # -- the device -----------------------------------------------------------------------------

    def truth(self) -> Truth:
        """Who holds what now."""
        held = {
            (agent.name, device): agent.held + agent.extra
            for agent in self.agents.values()
            for device in agent.spec.devices
        }
        extras = {agent.name: agent.extra for agent in self.agents.values()}
        cramped = frozenset(agent.name for agent in self.agents.values() if not agent.can_park)
        return Truth(held, extras, dict(self.strangers), cramped, self.broken)

    def used(self, device: str) -> int:
        """Bytes in use."""
        agents = (agent for agent in self.agents.values() if device in agent.spec.devices)
        mine = sum(agent.held + agent.extra for agent in agents)
        return mine + self.strangers.get(device, 0) + self.lagging.get(device, 0)

    def room(self, device: str) -> int:
        """Free bytes of a device."""
        return dict(self.spec.devices)[device] - self.used(device)

    def _read(self, ask: Measure, truth: Truth) -> Measured:
        usages = []
        readable = [device for device in ask.devices if device not in truth.broken]
        for device in readable:
            used = self.used(device)
            if ask.attribute:
                tenants = tuple(
                    sorted(
                        (name, size)
                        for (name, where), size in truth.tenants.items()
                        if where == device and size
                    )
                )
                budgets = tuple((tenant.name, tenant.residual) for tenant in self.spec.tenants)
                foreign = truth.strangers.get(device, 0)
                usages.append(Usage(device, used, tenants, foreign, budgets))
            else:
                usages.append(Usage(device, used))
        unread = tuple(Unread(name, "broken") for name in ask.devices if name in truth.broken)
        headrooms = tuple(map(self._headroom, ask.headrooms))
        return Measured(ask.asked, tuple(usages), unread, headrooms)

    def _headroom(self, name: str) -> Headroom:
        agent = self.agents[name]
        return Headroom(name, agent.left, agent.spec.memory or 0)

    # -- the arbiter ----------------------------------------------------------------------------

    def handle(self, event: Event, truth: Truth | None = None) -> None:
        """As `Arbiter.handle`: a step, and all that follows from it at once."""
        pending: deque[tuple[Event, Truth | None]] = deque([(event, truth)])
        steps = 0
        try:
            while pending:
                steps += 1
                if steps > STEPS_AT_ONCE:
                    raise Violation(f"nothing loops for ever: {event} led to {steps} steps at once")
                self._step(*pending[0], pending)
                pending.popleft()
        except _Crash:
            self._down()

    def _step(
        self, event: Event, truth: Truth | None, pending: deque[tuple[Event, Truth | None]]
    ) -> None:
        if self._lent:
            self._lent, self.turns = False, self.machine(_copy_node(self.node))
        assert self.turns is not None
        node = self.turns.node
        epochs = {name: tenant.epoch for name, tenant in node.tenants.items()}
        step = Step.of(self, event, truth)
        stale = self._stale(event)
        before = decisions(node) if stale else None
        effects = self.turns.step(event, self.now)
        if stale and decisions(node) != before:
            raise Violation(f"no message of an older epoch changes anything: {event} did")
        step.check(effects)
        stores = any(isinstance(effect, Send | Tell) for effect in effects)
        self._crash_point()
        if stores and not self.sends_first:
            self._store(epochs)
            self._crash_point()
        for effect in effects:
            self._carry_out(effect, pending)
        if stores and self.sends_first:
            self._store(epochs)

    def _store(self, before: dict[str, int]) -> None:
        """What was stored or sent cannot be taken back: later epochs must be above it."""
        self.stored, self._lent = self.node, True
        for name, tenant in self.node.tenants.items():
            if before.get(name, 0) != tenant.epoch and tenant.epoch <= self.highest:
                raise Violation(
                    f"epochs strictly grow, over crashes too: {name} got {tenant.epoch} after "
                    f"{self.highest} was in the world"
                )
            if before.get(name, 0) != tenant.epoch and tenant.who.host is not None:
                self.ran |= {(name, tenant.who.incarnation)}
        self.highest = max(self.highest, self.node.epoch)

    def _stale(self, event: Event) -> bool:
        """Whether this is a message of an older epoch."""
        tenant = self.node.tenants.get(event.tenant) if isinstance(event, Said) else None
        if tenant is None or not isinstance(event, Said):
            return False
        return bool(getattr(event.message, "epoch", tenant.epoch) < tenant.epoch)

    def _carry_out(self, effect: Effect, pending: deque[tuple[Event, Truth | None]]) -> None:
        match effect:
            case Send(name, message):
                agent = self.agents[name]
                if agent.known and agent.open:
                    self._own(name).heard += (message,)
                if isinstance(message, Granted):
                    self.highest = max(self.highest, message.epoch)
                self._crash_point()
            case Measure():
                truth = self.truth()
                answer = self._read(effect, truth)
                if effect.attribute:
                    self.scans += (Scan(answer, truth),)
                else:
                    pending.append((answer, truth))
            case Arm(timer, delay_s):
                self.timers[timer.kind, timer.subject] = (timer, self.now + delay_s)
            case Kill(name):  # nobody is killed for a former life's fault
                agent, known = self.agents[name], self.node.tenants[name].who.incarnation
                if agent.alive and str(agent.life) == known:
                    self._do_die(name)
            case Freeze(name) | Thaw(name):
                verb = "freeze" if isinstance(effect, Freeze) else "thaw"
                self.orders += ((verb, name, self.node.tenants[name].who.incarnation),)
            case Discard():
                pass  # whoever dies leaves nothing
            case Tell():
                pass

    def _crash_point(self) -> None:
        if self._crash_in == 0:
            raise _Crash
        self._crash_in -= 1

    def _down(self) -> None:
        self.turns = None
        self.timers.clear()
        self.scans, self.orders, self.answers = (), (), ()
        for agent in map(self._own, self.agents):
            self._cut(agent)
            agent.lost = False
            agent.dead = ()

    def _cut(self, agent: Agent) -> None:
        """The session breaks. What has arrived can still be read; what was said is lost."""
        if agent.known:
            agent.lost = True
        agent.known = agent.open = False
        agent.said = ()

    # -- what must always be true ---------------------------------------------------------------

    def check(self, invariants: Sequence[Invariant] = INVARIANTS) -> None:
        """What must be true between two steps."""
        for invariant in invariants:
            invariant(self)

    # -- what can happen ------------------------------------------------------------------------

    def progress(self) -> list[Action]:
        """What happens by itself, without any fault, timers last."""
        found: list[Action] = []
        up = self.turns is not None
        if not up:
            found.append(("restart",))
        for name, agent in self.agents.items():
            moves = agent.alive and agent.frozen is None
            if agent.heard and moves:
                found.append(("hear", name))
            if up and agent.said:
                found.append(("say", name))
            if up and agent.lost:
                found.append(("lost", name))
            if up:
                found += [("gone", name, life) for life in agent.dead]
            if not agent.alive:
                found.append(("reborn", name))
            elif up and moves and not agent.open:
                found.append(("connect", name))
            if moves and agent.commands:
                found.append(("work", name))
            for index, (way, message) in enumerate(agent.echoes):
                first_came = message not in getattr(agent, way)
                if first_came and (moves if way == "heard" else up and agent.known):
                    found.append(("repeat", name, index))
            if moves:
                found += self._user(agent)
        found += self.due()
        found += [("answer", index) for index in range(len(self.answers))]
        found += [("scan", index) for index in range(len(self.scans))]
        found += [("settle", device) for device in self.lagging]
        found += [("fire", kind.value, subject) for kind, subject in self._live_timers()]
        return found

    def due(self) -> list[Order]:
        """What is done to the processes of a life is done, and heard of, in order."""
        firsts: dict[tuple[str, str], Order] = {}
        for order in self.orders:
            firsts.setdefault(order[1:], order)
        answered = {(answer.tenant, answer.incarnation) for answer in self.answers}
        return [order for life, order in firsts.items() if life not in answered]

    def _user(self, agent: Agent) -> list[Action]:
        tenancy = agent.tenancy
        if tenancy.holds:
            return [("leave", agent.name)]
        if agent.alive and agent.welcomed and not tenancy.request and agent.turns_left:
            return [("want", agent.name)]
        return []

    def certain(self, action: Action) -> bool:
        """Whether it happens in the end: a user leaves a turn that others want, no more is sure."""
        if action[0] == "leave":
            return self.agents[str(action[1])].tenancy.wanted
        return action[0] not in ("want", "repeat")

    def _live_timers(self) -> list[tuple[TimerKind, str]]:
        """The timers that would do something. One more look at the devices waits for the last."""
        return [
            key
            for key, (timer, _) in self.timers.items()
            if (not self.scans if key[0] is TimerKind.WATCH else self.counts(timer))
        ]

    def counts(self, timer: Timer) -> bool:
        """Whether the timer was not overtaken by events."""
        tenant = self.node.tenants.get(timer.subject)
        if tenant is None:
            return False
        match timer.kind:
            case TimerKind.LEASE:
                return not tenant.connected and tenant.lost == timer.mark
            case TimerKind.BLOCKED:
                return tenant.blocked == timer.mark
            case TimerKind.LADDER:
                return tenant.faulty == timer.mark
            case TimerKind.LEAVE:
                told = tenant.told_wanted == tenant.epoch == timer.mark
                return told and tenant.phase is Phase.RUNNING
            case _:
                return tenant.since == timer.mark

    def crash_points(self, action: Action) -> int:
        """In how many places the arbiter can die while this action is carried out."""
        if action[0] not in OF_THE_ARBITER:
            return 0
        trial = self.clone()
        trial._crash_in = 1_000_000
        trial._act(action)
        return 1_000_000 - trial._crash_in

    def do(self, action: Action, crash_in: int = -1) -> None:
        """Let it happen. With `crash_in` the arbiter dies at that point of what it does then."""
        self.sound = False
        self.act(action, crash_in)
        self.check()
        self.sound = True

    def act(self, action: Action, crash_in: int) -> None:
        """The same without the check that follows."""
        self._crash_in = crash_in
        self._act(action)
        self._crash_in = -1

    def _act(self, action: Action) -> None:
        verb, *rest = action
        getattr(self, f"_do_{verb}")(*rest)

    def _do_restart(self) -> None:
        journal = json.dumps(self.stored.to_json())
        self._lent, self.turns = False, self.machine(Node.from_json(json.loads(journal)))
        ended = [
            Gone(name, tenant.who.incarnation)
            for name, tenant in self.node.tenants.items()
            if not self._lives(tenant)
        ]
        self.handle(Resumed())
        for event in ended:
            if self.turns is not None:
                self.handle(event)
        if self.turns is not None:
            self._take_up_the_frozen()

    def _take_up_the_frozen(self) -> None:
        for name, tenant in self.node.tenants.items():
            agent, life = self.agents[name], (name, tenant.who.incarnation)
            if not self._lives(tenant):
                continue
            if agent.frozen is not None:
                self.answers += (Frozen(*life, held=agent.frozen),)
            elif tenant.frozen is not None:
                self.answers += (Thawed(*life),)

    def _lives(self, tenant: Tenant) -> bool:
        agent = self.agents[tenant.name]
        return agent.alive and str(agent.life) == tenant.who.incarnation

    def _do_crash(self) -> None:
        self._down()

    def _do_connect(self, name: str) -> None:
        agent = self._own(name)
        agent.heard, agent.open = (), True
        self._carry(agent, agent.tenancy.opened())

    def _do_say(self, name: str) -> None:
        agent = self._own(name)
        message, agent.said = agent.said[0], agent.said[1:]
        if isinstance(message, Hello):
            agent.known, agent.lost = True, False
            self.handle(Connected(self._who(agent), message))
        else:
            self.handle(Said(name, message))

    def _who(self, agent: Agent) -> Membership:
        spec = agent.spec
        return Membership(
            *(spec.name, spec.name, str(agent.life), spec.devices, spec.need, spec.residual),
            ladder=spec.ladder,
            host=spec.host,
            objectives=spec.objectives,
        )

    def _do_hear(self, name: str) -> None:
        agent = self._own(name)
        message, agent.heard = agent.heard[0], agent.heard[1:]
        agent.welcomed = True
        self._carry(agent, agent.tenancy.heard(message))

    def _do_lost(self, name: str) -> None:
        self._own(name).lost = False
        self.handle(Lost(name))

    def _do_gone(self, name: str, life: int) -> None:
        agent = self._own(name)
        agent.dead = tuple(other for other in agent.dead if other != life)
        self.handle(Gone(name, str(life)))

    def _do_scan(self, index: int) -> None:
        scan = self.scans[index]
        self.scans = self.scans[:index] + self.scans[index + 1 :]
        self.handle(scan.answer, scan.truth)

    def _do_fire(self, kind: str, subject: str) -> None:
        timer, due = self.timers.pop((TimerKind(kind), subject))
        self.now = max(self.now, due)
        self.handle(Fired(timer))

    # -- tenants and their users ----------------------------------------------------------------

    def _do_want(self, name: str) -> None:
        agent = self._own(name)
        agent.tenancy.taken = None  # told
        agent.requests += 1
        agent.turns_left -= 1
        self._carry(agent, agent.tenancy.want(agent.requests))

    def _do_unwant(self, name: str) -> None:
        agent = self._own(name)
        self._carry(agent, [*agent.tenancy.unwant(), *agent.tenancy.leave()])

    def _do_leave(self, name: str) -> None:
        agent = self._own(name)
        self._carry(agent, agent.tenancy.leave())

    def _do_freeze(self, name: str, life: str) -> None:
        """No later life is frozen for a former one's fault, and none that is well again."""
        agent, tenant = self._carried_out("freeze", name, life)
        if tenant is None or not tenant.faulty:
            problem = "it is not at fault any more"
        elif len(agent.spec.devices) > 1:
            problem = "it has more than one device"
        else:
            problem = ""
            if agent.frozen is None:
                agent.frozen, agent.held = agent.held + agent.extra, 0
                agent.extra = 0
        self.answers += (Frozen(name, life, 0 if problem else agent.frozen or 0, problem),)

    def _carried_out(self, verb: str, name: str, life: str) -> tuple[Agent, Tenant | None]:
        """Whom that was about, with what is known of this life, while it lasts."""
        at = self.orders.index((verb, name, life))
        self.orders = self.orders[:at] + self.orders[at + 1 :]
        agent, tenant = self._own(name), self.node.tenants.get(name)
        if tenant is None or tenant.gone or tenant.who.incarnation != life or not agent.alive:
            return agent, None
        return agent, tenant if str(agent.life) == life else None

    def _do_thaw(self, name: str, life: str) -> None:
        """Who is frozen goes on in a turn of its own, with room for what it held."""
        agent, tenant = self._carried_out("thaw", name, life)
        if tenant is None or tenant.phase not in WHOLE:
            problem = "it has no turn any more"
        elif agent.frozen is None or self._has_room(agent, agent.frozen, "its thaw"):
            problem = ""
            agent.held, agent.frozen = agent.held + (agent.frozen or 0), None
        else:
            problem = "it has no room"
        self.answers += (Thawed(name, life, problem, later=bool(problem)),)

    def _do_answer(self, index: int) -> None:
        answer = self.answers[index]
        self.answers = self.answers[:index] + self.answers[index + 1 :]
        if self.agents[answer.tenant].spec.host is not None and isinstance(answer, Frozen):
            self.ran |= {(answer.tenant, answer.incarnation)}
        self.handle(answer)

    def _do_work(self, name: str) -> None:
        agent = self._own(name)
        command, agent.commands = agent.commands[0], agent.commands[1:]
        match command:
            case Park(epoch, pieces=True, keep=keep) if agent.spec.pieces and not agent.half:
                stays = min(agent.held, agent.spec.residual + keep)
                self._move(agent, stays + (agent.held - stays) // 2)
                agent.half = True
                agent.commands = (command, *agent.commands)
                self._carry(agent, agent.tenancy.freed(epoch))
            case Park(epoch, keep=keep):
                self._move(agent, min(agent.held, agent.spec.residual + keep))
                agent.kept = agent.half = False
                agent.extra = 0
                kept = max(0, agent.held - agent.spec.residual)
                self._carry(agent, agent.tenancy.parked(epoch, kept))
            case RestoreAhead(size):
                self._restore_ahead(agent, min(agent.spec.size, agent.spec.residual + size))
            case Restore(epoch):
                if self._restore(agent):
                    self._carry(agent, agent.tenancy.restored(epoch, None))
                else:
                    self._carry(agent, agent.tenancy.restore_failed(epoch, "out of memory"))

    def _restore_ahead(self, agent: Agent, size: int) -> None:
        more = size - agent.held
        if more > 0 and self._has_room(agent, more, "room for some of its memory"):
            self._move(agent, size)
            agent.kept = False

    def _move(self, agent: Agent, held: int) -> None:
        """It holds so much from now on; the rest is in its host memory, or comes from there."""
        if agent.spec.host is not None:
            agent.moved = max(0, agent.moved + (agent.held - held) * len(agent.spec.devices))
        agent.held = held

    def _restore(self, agent: Agent) -> bool:
        whole = self._has_room(agent, agent.spec.size - agent.held, "its turn")
        if whole:
            agent.held, agent.kept, agent.moved = agent.spec.size, False, 0
        return whole

    def _has_room(self, agent: Agent, more: int, given: str) -> bool:
        short = [device for device in agent.spec.devices if self.room(device) < more]
        for device in short:
            surprises = self.strangers.get(device, 0) + self.lagging.get(device, 0)
            surprises += sum(a.extra for a in self.agents.values() if device in a.spec.devices)
            if not surprises and agent.spec.need is not None and agent.tenancy.epoch:
                raise Violation(f"{agent.name} has {given}, and there is none on {device}")
        return not short

    def _carry(self, agent: Agent, acts: list[Act]) -> None:
        for act in acts:
            match act:
                case Say(message):
                    if isinstance(message, Released) and agent.extra and not agent.kept:
                        raise Violation(f"{agent.name} says that it parked, and did not try to")
                    if agent.open:
                        agent.said += (message,)
                case Park() | Restore() | RestoreAhead():
                    agent.commands += (act,)
                case Answer(_, "", _, _) | Answer(_, _, _, ""):
                    raise Violation(f"{agent.name} was refused without a reason")
                case Shut(reason):
                    raise Violation(f"the session of {agent.name} was refused: {reason}")
                case _:
                    pass

    # -- faults ---------------------------------------------------------------------------------

    def _do_cannot(self, verb: str, name: str, life: str) -> None:
        """Neither frozen nor thawed: it is as it was."""
        self._carried_out(verb, name, life)
        frozen, thawed = Frozen(name, life, problem="it runs"), Thawed(name, life, "it runs")
        self.answers += (frozen if verb == "freeze" else thawed,)

    def _do_break(self, name: str) -> None:
        self._cut(self._own(name))

    def _do_die(self, name: str) -> None:
        """All its processes end, and its memory is free at once."""
        agent = self._own(name)
        self._cut(agent)
        agent.alive = False
        agent.held = agent.extra = agent.moved = 0
        agent.kept = agent.half = False
        agent.frozen = None
        agent.heard, agent.commands, agent.echoes = (), (), ()
        agent.tenancy = self.tenancy(agent.spec)
        if self.turns is not None:
            agent.dead += (agent.life,)

    def _do_reborn(self, name: str) -> None:
        agent = self._own(name)
        agent.alive, agent.welcomed = True, False
        agent.life += 1

    def _do_agent_crash(self, name: str) -> None:
        """The agent alone ends: what it held in the device stays, and a new agent attaches."""
        agent = self._own(name)
        self._cut(agent)
        agent.heard, agent.commands, agent.welcomed = (), (), False
        agent.half = False
        agent.echoes = tuple(echo for echo in agent.echoes if echo[0] == "said")
        agent.tenancy = self.tenancy(agent.spec)

    def _do_fail(self, name: str) -> None:
        """A memory command fails; a restore may leave all of it behind."""
        agent = self._own(name)
        command, agent.commands = agent.commands[0], agent.commands[1:]
        match command:
            case Park(epoch):
                self._carry(agent, agent.tenancy.park_failed(epoch, "it could not"))
            case RestoreAhead():
                pass
            case Restore(epoch):
                self._restore(agent)
                self._carry(agent, agent.tenancy.restore_failed(epoch, "it could not"))

    def _do_cheat(self, name: str) -> None:
        """It says that it parked, and keeps its memory."""
        agent = self._own(name)
        command, agent.commands = agent.commands[0], agent.commands[1:]
        assert isinstance(command, Park)
        agent.kept = agent.held > agent.spec.residual or bool(agent.extra)
        self._carry(agent, agent.tenancy.parked(command.epoch))

    def _do_lag(self, name: str) -> None:
        """It parks, and the device's accounting still shows its memory for a while."""
        agent = self._own(name)
        held = agent.held
        self._do_work(name)
        freed = held - agent.held
        for device in agent.spec.devices:
            if freed > 0:
                self.lagging[device] = self.lagging.get(device, 0) + freed

    def _do_settle(self, device: str) -> None:
        del self.lagging[device]

    def _do_stranger(self, device: str, size: int) -> None:
        """A stranger's process comes, as large as there is room for; 0: strangers leave."""
        self.strangers.pop(device, None)
        if size := min(size, self.room(device)):
            self.strangers[device] = size

    def _do_breakdown(self, device: str) -> None:
        """A device cannot be read from now on, or can be again; what is on it stays."""
        self.broken ^= {device}

    def _do_intrude(self, name: str) -> None:
        agent = self._own(name)
        room = min(self.room(device) for device in agent.spec.devices)
        agent.extra = 0 if agent.extra else min(room, agent.spec.residual + 10)

    def _do_crowd(self, name: str) -> None:
        """Others of its pod take all of its host memory, or give it back."""
        agent = self._own(name)
        agent.crowd = 0 if agent.crowd else agent.spec.memory or 0

    def _do_drop(self, name: str, way: str, index: int) -> None:
        queue = list(getattr(self.agents[name], way))
        del queue[index]
        setattr(self._own(name), way, tuple(queue))

    def _do_echo(self, name: str, way: str, index: int) -> None:
        """A copy of a message is on its way too, slower than the first; it survives the session."""
        agent = self._own(name)
        agent.echoes += ((way, getattr(agent, way)[index]),)

    def _do_repeat(self, name: str, index: int) -> None:
        agent = self._own(name)
        (way, message), before = agent.echoes[index], agent.echoes[:index]
        agent.echoes = before + agent.echoes[index + 1 :]
        if way == "said":
            self.handle(Said(name, cast(TenantMessage, message)))
        else:
            self._carry(agent, agent.tenancy.heard(cast(ArbiterMessage, message)))

    def _do_overtake(self, name: str, way: str, index: int) -> None:
        first, queue = is_first(self.agents[name], way), list(getattr(self.agents[name], way))
        queue.insert(first, queue.pop(index))
        setattr(self._own(name), way, tuple(queue))

    # -- the end of chaos -----------------------------------------------------------------------

    def calm(self, *, seconds: float = 2_000.0) -> None:
        """No more faults: whoever waits gets a turn, or an error that says why, in bounded time.

        Each session is opened anew, since a stream that lost messages is a broken one; strangers
        and intruders leave; users leave turns that others want; all that is due happens, in order.
        """
        for agent in map(self._own, self.agents):
            self._cut(agent)
            agent.heard = ()
            agent.extra = 0
            agent.turns_left = 0
            agent.echoes = ()
        self.strangers.clear()
        self.broken = frozenset()
        end = self.now + seconds
        busy = 0
        while True:
            actions = [action for action in self.progress() if self.certain(action)]
            soon = next((action for action in actions if action[0] != "fire"), None)
            if soon is not None:
                busy += 1
                if busy > IN_CALM:
                    raise Violation(f"nothing loops for ever: {soon} comes again and again")
                self.do(soon)
                continue
            if not self.waiting():
                return
            busy = 0
            if not self.timers or self.now > end:
                raise Violation(f"{self.waiting()} wait for ever: {self.describe()}")
            kind, subject = min(self.timers, key=lambda key: self.timers[key][1])
            self.do(("fire", kind.value, subject))

    def waiting(self) -> list[str]:
        """Who is to be answered, or to be thawed; that may take as long as another is at fault."""
        return [
            agent.name
            for agent in self.agents.values()
            if agent.waits or (agent.frozen is not None and not self._hindered(agent))
        ]

    def _hindered(self, agent: Agent) -> bool:
        tenant = self.node.tenants.get(agent.name) if self.turns is not None else None
        return tenant is not None and bool(causes(self.node, tenant))

    def describe(self) -> str:
        """The world in a few words, for a failure's message."""
        if self.turns is None:
            return "the arbiter is down"
        tenants = [
            f"{t.name} {t.phase} e{t.epoch}{'' if t.connected else ' no session'}"
            f"{' fault: ' + t.fault if t.fault else ''}"
            for t in self.node.tenants.values()
        ]
        agents = [
            f"{a.name}: {a.tenancy.phase} e{a.tenancy.epoch} r{a.tenancy.request} held {a.held}"
            for a in self.agents.values()
        ]
        return f"queue {self.node.queue}; {'; '.join(tenants)}; agents {'; '.join(agents)}"


_TENANT_FIELDS = attrgetter(*(f.name for f in fields(Tenant)))
_DEVICE_FIELDS = attrgetter(*(f.name for f in fields(Device)))
_JOB_FIELDS = attrgetter(*(f.name for f in fields(Job)))
_T = TypeVar("_T")


def _copy_node(node: Node) -> Node:
    return Node(
        node.boot_id,
        {name: Device(*_DEVICE_FIELDS(device)) for name, device in node.devices.items()},
        node.epoch,
        node.seq,
        list(node.queue),
        {name: Tenant(*_TENANT_FIELDS(tenant)) for name, tenant in node.tenants.items()},
        {name: Job(*_JOB_FIELDS(job)) for name, job in node.jobs.items()},
        node.at,
    )


def _copy(thing: _T) -> _T:
    """A shallow copy; `copy.copy` takes several times as long, and a walk copies most of all."""
    other = object.__new__(type(thing))
    other.__dict__.update(thing.__dict__)
    return other
