"""The API server, as the administrator; from within the cluster's network."""

import http.client
import json
import ssl
from typing import Any, Final

from hack.kube.certificates import ADMIN
from hack.kube.layout import API_PORT, Layout

_ADDRESS: Final = f"127.0.0.1:{API_PORT}"
_TIMEOUT_S: Final = 10.0


class Api:
    """A client for the few requests that starting a cluster needs."""

    def __init__(self, layout: Layout) -> None:
        self._tls = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
        self._tls.load_cert_chain(layout.pki / f"{ADMIN}.crt", layout.pki / f"{ADMIN}.key")

    def healthy(self, url: str) -> bool:
        """Whether the URL answers 200."""
        scheme, _, rest = url.partition("://")
        address, _, path = rest.partition("/")
        status, _ = self._ask(scheme, address, "GET", f"/{path}")
        return status == http.client.OK

    def get(self, path: str) -> dict[str, Any] | None:
        """The object; None if there is none, or no answer."""
        status, body = self._ask("https", _ADDRESS, "GET", path)
        if status != http.client.OK:
            return None
        found: dict[str, Any] = json.loads(body)
        return found

    def apply(self, path: str, wanted: dict[str, Any]) -> bool:
        """Server-side apply; whether it was done."""
        url = f"{path}?fieldManager=localkube&force=true"
        status, _ = self._ask("https", _ADDRESS, "PATCH", url, json.dumps(wanted))
        return status in {http.client.OK, http.client.CREATED}

    def _ask(
        self, scheme: str, address: str, method: str, path: str, body: str = ""
    ) -> tuple[int, bytes]:
        """Status and body; status 0 without an answer."""
        connection = (
            http.client.HTTPSConnection(address, timeout=_TIMEOUT_S, context=self._tls)
            if scheme == "https"
            else http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
        )
        try:
            headers = {"Content-Type": "application/apply-patch+yaml"} if body else {}
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except ssl.SSLCertVerificationError:
            raise  # no answer will ever come
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()
