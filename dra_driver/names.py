"""Names that the driver shares with manifests and other components: part of its interface."""

from typing import Final

DRIVER: Final = "tandem-gpu.io"
CONFIG_API: Final = "tandem-gpu.io/v1alpha1"
ROLE: Final = "tandem-gpu.io/role"
"""The annotation that names a pod's role."""
ENGINE: Final = "tandem-gpu.io/engine"
"""The annotation that names the adapter of an engine, in front of which an agent stands."""

JSON_DEPTH: Final = 20_000
"""Claims may nest their opaque parameters (10 KiB) 5,000 deep, where Python reads 1,000 by itself:
nobody's claim may keep all others from being read.
"""
