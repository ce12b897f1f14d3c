"""The example that the cluster's demo runs: rendered by kustomize, changed as data."""

import copy
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from hack.cluster_commands import Raw, kustomized
from hack.cluster_objects import ROLE, role, tenant

OVERLAYS: Final = Path(__file__).resolve().parents[1] / "manifests" / "overlays" / "local"
EXAMPLE: Final = OVERLAYS / "trl-grpo"
TRAINER: Final = "trainer"


@dataclass(frozen=True)
class Example:
    """The objects of the example, as they are applied."""

    objects: tuple[Raw, ...]

    @property
    def pods(self) -> dict[str, Raw]:
        """The pods that take turns, by name."""
        return {
            one["metadata"]["name"]: one
            for one in self.objects
            if one["kind"] == "Pod" and ROLE in one["metadata"].get("annotations", {})
        }

    @property
    def roles(self) -> Mapping[str, str]:
        """Role by the name that the driver gives the tenant."""
        return {tenant(pod): role(pod) for pod in self.pods.values()}

    @property
    def claim(self) -> str:
        """The name of the one claim."""
        (claim,) = (one for one in self.objects if one["kind"] == "ResourceClaim")
        return str(claim["metadata"]["name"])

    @property
    def trainer(self) -> Raw:
        """Its pod."""
        (pod,) = (pod for pod in self.pods.values() if role(pod) == TRAINER)
        return pod

    @property
    def half(self) -> tuple[Raw, ...]:
        """All but the trainer."""
        return tuple(one for one in self.objects if one is not self.trainer)


def rendered(folder: Path) -> list[Raw]:
    """The objects of a kustomization."""
    done = subprocess.run(kustomized(folder), check=True, stdout=subprocess.PIPE, text=True)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def example(objects: Sequence[Raw], steps: int | None, seed: int) -> Example:
    """The rendered example with so many steps, and this seed for the model and for training."""
    changed = Example(tuple(copy.deepcopy(list(objects))))
    for pod in changed.pods.values():
        for container in pod["spec"]["initContainers"]:
            container["command"] += [f"--seed={seed}"]
    command = changed.trainer["spec"]["containers"][0]["command"]
    command += [f"--seed={seed}"] + ([] if steps is None else [f"--steps={steps}"])
    return changed
