"""What admission makes of a pod: patches, refusals, and nothing the second time."""

import base64
import copy
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.objects import Malformed
from scheduler_extender.webhook import RESTART_ALL, Settings, review

RECORDED = Path(__file__).parents[1] / "recorded/apiserver-1.36.3-admission.json"
SETTINGS = Settings(agent_image="tandem:0.1.0", restart_rules=True)
ENGINE_COMMAND = [
    "vllm",
    "serve",
    "/model",
    "--host=127.0.0.1",
    "--port=8100",
    "--enable-sleep-mode",
]

Raw = dict[str, Any]


def admission(**annotations: str) -> Raw:
    """The recorded request of a real API server, its pod annotated."""
    body: Raw = json.loads(RECORDED.read_text())
    body["request"]["object"]["metadata"]["annotations"] |= {
        f"tandem-gpu.io/{name}": value for name, value in annotations.items()
    }
    return body


def engine(**annotations: str) -> Raw:
    """The same of an engine that has all it needs."""
    body = admission(**{"role": "rollout", "engine": "vllm"} | annotations)
    container = body["request"]["object"]["spec"]["containers"][0]
    container["command"] = list(ENGINE_COMMAND)
    container["env"] = [{"name": "VLLM_SERVER_DEV_MODE", "value": "1"}]
    return body


def container_of(body: Raw) -> Raw:
    found: Raw = body["request"]["object"]["spec"]["containers"][0]
    return found


def patched(body: Raw, settings: Settings = SETTINGS) -> Raw:
    """The pod as the API server would have it after the webhook's answer."""
    response = review(body, settings)["response"]
    assert response["allowed"], response
    assert response["uid"] == body["request"]["uid"]
    pod: Raw = copy.deepcopy(body["request"]["object"])
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        apply_adds(pod, json.loads(base64.b64decode(response["patch"])))
    return pod


def apply_adds(pod: Raw, ops: list[Raw]) -> None:
    """RFC 6902's `add` to members of objects, which is all that the webhook uses."""
    for op in ops:
        assert op["op"] == "add"
        *parents, last = (part.replace("~1", "/") for part in op["path"].split("/")[1:])
        target: Any = pod
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        assert isinstance(target, dict)
        target[last] = op["value"]


def refusal(body: Raw, settings: Settings = SETTINGS) -> str:
    response = review(body, settings)["response"]
    assert not response["allowed"]
    assert "patch" not in response
    message = response["status"]["message"]
    assert isinstance(message, str)
    assert "\n" not in message
    return message


def test_a_pod_without_a_role_is_left_alone() -> None:
    body = admission()
    assert patched(body) == body["request"]["object"]


def test_a_library_tenant_gets_gate_and_marker_and_nothing_else() -> None:
    body = admission(role="trainer")
    expected = copy.deepcopy(body["request"]["object"])
    expected["spec"]["schedulingGates"] = [{"name": "tandem-gpu.io/pair"}]
    expected["spec"]["containers"][0]["resources"] |= {
        "limits": {"tandem-gpu.io/turn": "1"},
        "requests": {"tandem-gpu.io/turn": "1"},
    }
    assert patched(body) == expected


def test_others_gates_and_requests_stay() -> None:
    body = admission(role="trainer")
    spec = body["request"]["object"]["spec"]
    spec["schedulingGates"] = [{"name": "example.com/quota"}]
    spec["containers"].insert(0, {"name": "first", "image": "x"})
    spec["containers"][1]["resources"]["requests"] = {"memory": "1Gi"}
    pod = patched(body)
    assert [gate["name"] for gate in pod["spec"]["schedulingGates"]] == [
        "example.com/quota",
        "tandem-gpu.io/pair",
    ]
    assert "resources" not in pod["spec"]["containers"][0]
    assert pod["spec"]["containers"][1]["resources"]["requests"] == {
        "memory": "1Gi",
        "tandem-gpu.io/turn": "1",
    }


def test_an_engine_gets_the_agent_as_its_last_init_container() -> None:
    body = engine(port="9000")
    body["request"]["object"]["spec"]["initContainers"] = [{"name": "model", "image": "x"}]
    pod = patched(body)
    model, agent = pod["spec"]["initContainers"]
    assert model["name"] == "model"
    assert agent["name"] == "tandem-agent"
    assert agent["image"] == "tandem:0.1.0"
    assert agent["restartPolicy"] == "Always"
    assert " ".join([*agent["command"], *agent["args"]]) == (
        "python3 -m workload_agents --role rollout --engine vllm "
        "--engine-url http://127.0.0.1:8100 --listen 0.0.0.0:9000 --wait-s 600"
    )
    assert agent["startupProbe"]["httpGet"] == {"path": "/tandem/startup", "port": 9000}
    assert agent["startupProbe"]["timeoutSeconds"] == 3600
    assert agent["readinessProbe"]["httpGet"] == {"path": "/tandem/healthz", "port": 9000}
    assert agent["resources"]["claims"] == [{"name": "g"}]
    assert agent["resources"]["limits"] == agent["resources"]["requests"]
    assert "tandem-gpu.io/turn" not in agent["resources"]["limits"]


def test_the_agent_listens_on_8000_unless_told_otherwise() -> None:
    agent = patched(engine())["spec"]["initContainers"][0]
    assert "0.0.0.0:8000" in agent["args"]
    assert agent["startupProbe"]["httpGet"]["port"] == 8000


def test_the_agent_is_told_the_size_of_the_weights() -> None:
    agent = patched(engine(**{"engine-weights": "1.5Gi"}))["spec"]["initContainers"][0]
    assert agent["args"][-2:] == ["--engine-weights", str(3 << 29)]


def test_an_engine_restarts_with_all_containers_where_the_cluster_can() -> None:
    container = patched(engine())["spec"]["containers"][0]
    assert container["restartPolicy"] == "Always"
    rules = container["restartPolicyRules"]
    assert [rule["action"] for rule in rules] == ["RestartAllContainers"] * 2
    codes = {rule["exitCodes"]["operator"]: rule["exitCodes"]["values"] for rule in rules}
    assert codes["In"] == codes["NotIn"]  # together they are every exit code

    older = patched(engine(), Settings("tandem:0.1.0", restart_rules=False))
    assert "restartPolicy" not in older["spec"]["containers"][0]
    assert "restartPolicyRules" not in older["spec"]["containers"][0]


@pytest.mark.parametrize("body", [admission(role="trainer"), engine()], ids=["library", "engine"])
def test_the_second_time_nothing_changes(body: Raw) -> None:
    once = patched(body)
    again = copy.deepcopy(body)
    again["request"]["object"] = once
    assert "patch" not in review(again, SETTINGS)["response"]


def test_what_others_did_to_the_agent_in_between_stays_and_it_is_last_again() -> None:
    body = engine()
    once = patched(body)
    agent = once["spec"]["initContainers"][0]
    # The API server's defaults, a mirror's image, a service account's mount, another sidecar.
    agent["startupProbe"]["httpGet"]["scheme"] = "HTTP"
    agent["startupProbe"]["successThreshold"] = 1
    agent["image"] = "mirror.example.com/tandem:0.1.0"
    agent["volumeMounts"] = [{"name": "token", "mountPath": "/token"}]
    once["spec"]["initContainers"].append({"name": "proxy", "image": "y"})
    body["request"]["object"] = once
    pod = patched(body)
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["proxy", "tandem-agent"]
    assert pod["spec"]["initContainers"][1] == agent


@pytest.mark.parametrize(
    "command",
    [
        ["vllm", "serve", "m", "--host", "127.0.0.1", "--port", "8100", "--enable-sleep-mode"],
        ["python3", "-m", "x", "--host=localhost", "--port=8100", "--worker-cls=a.B"],
        ["sh", "-c", "exec vllm serve m --host 127.0.0.1 --port 8100 --enable_sleep_mode 2>&1"],
        shlex.split("vllm --port=1 --host=:: --enable-sleep-mode --host=127.0.0.1 --port 8100"),
        [*ENGINE_COMMAND, "--hf-overrides", '{"note": "it\'s"}'],
    ],
    ids=["two words", "one word", "shell", "the last counts", "open quote"],
)
@pytest.mark.parametrize("where", ["command", "args"])
def test_flags_are_found_however_they_are_written(command: list[str], where: str) -> None:
    body = engine()
    container = container_of(body)
    del container["command"]
    container[where] = command
    agent = patched(body)["spec"]["initContainers"][0]
    assert "http://127.0.0.1:8100" in agent["args"]


def test_everything_that_is_missing_is_named_at_once() -> None:
    body = engine(role="Roll_out")
    body["request"]["object"]["spec"]["hostNetwork"] = True
    container = container_of(body)
    container["command"] = ["vllm", "serve", "m"]
    container["env"] = []
    message = refusal(body)
    for part in (
        "annotation tandem-gpu.io/role: must be",
        "spec.hostNetwork",
        "container main: needs --host 127.0.0.1",
        "needs --port",
        "needs env VLLM_SERVER_DEV_MODE=1",
        "needs --enable-sleep-mode",
    ):
        assert part in message


def with_command(*command: str) -> Raw:
    body = engine()
    container_of(body)["command"] = list(command)
    return body


def with_spec(body: Raw, **spec: Any) -> Raw:
    body["request"]["object"]["spec"] |= spec
    return body


def with_container(body: Raw, **members: Any) -> Raw:
    container_of(body).update(members)
    return body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (with_container(admission(role="trainer"), resources={}), "no container lists"),
        (admission(role=""), "annotation tandem-gpu.io/role: must be"),
        (admission(role="a" * 64), "at most 63"),
        (engine(engine="sglang"), "vllm is the engine that is known, got 'sglang'"),
        (engine(port="http"), "must be a port from 1 to 65535, got 'http'"),
        (engine(port="65536"), "must be a port from 1 to 65535"),
        (engine(port="8100"), "--port 8100 is the agent's"),
        (admission(role="trainer", port="8000"), "is for the sidecar of an engine"),
        (engine(**{"engine-weights": "big"}), "must be a size such as 15Gi, got 'big'"),
        (engine(**{"engine-weights": "0"}), "must be a size such as 15Gi, got '0'"),
        (
            admission(role="trainer", **{"engine-weights": "15Gi"}),
            "is about an engine, so tandem-gpu.io/engine must be set too",
        ),
        (with_command(*ENGINE_COMMAND, "--host=0.0.0.0"), "needs --host 127.0.0.1"),
        (with_command(*ENGINE_COMMAND, "--port=$(PORT)"), "needs --port"),
        (with_command(*ENGINE_COMMAND[:-1]), "needs --enable-sleep-mode"),
        (
            with_container(engine(), env=[{"name": "VLLM_SERVER_DEV_MODE", "value": "0"}]),
            "needs env",
        ),
        (with_container(engine(), restartPolicy="Never"), "restartPolicyRules are set by Tandem"),
        (
            with_container(engine(), restartPolicy="Always", restartPolicyRules=RESTART_ALL[:1]),
            "restartPolicyRules are set by Tandem",
        ),
        (with_spec(admission(role="trainer"), nodeName="n1"), "spec.nodeName: must not be set"),
        (with_spec(engine(), hostNetwork=True), "spec.hostNetwork: must not be set"),
        (
            with_spec(engine(), initContainers=[{"name": "tandem-agent", "image": "x"}]),
            "container tandem-agent: is not the one",
        ),
        (
            with_spec(
                admission(role="trainer"), initContainers=[{"name": "tandem-agent", "image": "x"}]
            ),
            "container tandem-agent: is not the one",
        ),
        (with_container(engine(), name="tandem-agent"), "container tandem-agent: is not the one"),
    ],
)
def test_a_pod_that_cannot_work_is_refused_with_the_reason(body: Raw, words: str) -> None:
    assert words in refusal(body)


def test_a_sidecar_that_would_not_hold_the_engine_back_is_not_taken_for_ours() -> None:
    body = engine()
    once = patched(body)
    del once["spec"]["initContainers"][0]["startupProbe"]
    body["request"]["object"] = once
    assert "container tandem-agent: is not the one" in refusal(body)


@pytest.mark.parametrize(
    "changes",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"subResource": "binding"},
        {"subResource": "ephemeralcontainers", "operation": "UPDATE"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
    ],
    ids=str,
)
def test_only_the_creation_of_pods_is_changed(changes: Raw) -> None:
    body = engine()
    body["request"] |= changes
    response = review(body, SETTINGS)["response"]
    assert response == {"uid": body["request"]["uid"], "allowed": True}


def test_a_dry_run_is_answered_like_any_other() -> None:
    body = engine()
    expected = review(body, SETTINGS)
    body["request"]["dryRun"] = True
    assert review(body, SETTINGS) == expected


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kind", "Pod"),
        ("apiVersion", "admission.k8s.io/v1beta1"),
        ("request", None),
        ("request/resource", None),
        ("request/object", "pod"),
        ("request/object/spec", {}),
        ("request/object/spec/containers/0/resources", ["x"]),
        ("request/object/spec/containers/0/command", [1]),
        ("request/object/spec/schedulingGates", [{}]),
        ("request/object/spec/initContainers", ["x"]),
    ],
)
def test_what_no_api_server_sends_is_malformed(path: str, value: Any) -> None:
    body = engine()
    *parents, last = path.split("/")
    target: Any = body
    for part in parents:
        target = target[int(part) if part.isdigit() else part]
    target[last] = value
    with pytest.raises(Malformed):
        review(body, SETTINGS)


@pytest.mark.parametrize("body", [None, [], "x", 1, {}])
def test_what_is_no_object_at_all_is_malformed(body: Any) -> None:
    with pytest.raises(Malformed):
        review(body, SETTINGS)
