"""Names that users, manifests and the other components share with the extender: its interface."""

from typing import Final

DOMAIN: Final = "tandem-gpu.io"
DRIVER: Final = DOMAIN
DEVICE_CLASS: Final = "tandem-gpu"
CONFIG_API: Final = f"{DOMAIN}/v1alpha1"
NAMESPACE: Final = "tandem-system"

ROLE: Final = f"{DOMAIN}/role"
ENGINE: Final = f"{DOMAIN}/engine"
PORT: Final = f"{DOMAIN}/port"
ENGINE_WEIGHTS: Final = f"{DOMAIN}/engine-weights"
"""Annotations on pods: the role, the engine's kind, the port on which its sidecar serves, the most
that the engine's weights take on each device (a quantity).
"""

GATE: Final = f"{DOMAIN}/pair"
"""The scheduling gate that a pod keeps until all halves of its pair fit one node."""

TURN: Final = f"{DOMAIN}/turn"
"""The extended resource that makes kube-scheduler ask us: no node has it, and none needs to."""

AGENT: Final = "tandem-agent"
"""The sidecar's container."""

JSON_DEPTH: Final = 20_000
"""Claims may nest their opaque parameters (10 KiB) 5,000 deep, where Python reads 1,000 by itself:
nobody's claim may keep all others from being read.
"""
