"""Prepares claims for the kubelet and undoes it: membership on a node, never a turn.

Both are idempotent, for one claim one at a time, and leave nothing half done: what failed is taken
back, and whatever is not in the checkpoint when the driver starts is swept away.
"""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from dra_driver import cdi, mounts
from dra_driver.checkpoint import Allocated, Checkpoint, CheckpointError, Prepared
from dra_driver.config import ConfigError, agreement
from dra_driver.layout import Layout
from dra_driver.names import DRIVER
from dra_driver.roster import NotNow

log = logging.getLogger("tandem.claims")

AGAIN_S: Final = 1.0


class PrepareError(Exception):
    """A claim that cannot be prepared, in one line; it becomes an event of the pod."""


class _StillUsed(PrepareError):
    """Another claim has the device, and may be about to leave it."""


class Sockets(Protocol):
    """Where the tenants of a claim reach the arbiter."""

    async def serve(self, claim: str, directory: Path) -> None:
        """Open the claim's socket in the directory. Raises OSError."""

    def stop(self, claim: str) -> None:
        """Close it, if it is open."""


Fetch = Callable[[str, str], Awaitable[Mapping[str, Any] | None]]
"""Namespace and name to the ResourceClaim as the API server has it; None when there is none."""


class Claims:
    """The claims of this node. `devices` are the names of its devices, `pool` that of their pool;
    `forget` hears of each claim that is no longer prepared. `patience_s`: for so long a Prepare is
    tried again.
    """

    def __init__(
        self,
        layout: Layout,
        checkpoint: Checkpoint,
        sockets: Sockets,
        fetch: Fetch,
        devices: Collection[str],
        pool: str,
        forget: Callable[[str], None],
        patience_s: float,
    ) -> None:
        self._layout = layout
        self._checkpoint = checkpoint
        self._sockets = sockets
        self._fetch = fetch
        self._devices = devices
        self._pool = pool
        self._forget = forget
        self._patience_s = patience_s
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}

    async def resume(self) -> None:
        """Take up what an earlier driver prepared, and sweep away what it did not finish.

        Raises CheckpointError, OSError.
        """
        for folder in (self._layout.cdi, self._layout.claims):
            folder.mkdir(parents=True, exist_ok=True)
        known = {prepared.uid for prepared in self._checkpoint}
        found = {path.name for path in self._layout.claims.iterdir()}
        for uid in sorted((found | set(cdi.left_over(self._layout))) - known):
            log.warning("claim %s was not prepared whole, or removed: sweeping it away", uid)
            self._take_back(uid)
        for prepared in self._checkpoint:
            if missing := [one for one in prepared.devices if one not in self._devices]:
                raise CheckpointError(
                    f"{prepared.told} uses {', '.join(missing)}, which is not configured any more: "
                    f"configure it again, or end the claim's pods first"
                )
            await self._provide(prepared)

    async def prepare(self, namespace: str, name: str, uid: str) -> Prepared:
        """Make the claim's devices ready for containers. Raises PrepareError.

        What may pass by itself is tried again for a while: the kubelet comes back only after more
        than a minute.
        """
        until = asyncio.get_running_loop().time() + self._patience_s
        while True:
            try:
                return await self._prepare(namespace, name, uid)
            except (NotNow, _StillUsed) as exc:
                if asyncio.get_running_loop().time() >= until:
                    raise PrepareError(str(exc)) from exc
            await asyncio.sleep(AGAIN_S)

    async def _prepare(self, namespace: str, name: str, uid: str) -> Prepared:
        async with self._alone(uid):
            prepared = self._checkpoint.get(uid)
            fresh = prepared is None
            if prepared is None:
                prepared = self._read(await self._fetch(namespace, name), namespace, name, uid)
            try:
                # Also when it was prepared before: a reboot empties the folder of CDI files.
                await self._provide(prepared)
                if fresh:
                    self._refuse_a_second_owner(prepared)  # again: others were prepared meanwhile
                    self._checkpoint.put(prepared)
            except Exception as exc:
                if fresh:
                    self._take_back(uid)
                if isinstance(exc, OSError | CheckpointError):
                    raise PrepareError(f"{prepared.told}: {exc}") from exc
                raise
            if fresh:
                log.info("prepared %s: %s", prepared.told, ", ".join(prepared.devices))
            return prepared

    async def unprepare(self, uid: str) -> None:
        """Undo `prepare`; a claim that is not prepared is one already. Raises PrepareError."""
        async with self._alone(uid):
            prepared = self._checkpoint.get(uid)
            try:
                self._take_back(uid)
                if prepared is not None:
                    if not prepared.admin:
                        await self._hand_back(prepared)
                    self._checkpoint.remove(uid)
                    log.info("unprepared %s", prepared.told)
            except (OSError, CheckpointError) as exc:
                raise PrepareError(f"claim {uid}: {exc}") from exc

    def _read(
        self, claim: Mapping[str, Any] | None, namespace: str, name: str, uid: str
    ) -> Prepared:
        told = f"claim {namespace}/{name}"
        if claim is None or claim["metadata"]["uid"] != uid:
            raise PrepareError(
                f"{told}: the API server has none with UID {uid}: the pod is of an earlier "
                f"claim of this name; delete it"
            )
        allocation = claim.get("status", {}).get("allocation")
        if allocation is None:
            raise PrepareError(f"{told}: is not allocated: delete the pod, so that it is scheduled")
        results = tuple(
            Allocated(
                # "request/subrequest" where alternatives were asked for; pods name the request
                result["request"].partition("/")[0],
                result["pool"],
                result["device"],
                result.get("shareID"),
                result.get("adminAccess", False),
            )
            for result in allocation["devices"]["results"]
            if result["driver"] == DRIVER
        )
        try:
            agreed = agreement(claim)
        except ConfigError as exc:
            raise PrepareError(f"{told}: its configuration is refused: {exc}") from exc
        prepared = Prepared(uid, namespace, name, results, agreed)
        foreign = [
            r.device for r in results if r.pool != self._pool or r.device not in self._devices
        ]
        if foreign or not results:
            raise PrepareError(
                f"{told}: this node has no device {', '.join(foreign) or 'of it'}: delete the pod, "
                f"so that it is scheduled anew"
            )
        if not prepared.admin and any(result.admin for result in results):
            raise PrepareError(
                f"{told}: has devices with admin access and others: use a claim for each"
            )
        if len(prepared.devices) > 1 and not prepared.admin:
            raise PrepareError(
                f"{told}: has {len(prepared.devices)} simulated devices, and a tenant can use one: "
                f"ask for count 1"
            )
        self._refuse_a_second_owner(prepared)
        return prepared

    def _refuse_a_second_owner(self, prepared: Prepared) -> None:
        """A force-deleted pod's claim may be allocated again before the kubelet ended it here."""
        for other in () if prepared.admin else self._checkpoint:
            shared = set(other.devices) & set(prepared.devices)
            if other.uid != prepared.uid and shared and not other.admin:
                raise _StillUsed(
                    f"{prepared.told}: {', '.join(sorted(shared))} is still used by {other.told}: "
                    f"it is tried again; delete that claim's pods if they should be gone"
                )

    async def _provide(self, prepared: Prepared) -> None:
        layout, uid = self._layout, prepared.uid
        if prepared.admin:
            cdi.write(prepared, layout)
            return
        layout.socket(uid).mkdir(mode=0o755, parents=True, exist_ok=True)
        mounts.mount_tmpfs(
            layout.weights(uid), prepared.agreement.weights, part=layout.published(uid)
        )
        await self._sockets.serve(uid, layout.socket(uid))
        cdi.write(prepared, layout)

    async def _hand_back(self, prepared: Prepared) -> None:
        """What pods left on a device would be the next claim's to read, and to account for."""
        for device in prepared.devices:
            await asyncio.to_thread(mounts.emptied, self._layout.memory(device))

    def _take_back(self, uid: str) -> None:
        self._sockets.stop(uid)
        self._forget(uid)
        cdi.remove(uid, self._layout)
        mounts.unmount(self._layout.weights(uid))
        if self._layout.claim(uid).exists():
            shutil.rmtree(self._layout.claim(uid))

    @asynccontextmanager
    async def _alone(self, uid: str) -> AsyncIterator[None]:
        """The kubelet prepares a claim twice at once when two of its pods start together."""
        lock = self._locks.setdefault(uid, asyncio.Lock())
        self._waiting[uid] = self._waiting.get(uid, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._waiting[uid] -= 1
            if not self._waiting[uid]:
                del self._waiting[uid], self._locks[uid]
