"""vLLM's device memory, parked and restored over its HTTP development routes.

The engine needs VLLM_SERVER_DEV_MODE=1 and, on a GPU, --enable-sleep-mode. None of its answers
proves that memory was freed (vllm#47654: 200, memory held; without --enable-sleep-mode /sleep frees
nothing and answers 200): the arbiter measures the device. `/is_sleeping` is never asked: it is true
after a mere /pause and after a /sleep that failed (vllm/v1/engine/core.py, is_sleeping).
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp

from workload_agents.errors import ParkFailed, RestoreFailed, WeightsError
from workload_agents.weights import latest, verified

BASE: Final = 0
"""The version of the weights that the engine started with; what is published counts from 1."""

_HEALTH_EVERY_S: Final = 0.2
_SLEEP_ATTEMPTS: Final = 5
_SLEEP_BACKOFF_S: Final = 0.1  # doubles: 1.5 s over all attempts
# Weights move over PCIe: 140 GB at 55 GB/s takes 3 s, and stock vLLM is up to 20 times slower.
_CALL_TIMEOUT_S: Final = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parking:
    """What /sleep is asked for.

    Level 1 copies the weights to the host, level 2 drops them. `wait` lets requests in flight
    finish, `keep` freezes them; vLLM's default, `abort`, would lose them.
    """

    level: int
    mode: str


def parking(*, in_flight: int, loaded: int | None, published: int | None, dropped: bool) -> Parking:
    """How to park. Weights are dropped only where none is needed to finish a request and a version
    at least as new as the loaded one can be loaded again; once `dropped`, copying them is in vain.

    `loaded` is None where it is not known: then nothing says that what is published is as new.
    """
    replaceable = loaded is not None and published is not None and published >= loaded
    level = 2 if dropped or (in_flight == 0 and replaceable) else 1
    return Parking(level, "keep" if in_flight else "wait")


class _Engine(Enum):
    UNSEEN = auto()  # this agent has not spoken with it
    AWAKE = auto()
    ASLEEP = auto()  # or partly awake: each tag that is still asleep can be woken
    IN_DOUBT = auto()  # a /sleep failed or was interrupted: only another /sleep is safe


class _Failed(Exception):
    """The engine did not do what it was asked: the end of an error's sentence."""


class VllmMemory:
    """One vLLM server. Calls exclude each other; a call that is cancelled can be made again.

    `in_flight` tells how many requests are with the engine now. `engine_ended` is set by whoever
    learns first that the engine ended, or that it cannot be trusted again before it is restarted.

    `starting` is set when a first turn is granted: only then may the engine be started.
    `version` is that of the weights loaded; None until it is known.
    """

    def __init__(
        self,
        client: aiohttp.ClientSession,
        url: str,
        weights: Path,
        *,
        in_flight: Callable[[], int],
        engine_ended: asyncio.Event,
    ) -> None:
        self.starting = asyncio.Event()
        self.version: int | None = None
        self._client = client
        self._url = url.rstrip("/")
        self._weights = weights
        self._in_flight = in_flight
        self._engine_ended = engine_ended
        self._engine = _Engine.UNSEEN
        self._weights_awake = False  # and nothing else, with what was the newest version
        self._dropped = False  # the engine may hold no weights
        self._lost: str | None = None
        self._one_at_a_time = asyncio.Lock()

    async def park(self) -> None:
        """Put the engine to sleep. Success means that it says so, no more. Raises ParkFailed.

        One that was never started holds nothing: an agent that began anew in front of it may be
        asked, for what the former one held.
        """
        async with self._one_at_a_time:
            never_started = self._engine is _Engine.UNSEEN and not self.starting.is_set()
            if never_started and not await self._healthy():
                return
            await self._sleep(
                parking(
                    in_flight=self._in_flight(),
                    loaded=self.version,
                    published=self._published_if_readable(),
                    dropped=self._dropped,
                )
            )

    async def restore(self) -> int:
        """Wait for the engine's start or wake it, with the newest weights published.

        Returns the version that it serves from now on, 0 for the weights that it started with.
        Raises RestoreFailed: nothing may be served then; a later call goes on from there, unless
        `engine_ended` is set. How long an engine may take to start is the arbiter's to limit.
        """
        async with self._one_at_a_time:
            self._refuse_if_lost()
            self.starting.set()
            if self._engine is _Engine.UNSEEN:
                await self._meet()
            if self._engine is _Engine.IN_DOUBT:
                await self._sleep_before_wake()
            if self._engine is _Engine.ASLEEP:
                await self._wake_with_newest()
            else:
                await self._load_newest()
            return self._now_served()

    async def restore_weights(self) -> None:
        """Wake the weights of an engine that sleeps, with the newest version; its KV cache stays
        asleep, and no request runs. `restore` goes on from there, and `park` back. Raises
        RestoreFailed.

        Nothing happens with an engine that could not be parked from there: before
        vllm-project/vllm#44890 one whose weights alone were awake took itself for asleep.
        """
        async with self._one_at_a_time:
            if self._engine is not _Engine.ASLEEP or self._weights_awake:
                return
            if await self._knows("/release_kv_cache_memory"):
                self._refuse_if_lost()
                await self._wake_weights()
                self._weights_awake = True

    async def load_if_newer(self) -> int:
        """Load the newest version in place if it is newer than the loaded one; the engine is awake
        and idle. Returns the version served from now on. Raises RestoreFailed.
        """
        async with self._one_at_a_time:
            self._refuse_if_lost()
            if self._engine is not _Engine.AWAKE:
                raise RestoreFailed(
                    f"engine at {self._url}: no weights are loaded, since it is parked; acquire "
                    "the turn first"
                )
            await self._load_newest()
            return self._now_served()

    async def _meet(self) -> None:
        """Wait until the engine is healthy.

        One that is healthy at once was up before this turn: another agent stood in front of it and
        may have parked it, or failed to. A sleep brings it to a known state (to one asleep it does
        nothing: vllm/v1/executor/abstract.py, Executor.sleep).
        """
        if await self._healthy():
            log.info("engine at %s was up before this agent: it is parked and restored", self._url)
            self._engine = _Engine.IN_DOUBT
            return
        while not await self._healthy():
            if await self._ends_within(_HEALTH_EVERY_S):
                raise RestoreFailed(
                    f"engine at {self._url} ended before it was healthy; see its log"
                )
        log.info("engine at %s is healthy", self._url)
        self._engine = _Engine.AWAKE
        self.version = BASE

    async def _healthy(self) -> bool:
        try:
            await self._call("GET", "/health")
        except _Failed:
            return False
        return True

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._engine_ended.wait()
        except TimeoutError:
            return False

    async def _sleep(self, how: Parking) -> None:
        self._engine = _Engine.IN_DOUBT
        self._weights_awake = False
        self._dropped = self._dropped or how.level == 2
        last = ""
        for attempt in range(_SLEEP_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_SLEEP_BACKOFF_S * 2 ** (attempt - 1))
            try:
                await self._call("POST", "/sleep", {"level": str(how.level), "mode": how.mode})
            except _Failed as exc:
                # Never answered by a wake: it would say "awake" without memory, and the next
                # request would kill the engine (Executor.wake_up does nothing when not asleep).
                last = str(exc)
                log.warning("engine at %s: %s; to be retried", self._url, last)
            else:
                self._engine = _Engine.ASLEEP
                return
        raise ParkFailed(
            f"engine at {self._url} may hold its memory: {last}, after {_SLEEP_ATTEMPTS} attempts "
            f"at level {how.level}, mode {how.mode}; park again, or end the engine"
        )

    async def _sleep_before_wake(self) -> None:
        mode = "keep" if self._in_flight() else "wait"
        try:
            await self._sleep(Parking(2 if self._dropped else 1, mode))
        except ParkFailed as exc:
            raise RestoreFailed(f"{exc} (only an engine that sleeps can be woken)") from exc

    async def _wake_with_newest(self) -> None:
        """Weights first: the KV cache needs no room until they are loaded. A partial wake keeps the
        scheduler paused, so no request runs before all is back (EngineCore.wake_up).
        """
        await self._wake_weights()
        if (said := await self._wake("kv_cache")) != "awake":
            raise RestoreFailed(
                f"engine at {self._url} says {said!r} after a whole wake; try again"
            )
        self._engine = _Engine.AWAKE

    async def _wake_weights(self) -> None:
        if await self._wake("weights") == "awake":
            self._lost = "is not the one that was parked: it was awake"
            self._engine_ended.set()
            self._refuse_if_lost()
        await self._load_newest()

    async def _wake(self, tag: str) -> object:
        try:
            return _field(await self._call("POST", "/wake_up", {"tags": tag}), "status")
        except _Failed as exc:
            raise RestoreFailed(
                f"engine at {self._url} did not wake its {tag}: {exc}; restore again when the "
                "device has room"
            ) from exc

    async def _load_newest(self) -> None:
        try:
            published = self._version_to_load()
            if published is None:
                return
            # Before the call: vLLM answers 500 to a directory that it cannot load, stays healthy,
            # and never completes a request again.
            path = (await asyncio.to_thread(verified, self._weights, published)).path
        except WeightsError as exc:
            raise RestoreFailed(f"engine at {self._url} gets no new weights: {exc}") from exc
        try:
            # Until it is known to have succeeded it failed: also where this task is cancelled.
            self._lost = f"was interrupted while it loaded weights version {published}"
            await self._reload(path)
            self._lost = None
        except _Failed as exc:
            self._lost = f"may hold any weights: version {published} was to be loaded, but {exc}"
        finally:
            if self._lost is not None:
                self._engine_ended.set()
        self._refuse_if_lost()
        self.version = published
        self._dropped = False
        log.info("engine at %s: weights version %d are loaded", self._url, published)

    def _version_to_load(self) -> int | None:
        """None: the engine holds what it should. An older version than it had is never loaded."""
        published = latest(self._weights)
        if self._dropped:
            at_least = max(self.version or BASE, BASE + 1)
            if published is None or published < at_least:
                raise WeightsError(
                    f"it dropped its own, and version {at_least} or newer is not in "
                    f"{self._weights}; publish one, or restart the engine"
                )
            return published
        if published is None or (self.version is not None and published <= self.version):
            return None
        return published

    async def _reload(self, path: Path) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        await self._call("POST", "/collective_rpc", body=body)
        # What was computed under older weights goes as well; reload_weights does not see to it.
        # Running requests are preempted, since one held block would make it fail
        # (Scheduler.reset_prefix_cache), and a request that its client left may run a little
        # longer. It is done before the KV cache is woken: after that, kept requests run.
        forget = {"reset_running_requests": "true", "reset_external": "true"}
        answer = await self._call("POST", "/reset_prefix_cache", forget)
        if _field(answer, "success") is not True:
            raise _Failed(f"/reset_prefix_cache answered {_line(answer)}")

    def _now_served(self) -> int:
        if self.version is None:  # taken over with nothing published: so nothing was ever loaded
            self.version = BASE
        return self.version

    def _published_if_readable(self) -> int | None:
        try:
            return latest(self._weights)
        except WeightsError as exc:
            log.warning("engine at %s: its weights are kept, not dropped: %s", self._url, exc)
            return None

    def _refuse_if_lost(self) -> None:
        if self._lost is not None:
            raise RestoreFailed(
                f"engine at {self._url} {self._lost}; nothing is forwarded to it until it is "
                "restarted"
            )

    async def _knows(self, route: str) -> bool:
        """Whether the engine has this route, for POST."""
        try:
            async with self._client.get(
                self._url + route, timeout=aiohttp.ClientTimeout(total=_CALL_TIMEOUT_S)
            ) as response:
                return response.status == HTTPStatus.METHOD_NOT_ALLOWED
        except (TimeoutError, aiohttp.ClientError):
            return False

    async def _call(
        self,
        method: str,
        route: str,
        query: Mapping[str, str] | None = None,
        *,
        body: object = None,
    ) -> str:
        """The text answered. Raises _Failed for any answer but 200, and for none."""
        timeout = aiohttp.ClientTimeout(total=_CALL_TIMEOUT_S)
        try:
            async with self._client.request(
                method, self._url + route, params=query, json=body, timeout=timeout
            ) as response:
                text = await response.text(errors="replace")
        except TimeoutError as exc:
            raise _Failed(f"{route} was not answered within {_CALL_TIMEOUT_S:g} s") from exc
        except aiohttp.ClientError as exc:
            if isinstance(exc, aiohttp.ClientConnectorError) and self._engine is not _Engine.UNSEEN:
                self._engine_ended.set()
            raise _Failed(f"{route} was not answered: {type(exc).__name__}: {exc}") from exc
        if response.status != HTTPStatus.OK:
            raise _Failed(f"{route} was answered HTTP {response.status}: {_line(text)}")
        return text


class WeightsAhead:
    """An engine's memory whose weights come back ahead of its turn where there is room for them.

    `size`: the most bytes that the weights take on each device, also while they are loaded. What
    is parked goes at once: the weights are dropped in most parks, and so is the KV cache in all.
    """

    def __init__(self, engine: VllmMemory, size: int) -> None:
        self._engine = engine
        self._size = size

    async def park(self) -> None:
        """As VllmMemory.park."""
        await self._engine.park()

    async def park_in_pieces(self, freed: Callable[[], None], keep: int) -> int:
        """As `park`; nothing is kept."""
        await self._engine.park()
        return 0

    async def restore_ahead(self, size: int) -> None:
        """The weights, if they fit in `size` bytes; see VllmMemory.restore_weights."""
        if self._size <= size:
            await self._engine.restore_weights()

    async def restore(self) -> int:
        """As VllmMemory.restore."""
        return await self._engine.restore()


def _line(text: str) -> str:
    return " ".join(text.split())[:200]


def _field(answer: str, name: str) -> object:
    """A field of a JSON object; None where there is none."""
    try:
        content = json.loads(answer)
    except ValueError:
        return None
    return content.get(name) if isinstance(content, dict) else None
