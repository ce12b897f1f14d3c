"""The cluster's components: what is run, where, with which arguments. Nothing is started here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.kube import certificates
from hack.kube.builds import Programs
from hack.kube.layout import (
    API_PORT,
    CONTAINERD_SOCKET,
    DNS_HEALTH,
    KUBELET_ROOT,
    PODS,
    SERVICES,
    Layout,
    Node,
)

ETCD: Final = "etcd"
API_SERVER: Final = "kube-apiserver"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
SCHEDULER: Final = "kube-scheduler"
PROXY: Final = "kube-proxy"
DNS: Final = "coredns"

_ETCD_URL: Final = "http://127.0.0.1:2379"


@dataclass(frozen=True)
class Component:
    """A process of the cluster.

    Attributes:
        name: unique; those of a node begin with the node's.
        command: what is run.
        health: a URL that answers 200, or unix:SOCKET that listens, when it is well.
        node: the number of the node whose files it sees.
    """

    name: str
    command: tuple[str, ...]
    health: str
    node: int = 1


def control_plane(layout: Layout, programs: Programs) -> tuple[list[Component], list[Component]]:
    """The components of the whole cluster: those that all others need, and the others."""
    dns = (str(programs.coredns / "coredns"), "-conf", str(layout.corefile))
    api = f"https://127.0.0.1:{API_PORT}/readyz"
    basis = [
        Component(ETCD, _etcd(layout, programs), f"{_ETCD_URL}/health"),
        Component(API_SERVER, _api_server(layout, programs), api),
    ]
    others = [
        Component(
            CONTROLLER_MANAGER, _controllers(layout, programs), "https://127.0.0.1:10257/healthz"
        ),
        Component(SCHEDULER, _scheduler(layout, programs), "https://127.0.0.1:10259/healthz"),
        Component(PROXY, _proxy(layout, programs), "http://127.0.0.1:10256/healthz"),
        Component(DNS, dns, f"http://{DNS_HEALTH}/health"),
    ]
    return basis, others


def runtime(node: Node, programs: Programs) -> Component:
    """The node's container runtime; its kubelet needs it."""
    command = (str(programs.containerd / "containerd"), "-c", str(containerd_file(node)))
    return Component(f"{node.name}/containerd", command, f"unix:{CONTAINERD_SOCKET}", node.number)


def kubelet(node: Node, programs: Programs) -> Component:
    """The node's kubelet."""
    command = (
        *(str(programs.component), "kubelet", f"--config={kubelet_file(node)}"),
        *(f"--kubeconfig={node.kubeconfig}", f"--hostname-override={node.name}"),
        *(f"--node-ip={node.address}", f"--root-dir={KUBELET_ROOT}"),
    )
    health = f"http://{node.address}:10248/healthz"
    return Component(f"{node.name}/kubelet", command, health, node.number)


def every(layout: Layout, programs: Programs) -> list[Component]:
    """All components of the cluster, in the order in which they may start."""
    nodes = layout.nodes()
    basis, others = control_plane(layout, programs)
    return [
        *basis,
        *others,
        *(runtime(node, programs) for node in nodes),
        *(kubelet(node, programs) for node in nodes),
    ]


def containerd_file(node: Node) -> Path:
    """The configuration of its containerd."""
    return node.folder / "containerd.toml"


def kubelet_file(node: Node) -> Path:
    """The configuration of its kubelet."""
    return node.folder / "kubelet.json"


def _etcd(layout: Layout, programs: Programs) -> tuple[str, ...]:
    peers = "http://127.0.0.1:2380"
    return (
        *(str(programs.component), "etcd", f"--data-dir={layout.state / 'etcd'}"),
        *(f"--listen-client-urls={_ETCD_URL}", f"--advertise-client-urls={_ETCD_URL}"),
        *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
        *(f"--initial-cluster=default={peers}", "--unsafe-no-fsync"),
    )


def _serving(layout: Layout) -> tuple[str, ...]:
    certificate = layout.pki / certificates.SERVER
    return (
        f"--tls-cert-file={certificate}.crt",
        f"--tls-private-key-file={certificate}.key",
    )


def _api_server(layout: Layout, programs: Programs) -> tuple[str, ...]:
    pki = layout.pki
    return (
        *(str(programs.component), "kube-apiserver", *_serving(layout)),
        *(f"--etcd-servers={_ETCD_URL}", f"--secure-port={API_PORT}"),
        f"--advertise-address={layout.node(1).address}",
        *(f"--client-ca-file={pki / 'ca.crt'}", "--authorization-mode=Node,RBAC"),
        *("--enable-admission-plugins=NodeRestriction", "--allow-privileged=true"),
        f"--service-cluster-ip-range={SERVICES}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-accounts.key'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / certificates.ADMIN}.crt",
        f"--kubelet-client-key={pki / certificates.ADMIN}.key",
    )


def _controllers(layout: Layout, programs: Programs) -> tuple[str, ...]:
    pki = layout.pki
    return (
        *(str(programs.component), "kube-controller-manager", *_serving(layout)),
        *("--bind-address=127.0.0.1", "--leader-elect=false"),
        f"--kubeconfig={layout.kubeconfig(certificates.CONTROLLER_MANAGER)}",
        *("--use-service-account-credentials", f"--root-ca-file={pki / 'ca.crt'}"),
        f"--service-account-private-key-file={pki / 'service-accounts.key'}",
        f"--flex-volume-plugin-dir={KUBELET_ROOT}/volume-plugins",
    )


def _scheduler(layout: Layout, programs: Programs) -> tuple[str, ...]:
    return (
        *(str(programs.component), "kube-scheduler", *_serving(layout)),
        *("--bind-address=127.0.0.1", f"--config={layout.scheduler}"),
    )


def _proxy(layout: Layout, programs: Programs) -> tuple[str, ...]:
    """One serves all nodes, since they share a network."""
    return (
        *(str(programs.component), "kube-proxy", "--proxy-mode=iptables"),
        f"--kubeconfig={layout.kubeconfig(certificates.PROXY)}",
        *(f"--hostname-override={layout.node(1).name}", f"--cluster-cidr={PODS}"),
        "--conntrack-max-per-core=0",  # it belongs to the whole machine
    )
