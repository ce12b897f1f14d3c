"""The example's objects as the API server last told them, and waiting for what they become."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from hack.cluster_commands import ClusterError, Raw, watch
from hack.cluster_objects import about, state

_T = TypeVar("_T")


class World:
    """Kept by `follow_pods`, `follow_claims` and `follow_events`, each of which never ends.

    `changed` is told each object that is new or was changed.
    """

    def __init__(self, changed: Callable[[Raw], None]) -> None:
        self._changed = changed
        self._something = asyncio.Condition()
        self.pods: dict[str, Raw] = {}
        self.claims: dict[str, Raw] = {}
        self.events: dict[str, Raw] = {}

    async def follow_pods(self) -> None:
        """By name."""
        async for kind, pod in watch("pods"):
            await self._take(self.pods, pod["metadata"]["name"], kind, pod)

    async def follow_claims(self) -> None:
        """By name."""
        async for kind, claim in watch("resourceclaims"):
            await self._take(self.claims, claim["metadata"]["name"], kind, claim)

    async def follow_events(self) -> None:
        """By UID; those that the API server has forgotten stay."""
        async for kind, event in watch("events.v1.events.k8s.io"):
            if kind != "DELETED":
                await self._take(self.events, event["metadata"]["uid"], kind, event)

    def events_on(self, obj: Raw) -> Iterator[Raw]:
        """The events about this very object, not about another that had its name."""
        for event in self.events.values():
            if event.get("regarding", {}).get("uid") == obj["metadata"]["uid"]:
                yield event

    async def until(self, what: str, find: Callable[[], _T | None], within_s: float | None) -> _T:
        """What `find` finds, as soon as it does. Raises ClusterError when that takes too long.

        Without `within_s` somebody else has to end the wait.
        """
        try:
            async with asyncio.timeout(within_s), self._something:
                while (found := find()) is None:
                    await self._something.wait()
                return found
        except TimeoutError as exc:
            raise ClusterError(f"{within_s:g} s went by without {what}; {self.told()}") from exc

    def told(self) -> str:
        """The pods in a few words, and the last that was told about each."""
        words = []
        for name, pod in sorted(self.pods.items()):
            last = [event.get("note") for event in self.events_on(pod)][-1:]
            words.append(f"pod {name}: {state(pod)}{f', last told {last[0]!r}' if last else ''}")
        return "; ".join(words) or "there are no pods"

    async def _take(self, table: dict[str, Raw], key: str, kind: str, obj: Raw) -> None:
        async with self._something:
            if kind == "DELETED":
                table.pop(key, None)
            else:
                table[key] = obj
                self._changed(obj)
            self._something.notify_all()


def line(event: Raw) -> str:
    """An event in a line."""
    return f"event on {about(event)}: {event.get('reason')}: {event.get('note')}"
