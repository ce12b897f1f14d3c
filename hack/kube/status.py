"""What of a cluster runs."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table

from hack.kube import builds, components, images, spaces
from hack.kube.api import Api
from hack.kube.builds import KUBERNETES
from hack.kube.layout import Layout
from hack.kube.progress import Progress
from hack.kube.starting import is_ready


@dataclass(frozen=True)
class ComponentStatus:
    """A component. `pid`: None if it was never started."""

    name: str
    running: bool
    pid: int | None
    log: str


@dataclass(frozen=True)
class NodeStatus:
    """A node. `images`: their digests by name."""

    name: str
    ready: bool
    address: str
    images: dict[str, str]


@dataclass(frozen=True)
class Status:
    """A cluster. Without a keeper it is not up."""

    state: str
    keeper: int | None
    kubernetes: str
    kubeconfig: str
    nodes: tuple[NodeStatus, ...]
    components: tuple[ComponentStatus, ...]

    @property
    def up(self) -> bool:
        """Whether everything runs."""
        running = all(component.running for component in self.components)
        return self.keeper is not None and running and all(node.ready for node in self.nodes)

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {"up": self.up} | asdict(self)

    def shown(self) -> Group:
        """As tables."""
        if self.keeper is None:
            return Group(f"no cluster is up in {self.state}")
        nodes = Table("node", "ready", "address", "images")
        for node in self.nodes:
            nodes.add_row(node.name, _word(node.ready), node.address, ", ".join(node.images))
        parts = Table("component", "runs", "pid", "log")
        for part in self.components:
            parts.add_row(part.name, _word(part.running), str(part.pid or ""), part.log)
        title = f"Kubernetes {self.kubernetes} in {self.state}, kept by process {self.keeper}"
        return Group(title, nodes, parts)


def read(layout: Layout) -> Status:
    """How it is now."""
    keeper = spaces.keeper(layout)
    nodes: list[NodeStatus] = []
    parts: list[ComponentStatus] = []
    if keeper is not None:
        spaces.join_network(keeper)
        api = Api(layout)
        known = images.imported(layout)
        for node in layout.nodes():
            found = api.get(f"/api/v1/nodes/{node.name}")
            ready = found is not None and is_ready(found)
            nodes.append(NodeStatus(node.name, ready, node.address, known.get(node.name, {})))
        for component in components.every(layout, builds.programs(Progress())):
            process = spaces.recall(layout.process(component.name))
            running = process is not None and process.alive
            pid = None if process is None else process.pid
            log = str(layout.log(component.name))
            parts.append(ComponentStatus(component.name, running, pid, log))
    kubeconfig = str(layout.kubeconfig("admin"))
    return Status(str(layout.state), keeper, KUBERNETES, kubeconfig, (*nodes,), (*parts,))


def _word(true: bool) -> str:
    return "yes" if true else "no"
