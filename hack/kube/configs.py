"""The contents of the configuration files; nothing is written here."""

import json
from typing import Any, Final

from hack.kube.debian import CNI_PLUGINS
from hack.kube.layout import (
    CONTAINERD_SOCKET,
    DNS_HEALTH,
    DNS_SERVICE,
    DOMAIN,
    KUBELET_ROOT,
    Layout,
    Node,
)

PAUSE_IMAGE: Final = "localhost/pause:local"

SYSCTLS: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet demands of the kernel, and sets for the whole machine if it is not so."""


def kubelet(node: Node) -> str:
    """Its KubeletConfiguration, JSON."""
    pki = node.cluster.pki
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "healthzBindAddress": node.address,
        "tlsCertFile": str(node.certificate),
        "tlsPrivateKeyFile": str(node.certificate.with_suffix(".key")),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": DOMAIN,
        "resolvConf": str(node.cluster.resolv_conf),
        "volumePluginDir": f"{KUBELET_ROOT}/volume-plugins",
        # The machine's disk is not the cluster's to judge, and a removed image cannot be pulled.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        # A Prepare that failed is tried again at the next sync.
        "syncFrequency": "5s",
    }
    return json.dumps(config, indent=1)


def containerd(node: Node) -> str:
    """Its configuration, TOML."""
    return f"""\
version = 3
root = "{node.folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE runc may not lower a process's score.
restrict_oom_score_adj = true
cdi_spec_dirs = ["/var/run/cdi"]

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{node.folder}/cni"
"""


def pod_network(node: Node) -> str:
    """The CNI configuration: every packet is routed, so kube-proxy's rules see each."""
    address_ranges = {"type": "host-local", "ranges": [[{"subnet": node.pods}]]}
    ipam: dict[str, Any] = address_ranges | {"routes": [{"dst": "0.0.0.0/0"}]}
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}, indent=1)


def corefile(layout: Layout) -> str:
    """CoreDNS answers for the cluster; other names do not exist, since there is no other net."""
    return f"""\
{DOMAIN}:53 10.in-addr.arpa:53 {{
    bind {layout.node(1).address}
    errors
    health {DNS_HEALTH}
    kubernetes {DOMAIN} 10.in-addr.arpa {{
        kubeconfig {layout.kubeconfig("admin")}
        ttl 1
    }}
}}
.:53 {{
    bind {layout.node(1).address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def resolv_conf() -> str:
    """For the node's own processes: a Service is found as NAME.NAMESPACE.svc."""
    return f"nameserver {DNS_SERVICE}\nsearch svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n"


def scheduler(layout: Layout, given: dict[str, Any]) -> str:
    """The KubeSchedulerConfiguration `given`, connected to this cluster; JSON."""
    connected = {
        "clientConnection": {"kubeconfig": str(layout.kubeconfig("kube-scheduler"))},
        "leaderElection": {"leaderElect": False},
    }
    return json.dumps(given | connected, indent=1)


PLAIN_SCHEDULER: Final = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
}


def dns_objects(layout: Layout) -> list[tuple[str, dict[str, Any]]]:
    """The Service of the cluster's DNS, whose server is no pod: path and object."""
    ports = [{"name": name, "port": 53, "protocol": name.upper()} for name in ("udp", "tcp")]
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    namespace = "namespaces/kube-system"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": DNS_SERVICE, "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata | {"labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [layout.node(1).address]}],
        "ports": ports,
    }
    return [
        (f"/api/v1/{namespace}/services/kube-dns", service),
        (f"/apis/discovery.k8s.io/v1/{namespace}/endpointslices/kube-dns", endpoints),
    ]
