"""What objects of Kubernetes say about the demo. Pure: raw objects in, words and figures out."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from claim_phases.phases import Phase
from dra_driver.config import agreement
from dra_driver.fields import quantity
from hack.cluster_commands import NAMESPACE, Raw
from tandem.results import AgreedTenant, Agreement

DRIVER: Final = "tandem-gpu.io"
ROLE: Final = "tandem-gpu.io/role"
RESTARTS_MAX: Final = 4

_HOPELESS: Final = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""What a container does not wait for in vain only if a person helps."""

_PROBED: Final = "Unhealthy"
"""The reason of events about probes: an agent that waits for its turn is not ready."""


@dataclass(frozen=True)
class Failure:
    """A pod that does not do what it should. `container`: whose log tells more; empty if none."""

    sentence: str
    container: str = ""


def failure(pod: Raw) -> Failure | None:
    """Why the pod will not do its work; None while it may."""
    name = pod["metadata"]["name"]
    for status in containers(pod):
        where = f"container {status['name']} of pod {name}"
        waiting = status["state"].get("waiting", {})
        last = _exit(status["lastState"])
        if waiting.get("reason") in _HOPELESS:
            message = " ".join(waiting.get("message", "").split())
            why = f"{waiting['reason']}{f' ({message})' if message else ''}"
            return Failure(
                f"{where} does not start: {why}{last and f', it {last}'}", status["name"]
            )
        if status["restartCount"] > RESTARTS_MAX:
            times = f"was started again {status['restartCount']} times"
            return Failure(f"{where} {times}{last and f': it {last}'}", status["name"])
    if pod["status"].get("phase") != "Failed":
        return None
    for status in containers(pod):
        code = status["state"].get("terminated", {}).get("exitCode", 0)
        if code != 0:
            where = f"container {status['name']} of pod {name}"
            return Failure(f"{where} {_exit(status['state'])}", status["name"])
    said = [pod["status"][key] for key in ("reason", "message") if pod["status"].get(key)]
    return Failure(f"pod {name} failed: {': '.join(said) or 'nothing says why'}")


def containers(pod: Raw) -> Iterator[Raw]:
    """The statuses of its containers, init containers first."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for status in pod["status"].get(key, ()):
            yield {"state": {}, "lastState": {}, "restartCount": 0} | status


def was_started(pod: Raw, container: str) -> bool:
    """Whether the container has a log."""
    return bool(_states(pod, container) & {"running", "terminated"})


def has_ended(pod: Raw, container: str) -> bool:
    """Whether the container has a log that is complete."""
    return "terminated" in _states(pod, container)


def has_succeeded(pod: Raw) -> bool:
    """Whether the pod has done its work."""
    return bool(pod["status"].get("phase") == "Succeeded")


def _states(pod: Raw, container: str) -> set[str]:
    return {
        key for status in containers(pod) if status["name"] == container for key in status["state"]
    }


def state(pod: Raw) -> str:
    """The pod in a few words: its phase, and its containers that are not simply running."""
    phase = pod["status"].get("phase", "Pending")
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            phase = condition.get("reason", phase)
    odd = []
    for status in containers(pod):
        if told := _exit(status["state"]):
            if status["state"]["terminated"]["exitCode"] != 0:
                odd.append(f"{status['name']} {told}")
        elif reason := status["state"].get("waiting", {}).get("reason"):
            odd.append(f"{status['name']} {reason}")
        elif status.get("started") is False:
            odd.append(f"{status['name']} starting")
    return f"{phase} ({', '.join(odd)})" if odd else str(phase)


def _exit(state: Mapping[str, Any]) -> str:
    ended = state.get("terminated")
    if ended is None:
        return ""
    reason = ended.get("reason", "")
    plain = reason in ("", "Error", "Completed")
    return f"ended with exit code {ended['exitCode']}{'' if plain else f' ({reason})'}"


def holder(claim: Raw) -> tuple[str, Phase] | None:
    """Who has the turn, by the claim's status, and in which phase."""
    for device in claim.get("status", {}).get("devices", ()):
        data = device.get("data", {})
        for tenant in data.get("tenants", ()):
            if tenant["name"] == data["holder"]:
                return tenant["name"], Phase(tenant["phase"])
    return None


def agreed(claim: Raw, pods: Iterable[Raw], capacity: Mapping[str, int]) -> Agreement:
    """What the allocated claim lets its tenants do; they are called by their roles.

    `capacity`: bytes of each device of the node.
    """
    results = claim["status"]["allocation"]["devices"]["results"]
    devices = tuple(one["device"] for one in results if one["driver"] == DRIVER)
    of_claim = agreement(claim)
    tenants = {}
    for name in map(role, pods):
        footprint = of_claim.role(name)
        assert footprint is not None, f"{name} is no role of the claim"
        tenants[name] = AgreedTenant(devices=devices, residual=footprint.residual)
    sizes = {device: capacity[device] for device in devices}
    return Agreement(job=of_claim.job, devices=sizes, tenants=tenants)


def role(pod: Raw) -> str:
    """By its annotation."""
    return str(pod["metadata"]["annotations"][ROLE])


def tenant(pod: Raw) -> str:
    """The name that the driver gives it."""
    return f"{NAMESPACE}/{pod['metadata']['name']}"


def simulated(objects: Iterable[Raw]) -> dict[str, int]:
    """The devices of each node, by the driver's configuration among `objects`: bytes by name."""
    for one in objects:
        if one["kind"] == "ConfigMap" and "driver.yaml" in one.get("data", {}):
            config = yaml.safe_load(one["data"]["driver.yaml"])
            return {
                name: quantity(device["simulated"]) for name, device in config["devices"].items()
            }
    return {}


def about(event: Raw) -> str:
    """What an event (events.k8s.io/v1) is about, as kubectl names it."""
    regarding = event.get("regarding", {})
    return f"{regarding.get('kind', '').lower()}/{regarding.get('name', '')}"


def when(event: Raw) -> str:
    """When it happened last; sorts as time does, to the second."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("eventTime")
        or event.get("deprecatedLastTimestamp")
        or event["metadata"]["creationTimestamp"]
    )[:19]


def is_notable(event: Raw) -> bool:
    """Whether a person who watches wants to see it: Tandem's, and warnings but for probes."""
    warns = event.get("type") == "Warning" and event.get("reason") != _PROBED
    return warns or DRIVER in event.get("reportingController", "")


def describes(text: str, holder: str) -> bool:
    """Whether `kubectl describe` of a claim tells of this holder; of any, if it is empty."""
    return not holder or re.search(rf"Holder:\s+{re.escape(holder)}\s", text) is not None


def excerpt(text: str) -> Iterator[str]:
    """Of a recorded moment: the pods' states, what the claim's status tells, Tandem's events."""
    table, _, described = text.partition("\n\n")
    yield from table.splitlines()
    section = part = name = ""
    for line in described.splitlines():
        if line.startswith("Name:"):
            name = line
        if not line.startswith(" "):
            section = line.partition(":")[0]
        elif not line.startswith("   "):
            part = line.strip()
        of_claim = section == "Status" and part == "Devices:"
        notable = DRIVER in line or (line.startswith("  Warning") and _PROBED not in line)
        of_tandem = section == "Events" and notable
        if line.startswith(" ") and (of_claim or of_tandem):
            if name:
                yield name
                name = ""
            yield line


def told(
    version: Raw, nodes: Sequence[Raw], pods: Sequence[Raw], claim: Raw, events: Sequence[Raw]
) -> dict[str, Any]:
    """What Kubernetes shows, for the demo's JSON."""
    return {
        "version": version["serverVersion"]["gitVersion"],
        "nodes": [one["metadata"]["name"] for one in nodes],
        "pods": {
            one["metadata"]["name"]: {
                "phase": one["status"].get("phase"),
                "node": one["spec"].get("nodeName"),
                "restarts": sum(status["restartCount"] for status in containers(one)),
            }
            for one in pods
        },
        "claim": {"devices": claim.get("status", {}).get("devices", [])},
        "events": [
            {"reason": one.get("reason"), "note": one.get("note"), "regarding": about(one)}
            for one in sorted(events, key=when)
        ],
    }
