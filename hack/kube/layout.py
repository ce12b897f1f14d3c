"""Names, addresses and paths of a local cluster."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DOMAIN: Final = "cluster.local"
API_PORT: Final = 6443
SERVICES: Final = "10.96.0.0/16"
API_SERVICE: Final = "10.96.0.1"
DNS_SERVICE: Final = "10.96.0.10"
PODS: Final = "10.244.0.0/16"
DNS_HEALTH: Final = "127.0.0.1:8081"
KUBELET_ROOT: Final = "/var/lib/kubelet"
CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
NODES_MAX: Final = 9
"""Enough for a laptop, and one digit keeps addresses and names plain."""


@dataclass(frozen=True)
class Node:
    """One node; its processes see its folder's parts at the standard paths (`mounts`)."""

    cluster: "Layout"
    number: int

    @property
    def name(self) -> str:
        """As Kubernetes knows it."""
        return f"node{self.number}"

    @property
    def address(self) -> str:
        """On the loopback interface of the cluster's network, yet no loopback address."""
        return f"192.168.77.{self.number}"

    @property
    def pods(self) -> str:
        """The subnet of its pods."""
        return f"10.244.{self.number}.0/24"

    @property
    def cgroup(self) -> str:
        """The folder of its pods in each cgroup hierarchy."""
        return f"{self.cluster.cgroup}/{self.name}"

    @property
    def folder(self) -> Path:
        """Its part of the state."""
        return self.cluster.state / self.name

    @property
    def holder(self) -> str:
        """The name of the process that holds its mount namespace."""
        return f"{self.name}/mounts"

    @property
    def certificate(self) -> Path:
        """Of its kubelet, as a client and as a server."""
        return self.cluster.pki / f"{self.name}.crt"

    @property
    def kubeconfig(self) -> Path:
        """Its kubelet's."""
        return self.cluster.kubeconfig(self.name)


@dataclass(frozen=True)
class Layout:
    """Where a cluster keeps what; `state` is an absolute path."""

    state: Path

    @property
    def marker(self) -> Path:
        """Says that the folder is a cluster's, so that it may be emptied."""
        return self.state / "localkube"

    @property
    def alive(self) -> Path:
        """Locked as long as a process of the cluster lives."""
        return self.state / "alive"

    @property
    def keeper(self) -> Path:
        """The keeper's socket: who listens there holds the namespaces."""
        return self.state / "keeper.sock"

    @property
    def logs(self) -> Path:
        """A file a component."""
        return self.state / "logs"

    @property
    def processes(self) -> Path:
        """A file a component that was started."""
        return self.state / "processes"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.state / "pki"

    @property
    def images(self) -> Path:
        """What was imported."""
        return self.state / "images.json"

    @property
    def scheduler(self) -> Path:
        """The KubeSchedulerConfiguration that kube-scheduler runs with."""
        return self.state / "scheduler.yaml"

    @property
    def corefile(self) -> Path:
        """CoreDNS's configuration."""
        return self.state / "Corefile"

    @property
    def resolv_conf(self) -> Path:
        """What processes of the cluster find as /etc/resolv.conf."""
        return self.state / "resolv.conf"

    @property
    def sysctls(self) -> Path:
        """What a kubelet reads in place of the machine's values."""
        return self.state / "sysctls"

    def sysctl(self, name: str) -> Path:
        """The file with this value."""
        return self.sysctls / name.replace("/", ".")

    @property
    def cgroup(self) -> str:
        """The cluster's folder in each cgroup hierarchy; another state folder has another."""
        digest = hashlib.sha256(str(self.state).encode()).hexdigest()[:8]
        return f"/tandem-localkube-{digest}"

    def log(self, component: str) -> Path:
        """The component's output."""
        return self.logs / f"{component.replace('/', '-')}.log"

    def process(self, component: str) -> Path:
        """Who runs as the component."""
        return self.processes / component.replace("/", "-")

    @property
    def kubeconfigs(self) -> Path:
        """A file a user."""
        return self.state / "kubeconfigs"

    def kubeconfig(self, user: str) -> Path:
        """The user's kubeconfig; `admin` is for people."""
        return self.kubeconfigs / user

    def nodes(self) -> list[Node]:
        """The nodes that there are."""
        numbers = (folder.name.removeprefix("node") for folder in self.state.glob("node[1-9]"))
        return [self.node(int(number)) for number in sorted(numbers)]

    def node(self, number: int) -> Node:
        """The node of this number, from 1."""
        return Node(self, number)
