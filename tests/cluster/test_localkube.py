"""The local cluster itself: what it offers, what it survives, and that nothing is left of it."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.kube import certificates, cgroups
from hack.kube.configs import SYSCTLS
from hack.kube.layout import Layout
from tests.cluster.kube import UP_S, WITHIN_S, Kube, pod, service

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(UP_S + 300)]

SERVE = ["python3", "-m", "http.server", "8080"]
READY = {"readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}}
GET = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=20).status)"


def venv() -> tuple[str, dict[str, Any]]:
    """The environment's Python, and what a pod needs to run it."""
    folder = os.environ["VIRTUAL_ENV"]
    mount = {"name": "venv", "mountPath": folder, "readOnly": True}
    return f"{folder}/bin/python", {
        "container": {"volumeMounts": [mount]},
        "volumes": [{"name": "venv", "hostPath": {"path": folder}}],
    }


@pytest.fixture
def web(kube: Kube) -> Iterator[str]:
    """The name of a Service and of its pod on node1."""
    kube.apply(pod("web", *SERVE, container=READY, nodeName="node1"), service("web", 8080))
    kube.wait("condition=Ready", "pod/web")
    kube.reaches("web.default.svc", 80)
    yield "web"
    kube("kubectl", "delete", "pod/web", "service/web", f"--timeout={WITHIN_S}s")


def test_up_says_that_all_is_well_and_changes_nothing_when_repeated(kube: Kube) -> None:
    before = kube.status()
    assert before["up"]
    assert [node["name"] for node in before["nodes"]] == ["node1", "node2"]
    kube.up()
    assert kube.status() == before


@pytest.mark.parametrize("node", ["node1", "node2"])
def test_a_pod_reaches_another_by_its_services_name(kube: Kube, web: str, node: str) -> None:
    name = f"client-{node}"
    kube.apply(pod(name, "python3", "-c", GET, f"http://{web}", nodeName=node))
    assert kube.output(name) == "200\n"


def test_a_process_of_the_node_reaches_a_service_by_its_name(kube: Kube, web: str) -> None:
    """As the API server reaches a webhook, and kube-scheduler an extender."""
    told = kube("exec", "--node=2", "--", "python3", "-c", GET, f"http://{web}.default.svc")
    assert told == "200\n"


def test_a_pod_asks_the_api_server_with_its_own_account(kube: Kube) -> None:
    ask = (
        "import ssl, urllib.request as r\n"
        "here = '/var/run/secrets/kubernetes.io/serviceaccount'\n"
        "tls = ssl.create_default_context(cafile=f'{here}/ca.crt')\n"
        "head = {'Authorization': 'Bearer ' + open(f'{here}/token').read()}\n"
        "url = 'https://kubernetes.default.svc/api?timeout=20s'\n"
        "print(r.urlopen(r.Request(url, headers=head), context=tls).status)\n"
    )
    kube.apply(pod("asks", "python3", "-c", ask))
    assert kube.output("asks") == "200\n"


def test_the_api_server_calls_a_webhook_that_is_a_service(kube: Kube) -> None:
    layout = Layout(kube.state)
    certificates._authority(layout).issue("hook", "hook", addresses=["hook.default.svc"])
    secret = ["secret", "tls", "hook", f"--cert={layout.pki}/hook.crt"]
    kube("kubectl", "create", *secret, f"--key={layout.pki}/hook.key")
    serve = (
        "import base64, http.server as h, json, ssl\n"
        "class Hook(h.BaseHTTPRequestHandler):\n"
        "    def do_POST(self):\n"
        "        length = int(self.headers['Content-Length'])\n"
        "        review = json.loads(self.rfile.read(length))\n"
        "        patch = [{'op': 'add', 'path': '/data', 'value': {'hook': 'was here'}}]\n"
        "        review['response'] = {'uid': review['request']['uid'], 'allowed': True,\n"
        "            'patchType': 'JSONPatch',\n"
        "            'patch': base64.b64encode(json.dumps(patch).encode()).decode()}\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "        self.wfile.write(json.dumps(review).encode())\n"
        "server = h.HTTPServer(('', 8443), Hook)\n"
        "tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
        "tls.load_cert_chain('/tls/tls.crt', '/tls/tls.key')\n"
        "server.socket = tls.wrap_socket(server.socket, server_side=True)\n"
        "server.serve_forever()\n"
    )
    listens = {"readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1}}
    mount = {"volumeMounts": [{"name": "tls", "mountPath": "/tls"}]}
    volumes = [{"name": "tls", "secret": {"secretName": "hook"}}]
    container = listens | mount
    kube.apply(
        pod("hook", "python3", "-c", serve, container=container, volumes=volumes),
        service("hook", 8443),
    )
    kube.wait("condition=Ready", "pod/hook")
    kube.reaches("hook.default.svc", 8443)
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"]}
    authority = kube("kubectl", "config", "view", "--raw", "--flatten", "-o", "json")
    (cluster,) = json.loads(authority)["clusters"]
    webhook = {
        "name": "hook.example.org",
        "clientConfig": {
            "service": {"name": "hook", "namespace": "default", "port": 8443},
            "caBundle": cluster["cluster"]["certificate-authority-data"],
        },
        "rules": [rule | {"resources": ["configmaps"]}],
        "objectSelector": {"matchLabels": {"hook": "please"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    asked = {"name": "asked", "labels": {"hook": "please"}}
    try:
        kube.apply(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": "hook"},
                "webhooks": [webhook],
            },
        )
        kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": asked})
        assert kube.get("configmap", "asked")["data"] == {"hook": "was here"}
    finally:
        kube("kubectl", "delete", "mutatingwebhookconfiguration/hook", "--ignore-not-found")


def test_a_pod_without_root_imports_torch_from_the_environment(kube: Kube) -> None:
    python, mounted = venv()
    safe = {"runAsUser": 65532, "runAsNonRoot": True}
    program = "import os, torch; print(os.getuid(), torch.ones(2).sum().item())"
    kube.apply(pod("torch", python, "-c", program, securityContext=safe, **mounted))
    assert kube.output("torch") == "65532 2.0\n"


def test_the_image_runs_driver_extender_and_sidecar_without_root(kube: Kube) -> None:
    check = (
        "import ctypes, os, sys\n"
        "import aiohttp, cryptography, grpc, kubernetes_asyncio, pydantic, yaml\n"
        "import dra_driver, scheduler_extender, tandem, workload_agents\n"
        "ctypes.CDLL('/opt/tandem/lib/libsimdevice.so')\n"
        "print(os.getuid(), tandem.__file__)\n"
    )
    image = "localhost/tandem:local"
    safe = {"runAsNonRoot": True}
    kube.apply(pod("image", "python", "-c", check, image=image, securityContext=safe))
    assert kube.output("image") == "65532 /opt/tandem/tandem/__init__.py\n"


@pytest.mark.parametrize("number", [1, 2])
def test_a_node_has_its_own_files_at_the_standard_paths(kube: Kube, number: int) -> None:
    """A DaemonSet with hostPaths serves each node; what it mounts is seen by the node's others."""
    mount = (
        "import ctypes\n"
        "assert ctypes.CDLL(None).mount(b'x', b'/lab/device', b'tmpfs', 0, b'size=1m') == 0\n"
        "open('/lab/device/file', 'w').write('mounted')\n"
        f"open('/cdi/file', 'w').write('node{number}')\n"
    )
    mounts = [
        {"name": "lab", "mountPath": "/lab", "mountPropagation": "Bidirectional"},
        {"name": "cdi", "mountPath": "/cdi"},
    ]
    volumes = [
        {"name": "lab", "hostPath": {"path": f"/run/lab-{number}", "type": "DirectoryOrCreate"}},
        {"name": "cdi", "hostPath": {"path": "/var/run/cdi", "type": "Directory"}},
    ]
    kube("exec", f"--node={number}", "--", "mkdir", "-p", f"/run/lab-{number}/device")
    container = {"volumeMounts": mounts, "securityContext": {"privileged": True}}
    name = f"mounts-{number}"
    made = pod(
        name, "python3", "-c", mount, container=container, volumes=volumes, nodeName=f"node{number}"
    )
    kube.apply(made)
    kube.output(name)
    inside = ("exec", f"--node={number}", "--", "cat")
    assert kube(*inside, f"/run/lab-{number}/device/file") == "mounted"
    assert kube(*inside, "/var/run/cdi/file") == f"node{number}"
    other = ("exec", f"--node={3 - number}", "--", "test", "-e", f"/run/lab-{number}")
    assert kube.run(*other).returncode == 1
    assert not Path(f"/run/lab-{number}").exists()
    assert (kube.state / f"node{number}" / "cdi" / "file").read_text() == f"node{number}"


def test_containers_outlive_a_restart_of_the_kubelets(kube: Kube, web: str) -> None:
    def life() -> Any:
        (status,) = kube.get("pod", web)["status"]["containerStatuses"]
        return status["containerID"], status["restartCount"]

    before, pid = life(), kube.component("node1/kubelet")["pid"]
    kube("restart", "kubelet")
    assert kube.component("node1/kubelet")["pid"] != pid
    assert life() == before
    kube.apply(pod("after-restart", "true", nodeName="node1"))
    kube.output("after-restart")


def test_a_component_stays_stopped_until_up(kube: Kube) -> None:
    kube("stop", "coredns")
    assert not kube.component("coredns")["running"]
    assert kube.run("status").returncode == 1
    kube("restart", "kube-scheduler")
    assert not kube.component("coredns")["running"]
    kube.up()
    assert kube.status()["up"]


def test_kube_scheduler_runs_with_another_configuration(kube: Kube, tmp_path: Path) -> None:
    """A profile that Kubernetes does not have by itself schedules a pod."""
    given = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": "another"}],
    }
    file = tmp_path / "scheduler.yaml"
    file.write_text(yaml.safe_dump(given))
    kube("scheduler", str(file))
    kube.apply(pod("elsewhere", "true", schedulerName="another"))
    kube.output("elsewhere")
    kube("scheduler")


def test_a_wrong_scheduler_configuration_is_refused(kube: Kube, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("kind: ConfigMap\n")
    refused = kube.run("scheduler", str(file))
    assert refused.returncode == 1
    assert "holds no KubeSchedulerConfiguration" in refused.stderr
    assert kube.status()["up"]


def test_images_are_imported_only_when_they_changed(kube: Kube) -> None:
    assert kube("images") == ""


# The life of a cluster: one of its own, from nothing to nothing.


def machine(state: Path) -> dict[str, set[str]]:
    """What of this machine a cluster could leave behind; other clusters may come and go."""

    def lines(*command: str) -> set[str]:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return {*done.stdout.splitlines()}

    ours = Layout(state).cgroup.strip("/")
    roots = cgroups.hierarchies()
    groups = [path for root in roots for path in root.iterdir() if path.is_dir()]
    below = [path for root in roots for path, _, _ in os.walk(root / ours)]
    return {
        "mounts": {*Path("/proc/self/mountinfo").read_text().splitlines()},
        "cgroups": {
            *(str(path) for path in groups if not path.name.startswith("tandem-localkube")),
            *below,
        },
        "addresses": lines("ip", "-oneline", "address"),
        "routes": lines("ip", "route", "show", "table", "all"),
        "iptables": {line for line in lines("iptables-save") if not line.startswith("#")},
        "sysctls": {
            f"{name}: {read(Path('/proc/sys', name))}" for name in (*SYSCTLS, "net/ipv4/ip_forward")
        },
        "named": {
            words
            for process in Path("/proc").glob("[0-9]*/cmdline")
            if str(state) in (words := read(process))
        },
    }


def changes(before: dict[str, set[str]], after: dict[str, set[str]]) -> dict[str, list[str]]:
    """What came or went, by kind."""
    found = {kind: sorted(before[kind] ^ after[kind]) for kind in before}
    return {kind: changed for kind, changed in found.items() if changed}


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""


def handles(state: Path, keeper: int) -> list[int]:
    """A pidfd for each process of the cluster: those in its namespace, and those that hold it."""
    space = Path(f"/proc/{keeper}/ns/pid").readlink()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            inside = (folder / "ns" / "pid").readlink() == space
            if inside or str(state) in read(folder / "cmdline"):
                found.append(os.pidfd_open(int(folder.name)))
    return found


def test_whoever_kills_the_keeper_ends_everything_and_up_works_again(tmp_path: Path) -> None:
    kube = Kube(tmp_path / "kube")
    before = machine(kube.state)
    try:
        kube.up()
        kube.apply(pod("web", *SERVE, container=READY))
        kube.wait("condition=Ready", "pod/web")
        assert any("kubepods" in path for path in machine(kube.state)["cgroups"])
        keeper = kube.status()["keeper"]
        running = handles(kube.state, keeper)
        assert len(running) > 8
        os.kill(keeper, signal.SIGKILL)
        for handle in running:
            ended, _, _ = select.select([handle], [], [], WITHIN_S)
            assert ended
            os.close(handle)
        assert changes(before, machine(kube.state)).keys() == {"cgroups"}
        assert kube.status() | {"nodes": [], "components": []} == kube.status()
        assert kube.run("kubectl", "get", "nodes").returncode == 1

        kube.up()
        assert kube.get("pods")["items"] == []
        kube.apply(pod("again", "true"))
        kube.output("again")
    finally:
        kube.down()
    assert changes(before, machine(kube.state)) == {}
    assert not kube.state.exists()


def test_what_is_not_up_says_so_and_can_be_taken_down(tmp_path: Path) -> None:
    kube = Kube(tmp_path / "kube")
    refused = kube.run("kubectl", "get", "nodes")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"Error: no cluster is up in {kube.state}")
    assert not kube.status()["up"]
    kube.down()
    assert not kube.state.exists()


def test_up_empties_no_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "thesis").touch()
    refused = Kube(tmp_path).run("up")
    assert refused.returncode == 1
    assert "holds other files" in refused.stderr
    Kube(tmp_path).down()
    assert (tmp_path / "thesis").exists()
