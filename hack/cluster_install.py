"""Brings a local cluster up and installs Tandem there, as an admin would."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from hack import cluster_objects
from hack.cluster_commands import (
    KUBECTL,
    ClusterError,
    Raw,
    Say,
    apply,
    get,
    kubectl,
    listed,
    localkube,
    started,
)

SYSTEM: Final = "tandem-system"
IMAGE: Final = "localhost/tandem:local"
IMAGE_ANNOTATION: Final = "tandem-gpu.io/image"
SCHEDULER_PROFILE: Final = (
    Path(__file__).resolve().parents[1] / "manifests" / "base" / "scheduler-profile.yaml"
)
CERTIFICATE: Final = "tandem-extender-tls"

_UP_S: Final = 1800.0  # the first time all is built
_IMAGES_S: Final = 300.0
_ROLLOUT_S: Final = 180
_SCHEDULER_S: Final = 60.0
_TAIL_LINES: Final = 20


async def bring_up(say: Say) -> None:
    """The cluster, with the images of this checkout. Raises ClusterError."""
    say("hack/localkube up")
    await localkube("up", within_s=_UP_S)
    for name in (await localkube("images", within_s=_IMAGES_S)).split():
        say(f"image {name} is new")


async def install(tandem: Sequence[Raw], say: Say) -> None:
    """Apply the objects of Tandem's overlay, and return when all of it works.

    Raises ClusterError.
    """
    say("kubectl apply --server-side -k manifests/overlays/local")
    image = await _image()
    workloads = [one for one in tandem if one["kind"] in ("DaemonSet", "Deployment")]
    for one in workloads:
        # Its tag stays the same when the checkout changes; so the pods are replaced then, only.
        annotations = one["spec"]["template"]["metadata"].setdefault("annotations", {})
        annotations[IMAGE_ANNOTATION] = image
    await apply(tandem, SYSTEM)
    for one in workloads:
        await _rolled_out(f"{one['kind'].lower()}/{one['metadata']['name']}", say)
    await switch_scheduler(say)


async def switch_scheduler(say: Say) -> None:
    """Give kube-scheduler the profile that asks Tandem's extender, and trusts it."""
    if not SCHEDULER_PROFILE.exists():
        raise ClusterError(f"{SCHEDULER_PROFILE} does not exist: the scheduler cannot ask Tandem")
    say("kube-scheduler gets manifests/base/scheduler-profile.yaml")
    secret = await get("secret", CERTIFICATE, "-n", SYSTEM)
    profile = yaml.safe_load(SCHEDULER_PROFILE.read_text())
    for extender in profile["extenders"]:
        extender["tlsConfig"] = {"caData": secret["data"]["ca.crt"]}  # in base64, both
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(profile, file)
        file.flush()
        await localkube("scheduler", file.name, within_s=_SCHEDULER_S)


async def _image() -> str:
    """What the nodes have as our image."""
    status = json.loads(await localkube("status", "-o", "json", within_s=_SCHEDULER_S))
    return ",".join(sorted({node["images"].get(IMAGE, "") for node in status["nodes"]}))


async def _rolled_out(workload: str, say: Say) -> None:
    arguments = ("rollout", "status", workload, "-n", SYSTEM, f"--timeout={_ROLLOUT_S}s")
    async with started(*KUBECTL, *arguments) as process:
        assert process.stdout is not None
        async for line in process.stdout:
            say(line.decode().strip())
        if await process.wait() == 0:
            return
    sentence = f"{_ROLLOUT_S} s went by and {workload} in {SYSTEM} is not rolled out"
    for pod in await listed("pods", "-n", SYSTEM):
        found = cluster_objects.failure(pod)
        if found is not None:
            raise ClusterError(f"{sentence}: {found.sentence}", await last_words(pod, found))
    raise ClusterError(f"{sentence}: look around with hack/localkube kubectl -n {SYSTEM} get pods")


async def last_words(pod: Raw, failure: cluster_objects.Failure) -> list[str]:
    """The end of the log that explains the failure; none where there is no log."""
    if not failure.container:
        return []
    metadata = pod["metadata"]
    arguments = ["logs", "-n", metadata["namespace"], metadata["name"], "-c", failure.container]
    try:
        said = await kubectl(*arguments, f"--tail={_TAIL_LINES}")
    except ClusterError:
        return []
    return said.splitlines()
