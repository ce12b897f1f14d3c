"""The controller and the keeper of the certificate over real HTTP, and the whole program."""

import asyncio
import base64
import copy
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from cryptography import x509
from kubernetes_asyncio.client import ApiClient, Configuration

from scheduler_extender import certificates, objects
from scheduler_extender.cluster import PAGE, Cluster
from scheduler_extender.controller import Controller
from scheduler_extender.errors import ApiError
from scheduler_extender.names import GATE
from scheduler_extender.tls import Keeper
from scheduler_extender.world import World
from tests.contract.api_server import WITHIN_S, ApiServer
from tests.unit import kube_objects as make

Raw = dict[str, Any]

ROOT = Path(__file__).parents[2]
PODS = "/api/v1/namespaces/lab/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/lab/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
SECRET = "/api/v1/namespaces/tandem-system/secrets/tandem-extender-tls"  # noqa: S105 - its path
WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tandem-extender"


@dataclass
class Lab:
    """An API server with one node, and an extender's controller on it."""

    api: ApiServer
    cluster: Cluster
    controller: Controller
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    async def pod(self, raw: Raw) -> None:
        await self.api.put(f"{PODS}/{raw['metadata']['name']}", raw)

    def gates(self, name: str) -> list[str]:
        spec = self.api.objects[f"{PODS}/{name}"]["spec"]
        return [gate["name"] for gate in spec.get("schedulingGates", [])]

    async def released(self, *names: str) -> None:
        await self.api.until(lambda: not any(GATE in self.gates(name) for name in names))

    def told(self, name: str) -> list[Raw]:
        events = self.api.of("events")
        return [event for event in events if event["regarding"]["name"] == name]

    async def hears(self, name: str, reason: str) -> Raw:
        """Wait for an event on the pod."""
        found = await self.api.until(
            lambda: [event for event in self.told(name) if event["reason"] == reason]
        )
        first: Raw = found[0]
        return first


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    async with ApiServer().serving() as api:
        await api.put("/api/v1/nodes/n1", make.node("n1"))
        await api.put(f"{SLICES}/n1-1", make.slice_("n1", "gpu-0"))
        await api.put(f"{CLAIMS}/grpo", make.claim("grpo", "rollout", "trainer"))
        yield api


@asynccontextmanager
async def client(api: ApiServer) -> AsyncIterator[Cluster]:
    async with ApiClient(Configuration(host=api.url)) as connection:
        yield Cluster(connection, "extender-0")


@asynccontextmanager
async def controlling(api: ApiServer) -> AsyncIterator[Lab]:
    async with client(api) as cluster:
        changed = asyncio.Event()
        world = World(changed.set)
        clock = asyncio.get_running_loop().time
        controller = Controller(world, changed, cluster, clock)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(work)
                for work in (
                    cluster.follow_pods(world.pods),
                    cluster.follow_nodes(world.nodes),
                    cluster.follow_claims(world.claims),
                    cluster.follow_slices(world.slices),
                    controller.run(),
                )
            ]
            yield Lab(api, cluster, controller, running)
            for task in running:
                task.cancel()


@asynccontextmanager
async def lab() -> AsyncIterator[Lab]:
    async with api_server() as api, controlling(api) as running:
        yield running


ROLLOUT, TRAINER = make.pod("rollout", "rollout"), make.pod("trainer", "trainer")


async def test_a_pair_is_gated_told_and_let_go_together() -> None:
    async with lab() as running:
        await running.pod(ROLLOUT)
        event = await running.hears("rollout", "WaitingForPartner")
        assert event["regarding"]["uid"] == "uid-lab-rollout"
        assert event["type"] == "Normal"
        assert "no pod has role trainer" in event["note"]
        assert running.gates("rollout") == [GATE]

        await running.pod(TRAINER)
        await running.released("rollout", "trainer")
        event = await running.hears("trainer", "Paired")
        assert event["note"] == (
            "fits node n1 together with pod rollout: the scheduler may place it there"
        )
        await running.hears("rollout", "Paired")

        at = running.controller.whereabouts(objects.pod(make.without_gate(ROLLOUT)))
        assert at is not None
        assert at.node == "n1"
        assert running.controller.whereabouts(objects.pod(make.pod("other"))) is None


async def test_a_strangers_gate_stays() -> None:
    gated = make.pod("trainer", "trainer", gates=("example.com/quota", GATE))
    async with lab() as running:
        await running.pod(ROLLOUT)
        await running.pod(gated)
        event = await running.hears("rollout", "WaitingForGate")
        assert "example.com/quota of pod trainer" in event["note"]
        await running.pod(TRAINER)
        await running.released("rollout", "trainer")


async def test_only_our_gate_is_removed_and_only_from_this_very_pod() -> None:
    gated = make.pod("trainer", "trainer", gates=("example.com/quota", GATE))
    async with api_server() as api, client(api) as cluster:
        await api.put(f"{PODS}/trainer", gated)
        await cluster.remove_gate(objects.pod(gated))
        left = api.objects[f"{PODS}/trainer"]["spec"]["schedulingGates"]
        assert left == [{"name": "example.com/quota"}]

        anew = copy.deepcopy(gated)
        anew["metadata"]["uid"] = "another"
        await api.put(f"{PODS}/trainer", anew)
        with pytest.raises(ApiError, match="422 /metadata/uid"):
            await cluster.remove_gate(objects.pod(gated))
        assert len(api.objects[f"{PODS}/trainer"]["spec"]["schedulingGates"]) == 2


async def test_a_pod_at_fault_is_evicted_and_nobody_else() -> None:
    """Whatever a status says: only pods of this claim, which it is reserved for."""
    async with lab() as running:
        await running.pod(ROLLOUT)
        await running.pod(TRAINER)
        await running.released("rollout", "trainer")
        await running.pod(make.pod("bystander", "trainer", claims=("another",)))
        wanted = ["uid-lab-trainer", "uid-lab-bystander", "uid-lab-nobody"]
        claim = make.claim("grpo", "rollout", "trainer", node="n1")
        claim["status"]["reservedFor"] = [{"uid": uid} for uid in ("uid-lab-rollout", *wanted[:2])]
        tenants = [{"name": "x", "evict": uid} for uid in wanted]
        claim["status"]["devices"] = [
            {"driver": "another.example", "data": {"tenants": [{"evict": "uid-lab-rollout"}]}},
            {"driver": "tandem-gpu.io", "data": {"tenants": [{"name": "y"}, *tenants]}},
        ]
        await running.api.put(f"{CLAIMS}/grpo", claim)
        event = await running.hears("trainer", "Evicted")
        assert "is at fault" in event["note"]
        left = {path.rpartition("/")[2] for path in running.api.objects if path.startswith(PODS)}
        assert left == {"rollout", "bystander"}


@pytest.mark.parametrize("forget", [False, True], ids=["cut off", "too old"])
async def test_what_happens_while_a_watch_is_lost_is_seen_afterwards(forget: bool) -> None:
    async with lab() as running:
        await running.pod(ROLLOUT)
        await running.hears("rollout", "WaitingForPartner")
        lists = running.api.requests.count(("list", "/api/v1/pods"))
        await running.api.break_watches(forget=forget)
        await running.pod(TRAINER)
        await running.released("rollout", "trainer")
        assert running.api.requests.count(("list", "/api/v1/pods")) > lists


async def test_a_partner_that_went_while_a_watch_was_lost_is_not_counted_on() -> None:
    async with lab() as running:
        await running.pod(make.pod("trainer", "trainer"))
        await running.hears("trainer", "WaitingForPartner")
        await running.api.break_watches()
        await running.api.delete(f"{PODS}/trainer")
        lists = running.api.requests.count(("list", "/api/v1/pods"))
        await running.api.asked("watch", "/api/v1/pods", lists + 1)
        await running.pod(ROLLOUT)
        await running.hears("rollout", "WaitingForPartner")


async def test_what_is_refused_is_tried_again_and_holds_nobody_up() -> None:
    async with lab() as running:
        running.api.refuse = lambda verb, path: (
            500 if verb == "patch" and path.endswith("/trainer") else None
        )
        await running.pod(ROLLOUT)
        await running.pod(TRAINER)
        await running.released("rollout")
        assert running.gates("trainer") == [GATE]
        running.api.refuse = lambda *_: None
        await running.released("trainer")


async def test_the_same_is_told_once_and_counted_after_a_restart() -> None:
    async with api_server() as api:
        async with controlling(api) as running:
            await running.pod(ROLLOUT)
            await running.hears("rollout", "WaitingForPartner")
            # A change that changes nothing for this pod leads to a pass, and to no event.
            await running.pod(make.pod("critic", "critic"))
            await running.hears("critic", "InvalidRole")
            assert len(running.told("rollout")) == 1
        async with controlling(api) as running:
            await api.until(lambda: any("series" in event for event in running.told("rollout")))
            (event,) = running.told("rollout")
            assert event["series"]["count"] == 2


async def test_what_is_over_at_once_is_not_told() -> None:
    async with lab() as running:
        await running.api.delete(f"{CLAIMS}/grpo")
        await running.pod(ROLLOUT)
        await running.pod(TRAINER)
        await running.api.put(f"{CLAIMS}/grpo", make.claim("grpo", "rollout", "trainer"))
        await running.hears("rollout", "Paired")
        await running.hears("trainer", "Paired")
        assert {event["reason"] for event in running.api.of("events")} == {"Paired"}


async def test_a_fault_that_somebody_must_mend_is_a_warning() -> None:
    async with lab() as running:
        await running.pod(make.pod("critic", "critic"))
        event = await running.hears("critic", "InvalidRole")
        assert event["type"] == "Warning"


async def test_an_events_name_is_bounded_and_differs() -> None:
    # HAMi-DRA#31: names derived from long names collided or were refused.
    names = [f"{'x' * 200}.{'y' * 49}.{last}" for last in "ab"]
    async with api_server() as api, client(api) as cluster:
        for name in names:
            pod = objects.pod(make.pod(name, "rollout"))
            await cluster.tell(pod, "Paired", "fits", warning=False)
        made = [event["metadata"]["name"] for event in api.of("events")]
        assert len(set(made)) == 2
        assert all(len(name) <= 253 for name in made)


async def test_lists_come_in_pages() -> None:
    async with lab() as running:
        for number in range(PAGE):
            await running.pod(make.pod(f"p{number:04}", claims=(), node="n2"))
        await running.api.break_watches(forget=True)
        await running.pod(make.pod("z-rollout", "rollout"))
        await running.hears("z-rollout", "WaitingForPartner")


# -- the certificate ----------------------------------------------------------------------------


def webhook_configuration() -> Raw:
    service = {"name": "tandem-extender", "namespace": "tandem-system", "path": "/mutate"}
    return {
        "metadata": {"name": "tandem-extender"},
        "webhooks": [
            {
                "name": "pods.tandem-gpu.io",
                "clientConfig": {"service": service},
                "timeoutSeconds": 5,
            }
        ],
    }


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Serving:
    """Who keeps a certificate, and a server that uses it."""

    keeper: Keeper
    port: int
    clock: Clock

    async def served(self, trusted: bytes) -> x509.Certificate:
        """Connect as who trusts this authority; what the server shows."""
        trust = ssl.create_default_context(cadata=trusted.decode())
        _, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=trust, server_hostname="localhost"
        )
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        return x509.load_der_x509_certificate(shown)


@asynccontextmanager
async def keeping(
    api: ApiServer, folder: Path, started: timedelta = timedelta()
) -> AsyncIterator[Serving]:
    """`started` ago, as its clock says."""
    clock = Clock()
    clock.now -= started
    async with client(api) as cluster:
        keeper = Keeper(cluster, folder, ["localhost"], clock)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(work)
                for work in (
                    cluster.follow_secret(keeper),
                    cluster.follow_webhook(keeper),
                    keeper.keep(),
                )
            ]
            async with asyncio.timeout(WITHIN_S):
                await keeper.ready.wait()
            server = await asyncio.start_server(
                lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=keeper.context
            )
            async with server:
                yield Serving(keeper, server.sockets[0].getsockname()[1], clock)
            for task in running:
                task.cancel()


def secret_of(api: ApiServer) -> certificates.Certificate:
    return certificates.stored(api.objects[SECRET]["data"])


def bundle_of(api: ApiServer) -> bytes:
    (webhook,) = api.objects[WEBHOOK]["webhooks"]
    return base64.b64decode(webhook["clientConfig"].get("caBundle", ""))


async def trusts(api: ApiServer, authority: bytes) -> None:
    await api.until(lambda: WEBHOOK in api.objects and bundle_of(api) == authority)


async def test_a_certificate_is_made_stored_and_trusted(tmp_path: Path) -> None:
    async with api_server() as api, keeping(api, tmp_path) as serving:
        await api.put(WEBHOOK, webhook_configuration())  # later than we started
        stored = secret_of(api)
        await trusts(api, stored.authority)
        (webhook,) = api.objects[WEBHOOK]["webhooks"]
        assert webhook["timeoutSeconds"] == 5
        assert webhook["clientConfig"]["service"]["path"] == "/mutate"
        shown = await serving.served(stored.authority)
        assert shown == x509.load_pem_x509_certificate(stored.chain)
        assert (tmp_path / "tls.key").stat().st_mode & 0o077 == 0


async def test_what_is_stored_is_used_again(tmp_path: Path) -> None:
    async with api_server() as api:
        async with keeping(api, tmp_path):
            stored = secret_of(api)
        async with keeping(api, tmp_path) as serving:
            assert secret_of(api) == stored
            await serving.served(stored.authority)


async def test_it_is_renewed_in_time_and_nobody_notices(tmp_path: Path) -> None:
    due = certificates.CERTIFICATE_FOR - certificates.RENEW_BEFORE
    async with api_server() as api, keeping(api, tmp_path, started=due) as serving:
        await api.put(WEBHOOK, webhook_configuration())
        before = secret_of(api)
        await trusts(api, before.authority)
        serving.clock.now = datetime.now(UTC)
        await api.put(WEBHOOK, webhook_configuration())  # a look is due; and it lost its bundle
        await trusts(api, before.authority)
        after = secret_of(api)
        assert after.authority == before.authority
        assert after.ends > before.ends + timedelta(days=30)
        shown = await serving.served(before.authority)
        assert shown == x509.load_pem_x509_certificate(after.chain)


async def test_somebody_elses_certificate_is_served_and_followed(tmp_path: Path) -> None:
    def issued() -> Raw:
        data = certificates.to_store(certificates.new(["localhost"], datetime.now(UTC)))
        del data["ca.key"]
        return {"metadata": {"name": "tandem-extender-tls"}, "data": data}

    async with api_server() as api:
        await api.put(WEBHOOK, webhook_configuration())
        await api.put(SECRET, issued())
        async with keeping(api, tmp_path) as serving:
            await trusts(api, secret_of(api).authority)
            await serving.served(secret_of(api).authority)
            await api.put(SECRET, issued())
            await trusts(api, secret_of(api).authority)
            await serving.served(secret_of(api).authority)


async def test_a_secret_that_cannot_be_read_is_told_and_the_last_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with api_server() as api, keeping(api, tmp_path) as serving:
        good = api.objects[SECRET]
        authority = secret_of(api).authority
        looks = api.requests.count(("get", SECRET))
        spoilt = copy.deepcopy(good)
        spoilt["data"]["tls.crt"] = base64.b64encode(b"no certificate").decode()
        await api.put(SECRET, spoilt)
        await api.asked("get", SECRET, looks + 2)  # the second look is after the first failed
        assert "certificate: cannot be read" in caplog.text
        await serving.served(authority)
        assert api.objects[SECRET]["data"] == spoilt["data"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tls.key": None}, "tls.key is missing"),
        ({"ca.crt": "!"}, "cannot be read"),
        ({"ca.key": base64.b64encode(b"x").decode()}, "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_stored_certificate_is_named(change: Raw, words: str) -> None:
    stored: Raw = {**certificates.to_store(certificates.new(["localhost"], datetime.now(UTC)))}
    data = stored | change
    with pytest.raises(certificates.CertificateError, match=words):
        certificates.stored({key: value for key, value in data.items() if value is not None})


def test_an_authority_issues_nothing_beyond_its_own_end() -> None:
    made = datetime.now(UTC)
    certificate = certificates.new(["localhost"], made)
    late = made + certificates.AUTHORITY_FOR - timedelta(days=10)
    last = certificates.renewed(certificate, ["localhost"], late)
    assert last.ends == x509.load_pem_x509_certificate(last.authority).not_valid_after_utc
    assert certificates.renewed(last, ["localhost"], late + timedelta(days=9)) == last
    with pytest.raises(certificates.CertificateError, match="delete the Secret"):
        certificates.renewed(last, ["localhost"], late + timedelta(days=11))


# -- the whole program --------------------------------------------------------------------------


def kubeconfig(folder: Path, url: str) -> Path:
    named = {"name": "lab"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [named | {"cluster": {"server": url}}],
        "users": [named | {"user": {"token": "none"}}],
        "contexts": [named | {"context": {"cluster": "lab", "user": "lab"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def test_the_program_serves_and_ends_in_order(tmp_path: Path) -> None:
    async with api_server() as api:
        await api.put(WEBHOOK, webhook_configuration())
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scheduler_extender", "--agent-image", "tandem:0.1.0"),
            *("--tls-dir", str(tmp_path / "tls"), "--listen", "127.0.0.1:0"),
            cwd=ROOT,
            env=os.environ | {"KUBECONFIG": str(kubeconfig(tmp_path, api.url))},
            stderr=asyncio.subprocess.PIPE,
        )
        assert program.stderr is not None
        try:
            async with asyncio.timeout(WITHIN_S):
                while b"serves on" not in (line := await program.stderr.readline()):
                    assert line, "it ended before it served"
            assert b"restart_rules=True" in line
            port = int(line.split(b" with ")[0].rpartition(b":")[2])
            await trusts(api, secret_of(api).authority)
            await api.put(f"{PODS}/rollout", ROLLOUT)
            await api.put(f"{PODS}/trainer", TRAINER)
            await api.until(lambda: all(p["spec"]["schedulingGates"] == [] for p in api.of("pods")))
            trust = ssl.create_default_context(cadata=bundle_of(api).decode())
            trust.check_hostname = False  # it serves as tandem-extender.tandem-system.svc
            question = {"Pod": make.without_gate(ROLLOUT), "NodeNames": ["n1", "n2"]}
            async with (
                aiohttp.ClientSession(f"https://127.0.0.1:{port}") as session,
                session.post("/filter", json=question, ssl=trust) as response,
            ):
                assert (await response.json())["NodeNames"] == ["n1"]
            program.send_signal(signal.SIGTERM)
            async with asyncio.timeout(WITHIN_S):
                rest = await program.stderr.read()
                assert await program.wait() == 0, rest.decode()
            assert b"stopped" in rest
            assert b"Traceback" not in rest, rest.decode()
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()


def granted() -> list[tuple[str, Raw]]:
    """The rules of the manifest, each with the namespace that it is for, empty for all."""
    manifest = yaml.safe_load_all((ROOT / "manifests/base/extender.yaml").read_text())
    return [
        (one["metadata"].get("namespace", ""), rule)
        for one in manifest
        if one["kind"] in ("Role", "ClusterRole")
        for rule in one["rules"]
    ]


def covers(grant: tuple[str, Raw], verb: str, path: str) -> bool:
    """Whether the grant allows a request, as RBAC sees it."""
    namespace, rule = grant
    group, _, rest = path.removeprefix("/apis/").removeprefix("/api").partition("/")
    parts = rest.split("/")[1:]  # without the version
    asked_in = ""
    if parts[0] == "namespaces":
        asked_in, parts = parts[1], parts[2:]
    name = parts[1] if len(parts) > 1 else ""
    resource = "/".join([parts[0], *parts[2:]])
    return (
        namespace in ("", asked_in)
        and group in rule["apiGroups"]
        and resource in rule["resources"]
        and verb in rule["verbs"]
        and name in rule.get("resourceNames", [name])
    )


async def test_the_manifest_grants_what_is_asked_and_nothing_that_is_not(tmp_path: Path) -> None:
    async with api_server() as api, client(api) as cluster:
        own = make.pod("extender-0", node="n1", claims=(), namespace="tandem-system")
        own["spec"]["containers"] = [{"name": "extender", "image": "tandem:0.1.0"}]
        await api.put("/api/v1/namespaces/tandem-system/pods/extender-0", own)
        assert await cluster.own_image() == "tandem:0.1.0"
        async with controlling(api) as running:
            await running.pod(ROLLOUT)
            await running.hears("rollout", "WaitingForPartner")
            told = objects.pod(ROLLOUT)
            await cluster.tell(told, "Same", "again", warning=False)
            await cluster.tell(told, "Same", "again", warning=False)
            await running.pod(TRAINER)
            await running.released("rollout", "trainer")
            await cluster.evict(objects.pod(TRAINER))
        await api.put(WEBHOOK, webhook_configuration())
        due = certificates.CERTIFICATE_FOR - certificates.RENEW_BEFORE
        async with keeping(api, tmp_path, started=due) as serving:
            serving.clock.now = datetime.now(UTC)
            await trusts(api, secret_of(api).authority)
            await api.put(WEBHOOK, webhook_configuration())
            await api.asked("patch", SECRET)
        asked = set(api.requests)
    grants = granted()
    refused = [one for one in asked if not any(covers(grant, *one) for grant in grants)]
    assert refused == []
    for namespace, rule in grants:
        for verb in rule["verbs"]:
            for resource in rule["resources"]:
                only = (namespace, rule | {"verbs": [verb], "resources": [resource]})
                assert any(covers(only, *one) for one in asked), f"nobody needs {verb} {resource}"


async def test_arguments_that_cannot_be_used_are_told() -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scheduler_extender", "--tls-dir", "x", "--listen", "8443"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await program.communicate()
    assert program.returncode == 2
    assert b"argument --listen: must be HOST:PORT, got 8443" in error
