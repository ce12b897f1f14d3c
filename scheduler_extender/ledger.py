"""Where pods are on their way to: promised to a node, and not seen bound yet.

The scheduler tells an extender neither what it reserves nor what it gives up. So a promise ends
when the pod is seen bound or gone, or when its time is over; it is renewed from the cache alone,
so a restart of ours needs nothing but a list of the pods. Time is passed in.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scheduler_extender.objects import Pod

PROMISED_FOR_S: Final = 300.0
"""kube-scheduler tries a pod that it could not place again after 5 minutes at the latest."""


@dataclass(frozen=True, slots=True)
class Promise:
    """This pod goes to this node, or to no other until then."""

    pod: Pod
    node: str
    until: float


class Ledger:
    """Promises by pod UID."""

    def __init__(self) -> None:
        self._promises: dict[str, Promise] = {}
        self._in_vain: dict[str, Counter[str]] = {}

    def node_of(self, uid: str) -> str | None:
        """The node that the pod was promised to."""
        promise = self._promises.get(uid)
        return None if promise is None else promise.node

    def promises(self) -> tuple[Promise, ...]:
        """All of them."""
        return tuple(self._promises.values())

    def promise(self, pods: Iterable[Pod], node: str, now: float) -> None:
        """Promise the node to these pods. A promise of the same node keeps its end."""
        for pod in pods:
            if self.node_of(pod.uid) != node:
                self._promises[pod.uid] = Promise(pod, node, now + PROMISED_FOR_S)

    def withdraw(self, pods: Iterable[Pod]) -> None:
        """End these pods' promises."""
        for pod in pods:
            self._promises.pop(pod.uid, None)

    def settle(self, pods: Mapping[str, Pod], now: float) -> None:
        """Compare with the pods that exist, by UID: the ones gone, ended or bound are done with."""
        for uid, promise in list(self._promises.items()):
            pod = pods.get(uid)
            if pod is None or pod.ending or pod.finished or pod.node:
                del self._promises[uid]
            elif promise.until <= now:
                del self._promises[uid]
                self._in_vain.setdefault(uid, Counter())[promise.node] += 1
        self._in_vain = {uid: nodes for uid, nodes in self._in_vain.items() if uid in pods}

    def in_vain(self, pods: Iterable[Pod], node: str) -> int:
        """How often a promise of this node to one of these pods ended without the pod there."""
        return sum(self._in_vain.get(pod.uid, Counter())[node] for pod in pods)

    def next_end(self) -> float | None:
        """When the next promise ends by itself."""
        return min((promise.until for promise in self._promises.values()), default=None)
