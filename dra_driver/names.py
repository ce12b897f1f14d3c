"""Names that the driver shares with manifests and other components: part of its interface."""

from typing import Final

DRIVER: Final = "tandem-gpu.io"
CONFIG_API: Final = "tandem-gpu.io/v1alpha1"
ROLE: Final = "tandem-gpu.io/role"
"""The annotation that names a pod's role."""
