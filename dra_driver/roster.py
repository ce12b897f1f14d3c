"""Who is who on a node whose tenants are process trees that a runner started."""

from collections.abc import Iterable

from claim_phases.node import Membership
from dra_driver.config import NodeSpec
from dra_driver.peers import Peer
from dra_driver.processes import Registry, watch


class LocalRoster:
    """The tenants of a local run. Implements `arbiter.Roster`."""

    def __init__(self, spec: NodeSpec, registry: Registry) -> None:
        self._spec = spec
        self._registry = registry

    def identify(self, peer: Peer) -> Membership | None:
        """The tenant whose process tree holds the peer, if it is one of this claim."""
        pid = peer.process.pid
        tenant = self._registry.owners([pid]).get(pid)
        spec = self._spec.claims[peer.claim].tenants.get(tenant or "")
        # A peer that ended may have left its connection to a process of another tenant, and its
        # pid to a third one's.
        if tenant is None or spec is None or not peer.process.alive:
            return None
        return Membership(
            tenant=tenant,
            role=tenant,
            incarnation=self._registry.incarnation(tenant),
            devices=spec.devices,
            need=spec.need,
            residual=spec.residual,
        )

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

    def tenant_of_caller(self, caller: str) -> str:
        """`caller` is "pid:<n>": the process at the other end of a connection to the engine."""
        kind, _, number = caller.partition(":")
        if kind != "pid" or not (number.isascii() and number.isdigit()):
            return ""
        pid = int(number)
        return self._registry.owners([pid]).get(pid, "")

    def life(self, tenant: str, incarnation: str) -> tuple[int, ...]:
        """Pidfds of the life's processes that still run."""
        if self._registry.incarnation(tenant) != incarnation:
            return ()
        found = (watch(root) for root in self._registry.roots(tenant))
        return tuple(pidfd for pidfd in found if pidfd is not None)
