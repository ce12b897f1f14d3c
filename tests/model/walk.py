"""Walks through all that can happen in a small world, breadth first."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from claim_phases import jobs
from claim_phases.events import TimerKind
from claim_phases.messages import ArbiterMessage, TenantMessage
from claim_phases.node import Node, Tenant
from claim_phases.phases import Phase
from claim_phases.policies import PolicyName
from claim_phases.tenancy import Park, Restore, RestoreAhead
from tests.model.invariants import BEYOND_THE_KEY
from tests.model.records import LIMITS, Agent, Scan, is_first
from tests.model.world import Action, World

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Faults:
    """How often each fault, and each timer that may come too early, may happen in one history."""

    crashes: int = 0  # of the arbiter, between any two of its acts
    breaks: int = 0  # of sessions
    deaths: int = 0  # of all processes of a tenant
    agent_crashes: int = 0
    failures: int = 0  # of memory commands, of freezes and thaws
    cheats: int = 0
    lags: int = 0
    strangers: int = 0  # arrivals and departures
    breakdowns: int = 0  # of devices, and their return
    intrusions: int = 0
    cancels: int = 0
    crowds: int = 0  # of a tenant's host memory, that come or leave
    echoes: int = 0  # messages that come again, at any time later
    drops: int = 0  # messages that are lost in a session that goes on
    overtakes: int = 0  # messages that come before one that was sent earlier
    looks: int = 0  # at the devices, in the midst of things
    lapses: int = 0  # leases that run out
    timeouts: int = 0  # other deadlines that run out

    @cache  # noqa: B019 - a walk has few, and meets each again and again
    def less(self, name: str) -> "Faults":
        """One of them has happened."""
        return replace(self, **{name: getattr(self, name) - 1})


@dataclass(frozen=True)
class Walked:
    """What a walk has seen."""

    states: int
    edges: int
    stuck: list[str]


class FoundViolation(AssertionError):
    """A history that leads to a violation."""


Part = tuple[int, tuple[int, ...]]
"""Of a part of a state: a number for all but its epochs, and these in order."""


@dataclass(slots=True)
class _State:
    """`node` and `agents` are its parts; a part that is the same as in the state before is not made
    anew.
    """

    world: World
    faults: Faults
    node: Part
    agents: dict[str, Part]


def walk(world: World, faults: Faults, *, max_states: int = 1_000_000) -> Walked:
    """Visit every state. Raises FoundViolation, with the shortest history that leads there.

    A state is stuck when somebody waits in it and no history answers all who wait without further
    faults and favours: a user asks for no more turns, and leaves one only when it is wanted.
    """
    keys = _Keys()
    start = keys.state(world, faults)
    number = {keys.key(start): 0}
    parents: list[tuple[int, Action, int]] = [(-1, (), -1)]
    back: list[list[int]] = [[]]  # for each state those that lead to it of themselves
    calm: list[int] = [] if _waits(world) else [0]
    waiting = deque([start])
    numbers = deque([0])
    edges = 0
    while waiting:
        state, here = waiting.popleft(), numbers.popleft()
        for action, crash_in, left, faulty in _moves(state):
            after = state.world.clone()
            try:
                after.act(action, crash_in)
                then = keys.state(after, left, state)
                there = number.setdefault(keys.key(then), len(parents))
                new = there == len(parents)
                if new:
                    after.check()
                elif after.turns is not state.world.turns:
                    after.check(BEYOND_THE_KEY)
            except Exception as exc:
                steps = "\n  ".join([*_history(parents, here), _label(action, crash_in)])
                raise FoundViolation(
                    f"{type(exc).__name__}: {exc}\n  {steps}\n{after.describe()}"
                ) from exc
            edges += 1
            if new:
                if there >= max_states:
                    raise AssertionError(f"more than {max_states} states")
                parents.append((here, action, crash_in))
                back.append([])
                if not _waits(after):
                    calm.append(there)
                waiting.append(then)
                numbers.append(there)
            if not faulty:
                back[there].append(here)
    good = _reaching(calm, back)
    stuck = [index for index in range(len(parents)) if not good[index]]
    return Walked(len(parents), edges, ["\n  ".join(_history(parents, s)) for s in stuck[:1]])


def _reaching(targets: list[int], back: list[list[int]]) -> list[bool]:
    good = [False] * len(back)
    todo = list(targets)
    for index in todo:
        good[index] = True
    while todo:
        for index in back[todo.pop()]:
            if not good[index]:
                good[index] = True
                todo.append(index)
    return good


def _history(parents: list[tuple[int, Action, int]], index: int) -> list[str]:
    steps = []
    while index > 0:
        index, action, crash_in = parents[index]
        steps.append(_label(action, crash_in))
    return steps[::-1]


def _label(action: Action, crash_in: int) -> str:
    crash = f", crash at {crash_in}" if crash_in >= 0 else ""
    return " ".join(map(str, action)) + crash


def _waits(world: World) -> bool:
    return bool(world.waiting())


DEADLINES: dict[str | int, str] = {
    TimerKind.WATCH: "looks",
    TimerKind.LEASE: "lapses",
    TimerKind.PHASE: "timeouts",
    TimerKind.BLOCKED: "timeouts",
    TimerKind.LEAVE: "timeouts",
}
Move = tuple[Action, int, Faults, bool]


def _moves(state: _State) -> Iterator[Move]:
    """What may happen next: where the arbiter dies in it (or -1), the faults that are left, and
    whether it is one."""
    world, faults = state.world, state.faults
    progress = world.progress()
    # Whether nothing would happen before a deadline, unless a user does something.
    idle = all(action[0] in ("fire", "want", "leave") for action in progress)
    for action in progress:
        left, faulty = faults, not world.certain(action)
        early = DEADLINES.get(action[1]) if action[0] == "fire" and not idle else None
        if early is not None:
            if not getattr(faults, early):
                continue
            left, faulty = faults.less(early), True
        yield action, -1, left, faulty
        if faults.crashes:
            for point in range(world.crash_points(action)):
                yield action, point, left.less("crashes"), True
    if faults != Faults():  # most states come after the last
        yield from _faults(world, faults)


def _faults(world: World, faults: Faults) -> Iterator[Move]:
    fault = partial(_fault, faults)
    if world.turns is not None:
        yield from fault("crashes", "crash")
    for order in world.due():
        yield from fault("failures", "cannot", *order)
    for name, agent in world.agents.items():
        if not agent.alive:
            continue
        if agent.open:
            yield from fault("breaks", "break", name)
        yield from fault("deaths", "die", name)
        if agent.frozen is not None:
            continue
        yield from fault("agent_crashes", "agent_crash", name)
        if agent.commands:
            yield from fault("failures", "fail", name)
            if isinstance(agent.commands[0], Park):
                yield from fault("cheats", "cheat", name)
                yield from fault("lags", "lag", name)
        yield from fault("intrusions", "intrude", name)
        if agent.waits:
            yield from fault("cancels", "unwant", name)
        if agent.spec.memory is not None:
            yield from fault("crowds", "crowd", name)
        for way in ("said", "heard"):
            for index in range(is_first(agent, way), len(getattr(agent, way))):
                yield from fault("echoes", "echo", name, way, index)
                yield from fault("drops", "drop", name, way, index)
            for index in range(is_first(agent, way) + 1, len(getattr(agent, way))):
                yield from fault("overtakes", "overtake", name, way, index)
    for device, _ in world.spec.devices:
        yield from fault("strangers", "stranger", device, 0 if device in world.strangers else 60)
        yield from fault("breakdowns", "breakdown", device)


def _fault(faults: Faults, name: str, *action: str | int) -> Iterator[Move]:
    if getattr(faults, name):
        yield action, -1, faults.less(name), True


# -- states -----------------------------------------------------------------------------------


class _Numbers(dict[Key, int]):
    """A number for each key."""

    def __missing__(self, key: Key) -> int:
        self[key] = number = len(self)
        return number


class _Keys:
    """Equal keys for states that the machines cannot tell apart.

    Epochs are only compared, and a new one is above all: their ranks are enough. The same holds
    of steps (`Node.seq`), so what matters is which timers would still count, which readings no
    phase change has overtaken, and whether a measurement was asked for since. Of times it matters
    how long somebody waits, by the steps in which policies count that; what `fair` and `slowdown`
    go by is not here. Delays and texts decide nothing.
    """

    def __init__(self) -> None:
        self._numbers = _Numbers()

    def state(self, world: World, faults: Faults, before: _State | None = None) -> _State:
        """A world with its parts. What the node knows, timers and readings change only with a step
        of its machine, and worlds share the machines of nodes and the agents that are unchanged.
        """
        if before is None:
            agents = {name: self._agent(agent) for name, agent in world.agents.items()}
            return _State(world, faults, self._node(world), agents)
        former = before.world
        return _State(
            world,
            faults,
            before.node if _same_node(world, former) else self._node(world),
            {
                name: before.agents[name] if agent is former.agents[name] else self._agent(agent)
                for name, agent in world.agents.items()
            },
        )

    def key(self, state: _State) -> Key:
        """A state's key."""
        world = state.world
        parts = [state.node, *state.agents.values()]
        # While the arbiter lives, what is stored matters only if it may die; it has no other epochs
        # than the node (`stored_is_live`).
        if state.faults.crashes or world.turns is None:
            parts.append(self._part(*_stored(world.stored)))
        epochs = [world.highest]
        for _, some in parts:
            epochs += some
        rank = {epoch: index for index, epoch in enumerate(sorted({0, *epochs}))}
        return (
            state.faults,
            *(number for number, _ in parts),
            *map(rank.__getitem__, epochs),
            tuple(sorted(world.strangers.items())),
            tuple(sorted(world.lagging.items())),
            world.broken,
            world.orders,
            world.answers,
        )

    def _node(self, world: World) -> Part:
        if world.turns is None:
            return self._part((world.ran,), [])
        return self._part(*_live(world))

    def _agent(self, agent: Agent) -> Part:
        return self._part(*_process(agent))

    def _part(self, shape: Key, epochs: list[int]) -> Part:
        return self._numbers[shape], tuple(epochs)


def _same_node(world: World, former: World) -> bool:
    return world.turns is former.turns and world.ran is former.ran


Shape = tuple[Key, list[int]]
"""What of something is compared as it is, and the epochs in it, which are compared by rank."""


def _live(world: World) -> Shape:
    node = world.node
    live = frozenset(
        key
        for key, (timer, _) in world.timers.items()
        if key[0] is TimerKind.WATCH or world.counts(timer)
    )
    tenants = [node.tenants[name] for name in sorted(node.tenants)]
    shape = (
        tuple(node.queue),
        tuple(
            (d.foreign, d.whose, d.unseen, d.early, bool(d.failed)) for d in node.devices.values()
        ),
        tuple(_tenant(node, tenant) for tenant in tenants),
        live,
        tuple(sorted(_scan(world, scan) for scan in world.scans)),
        world.ran,
    )
    return shape, _epochs(node, tenants)


def _epochs(node: Node, tenants: list[Tenant]) -> list[int]:
    return [node.epoch, *(epoch for tenant in tenants for epoch in (tenant.epoch, tenant.taken))]


def _tenant(node: Node, tenant: Tenant) -> Key:
    waits = jobs.claimant(node, tenant)
    changed = max(node.devices[name].changed for name in tenant.who.devices)
    return (
        tenant.name,
        tenant.who.incarnation,
        tenant.phase,
        tenant.request,
        tenant.connected,
        tenant.gone,
        bool(tenant.asked) and tenant.asked >= changed,
        bool(tenant.blocked),
        min(tenant.attempts, 2) if tenant.phase is Phase.WAITING else 0,
        tenant.overdue,
        tenant.told_wanted < tenant.epoch,
        tenant.told_idle < tenant.epoch,
        tenant.parked,
        tenant.frozen,
        tenant.thawing,
        tenant.refused >= changed,
        bool(tenant.fault),
        bool(tenant.faulty),
        tenant.rung,
        tenant.steps,
        tenant.pieces,
        tenant.ahead,
        tenant.kept,
        min(tenant.freed, 1) if tenant.phase is Phase.RELEASING else 0,
        all(tenant.asked >= other.freed for other in node.beside(tenant)),
        tenant.unproven,
        waits.waited_s >= LIMITS.patience_s,
        waits.rank if waits.objectives.policy is PolicyName.PRIORITY else 0,
    )


def _stored(node: Node) -> Shape:
    tenants = [node.tenants[name] for name in sorted(node.tenants)]
    shape = (
        tuple(node.queue),
        tuple(
            (d.foreign, d.whose, d.unseen, d.early, bool(d.failed)) for d in node.devices.values()
        ),
        tuple(
            (
                tenant.name,
                tenant.who.incarnation,
                tenant.phase,
                tenant.request,
                tenant.gone,
                tenant.overdue,
                tenant.parked,
                tenant.frozen,
                tenant.thawing,
                bool(tenant.fault),
                bool(tenant.faulty),
                tenant.rung,
                tenant.steps,
                tenant.pieces,
                tenant.ahead,
                tenant.kept,
                tenant.who.host is not None and tenant.ran,
            )
            for tenant in tenants
        ),
    )
    return shape, _epochs(node, tenants)


def _process(agent: Agent) -> Shape:
    tenancy = agent.tenancy
    shape = (
        agent.name,
        agent.turns_left,
        agent.life,
        agent.alive,
        agent.open,
        agent.welcomed,
        agent.known,
        agent.lost,
        agent.dead,
        tuple(map(_message, agent.said)),
        tuple(map(_message, agent.heard)),
        tuple((way, _message(message)) for way, message in agent.echoes),
        tuple(map(_command, agent.commands)),
        agent.held,
        agent.half,
        agent.extra,
        agent.kept,
        agent.frozen,
        agent.moved,
        agent.crowd,
        tenancy.phase,
        tenancy.request,
        tenancy.wanted,
        tenancy.urgent,
        tenancy.taken is None,
        tenancy.leaving,
        tenancy._welcomed,
        tenancy._restored,
        tenancy._held,
        tenancy._abandoned,
        tenancy._ahead,
        tenancy._continues,
    )
    echoes = (message for _, message in agent.echoes)
    items = (*agent.said, *agent.heard, *agent.commands, *echoes)
    return shape, [tenancy.epoch, *(getattr(item, "epoch", 0) for item in items)]


def _command(command: Park | Restore | RestoreAhead) -> Key:
    match command:
        case RestoreAhead(size):
            return ("RestoreAhead", size)
        case Park(_, _, pieces, keep):
            return ("Park", pieces, keep)
        case Restore():
            return ("Restore",)


@cache
def _message(message: TenantMessage | ArbiterMessage) -> Key:
    return (
        type(message).__name__,
        getattr(message, "request", 0),
        getattr(message, "phase", None),
        getattr(message, "size", 0),
        getattr(message, "pieces", False),
        getattr(message, "ahead", False),
        getattr(message, "keep", 0),
        getattr(message, "kept", 0),
        getattr(message, "idle", False),
    )


def _scan(world: World, scan: Scan) -> Key:
    devices = world.node.devices
    return tuple(
        (
            usage.device,
            scan.answer.asked >= devices[usage.device].changed,
            usage.used,
            usage.tenants,
            usage.foreign,
            tuple((one.tenant, one.left) for one in scan.answer.headrooms),
        )
        for usage in scan.answer.usages
    ) + tuple(
        (unread.device, scan.answer.asked >= devices[unread.device].changed)
        for unread in scan.answer.unread
    )
