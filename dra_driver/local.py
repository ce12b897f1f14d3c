"""Who is who on a node whose tenants are process trees that a runner started."""

from collections.abc import Iterable

from claim_phases.events import Headroom
from claim_phases.node import Membership
from dra_driver.node_file import NodeSpec
from dra_driver.peers import Peer
from dra_driver.processes import Registry, all_pids, watch
from dra_driver.roster import NotAMember, Part


class LocalRoster:
    """The tenants of a local run. Implements `roster.Roster`."""

    def __init__(self, spec: NodeSpec, registry: Registry) -> None:
        self._spec = spec
        self._registry = registry

    async def identify(self, peer: Peer) -> Membership:
        """The tenant whose process tree holds the peer, if it is one of this claim."""
        pid = peer.process.pid
        tenant = self.counted_as(peer)
        spec = self._spec.claims[peer.claim].tenants.get(tenant)
        # A peer that ended may have left its connection to a process of another tenant, and its
        # pid to a third one's.
        if spec is None or not peer.process.alive:
            raise NotAMember(
                f"process {pid} belongs to no tenant of this claim: start it through tandem local"
            )
        return Membership(
            tenant=tenant,
            role=tenant,
            incarnation=self._registry.incarnation(tenant),
            devices=spec.devices,
            need=spec.need,
            residual=spec.residual,
            job=peer.claim,
            objectives=spec.objectives,
            ladder=spec.ladder,
        )

    def counted_as(self, peer: Peer) -> str:
        """The tenant of the peer's process tree; empty when there is none."""
        return self._registry.owners([peer.process.pid]).get(peer.process.pid, "")

    def owners(self, pids: Iterable[int]) -> dict[int, str]:
        """The tenant of each process; processes of no tenant are left out."""
        return self._registry.owners(pids)

    def budget(self, tenant: str, device: str) -> int:
        """The residual budget of a tenant on one of its devices, 0 on others."""
        for claim in self._spec.claims.values():
            spec = claim.tenants.get(tenant)
            if spec is not None and device in spec.devices:
                return spec.residual
        return 0

    def headroom(self, who: Membership) -> Headroom | None:
        """Not known: all tenants of a run share whatever limit there is."""
        return None

    def tenant_of_caller(self, caller: str) -> str:
        """`caller` is "pid:<n>": the process at the other end of a connection to the engine."""
        kind, _, number = caller.partition(":")
        if kind != "pid" or not (number.isascii() and number.isdigit()):
            return ""
        pid = int(number)
        return self._registry.owners([pid]).get(pid, "")

    def life(self, who: Membership) -> tuple[Part, ...]:
        """The life's registered processes that still run."""
        if self._registry.incarnation(who.tenant) != who.incarnation:
            return ()
        roots = self._registry.roots(who.tenant)
        found = ((root, watch(root)) for root in roots)
        return tuple(Part(root, pidfd) for root, pidfd in found if pidfd is not None)

    def processes(self, who: Membership) -> frozenset[int]:
        """Those in the trees of the tenant."""
        owners = self._registry.owners(all_pids())
        return frozenset(pid for pid, tenant in owners.items() if tenant == who.tenant)
