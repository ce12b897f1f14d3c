"""Who may go where: pods, claims, nodes in; placements, and what the others wait for, out.

The halves of a pair are the pods of one namespace that refer to one ResourceClaim; its
configuration names the roles that must be there. They are placed together or not at all. All is
decided anew from the cache each time, and a node is promised in the step that found it fit.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduler_extender.ledger import Ledger
from scheduler_extender.names import GATE, ROLE
from scheduler_extender.objects import Claim, Pod
from scheduler_extender.placement import Room, free_devices, obstacle, reaches
from scheduler_extender.world import World

MESSAGE_MAX: Final = 1000
"""Characters; the API server refuses an event's note beyond 1024 bytes."""
_NAMED_MAX: Final = 5


class Reason(StrEnum):
    """Why a pod is not placed, as its event says it."""

    WAITING_FOR_CLAIM = "WaitingForClaim"
    WAITING_FOR_PARTNER = "WaitingForPartner"
    WAITING_FOR_GATE = "WaitingForGate"
    WAITING_FOR_ROOM = "WaitingForRoom"
    ROLE_TAKEN = "RoleTaken"
    INVALID_CLAIM = "InvalidClaim"
    INVALID_ROLE = "InvalidRole"


@dataclass(frozen=True, slots=True)
class Place:
    """These pods go to this node: it is promised to them, and their gates may be removed."""

    pods: tuple[Pod, ...]
    node: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The pod stays where it is; the message says what it waits for and what to do."""

    pod: Pod
    reason: Reason
    message: str


Decision = Place | Wait


def decide(world: World, ledger: Ledger, now: float) -> list[Decision]:
    """Decide on every pod of ours that is on no node yet, and keep the ledger accordingly."""
    ledger.settle(world.pods.views, now)
    claims = world.claims.views
    decisions: list[Decision] = []
    sound = []
    for pod in sorted(world.tenants.values(), key=_seniority):
        if pod.ending:
            continue
        flaw = None if pod.node else _flaw(pod, claims)
        if flaw is None:
            sound.append(pod)
        else:
            decisions.append(flaw)
            ledger.withdraw([pod])
    for group in _groups(sound, claims):
        for decision in _decide(group, world, ledger):
            decisions.append(decision)
            match decision:
                case Place(pods, node):
                    ledger.promise(pods, node, now)
                case Wait(pod):
                    ledger.withdraw([pod])
    return decisions


def _seniority(pod: Pod) -> tuple[bool, bool, str, str, str]:
    """Those on a node first, then those on their way, then by age."""
    return (not pod.node, GATE in pod.gates, pod.created, pod.namespace, pod.name)


def _flaw(pod: Pod, claims: Mapping[str, Claim]) -> Wait | None:
    """What keeps the pod from belonging to any group."""
    for entry in pod.claims:
        if entry.claim is None:
            return Wait(
                pod,
                Reason.WAITING_FOR_CLAIM,
                f"no ResourceClaim was made from ResourceClaimTemplate {entry.template} yet: "
                f"create the template if it does not exist",
            )
        claim = claims.get(f"{pod.namespace}/{entry.claim}")
        if claim is None or claim.ending:
            state = "does not exist" if claim is None else "is being deleted"
            return Wait(
                pod,
                Reason.WAITING_FOR_CLAIM,
                f"ResourceClaim {entry.claim} {state}: create it in namespace {pod.namespace}",
            )
        if claim.fault:
            return Wait(
                pod,
                Reason.INVALID_CLAIM,
                f"ResourceClaim {claim.name}: {claim.fault}: delete the claim and create it anew, "
                f"it cannot be changed",
            )
        if claim.roles and pod.role not in claim.roles:
            return Wait(
                pod,
                Reason.INVALID_ROLE,
                f"role {pod.role} is none of those of ResourceClaim {claim.name} "
                f"({_listed(sorted(claim.roles))}): create the pod anew with one of them as its "
                f"annotation {ROLE}",
            )
    return None


def _groups(pods: Sequence[Pod], claims: Mapping[str, Claim]) -> Iterator[list[Pod]]:
    """Pods that are placed together: those that a claim with roles joins, directly or not."""
    sharing: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        for key in pod.claim_keys:
            if key in claims and claims[key].roles:
                sharing[key].append(pod)
    grouped: set[str] = set()
    for first in pods:
        if first.uid in grouped:
            continue
        group = {first.uid: first}
        reached = [first]
        while reached:
            for key in reached.pop().claim_keys:
                for pod in sharing.get(key, ()):
                    if pod.uid not in group:
                        group[pod.uid] = pod
                        reached.append(pod)
        grouped |= group.keys()
        yield sorted(group.values(), key=_seniority)


def _decide(group: Sequence[Pod], world: World, ledger: Ledger) -> Iterator[Decision]:
    missing: list[tuple[Claim, str]] = []
    surplus: dict[str, Wait] = {}
    for key, claim in world.claims_of(group).items():
        for role in sorted(claim.roles):
            cast = [pod for pod in group if pod.role == role and key in pod.claim_keys]
            if not cast:
                missing.append((claim, role))
            for pod in cast[1:]:
                surplus[pod.uid] = _role_taken(pod, claim, by=cast[0])
    going = [pod for pod in group if not pod.node and pod.uid not in surplus]
    yield from (surplus[pod.uid] for pod in group if not pod.node and pod.uid in surplus)
    if missing:
        # One that was let go and lost its partner since is where its claim is, or waits too.
        yield from (_partner_missing(pod, missing) for pod in going if not _is_settled(pod, world))
        going = [pod for pod in going if _is_settled(pod, world)]
    gates = {pod.name: [gate for gate in pod.gates if gate != GATE] for pod in going}
    if any(gates.values()):
        yield from (_gated(pod, gates) for pod in going)
    elif going:
        yield from _place(going, world, ledger)


def _is_settled(pod: Pod, world: World) -> bool:
    claims = [claim for claim in world.claims_of([pod]).values() if claim.roles]
    return GATE not in pod.gates and all(claim.allocation is not None for claim in claims)


def _place(pods: Sequence[Pod], world: World, ledger: Ledger) -> Iterator[Decision]:
    claims = tuple(world.claims_of(pods).values())
    held = _held_to(pods, world, ledger)
    nodes = [
        node for node in world.nodes.views.values() if held <= {node.name} and reaches(claims, node)
    ]
    fitting: list[Room] = []
    obstacles: defaultdict[str, list[str]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.name):
        room = world.room(node, ledger, besides=pods)
        why = obstacle(pods, claims, room)
        if why is None:
            fitting.append(room)
        else:
            obstacles[why].append(node.name)
    if not fitting:
        yield from (_no_room(pod, pods, claims, obstacles) for pod in pods)
        return
    promised = {ledger.node_of(pod.uid) for pod in pods}

    def preference(room: Room) -> tuple[bool, int, int, str]:
        """What is promised stays; then the fullest, so that wide claims find whole nodes."""
        name = room.node.name
        return (name not in promised, ledger.in_vain(pods, name), free_devices(room), name)

    yield Place(tuple(pods), min(fitting, key=preference).node.name)


def _held_to(pods: Sequence[Pod], world: World, ledger: Ledger) -> set[str]:
    """The nodes of others that share a claim with these pods: where its devices are, or will be.

    An allocation says the same, but may reach our cache later than the pod that it was made for.
    """
    keys = {key for pod in pods for key in pod.claim_keys}
    own = {pod.uid for pod in pods}
    others = (pod for uid, pod in world.tenants.items() if uid not in own)
    nodes = {
        other.node or ledger.node_of(other.uid)
        for other in others
        if not keys.isdisjoint(other.claim_keys)
    }
    return {node for node in nodes if node}


def _role_taken(pod: Pod, claim: Claim, *, by: Pod) -> Wait:
    return Wait(
        pod,
        Reason.ROLE_TAKEN,
        f"role {pod.role} of ResourceClaim {claim.name} is taken by pod {by.name} until that "
        f"ends: if a Deployment replaces its pods, set its strategy to Recreate",
    )


def _partner_missing(pod: Pod, missing: Sequence[tuple[Claim, str]]) -> Wait:
    lacking = _listed([f"{role} of ResourceClaim {claim.name}" for claim, role in missing])
    template = next((entry.template for entry in pod.claims if entry.template is not None), None)
    if template is None:
        advice = (
            f"create one in namespace {pod.namespace} that has the annotation {ROLE}: "
            f"{missing[0][1]} and refers to the same claim"
        )
    else:
        advice = (
            f"a claim made from a template ({template}) is one pod's alone, let both refer to one "
            f"ResourceClaim by resourceClaimName"
        )
    return Wait(pod, Reason.WAITING_FOR_PARTNER, f"no pod has role {lacking}: {advice}")


def _gated(pod: Pod, gates: Mapping[str, Sequence[str]]) -> Wait:
    others = _listed([f"{', '.join(names)} of pod {of}" for of, names in gates.items() if names])
    return Wait(
        pod,
        Reason.WAITING_FOR_GATE,
        f"scheduling gate {others} is not ours: whoever set it removes it, and no room is kept "
        f"until then",
    )


def _no_room(
    pod: Pod,
    pods: Sequence[Pod],
    claims: Sequence[Claim],
    obstacles: Mapping[str, Sequence[str]],
) -> Wait:
    who = " and ".join(one.name for one in pods) + (" together" if len(pods) > 1 else "")
    allocated = [claim.name for claim in claims if claim.allocation is not None]
    where = f"node where ResourceClaim {allocated[0]} is allocated" if allocated else "node"
    told = (f"{_listed(nodes)}: {why}" for why, nodes in obstacles.items())
    why = "; ".join(told) or "there is none"
    message = f"no {where} has room for {who}: {why}"
    if len(message) > MESSAGE_MAX:
        message = message[: MESSAGE_MAX - 3] + "..."
    return Wait(pod, Reason.WAITING_FOR_ROOM, message)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
