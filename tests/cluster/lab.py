"""A namespace of a cluster that has Tandem, and the objects of pairs."""

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from hack.cluster_commands import Raw
from tests.cluster.kube import WITHIN_S, Kube

ROLES = ("rollout", "trainer")


class Namespace:
    """A namespace of a test."""

    def __init__(self, kube: Kube, name: str) -> None:
        self.kube = kube
        self.name = name

    def kubectl(self, *arguments: str) -> str:
        """What kubectl printed."""
        return self.kube("kubectl", "-n", self.name, *arguments, within_s=2 * WITHIN_S)

    def create(self, *objects: Raw) -> None:
        """Create these objects."""
        assert (complaint := self.refused(*objects)) == "", complaint

    def refused(self, *objects: Raw) -> str:
        """Why these objects cannot be created; empty when they were."""
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self.kube.run("kubectl", "-n", self.name, "create", "-f", "-", stdin=items).stderr

    def pod(self, name: str) -> Raw:
        """The pod as it is."""
        return self.kube.get("pod", name, "-n", self.name)

    def delete(self, kind: str, name: str) -> None:
        """Delete it, and wait until it is gone."""
        self.kubectl("delete", kind, name, f"--timeout={WITHIN_S}s")

    def until(self, resource: str, true: Callable[[Raw], Any]) -> Raw:
        """The first object that this is true of, now or as soon as one is."""
        watch = ("get", resource, "-w", "-o", "json", "--output-watch-events")
        return dict(self._first(watch, lambda line: true(line["object"]))["object"])

    def hears(self, pod: str, true: Callable[[Raw], Any], *, container: str = "main") -> Raw:
        """The first line of JSON of the container's output that this is true of.

        Beginning with the newest; the output of a container that is started again is heard too.
        """
        return self._first(("logs", "-f", "--tail=1", pod, "-c", container), true)

    def run(self, pod: str, container: str, *command: str) -> str:
        """`kubectl exec`."""
        return self.kubectl("exec", pod, "-c", container, "--", *command)

    def tell(self, pod: str, container: str, pipe: str) -> None:
        """A line into a pipe of the container; returns when that is open at its other end too."""
        self.run(pod, container, "sh", "-c", f"echo > /tmp/{pipe}")

    def _first(self, following: tuple[str, ...], true: Callable[[Raw], Any]) -> Raw:
        """The first line of JSON that kubectl prints and this is true of; begun anew if it ends."""
        seen: list[str] = []
        until = time.monotonic() + WITHIN_S
        while (left := until - time.monotonic()) > 0:
            lines = self.kube.follow("kubectl", "-n", self.name, *following, within_s=left)
            with contextlib.closing(lines):
                for line in lines:
                    if line.startswith("{") and true(found := json.loads(line)):
                        return dict(found)
                    seen.append(line)
        raise AssertionError(f"nothing like that within {WITHIN_S} s: {seen[-5:]}")

    def told(self, pod: str, reason: str) -> str:
        """Wait for an event on the pod; what it says."""
        event = self.until(
            "events.v1.events.k8s.io",
            lambda event: event["regarding"]["name"] == pod and event["reason"] == reason,
        )
        return str(event["note"])

    def node_of(self, pod: str) -> str:
        """Wait until the pod is on a node; its name."""
        found = self.until(
            "pods", lambda one: one["metadata"]["name"] == pod and one["spec"].get("nodeName")
        )
        return str(found["spec"]["nodeName"])

    def ready(self, *pods: str) -> None:
        """Wait until these are Ready."""
        self.kubectl("wait", "--for=condition=Ready", f"--timeout={WITHIN_S}s", "pod", *pods)


def claim(name: str = "grpo", need: str = "64Mi") -> Raw:
    parameters = {
        "apiVersion": "tandem-gpu.io/v1alpha1",
        "kind": "ClaimConfig",
        "job": name,
        "weights": "16Mi",
        "roles": {role: {"need": need, "residual": "8Mi"} for role in ROLES},
    }
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "tandem-gpu"}}]
    config = [{"opaque": {"driver": "tandem-gpu.io", "parameters": parameters}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests, "config": config}},
    }


def half(role: str, of: str = "grpo", *, name: str = "", memory: str = "16Mi", **spec: Any) -> Raw:
    """A pod that does nothing, as half of the pair of a claim."""
    resources = {"claims": [{"name": "gpu"}], "requests": {"memory": memory}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name or role, "annotations": {"tandem-gpu.io/role": role}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": of}],
            "containers": [
                {"name": "main", "image": "localhost/pause:local", "resources": resources}
            ],
            **spec,
        },
    }
