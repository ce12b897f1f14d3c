"""Whose process is it, on a node of a cluster? The kernel says the pod, the claim whether it may.

A process's cgroup names its pod by UID, which nobody in a pod can change; the mounts of its
namespace name the claims that its container lists. That the pod shares the claim, and its role, is
the API server's word, asked for at its first hello. From then on the node's record of the tenant
counts: turns need no API server.
"""

import contextlib
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from claim_phases.events import Headroom
from claim_phases.node import Membership, Node
from dra_driver.checkpoint import Prepared
from dra_driver.config import Role
from dra_driver.host_memory import Hierarchy
from dra_driver.names import ENGINE, ROLE
from dra_driver.peers import Peer
from dra_driver.processes import Process, all_pids, process, watch
from dra_driver.roster import NotAMember, Part

# cgroupfs: .../pod<uid>/<container>; systemd: ...-pod<uid, _ for ->.slice/cri-...-<id>.scope
_CGROUP: Final = re.compile(
    r"pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?/(?P<container>[^/\s]+)"
)
# proc_pid_mountinfo(5): the root of the mount within its filesystem
_CLAIM: Final = re.compile(r"/claims/([0-9a-f-]{36})/socket ")
# The kernel's table of routes: an address of the namespace itself
_LOCAL: Final = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


class Cluster(Protocol):
    """What is asked of the API server: raw dicts, None for what it does not have."""

    async def claim(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The ResourceClaim. Raises NotNow."""

    async def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The Pod. Raises NotNow."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs: its pod's UID, and the name of its container's cgroup."""

    pod: str
    container: str


def place_of_cgroup(content: str) -> Place | None:
    """`content` is that of /proc/PID/cgroup, of either version; None when it is of no pod."""
    found = _CGROUP.search(content)
    return None if found is None else Place(found["uid"].replace("_", "-"), found["container"])


def claims_of_mounts(content: str) -> frozenset[str]:
    """The UIDs of the claims whose sockets are in these mounts: that of /proc/PID/mountinfo."""
    return frozenset(_CLAIM.findall(content))


def addresses_of_routes(content: str) -> frozenset[str]:
    """The IPv4 addresses that are local by /proc/PID/net/fib_trie, without the loopback's."""
    found = (ipaddress.IPv4Address(one) for one in _LOCAL.findall(content))
    return frozenset(str(one) for one in found if not one.is_loopback)


@dataclass(frozen=True, slots=True)
class _Pod:
    """A pod of this node that said hello. `speaker`: the container that its session is from.

    `cgroup` is that of the whole pod in the hierarchy of memory; empty when it is not known.
    """

    who: Membership
    claim: str
    speaker: str
    addresses: frozenset[str]
    cgroup: str = ""


class PodRoster:
    """The tenants of a node: the pods that share its claims. Implements `roster.Roster`.

    A tenant's name is <namespace>/<pod>. `prepared` finds a claim of this node by UID. Without a
    hierarchy of memory nobody's headroom is known.
    """

    def __init__(
        self,
        node: Node,
        prepared: Callable[[str], Prepared | None],
        cluster: Cluster,
        memory: Hierarchy | None,
    ) -> None:
        self._node = node
        self._prepared = prepared
        self._cluster = cluster
        self._memory = memory
        # Until they come back to a driver that started again.
        self._pods = {
            pod_uid(tenant.who): _Pod(tenant.who, "", "", frozenset())
            for tenant in node.tenants.values()
        }

    async def identify(self, peer: Peer) -> Membership:
        """The tenant that the peer's pod is. Raises NotAMember, NotNow."""
        pid = peer.process.pid
        where = _place(pid)
        prepared = self._prepared(peer.claim)
        if where is None or prepared is None or prepared.admin:
            raise NotAMember(
                f"process {pid} runs in no pod of this claim: start it in one that lists the claim"
            )
        if claims_of_mounts(_proc(pid, "mountinfo")) != {peer.claim}:
            raise NotAMember(
                f"the container of process {pid} does not list this one claim alone: let each "
                f"container that takes turns list one claim"
            )
        who = self._on_record(where.pod) or await self._ask(where.pod, peer, prepared)
        # A peer that ended may have left its connection, and its pid, to a process elsewhere.
        if not peer.process.alive or _place(pid) != where:
            raise NotAMember(f"process {pid} ended while it said hello")
        self._pods[where.pod] = _Pod(
            who, peer.claim, where.container, _addresses(pid), self._cgroup(pid, where.pod)
        )
        return who

    def _cgroup(self, pid: int, pod: str) -> str:
        if self._memory is None:
            return ""
        path = self._memory.path(_proc(pid, "cgroup"))
        found = _CGROUP.search(path)
        if found is None or found["uid"].replace("_", "-") != pod:
            return ""  # the process ended meanwhile
        return path[: found.start("container") - 1]

    def _on_record(self, pod: str) -> Membership | None:
        for tenant in self._node.tenants.values():
            if pod_uid(tenant.who) == pod and not tenant.gone:
                return tenant.who
        return None

    async def _ask(self, uid: str, peer: Peer, prepared: Prepared) -> Membership:
        claim = await self._cluster.claim(prepared.namespace, prepared.name)
        if claim is None or claim["metadata"]["uid"] != prepared.uid:
            raise NotAMember(f"{prepared.told} is deleted: delete its pods too")
        consumers = {one["uid"]: one for one in claim["status"].get("reservedFor", [])}
        if uid not in consumers:
            raise NotAMember(
                f"{prepared.told} is not reserved for the pod with UID {uid}: list it in the pod's "
                f"resourceClaims"
            )
        name = consumers[uid]["name"]
        pod = await self._cluster.pod(prepared.namespace, name)
        if pod is None or pod["metadata"]["uid"] != uid:
            raise NotAMember(f"pod {prepared.namespace}/{name} is deleted")
        annotations = pod["metadata"].get("annotations", {})
        role = annotations.get(ROLE, "")
        agreed = prepared.agreement.role(role) if role else None
        if agreed is None:
            raise NotAMember(
                f"pod {prepared.namespace}/{name} has the role {role!r}, and {prepared.told} is "
                f"for {', '.join(sorted(prepared.agreement.roles)) or 'any role'}: annotate the "
                f"pod with one, {ROLE}"
            )
        return Membership(
            tenant=f"{prepared.namespace}/{name}",
            role=role,
            # A pod lives again when all of its containers were started anew.
            incarnation=f"{uid}/{peer.process.pid}:{peer.process.start_time}",
            devices=prepared.devices,
            need=agreed.need,
            residual=agreed.residual,
            job=f"{prepared.namespace}/{prepared.agreement.job}",
            objectives=prepared.agreement.objectives,
            ladder=prepared.agreement.ladder,
            host=_moved(agreed, len(prepared.devices), drops=ENGINE in annotations),
        )

    def counted_as(self, peer: Peer) -> str:
        """The pod's UID; empty when the peer is in no pod."""
        where = _place(peer.process.pid)
        return where.pod if where is not None else ""

    def owners(self, pids: Iterable[int]) -> dict[int, str]:
        """The tenant of each process; processes of no tenant are left out."""
        places = ((pid, _place(pid)) for pid in pids)
        return {
            pid: self._pods[where.pod].who.tenant
            for pid, where in places
            if where is not None and where.pod in self._pods
        }

    def budget(self, tenant: str, device: str) -> int:
        """Bytes that the tenant may hold on the device without a turn; 0 on one of others."""
        for pod in list(self._pods.values()):
            if pod.who.tenant == tenant and device in pod.who.devices:
                return pod.who.residual
        return 0

    def headroom(self, who: Membership) -> Headroom | None:
        """Of the pod as a whole; None when it has no limit: then it shares the node's memory."""
        pod = self._pods.get(pod_uid(who))
        if pod is None or not pod.cgroup or self._memory is None:
            return None
        account = self._memory.account(pod.cgroup)
        return Headroom(who.tenant, account.left, account.limit) if account is not None else None

    def tenant_of_caller(self, caller: str) -> str:
        """`caller` is "ip:<address>" of a pod; empty when it is of no tenant of this node."""
        kind, _, address = caller.partition(":")
        if kind == "ip":
            for pod in self._pods.values():
                if address in pod.addresses:
                    return pod.who.tenant
        return ""

    def life(self, who: Membership) -> tuple[Part, ...]:
        """The pod's containers that list a claim and run. Reads all of /proc."""
        uid = pod_uid(who)
        pod = self._pods.get(uid)
        parts = []
        for name, first in _containers(uid).items():
            pidfd = watch(first)
            if pidfd is None:
                continue
            loss = f"a container of {who.tenant} that uses the claim ended: this one must end too"
            speaks = pod is None or name == pod.speaker
            parts.append(Part(first, pidfd, "" if speaks else loss))
        if not parts and pod is not None:
            self._pods[uid] = replace(pod, addresses=frozenset())  # may be another pod's soon
        return tuple(parts)

    def processes(self, who: Membership) -> frozenset[int]:
        """Those of the pod's containers that list a claim: neither the sandbox's nor bystanders'.

        Whose container lists one is read of its first process: others may hide their mounts.
        """
        uid = pod_uid(who)
        containers = _containers(uid).keys()
        places = ((pid, _place(pid)) for pid in all_pids())
        return frozenset(
            pid
            for pid, where in places
            if where is not None and where.pod == uid and where.container in containers
        )

    def forget(self, claim: str) -> None:
        """The claim's pods have left the node."""
        for uid, pod in list(self._pods.items()):
            if pod.claim == claim:
                del self._pods[uid]


def pod_uid(who: Membership) -> str:
    """The UID of the pod that this is a life of."""
    return who.incarnation.partition("/")[0]


def _moved(role: Role, devices: int, *, drops: bool) -> int | None:
    """Bytes that parking moves to the host; None when nobody said it.

    An engine `drops` its KV cache at least: what it needs says little of what it moves.
    """
    if role.host is not None:
        return role.host * devices
    if role.need is None or drops:
        return None
    return (role.need - role.residual) * devices


def _place(pid: int) -> Place | None:
    return place_of_cgroup(_proc(pid, "cgroup"))


def _containers(uid: str) -> dict[str, Process]:
    """The first process of each container of the pod that lists a claim, by its cgroup's name.

    The others of a container end with it (pid_namespaces(7)). The sandbox lists no claim.
    """
    found: dict[str, Process] = {}
    for pid in all_pids():
        where = _place(pid)
        if where is None or where.pod != uid or not claims_of_mounts(_proc(pid, "mountinfo")):
            continue
        with contextlib.suppress(ProcessLookupError):
            one = process(pid)
            oldest = found.setdefault(where.container, one)
            if one.start_time < oldest.start_time:
                found[where.container] = one
    return found


def _addresses(pid: int) -> frozenset[str]:
    """The pod's addresses; none when it has the node's, which are not its alone."""
    try:
        if Path(f"/proc/{pid}/ns/net").readlink() == Path("/proc/1/ns/net").readlink():
            return frozenset()
    except OSError:
        return frozenset()
    return addresses_of_routes(_proc(pid, "net/fib_trie"))


def _proc(pid: int, name: str) -> str:
    """A file of the process; empty when it has ended: a zombie's is missing, or EINVAL to read."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
