"""What a world is made of: its specification, its tenants' processes, and what a device holds."""

from dataclasses import dataclass

from claim_phases.escalation import Rung
from claim_phases.events import Measured
from claim_phases.messages import ArbiterMessage, Hello, TenantMessage, Welcome
from claim_phases.policies import Objectives
from claim_phases.tenancy import Park, Restore, RestoreAhead, Tenancy
from claim_phases.turns import Limits

LIMITS = Limits()


@dataclass(frozen=True)
class TenantSpec:
    """A tenant of the world; bytes are per device. `memory`: the limit of its host memory, where it
    has one.
    """

    name: str
    devices: tuple[str, ...]
    need: int | None
    residual: int
    ladder: tuple[Rung, ...] = ()
    pieces: bool = False  # it parks in two steps, as much as it must, and restores as far as it may
    memory: int | None = None
    objectives: Objectives = Objectives()

    @property
    def host(self) -> int | None:
        """What parking moves into its host memory, as the node is told."""
        if self.memory is None or self.need is None:
            return None
        return (self.need - self.residual) * len(self.devices)

    @property
    def size(self) -> int:
        """What it really holds while it runs."""
        return self.need if self.need is not None else 60


@dataclass(frozen=True)
class Spec:
    """Devices with their sizes, and tenants."""

    devices: tuple[tuple[str, int], ...]
    tenants: tuple[TenantSpec, ...]
    turns_each: int = 1_000_000


@dataclass
class Agent:
    """A tenant's process: its tenancy, its user, its end of the wire, its memory.

    `known`: the arbiter serves the present session; `lost`: it has yet to learn that one broke;
    `dead`: lives whose end it has yet to learn. `half`: the park that is under way is half done;
    `extra` are bytes that it holds without a turn, `kept`: it lied about a release. `frozen`:
    its processes stand still, and what they held is on the host. `echoes` are
    messages that will come once more. Of its host memory it uses what it `moved` there, others of
    its pod use `crowd`.
    """

    spec: TenantSpec
    tenancy: Tenancy
    turns_left: int
    life: int = 1
    alive: bool = True
    open: bool = False
    welcomed: bool = False
    known: bool = False
    lost: bool = False
    dead: tuple[int, ...] = ()
    said: tuple[TenantMessage, ...] = ()
    heard: tuple[ArbiterMessage, ...] = ()
    echoes: tuple[tuple[str, TenantMessage | ArbiterMessage], ...] = ()
    commands: tuple[Park | Restore | RestoreAhead, ...] = ()
    held: int = 0
    half: bool = False
    extra: int = 0
    kept: bool = False
    frozen: int | None = None
    moved: int = 0
    crowd: int = 0
    requests: int = 0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def waits(self) -> bool:
        return self.alive and self.tenancy.request != 0

    @property
    def left(self) -> int:
        """Bytes of its host memory; it has a limit."""
        return max(0, (self.spec.memory or 0) - self.moved - self.crowd)

    @property
    def can_park(self) -> bool:
        """Whether its host memory takes all that it moves there."""
        return self.spec.host is None or self.left + self.moved >= self.spec.host

    @property
    def honest(self) -> bool:
        return not self.kept and not self.extra


@dataclass(frozen=True)
class Truth:
    """Who held what at one moment: bytes by (tenant, device), and of strangers.

    `cramped`: who had not the host memory to park; `broken`: devices that could not be read then.
    """

    tenants: dict[tuple[str, str], int]
    extras: dict[str, int]
    strangers: dict[str, int]
    cramped: frozenset[str]
    broken: frozenset[str]


@dataclass(frozen=True)
class Scan:
    """An attributed measurement on its way to the arbiter."""

    answer: Measured
    truth: Truth


def is_first(agent: Agent, way: str) -> bool:
    """Whether this end of the session begins with its hello, or the answer to that: those come
    first and once, whatever the wire does."""
    return any(isinstance(message, Hello | Welcome) for message in getattr(agent, way)[:1])
