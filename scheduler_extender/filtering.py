"""kube-scheduler's two questions to an extender, as data: read, and answered from what is known.

Its envelopes have Go's field names, which Go itself matches whatever their case; the pod inside is
Kubernetes JSON. `NodeNames: null` in an answer would mean no node, a float score would not be
decoded, and a node that was not offered is an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler_extender import objects
from scheduler_extender.objects import Malformed, Pod

SCORE_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Question:
    """The pod to be placed, and the nodes that are offered."""

    pod: Pod
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a pod may go: `node`, or with None to none, because of `why`."""

    node: str | None
    why: str


def question(body: Any) -> Question:
    """Read an ExtenderArgs. Raises Malformed."""
    if not isinstance(body, Mapping):
        raise Malformed(f"an ExtenderArgs is an object, not {body!r:.100}")
    envelope = {str(key).lower(): value for key, value in body.items()}
    raw, names = envelope.get("pod"), envelope.get("nodenames")
    if not isinstance(raw, Mapping):
        raise Malformed("Pod: is missing")
    if names is None and envelope.get("nodes") is not None:
        raise Malformed("NodeNames: is null; set `nodeCacheCapable: true` for this extender")
    if not isinstance(names, list | None) or not all(isinstance(name, str) for name in names or ()):
        raise Malformed(f"NodeNames: must be a list of names, got {names!r:.100}")
    return Question(objects.pod(raw), tuple(names or ()))


def filtered(asked: Question, at: Whereabouts | None) -> dict[str, Any]:
    """The ExtenderFilterResult. None: a pod that is none of ours may go anywhere."""
    passed = [name for name in asked.nodes if at is None or name == at.node]
    failed = {}
    if at is not None:
        why = at.why if at.node is None else f"the pod was promised node {at.node}"
        failed = {name: why for name in asked.nodes if name != at.node}
    return {
        "NodeNames": passed,
        "FailedNodes": {},
        # Not FailedNodes: the scheduler would evict pods there to make room that does not help.
        "FailedAndUnresolvableNodes": failed,
        "Error": "",
    }


def prioritized(asked: Question, at: Whereabouts | None) -> list[dict[str, Any]]:
    """The HostPriorityList."""
    return [
        {"Host": name, "Score": SCORE_MAX if at is not None and name == at.node else 0}
        for name in asked.nodes
    ]
