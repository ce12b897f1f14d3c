"""Walks through all that can happen in a small world, breadth first."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from claim_phases.events import TimerKind
from claim_phases.messages import ArbiterMessage, TenantMessage
from claim_phases.node import Node, Tenant
from claim_phases.phases import Phase
from claim_phases.tenancy import Park, Restore, RestoreAhead
from tests.model.records import Agent, Scan, is_first
from tests.model.world import Action, World

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Faults:
    """How often each fault, and each timer that may come too early, may happen in one history."""

    crashes: int = 0  # of the arbiter, between any two of its acts
    breaks: int = 0  # of sessions
    deaths: int = 0  # of all processes of a tenant
    agent_crashes: int = 0
    failures: int = 0  # of memory commands
    cheats: int = 0
    lags: int = 0
    strangers: int = 0  # arrivals and departures
    breakdowns: int = 0  # of devices, and their return
    intrusions: int = 0
    cancels: int = 0
    crowds: int = 0  # of a tenant's host memory, that come or leave
    echoes: int = 0  # messages that come again, at any time later
    looks: int = 0  # at the devices, in the midst of things
    lapses: int = 0  # leases that run out
    timeouts: int = 0  # other deadlines that run out

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


@dataclass
class _State:
    world: World
    faults: Faults


def walk(world: World, faults: Faults, *, max_states: int = 1_000_000) -> Walked:
    """Visit every state. Raises FoundViolation, with the shortest history that leads there.

    A state is stuck when somebody waits in it and no history answers all who wait without further
    faults and favours: a user asks for no more turns, and leaves one only when it is wanted.
    """
    start = _State(world, faults)
    number = {hash(_key(start)): 0}  # 64 bits: two of a million states collide once in 10^7 walks
    parents: list[tuple[int, str]] = [(-1, "")]
    back: list[list[int]] = [[]]  # for each state those that lead to it of themselves
    calm: list[int] = [] if _waits(world) else [0]
    waiting = deque([start])
    numbers = deque([0])
    edges = 0
    while waiting:
        state, here = waiting.popleft(), numbers.popleft()
        for label, action, crash_in, left, faulty in _moves(state):
            after = state.world.clone()
            try:
                after.do(action, crash_in)
            except Exception as exc:
                history = _history(parents, here)
                steps = "\n  ".join([*history, label])
                raise FoundViolation(
                    f"{type(exc).__name__}: {exc}\n  {steps}\n{after.describe()}"
                ) from exc
            edges += 1
            then = _State(after, left)
            seen = hash(_key(then))
            there = number.get(seen)
            if there is None:
                there = number[seen] = len(parents)
                if there >= max_states:
                    raise AssertionError(f"more than {max_states} states")
                parents.append((here, label))
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


def _history(parents: list[tuple[int, str]], index: int) -> list[str]:
    steps = []
    while index > 0:
        index, label = parents[index]
        steps.append(label)
    return steps[::-1]


def _waits(world: World) -> bool:
    return any(agent.waits for agent in world.agents.values())


def _idle(world: World) -> bool:
    """Whether nothing would happen before a deadline, unless a user does something."""
    return all(action[0] in ("fire", "want", "leave") for action in world.progress())


DEADLINES: dict[str | int, str] = {
    TimerKind.WATCH: "looks",
    TimerKind.LEASE: "lapses",
    TimerKind.PHASE: "timeouts",
    TimerKind.BLOCKED: "timeouts",
    TimerKind.LEAVE: "timeouts",
}
Move = tuple[str, Action, int, Faults, bool]


def _moves(state: _State) -> Iterator[Move]:
    world, faults = state.world, state.faults
    for action in world.progress():
        label = " ".join(map(str, action))
        left, faulty = faults, not world.certain(action)
        early = DEADLINES.get(action[1]) if action[0] == "fire" and not _idle(world) else None
        if early is not None:
            if not getattr(faults, early):
                continue
            left, faulty = faults.less(early), True
        yield label, action, -1, left, faulty
        if faults.crashes:
            for point in range(world.crash_points(action)):
                yield f"{label}, crash at {point}", action, point, left.less("crashes"), True
    yield from _faults(world, faults)


def _faults(world: World, faults: Faults) -> Iterator[Move]:
    def fault(name: str, *action: str | int) -> Iterator[Move]:
        if getattr(faults, name):
            yield " ".join(map(str, action)), action, -1, faults.less(name), True

    if world.turns is not None:
        yield from fault("crashes", "crash")
    for name, agent in world.agents.items():
        if not agent.alive:
            continue
        if agent.open:
            yield from fault("breaks", "break", name)
        yield from fault("deaths", "die", name)
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
    for device, _ in world.spec.devices:
        yield from fault("strangers", "stranger", device, 0 if device in world.strangers else 60)
        yield from fault("breakdowns", "breakdown", device)


# -- states -----------------------------------------------------------------------------------


def _key(state: _State) -> Key:
    """The state up to what the machines cannot tell apart.

    Epochs are only compared, and a new one is above all: their ranks are enough. The same holds
    of steps (`Node.seq`), so what matters is which timers would still count, which readings no
    phase change has overtaken, and whether a measurement was asked for since. Delays, times and
    texts decide nothing.
    """
    world, faults = state.world, state.faults
    epochs = {world.highest, world.stored["epoch"]}
    for agent in world.agents.values():
        epochs.add(agent.tenancy.epoch)
        echoes = (message for _, message in agent.echoes)
        for item in (*agent.said, *agent.heard, *agent.commands, *echoes):
            epochs.add(getattr(item, "epoch", 0))
    for raw in world.stored["tenants"].values():
        epochs |= {raw["epoch"], raw["taken"]}
    if world.turns is not None:
        epochs.add(world.node.epoch)
        for tenant in world.node.tenants.values():
            epochs |= {tenant.epoch, tenant.taken}
    rank = {epoch: index for index, epoch in enumerate(sorted(epochs | {0}))}
    return (
        faults,
        rank[world.highest],
        _node_key(world, rank) if world.turns is not None else None,
        _stored_key(world.stored, rank) if faults.crashes or world.turns is None else None,
        tuple(_agent_key(agent, rank) for agent in world.agents.values()),
        tuple(sorted(world.strangers.items())),
        tuple(sorted(world.lagging.items())),
        world.broken,
        tuple(sorted(_scan_key(world, scan) for scan in world.scans)),
        world.ran,
    )


def _node_key(world: World, rank: dict[int, int]) -> Key:
    node = world.node
    live = frozenset(
        key
        for key, (timer, _) in world.timers.items()
        if key[0] is TimerKind.WATCH or world.counts(timer)
    )
    return (
        rank[node.epoch],
        tuple(node.queue),
        tuple(
            (d.foreign, d.whose, d.unseen, d.early, bool(d.failed)) for d in node.devices.values()
        ),
        tuple(sorted(_tenant_key(node, tenant, rank) for tenant in node.tenants.values())),
        live,
    )


def _tenant_key(node: Node, tenant: Tenant, rank: dict[int, int]) -> Key:
    changed = max(node.devices[name].changed for name in tenant.who.devices)
    return (
        tenant.name,
        tenant.who.incarnation,
        tenant.phase,
        rank[tenant.epoch],
        rank[tenant.taken],
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
        bool(tenant.fault),
        bool(tenant.faulty),
        tenant.rung,
        tenant.pieces,
        tenant.ahead,
        tenant.kept,
        min(tenant.freed, 1) if tenant.phase is Phase.RELEASING else 0,
        all(tenant.asked >= other.freed for other in node.beside(tenant)),
        tenant.unproven,
    )


def _stored_key(stored: dict[str, Any], rank: dict[int, int]) -> Key:
    return (
        rank[stored["epoch"]],
        tuple(stored["queue"]),
        tuple(
            (
                *(device["foreign"], device["whose"], device["unseen"], device["early"]),
                bool(device["failed"]),
            )
            for device in stored["devices"].values()
        ),
        tuple(
            (
                name,
                raw["who"]["incarnation"],
                raw["phase"],
                rank[raw["epoch"]],
                rank[raw["taken"]],
                raw["request"],
                raw["gone"],
                raw["overdue"],
                raw["parked"],
                bool(raw["fault"]),
                bool(raw["faulty"]),
                raw["rung"],
                raw["pieces"],
                raw["ahead"],
                raw["kept"],
                raw["who"]["host"] is not None and raw["ran"],
            )
            for name, raw in sorted(stored["tenants"].items())
        ),
    )


def _agent_key(agent: Agent, rank: dict[int, int]) -> Key:
    tenancy = agent.tenancy
    return (
        agent.turns_left,
        agent.life,
        agent.alive,
        agent.open,
        agent.welcomed,
        agent.known,
        agent.lost,
        agent.dead,
        tuple(_message_key(message, rank) for message in agent.said),
        tuple(_message_key(message, rank) for message in agent.heard),
        tuple((way, *_message_key(message, rank)) for way, message in agent.echoes),
        tuple(_command_key(command, rank) for command in agent.commands),
        agent.held,
        agent.half,
        agent.extra,
        agent.kept,
        agent.moved,
        agent.crowd,
        tenancy.phase,
        rank[tenancy.epoch],
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
    )


def _command_key(command: Park | Restore | RestoreAhead, rank: dict[int, int]) -> Key:
    match command:
        case RestoreAhead(size):
            return ("RestoreAhead", size)
        case Park(epoch, _, pieces, keep):
            return ("Park", rank[epoch], pieces, keep)
        case Restore(epoch):
            return ("Restore", rank[epoch])


def _message_key(message: TenantMessage | ArbiterMessage, rank: dict[int, int]) -> Key:
    return (
        type(message).__name__,
        rank[getattr(message, "epoch", 0)],
        getattr(message, "request", 0),
        getattr(message, "phase", None),
        getattr(message, "size", 0),
        getattr(message, "pieces", False),
        getattr(message, "ahead", False),
        getattr(message, "keep", 0),
        getattr(message, "kept", 0),
    )


def _scan_key(world: World, scan: Scan) -> Key:
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
