"""Keeps the certificate that we serve with: made, stored, trusted, renewed while we serve."""

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Never, Protocol

from scheduler_extender import certificates
from scheduler_extender.backoff import delay_s
from scheduler_extender.certificates import Certificate, CertificateError
from scheduler_extender.errors import ApiError
from scheduler_extender.objects import Raw

CHECK_EVERY_S: Final = 3600.0

log = logging.getLogger(__name__)


class Store(Protocol):
    """Where the certificate is kept, and who must trust it (cluster.py)."""

    async def secret(self) -> Raw | None: ...
    async def create_secret(self, data: Mapping[str, str]) -> None: ...
    async def update_secret(self, secret: Raw, data: Mapping[str, str]) -> None: ...
    async def ca_bundle(self) -> str | None: ...
    async def set_ca_bundle(self, bundle: str) -> None: ...


class Keeper:
    """`context` serves with what was found last; `ready` is set once there is something to serve.

    A Sink of what is watched: every change of the Secret or of the webhook's configuration is
    looked at anew.
    """

    def __init__(
        self, store: Store, directory: Path, names: Sequence[str], clock: Callable[[], datetime]
    ) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.ready = asyncio.Event()
        self._store = store
        self._directory = directory
        self._names = names
        self._clock = clock
        self._changed = asyncio.Event()
        self._served: Certificate | None = None

    def replace(self, raws: Iterable[Raw]) -> None:
        self._changed.set()

    def put(self, raw: Raw) -> None:
        self._changed.set()

    def drop(self, raw: Raw) -> None:
        self._changed.set()

    async def keep(self) -> Never:
        """For ever. Without a usable certificate nothing is served, and the log says why."""
        failures = 0
        while True:
            self._changed.clear()
            try:
                await self._look()
                failures, wait_s = 0, CHECK_EVERY_S
            except (ApiError, CertificateError) as exc:
                failures += 1
                wait_s = delay_s(failures)
                log.warning("certificate: %s; looked at again in %g s", exc, wait_s)
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                log.debug("certificate: nothing changed, but it is time")

    async def _look(self) -> None:
        secret = await self._store.secret()
        if secret is None:
            certificate = certificates.new(self._names, self._clock())
            await self._store.create_secret(certificates.to_store(certificate))
            log.info("certificate: made, with an authority of its own")
        else:
            found = certificates.stored(secret.get("data") or {})
            certificate = certificates.renewed(found, self._names, self._clock())
            if certificate is not found:
                await self._store.update_secret(secret, certificates.to_store(certificate))
                log.info("certificate: renewed, until %s", certificate.ends)
        if certificate != self._served:
            self._serve(certificate)
        bundle = base64.b64encode(certificate.authority).decode()
        trusted = await self._store.ca_bundle()
        if trusted is None:
            log.warning("certificate: the webhook's configuration does not exist: apply it")
        elif trusted != bundle:
            await self._store.set_ca_bundle(bundle)
            log.info("certificate: the API server trusts its authority now")

    def _serve(self, certificate: Certificate) -> None:
        """New connections get it; those that are open stay."""
        chain, key = self._directory / "tls.crt", self._directory / "tls.key"
        chain.write_bytes(certificate.chain)
        key.touch(mode=0o600)
        key.write_bytes(certificate.key)
        try:
            self.context.load_cert_chain(chain, key)
        except ssl.SSLError as exc:
            raise CertificateError(f"tls.crt and tls.key of the Secret: {exc}") from exc
        self._served = certificate
        self.ready.set()
