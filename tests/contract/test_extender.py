"""The extender over real HTTPS, asked with what a real scheduler and a real API server sent."""

import base64
import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scheduler_extender import certificates
from scheduler_extender.app import BODY_MAX, App
from scheduler_extender.filtering import Whereabouts
from scheduler_extender.objects import Pod
from scheduler_extender.webhook import Settings

RECORDED = Path(__file__).parents[1] / "recorded"

Raw = dict[str, Any]


def recorded(name: str) -> Raw:
    found: Raw = json.loads((RECORDED / name).read_text())
    return found


@dataclass
class Server:
    """The app, and a client that trusts its authority. `at` is what it answers for every pod."""

    url: str
    client: aiohttp.ClientSession
    at: Whereabouts | None = None
    listed: bool = True
    asked: Pod | None = None

    def whereabouts(self, pod: Pod) -> Whereabouts | None:
        self.asked = pod
        return self.at

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        headers = {"Content-Type": "application/json"}
        async with self.client.post(self.url + path, data=data, headers=headers) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.status == 200 else text


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Server]:
    certificate = certificates.new(["localhost"], datetime.now(UTC))
    (folder / "tls.crt").write_bytes(certificate.chain)
    (folder / "tls.key").write_bytes(certificate.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    trust = ssl.create_default_context(cadata=certificate.authority.decode())
    connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as client:
        server = Server("", client)
        app = App(server.whereabouts, lambda: server.listed, Settings("tandem:0.1.0", True))
        async with app.listening("127.0.0.1", 0, tls) as port:
            server.url = f"https://localhost:{port}"
            yield server


async def test_the_schedulers_own_question_is_answered(tmp_path: Path) -> None:
    asked = recorded("kube-scheduler-1.36.3-filter.json")
    async with serving(tmp_path) as server:
        server.at = Whereabouts("local", "")
        status, answer = await server.post("/filter", asked["body"])
        assert status == 200
        assert answer["NodeNames"] == ["local"]
        assert server.asked is not None
        assert server.asked.uid == asked["body"]["Pod"]["metadata"]["uid"]
        assert server.asked.claim_keys == ("default/wp-g-bmhpm",)

        server.at = Whereabouts("other", "")
        _, answer = await server.post("/filter", asked["body"])
        assert answer["NodeNames"] == []
        assert answer["FailedAndUnresolvableNodes"] == {"local": "the pod was promised node other"}


async def test_scores_are_a_bare_array_of_integers(tmp_path: Path) -> None:
    asked = recorded("kube-scheduler-1.36.3-prioritize.json")
    async with serving(tmp_path) as server:
        server.at = Whereabouts("local", "")
        status, answer = await server.post("/prioritize", asked["body"])
    assert status == 200
    names = asked["body"]["NodeNames"]
    assert answer == [{"Host": name, "Score": 10 if name == "local" else 0} for name in names]
    assert {type(one["Score"]) for one in answer} == {int}


@pytest.mark.parametrize("path", ["/filter", "/prioritize"])
async def test_before_the_cluster_is_known_there_is_no_answer(tmp_path: Path, path: str) -> None:
    asked = recorded("kube-scheduler-1.36.3-filter.json")
    async with serving(tmp_path) as server:
        server.listed = False
        status, text = await server.post(path, asked["body"])
    assert status == 503
    assert "not listed yet" in text


async def test_the_api_servers_own_review_is_answered(tmp_path: Path) -> None:
    body = recorded("apiserver-1.36.3-admission.json")
    async with serving(tmp_path) as server:
        # Also while the cluster is not known yet: it needs nothing of it.
        server.listed = False
        status, answer = await server.post("/mutate", body)
        assert status == 200
        assert answer["response"] == {"uid": body["request"]["uid"], "allowed": True}

        annotations = body["request"]["object"]["metadata"]["annotations"]
        annotations["tandem-gpu.io/role"] = "trainer"
        _, answer = await server.post("/mutate", body)
        ops = json.loads(base64.b64decode(answer["response"]["patch"]))
        assert {"name": "tandem-gpu.io/pair"} in ops[0]["value"]

        annotations["tandem-gpu.io/role"] = "Trainer"
        _, answer = await server.post("/mutate", body)
        assert answer["response"]["allowed"] is False
        assert "annotation tandem-gpu.io/role" in answer["response"]["status"]["message"]


@pytest.mark.parametrize("path", ["/filter", "/prioritize", "/mutate"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"null", b"[]", b'"x"', b"{}", b"[" * 100_000, b'{"Pod": {}, "kind": 1}'],
    ids=["empty", "open", "no text", "null", "list", "string", "object", "deep", "other"],
)
async def test_what_is_malformed_is_told_so_and_the_next_is_answered(
    tmp_path: Path, path: str, body: bytes
) -> None:
    async with serving(tmp_path) as server:
        status, _ = await server.post(path, body)
        assert status == 400
        status, _ = await server.post("/mutate", recorded("apiserver-1.36.3-admission.json"))
        assert status == 200


async def test_a_body_has_a_largest_size(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        status, _ = await server.post("/mutate", b" " * (BODY_MAX + 1))
        assert status == 413


async def test_a_probe_says_whether_the_cluster_is_known(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for listed, status in ((False, 503), (True, 200)):
            server.listed = listed
            async with server.client.get(f"{server.url}/healthz") as response:
                assert response.status == status


async def test_who_does_not_trust_the_authority_does_not_connect(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, aiohttp.ClientSession() as stranger:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await stranger.get(f"{server.url}/healthz")
