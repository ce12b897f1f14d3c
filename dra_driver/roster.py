"""Who may speak, and whose a process is: what the arbiter asks about its node's tenants."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from claim_phases.events import Headroom
from claim_phases.node import Membership
from dra_driver.peers import Peer
from dra_driver.processes import Process


class NotAMember(Exception):
    """The peer is no tenant of its claim: one sentence, with what to do."""


class NotNow(Exception):
    """Whether it is one cannot be found out at present; it may ask again."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a tenant that runs: `first` is its first process, `pidfd` the caller's to close.

    `loss` is what the tenant's session is ended with when the part ends; empty when it goes on.
    """

    first: Process
    pidfd: int
    loss: str = ""


class Roster(Protocol):
    """The node's knowledge of its tenants and their processes."""

    async def identify(self, peer: Peer) -> Membership:
        """The tenant that the peer belongs to. Raises NotAMember, NotNow."""

    def owners(self, pids: Iterable[int]) -> dict[int, str]:
        """The tenant of each process; processes of no tenant are left out."""

    def budget(self, tenant: str, device: str) -> int:
        """Bytes that the tenant may hold on the device without a turn; 0 on one of others."""

    def headroom(self, who: Membership) -> Headroom | None:
        """The host memory of this life of the tenant; None without a limit that is its alone."""

    def tenant_of_caller(self, caller: str) -> str:
        """The tenant on whose behalf an acquire was made; empty when unknown."""

    def life(self, who: Membership) -> tuple[Part, ...]:
        """The running parts of this life of the tenant; none when it is over."""

    def processes(self, who: Membership) -> frozenset[int]:
        """All processes of the parts that run now, of whichever life."""
