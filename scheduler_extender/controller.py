"""Carries out what pairing decides: removes gates, tells pods what they wait for. Level-triggered.

It also evicts the pods that a node's driver wants to be evicted.

One pass at a time; whatever changes during a pass leads to another. A pass takes the cache as it
is, so nothing is lost with a message that was.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

from scheduler_extender.backoff import Backoff
from scheduler_extender.errors import ApiError
from scheduler_extender.filtering import Whereabouts
from scheduler_extender.ledger import Ledger
from scheduler_extender.names import GATE
from scheduler_extender.objects import Pod
from scheduler_extender.pairing import Decision, Place, Reason, Wait, decide
from scheduler_extender.world import World

log = logging.getLogger(__name__)

PASS_EVERY_S: Final = 0.05
"""At most so often: a busy cluster changes all the time."""

TELL_AFTER_S: Final = 0.5
"""What is over sooner is not told: a claim that is applied just after its pod, a partner too."""

SAME_REASON_EVERY_S: Final = 60.0
"""A pod that waits for the same thing is told no more often, though the numbers may change."""

_MUST_BE_CHANGED: Final = (Reason.INVALID_CLAIM, Reason.INVALID_ROLE, Reason.ROLE_TAKEN)


class Hands(Protocol):
    """What is done to pods (cluster.py). All raise ApiError."""

    async def remove_gate(self, pod: Pod) -> None:
        """Remove our gate, and no other, from this pod, and no other of its name."""

    async def evict(self, pod: Pod) -> None:
        """Evict this pod, and no other of its name."""

    async def tell(self, pod: Pod, reason: str, message: str, *, warning: bool) -> None:
        """Make it an Event on the pod."""


@dataclass(slots=True)
class _Waiting:
    """What a pod waits for; `told` is empty until it was told so."""

    reason: Reason
    since: float
    told: str = ""
    told_at: float = 0.0

    def may_tell_at(self) -> float:
        return self.told_at + SAME_REASON_EVERY_S if self.told else self.since + TELL_AFTER_S


class Controller:
    """Owns the ledger: every promise is made and read here, in steps that nothing interrupts.

    `changed` is set when the world is not what it was.
    """

    def __init__(
        self, world: World, changed: asyncio.Event, hands: Hands, clock: Callable[[], float]
    ) -> None:
        self._world = world
        self._hands = hands
        self._clock = clock
        self._ledger = Ledger()
        self._backoff = Backoff()
        self._changed = changed
        self._placed: dict[str, str] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._held_back: float | None = None
        self._evicted: set[str] = set()

    def whereabouts(self, pod: Pod) -> Whereabouts | None:
        """Where the scheduler may put this pod; None when it is none of ours."""
        if pod.role is None:
            return None
        node = self._ledger.node_of(pod.uid)
        if node is not None:
            return Whereabouts(node, "")
        # Unknown to the ledger after a restart of ours, or since its promise ended.
        why = "Tandem does not know this pod yet"
        for decision in self._decide(self._clock()):
            match decision:
                case Place(pods, place) if pod.uid in {one.uid for one in pods}:
                    return Whereabouts(place, "")
                case Wait(one, _, message) if one.uid == pod.uid:
                    why = message
        return Whereabouts(None, why)

    async def run(self) -> None:
        """One pass after the other, for ever."""
        while True:
            self._changed.clear()
            began = self._clock()
            if self._world.listed:
                await self._carry_out(self._decide(began), began)
                await asyncio.gather(*map(self._evict, self._at_fault()))
                self._forget()
            await asyncio.sleep(PASS_EVERY_S)
            try:
                async with asyncio.timeout(self._until_next(began)):
                    await self._changed.wait()
            except TimeoutError:
                log.debug("nothing changed, but it is time")

    def _decide(self, now: float) -> list[Decision]:
        return decide(self._world, self._ledger, now)

    async def _carry_out(self, decisions: Iterable[Decision], now: float) -> None:
        work: list[Awaitable[None]] = []
        self._held_back = None
        for decision in decisions:
            match decision:
                case Place(pods, node):
                    work.extend(self._release(pod, pods, node) for pod in pods)
                case Wait():
                    work.append(self._tell(decision, now))
                case _:
                    assert_never(decision)
        await asyncio.gather(*work)

    async def _release(self, pod: Pod, together: Iterable[Pod], node: str) -> None:
        # The patch that removed the gate may come back to our cache later than the next pass.
        gated = GATE in pod.gates and pod.uid not in self._placed
        if gated and not await self._try(
            f"gate of {pod.uid}", lambda: self._hands.remove_gate(pod)
        ):
            return
        if self._placed.get(pod.uid) == node:
            return
        self._placed[pod.uid] = node
        self._waiting.pop(pod.uid, None)
        others = " and ".join(one.name for one in together if one is not pod)
        beside = f" together with pod {others}" if others else ""
        message = f"fits node {node}{beside}: the scheduler may place it there"
        log.info("%s/%s: %s", pod.namespace, pod.name, message)
        await self._try(
            f"event of {pod.uid}",
            lambda: self._hands.tell(pod, "Paired", message, warning=False),
        )

    def _at_fault(self) -> list[Pod]:
        """The pods that are to be evicted, and were not yet."""
        wanted = {
            uid: claim.key for claim in self._world.claims.views.values() for uid in claim.evict
        }
        pods = [pod for uid in wanted if (pod := self._world.pods.views.get(uid)) is not None]
        known = [pod for pod in pods if not pod.ending and pod.uid not in self._evicted]
        return [pod for pod in known if wanted[pod.uid] in pod.claim_keys]

    async def _evict(self, pod: Pod) -> None:
        message = "is at fault, and did not leave its devices: evicted, as its DeviceClass wants"
        if await self._try(f"eviction of {pod.uid}", lambda: self._hands.evict(pod)):
            self._evicted.add(pod.uid)
            log.warning("%s/%s %s", pod.namespace, pod.name, message)
            await self._try(
                f"event of {pod.uid}",
                lambda: self._hands.tell(pod, "Evicted", f"the pod {message}", warning=True),
            )

    async def _tell(self, wait: Wait, now: float) -> None:
        pod, waiting = wait.pod, self._waiting.get(wait.pod.uid)
        if waiting is None or waiting.reason is not wait.reason:
            waiting = self._waiting[pod.uid] = _Waiting(wait.reason, now)
        if waiting.told == wait.message:
            return
        if now < (at := waiting.may_tell_at()):
            self._held_back = min(self._held_back or at, at)
            return
        warning = wait.reason in _MUST_BE_CHANGED
        if await self._try(
            f"event of {pod.uid}",
            lambda: self._hands.tell(pod, wait.reason, wait.message, warning=warning),
        ):
            waiting.told, waiting.told_at = wait.message, now
            log.info("%s/%s: %s: %s", pod.namespace, pod.name, wait.reason, wait.message)

    async def _try(self, what: str, do: Callable[[], Awaitable[None]]) -> bool:
        """Do it unless it failed just now; say whether it was done."""
        if not self._backoff.may(what, self._clock()):
            return False
        try:
            await do()
        except ApiError as exc:
            self._backoff.failed(what, self._clock())
            if not exc.gone:  # else the watch is about to say so too
                log.warning("%s", exc)
            return False
        self._backoff.succeeded(what)
        return True

    def _forget(self) -> None:
        """Of pods that are gone nothing is kept."""
        self._evicted &= self._world.pods.views.keys()
        pods = self._world.tenants.keys()
        self._placed = {uid: node for uid, node in self._placed.items() if uid in pods}
        self._waiting = {uid: one for uid, one in self._waiting.items() if uid in pods}
        self._backoff.keep(
            {f"{of} of {uid}" for uid in pods for of in ("gate", "event", "eviction")}
        )

    def _until_next(self, began: float) -> float | None:
        """Seconds until something is to be done although nothing changed."""
        times = (self._held_back, self._ledger.next_end(), self._backoff.next_try(after=began))
        soonest = min((at for at in times if at is not None), default=None)
        return None if soonest is None else max(0.0, soonest - self._clock())
