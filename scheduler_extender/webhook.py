"""What admission makes of a pod that has a role: an AdmissionReview in, patches or a refusal out.

It adds the gate that pairing removes, the marker by which kube-scheduler asks us, and, in front of
an engine, the agent's sidecar. Running it on its own output changes nothing: the API server calls
it again when another webhook changed the pod after it.
"""

import base64
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from scheduler_extender.names import AGENT, ENGINE, ENGINE_WEIGHTS, GATE, PORT, ROLE, TURN
from scheduler_extender.objects import Malformed, Raw, quantity

Op = dict[str, Any]
"""One operation of a JSON patch (RFC 6902)."""

AGENT_PORT: Final = 8000
AGENT_RESOURCES: Final = {"cpu": "500m", "memory": "256Mi"}
"""Requests and limits alike, so that the sidecar takes no pod out of the Guaranteed class."""

RESTART_ALL: Final = [
    {"action": "RestartAllContainers", "exitCodes": {"operator": operator, "values": [255]}}
    for operator in ("NotIn", "In")
]
"""For every exit code; it takes two rules to say so. The sidecar starts anew with the engine then,
and its startup probe gates the engine's next start like the first one (KEP-5532)."""

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_LOOPBACK: Final = ("127.0.0.1", "localhost")
_UNPROCESSABLE: Final = 422


class Refused(Exception):
    """The pod cannot work as it is; says everything that is missing, in one line."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`restart_rules`: the API server knows rules for restarts of containers (1.36 and later)."""

    agent_image: str
    restart_rules: bool


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod that is being created. `flags`: of several alike the last counts."""

    name: str
    claims: tuple[Raw, ...]
    requests: Raw
    limits: Raw
    flags: Mapping[str, str]
    env: Mapping[str, str]
    restart: tuple[str | None, Sequence[Raw] | None]
    """Its own restartPolicy and restartPolicyRules."""


@dataclass(frozen=True, slots=True)
class NewPod:
    """A pod that is being created. Of the init containers one may be the sidecar already."""

    annotations: Mapping[str, str]
    gates: tuple[Raw, ...]
    init_containers: tuple[Raw, ...]
    containers: tuple[Container, ...]
    node: str
    host_network: bool


def review(body: Any, settings: Settings) -> dict[str, Any]:
    """Answer an AdmissionReview. Raises Malformed."""
    uid, pod = _read(body)
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    try:
        ops = [] if pod is None else patch(pod, settings)
    except Refused as exc:
        status = {"code": _UNPROCESSABLE, "reason": "Invalid", "message": str(exc)}
        response |= {"allowed": False, "status": status}
    else:
        if ops:
            encoded = base64.b64encode(json.dumps(ops).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def patch(pod: NewPod, settings: Settings) -> list[Op]:
    """What is to be changed of a pod with a role. Raises Refused."""
    faults = list(_faults(pod))
    user = _user_of_claim(pod)
    kind, agent = pod.annotations.get(ENGINE), None
    if kind is not None:
        faults += _engine_faults(pod, user, settings)
        if not faults and user is not None:
            agent = _agent(pod, user, settings)
    present = [one for one in pod.init_containers if one["name"] == AGENT]
    in_place = any(container.name == AGENT for container in pod.containers)
    if in_place or (present and not faults and not (agent and _is_ours(present[0], agent))):
        faults.append(f"container {AGENT}: is not the one that Tandem adds: call yours otherwise")
    if faults or user is None:
        raise Refused("; ".join(faults))
    return [
        *_with_gate(pod),
        *_with_marker(pod, user),
        *(_with_agent(pod, agent) if agent is not None else ()),
        *(_with_restart_rules(pod, user) if agent is not None and settings.restart_rules else ()),
    ]


# -- reading ------------------------------------------------------------------------------------


def _read(body: Any) -> tuple[str, NewPod | None]:
    """The request's UID, and the pod if it is a new one that has a role."""
    try:
        if body["kind"] != "AdmissionReview" or body["apiVersion"] != "admission.k8s.io/v1":
            raise Malformed("not an AdmissionReview of admission.k8s.io/v1")
        request = body["request"]
        uid, resource = str(request["uid"]), request["resource"]
        if (
            (resource["group"], resource["resource"]) != ("", "pods")
            or request.get("subResource")
            or request["operation"] != "CREATE"
            or ROLE not in (request["object"]["metadata"].get("annotations") or {})
        ):
            return uid, None
        return uid, _pod(request["object"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as exc:
        raise Malformed(f"not an AdmissionReview of a pod: {exc!r:.200}") from exc


def _pod(raw: Raw) -> NewPod:
    spec = raw["spec"]
    return NewPod(
        annotations={str(k): str(v) for k, v in raw["metadata"]["annotations"].items()},
        gates=tuple({"name": str(gate["name"])} for gate in spec.get("schedulingGates") or ()),
        init_containers=tuple(
            dict(container) | {"name": str(container["name"])}
            for container in spec.get("initContainers") or ()
        ),
        containers=tuple(map(_container, spec["containers"])),
        node=str(spec.get("nodeName") or ""),
        host_network=bool(spec.get("hostNetwork", False)),
    )


def _container(raw: Raw) -> Container:
    resources = raw.get("resources") or {}
    return Container(
        name=str(raw["name"]),
        claims=tuple(dict(claim) for claim in resources.get("claims") or ()),
        requests=dict(resources.get("requests") or {}),
        limits=dict(resources.get("limits") or {}),
        flags=_flags([*(raw.get("command") or ()), *(raw.get("args") or ())]),
        env={entry["name"]: entry.get("value", "") for entry in raw.get("env") or ()},
        restart=(raw.get("restartPolicy"), raw.get("restartPolicyRules")),
    )


def _flags(command: Sequence[str]) -> dict[str, str]:
    """The long options of a command line, in a shell's script too: `--x=1`, `--x 1`, `--x`."""
    words = [word for part in command for word in _words(part)]
    flags = {}
    for word, following in pairwise([*words, ""]):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if not equals and not following.startswith("--"):
                value = following
            flags[name.replace("_", "-")] = value  # as vLLM reads them
    return flags


def _words(part: str) -> list[str]:
    if not any(character.isspace() for character in part):
        return [part]
    try:
        return shlex.split(part)
    except ValueError:  # an open quote, in JSON for instance
        return part.split()


# -- judging ------------------------------------------------------------------------------------


def _user_of_claim(pod: NewPod) -> Container | None:
    """The container that uses the devices: the first that lists a claim."""
    return next((container for container in pod.containers if container.claims), None)


def _faults(pod: NewPod) -> Iterator[str]:
    role, kind, port = (pod.annotations.get(name) for name in (ROLE, ENGINE, PORT))
    if role is None or not _LABEL.fullmatch(role):
        yield (
            f"annotation {ROLE}: must be at most 63 lower-case letters, digits and inner hyphens, "
            f"got {role!r:.80}"
        )
    if _user_of_claim(pod) is None:
        yield (
            "no container lists a resource claim: name it in spec.resourceClaims, and in "
            "resources.claims of the container that uses the devices"
        )
    if kind not in (None, "vllm"):
        yield f"annotation {ENGINE}: vllm is the engine that is known, got {kind!r:.80}"
    if port is not None and kind is None:
        yield f"annotation {PORT}: is for the sidecar of an engine, so {ENGINE} must be set too"
    if port is not None and _port(port) is None:
        yield f"annotation {PORT}: must be a port from 1 to 65535, got {port!r:.80}"
    if (weights := pod.annotations.get(ENGINE_WEIGHTS)) is not None:
        if kind is None:
            yield f"annotation {ENGINE_WEIGHTS}: is about an engine, so {ENGINE} must be set too"
        if _size(weights) is None:
            yield f"annotation {ENGINE_WEIGHTS}: must be a size such as 15Gi, got {weights!r:.80}"
    if pod.node:
        yield "spec.nodeName: must not be set, the scheduler is to place the pod: use nodeSelector"


def _engine_faults(pod: NewPod, user: Container | None, settings: Settings) -> Iterator[str]:
    if pod.host_network:
        yield (
            "spec.hostNetwork: must not be set, the engine's unauthenticated routes would be open "
            "to the whole node"
        )
    if user is None:
        return
    where, flags = f"container {user.name}", user.flags
    if flags.get("--host") not in _LOOPBACK:
        yield f"{where}: needs --host 127.0.0.1, its routes for sleep and reload are for the agent"
    serves, port = _agent_port(pod), _port(flags.get("--port", ""))
    if port is None:
        yield f"{where}: needs --port with a port of its own, other than the agent's {serves}"
    elif port == serves:
        yield (
            f"{where}: --port {port} is the agent's: choose another for one of them (the agent's "
            f"is annotation {PORT})"
        )
    if user.env.get("VLLM_SERVER_DEV_MODE") != "1":
        yield f"{where}: needs env VLLM_SERVER_DEV_MODE=1, for the routes that the agent uses"
    if "--enable-sleep-mode" not in flags and "--worker-cls" not in flags:
        yield f"{where}: needs --enable-sleep-mode, or it cannot give its memory back"
    policy, rules = user.restart
    if settings.restart_rules and (
        policy not in (None, "Always") or (rules or RESTART_ALL) != RESTART_ALL
    ):
        yield (
            f"{where}: restartPolicy and restartPolicyRules are set by Tandem, remove your own: "
            f"an engine restarts under a turn only"
        )


def _port(text: str) -> int | None:
    return int(text) if _PORT.fullmatch(text) and 0 < int(text) < 1 << 16 else None


def _size(text: str) -> int | None:
    """Bytes; at least one."""
    try:
        size = math.ceil(quantity(text))
    except ValueError:
        return None
    return size if 0 < size < 1 << 63 else None


def _agent_port(pod: NewPod) -> int:
    return _port(pod.annotations.get(PORT, "")) or AGENT_PORT


# -- changing -----------------------------------------------------------------------------------


def _with_gate(pod: NewPod) -> Iterator[Op]:
    if GATE not in [gate["name"] for gate in pod.gates]:
        yield _add("/spec/schedulingGates", [*pod.gates, {"name": GATE}])


def _with_marker(pod: NewPod, user: Container) -> Iterator[Op]:
    path = f"/spec/containers/{pod.containers.index(user)}/resources"
    for section, amounts in (("limits", user.limits), ("requests", user.requests)):
        if amounts.get(TURN) != "1":
            yield _add(f"{path}/{section}", {**amounts, TURN: "1"})


def _with_agent(pod: NewPod, agent: Raw) -> Iterator[Op]:
    """As the last of the init containers: the engine starts when its startup probe succeeds."""
    names = [container["name"] for container in pod.init_containers]
    if AGENT not in names:
        yield _add("/spec/initContainers", [*pod.init_containers, agent])
    elif names[-1] != AGENT:  # another webhook added one after it
        ordered = sorted(pod.init_containers, key=lambda container: container["name"] == AGENT)
        yield _add("/spec/initContainers", ordered)


def _with_restart_rules(pod: NewPod, user: Container) -> Iterator[Op]:
    path = f"/spec/containers/{pod.containers.index(user)}"
    if user.restart != ("Always", RESTART_ALL):
        yield _add(f"{path}/restartPolicy", "Always")
        yield _add(f"{path}/restartPolicyRules", RESTART_ALL)


def _add(path: str, value: object) -> Op:
    """RFC 6902, 4.1: replaces a member that exists."""
    return {"op": "add", "path": path, "value": value}


def _agent(pod: NewPod, user: Container, settings: Settings) -> dict[str, Any]:
    port = _agent_port(pod)
    weights = _size(pod.annotations.get(ENGINE_WEIGHTS, ""))
    return {
        "name": AGENT,
        "image": settings.agent_image,
        "command": ["python3", "-m", "workload_agents"],
        "args": [
            *("--role", pod.annotations[ROLE]),
            *("--engine", pod.annotations[ENGINE]),
            *("--engine-url", f"http://127.0.0.1:{user.flags['--port']}"),
            *("--listen", f"0.0.0.0:{port}"),
            *("--wait-s", "600"),
            *(("--engine-weights", str(weights)) if weights is not None else ()),
        ],
        "restartPolicy": "Always",
        # Answered when the first turn is granted, however long that takes.
        "startupProbe": {
            "httpGet": {"path": "/tandem/startup", "port": port},
            "timeoutSeconds": 3600,
            "periodSeconds": 1,
            "failureThreshold": 2**31 - 1,
        },
        "readinessProbe": {
            "httpGet": {"path": "/tandem/healthz", "port": port},
            "periodSeconds": 2,
        },
        "resources": {
            "claims": list(user.claims),
            "limits": AGENT_RESOURCES,
            "requests": AGENT_RESOURCES,
        },
        # What pod security level `restricted` asks of every container.
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _is_ours(present: Raw, agent: Raw) -> bool:
    """By what makes it the agent. Its image, for one, may be another by now: of a mirror."""
    return all(
        _says(present.get(part), agent[part])
        for part in ("command", "args", "restartPolicy", "startupProbe")
    ) and _says(present.get("resources"), {"claims": agent["resources"]["claims"]})


def _says(present: object, wanted: object) -> bool:
    """Whether all that is wanted is there; the API server adds its defaults."""
    if isinstance(wanted, Mapping):
        return isinstance(present, Mapping) and all(
            _says(present.get(key), value) for key, value in wanted.items()
        )
    return present == wanted
