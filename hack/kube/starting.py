"""Starts the components in their order, each when what it needs is well."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from dra_driver.processes import Process
from hack.images.oci import Image
from hack.kube import certificates, cgroups, components, configs, images, mounts, spaces
from hack.kube.api import Api
from hack.kube.builds import Programs
from hack.kube.components import Component
from hack.kube.errors import LocalkubeError
from hack.kube.layout import DOMAIN, Layout, Node
from hack.kube.progress import Progress

_WITHIN_S: Final = 120.0
_RETRY_S: Final = 0.05
_TAIL_LINES: Final = 15


class Starting:
    """Brings a cluster to the state in which it should be; what runs is left alone."""

    def __init__(self, layout: Layout, programs: Programs, keeper: int, progress: Progress) -> None:
        self._layout = layout
        self._programs = programs
        self._keeper = keeper
        self._progress = progress
        self._api = Api(layout)
        spaces.join_network(keeper)

    def everything(self, count: int, made: Sequence[Image]) -> None:
        """All components of `count` nodes, or of more where there are more already."""
        self._progress.say("starting the components")
        nodes = [self._layout.node(number) for number in range(1, count + 1)]
        nodes += [node for node in self._layout.nodes() if node.number > count]
        for node in nodes:
            self._make(node)
        basis, others = components.control_plane(self._layout, self._programs)
        runtimes = [components.runtime(node, self._programs) for node in nodes]
        self._start_missing([*basis, *runtimes])
        self.these(runtimes)
        with images.importing(self._layout, nodes, made, self._programs):
            self.these(basis)
            self.these([*others, *(components.kubelet(node, self._programs) for node in nodes)])
            self._progress.say("waiting for nodes, service accounts, DNS and images")
            self._wait_for_answers(nodes)

    def _wait_for_answers(self, nodes: Sequence[Node]) -> None:
        for path, wanted in configs.dns_objects(self._layout):
            take = partial(self._api.apply, path, wanted)
            self._wait(f"the API server to take {path}", take)
        for node in nodes:
            self._wait(f"{node.name} to be Ready", partial(self._is_ready, node))
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait("the default ServiceAccount", lambda: self._api.get(account) is not None)
        self._wait("the DNS", self._dns_answers)

    def these(self, wanted: Sequence[Component]) -> None:
        """Start these components and wait until they are well."""
        self._start_missing(wanted)
        for component in wanted:
            self._wait(f"{component.name} to be well", partial(self._is_well, component), wanted)

    def _start_missing(self, wanted: Sequence[Component]) -> None:
        for component in wanted:
            if not self._runs(component):
                self._start(component)

    def _make(self, node: Node) -> None:
        """The node's namespace, files and address."""
        known = self._layout.process(node.holder)
        holding = spaces.recall(known)
        if holding is not None and holding.alive:
            return
        self._found(node)
        log = self._layout.log(node.holder)
        started = spaces.start(self._keeper, mounts.holding(node), log, _env())
        spaces.remember(known, started)
        self._wait_for(
            f"the mounts of {node.name}",
            mounts.mounted(node).exists,
            lambda: _ended(started, log),
        )

    def _found(self, node: Node) -> None:
        mounts.mounted(node).unlink(missing_ok=True)
        mounts.make_parts(node)
        certificates.make_for(node)
        (node.folder / "cni").mkdir(exist_ok=True)
        (node.folder / "cni" / "pods.conflist").write_text(configs.pod_network(node))
        components.containerd_file(node).write_text(configs.containerd(node))
        components.kubelet_file(node).write_text(configs.kubelet(node))
        cgroups.make(node.cgroup)
        if node.number > 1:  # the keeper has given the first
            address = ["ip", "address", "replace", f"{node.address}/32", "dev", "lo"]
            subprocess.run(address, check=True)

    def _start(self, component: Component) -> None:
        log = self._layout.log(component.name)
        holding = self._holder(component.node)
        path = f"{self._programs.containerd}:{os.environ['PATH']}:/usr/sbin:/sbin"
        env = _env() | {"PATH": path, "GOMAXPROCS": "2"}
        started = spaces.start(holding.pid, component.command, log, env)
        spaces.remember(self._layout.process(component.name), started)

    def _holder(self, number: int) -> Process:
        node = self._layout.node(number)
        holding = spaces.recall(self._layout.process(node.holder))
        assert holding is not None
        return holding

    def _runs(self, component: Component) -> bool:
        known = spaces.recall(self._layout.process(component.name))
        return known is not None and known.alive

    def _is_well(self, component: Component) -> bool:
        scheme, _, path = component.health.partition(":")
        if scheme != "unix":
            return self._api.healthy(component.health)
        return _listens(f"/proc/{self._holder(component.node).pid}/root{path}")

    def _is_ready(self, node: Node) -> bool:
        found = self._api.get(f"/api/v1/nodes/{node.name}")
        return found is not None and is_ready(found)

    def _dns_answers(self) -> bool:
        """Asked as a pod would: through the Service."""
        ask = ["getent", "hosts", f"kubernetes.default.svc.{DOMAIN}"]
        command = spaces.entering(self._holder(1).pid, ask)
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def _wait(self, what: str, check: Callable[[], bool], needed: Iterable[Component] = ()) -> None:
        def ended() -> str:
            for component in needed:
                known = spaces.recall(self._layout.process(component.name))
                assert known is not None
                if told := _ended(known, self._layout.log(component.name)):
                    return f"{component.name} {told}"
            return ""

        self._wait_for(what, check, ended)

    def _wait_for(self, what: str, check: Callable[[], bool], ended: Callable[[], str]) -> None:
        until = time.monotonic() + _WITHIN_S
        while not check():
            if told := ended():
                raise LocalkubeError(told)
            if time.monotonic() > until:
                raise LocalkubeError(
                    f"waited {_WITHIN_S:g} s for {what}: read the logs in {self._layout.logs}"
                )
            self._progress.more(what)
            time.sleep(_RETRY_S)


def is_ready(node: dict[str, Any]) -> bool:
    """Whether the Node object says so."""
    conditions = node.get("status", {}).get("conditions", [])
    return {"Ready": "True"} in [{one["type"]: one["status"]} for one in conditions]


def _env() -> dict[str, str]:
    return {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "HOME": "/"}


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
        return True


def _ended(running: Process, log: Path) -> str:
    """Its end and its last words; empty as long as it runs."""
    if running.alive:
        return ""
    tail = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join([f"has ended; the last words in {log}:", *tail])
