"""Wires the driver of a cluster's node: kubelet, API server, devices, arbiter."""

import asyncio
import contextlib
import logging
import mmap
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from claim_phases.events import Condition, Told
from claim_phases.turns import Limits
from dra_driver import cluster, host_memory, kubelet, metrics, mounts, serving
from dra_driver.cdi import LIBRARY
from dra_driver.checkpoint import Checkpoint
from dra_driver.claims import Claims
from dra_driver.devices import Device
from dra_driver.devices.simulated import SimulatedDevice
from dra_driver.event_log import EventLog
from dra_driver.fields import Capacity, Name, Size, Strict, fault
from dra_driver.layout import Layout, node_layout
from dra_driver.names import JSON_DEPTH
from dra_driver.pods import PodRoster
from dra_driver.slices import Publisher
from dra_driver.status import Teller

log = logging.getLogger("tandem.driver")

SIMDEVICE: Final = "TANDEM_SIMDEVICE_LIBRARY"
"""The environment variable that names the simulated device's library in this image."""


PREPARE_PATIENCE_S: Final = 30.0
"""The kubelet gives a Prepare 45 s."""


class SettingsError(Exception):
    """The configuration or the environment cannot be used; every fault in one line."""


class SimulatedConfig(Strict):
    """A device that is simulated on a tmpfs of this size, in bytes.

    `reserve`: so many of them are to stay free, whatever tenants say that they need: for what they
    take for a moment, and what nobody declares.
    """

    simulated: Capacity
    reserve: Size = 0

    @model_validator(mode="after")
    def _leaves_some(self) -> Self:
        if self.reserve >= self.simulated:
            raise ValueError(f"must be less than the device's {self.simulated} bytes in reserve")
        return self


class LimitsConfig(Strict):
    """Deadlines in seconds; `claim_phases.turns.Limits` says what each means."""

    lease_s: Annotated[float, Field(gt=0)] = Limits().lease_s
    verify_s: Annotated[float, Field(gt=0)] = Limits().verify_s
    park_s: Annotated[float, Field(gt=0)] = Limits().park_s
    restore_s: Annotated[float, Field(gt=0)] = Limits().restore_s


class MetricsConfig(Strict):
    """Where Prometheus may ask: an address of the driver's pod (0.0.0.0 or :: for all), a port."""

    host: str
    port: Annotated[int, Field(ge=1, le=65535)]


class DriverConfig(Strict):
    """What an admin says of a node: its devices, how long things may take, who may ask of them.

    Without `metrics` nothing listens.
    """

    devices: Annotated[dict[Name, SimulatedConfig], Field(min_length=1, max_length=64)]
    limits: LimitsConfig = LimitsConfig()
    metrics: MetricsConfig | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this driver is: the name of its Node, and what tells it from another beside it."""

    node: str
    instance: str


def load(path: Path) -> DriverConfig:
    """Read the driver's file. Raises SettingsError."""
    try:
        return DriverConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise SettingsError(f"{path}: {' '.join(str(exc).split())}") from exc
    except ValidationError as exc:
        faults = (fault(error["loc"], error["type"], error["msg"]) for error in exc.errors())
        raise SettingsError(f"{path}: {'; '.join(faults)}") from exc


def identity(environment: Mapping[str, str]) -> Identity:
    """From NODE_NAME and POD_UID, which the manifest sets. Raises SettingsError."""
    missing = [name for name in ("NODE_NAME", "POD_UID") if not environment.get(name)]
    if missing:
        raise SettingsError(f"{' and '.join(missing)} not set: use the manifest's downward API")
    return Identity(environment["NODE_NAME"], environment["POD_UID"])


def serve(settings: DriverConfig, me: Identity) -> None:
    """Serve until SIGTERM or SIGINT, or until it cannot go on: then raises what stopped it."""
    sys.setrecursionlimit(JSON_DEPTH)
    layout = node_layout()
    devices = _devices(settings, layout)
    with serving.opened(layout.state, devices) as state:
        asyncio.run(_serve(settings, me, layout, devices, state))


def _devices(settings: DriverConfig, layout: Layout) -> dict[str, Device]:
    layout.library.mkdir(mode=0o755, parents=True, exist_ok=True)
    library = os.environ.get(SIMDEVICE)
    if library is None:
        raise SettingsError(f"{SIMDEVICE} is not set: the driver's image sets it")
    fresh = layout.library / f".{LIBRARY}.new"
    shutil.copyfile(library, fresh)
    fresh.chmod(0o755)
    fresh.rename(layout.library / LIBRARY)  # a library in use keeps its old file
    devices: dict[str, Device] = {}
    for name, device in settings.devices.items():
        directory = layout.device(name)
        mounts.mount_tmpfs(directory, device.simulated, part=layout.memory(name), executable=True)
        devices[name] = SimulatedDevice(name, directory, device.reserve)
        total = devices[name].read().total + device.reserve
        if not device.simulated <= total < device.simulated + mmap.PAGESIZE:
            log.warning(
                "%s has %d bytes, configured are %d: that counts after a reboot",
                name,
                total,
                device.simulated,
            )
    return devices


async def _serve(
    settings: DriverConfig,
    me: Identity,
    layout: Layout,
    devices: dict[str, Device],
    state: serving.State,
) -> None:
    checkpoint = Checkpoint(layout.checkpoint)
    limits = Limits(**settings.limits.model_dump())
    async with cluster.connected(me.node) as api:
        roster = PodRoster(state.node, checkpoint.get, api, _host_memory())
        teller = Teller(api, state.node, me.node, checkpoint, time.monotonic)
        sizes = {name: device.total for name, device in state.node.devices.items()}
        publisher = Publisher(api, state.node, me.node, sizes)

        def listen(what: Told) -> None:
            teller.note(what)
            publisher.note(what)

        async with (
            serving.arbitrating(
                *(state, devices, roster, limits, layout.events, listen), layout.frozen
            ) as running,
            _metrics(settings.metrics, running.events),
        ):

            def tell(what: Condition) -> None:
                running.events.tell(what, time.monotonic())
                teller.note(what)

            def forget(claim: str) -> None:
                prepared = checkpoint.get(claim)
                if prepared is not None:
                    running.arbiter.look_again(prepared.devices)
                roster.forget(claim)
                teller.forget(claim)

            claims = Claims(
                layout,
                checkpoint,
                running.relay,
                api.claim,
                devices,
                me.node,
                forget,
                PREPARE_PATIENCE_S,
            )
            await claims.resume()
            plugin = kubelet.Plugin(claims)
            health = kubelet.Health(me.node, state.node.devices.values())
            async with kubelet.serving(layout, me.instance, plugin, health):
                told = asyncio.create_task(teller.run())
                published = asyncio.create_task(publisher.run(tell))
                try:
                    await _first(running.arbiter.stopped, told, published)
                finally:
                    for task in (told, published):
                        task.cancel()
                    await asyncio.gather(told, published, return_exceptions=True)


def _host_memory() -> host_memory.Hierarchy | None:
    found = host_memory.hierarchy(Path("/proc/self/mountinfo").read_text())
    if found is None:
        log.warning(
            "the node's cgroups are not mounted here: whether a pod has the memory to park is not "
            "known; mount /sys/fs/cgroup as the manifest does"
        )
    return found


@contextlib.asynccontextmanager
async def _metrics(settings: MetricsConfig | None, events: EventLog) -> AsyncIterator[None]:
    if settings is None:
        yield
        return
    try:
        serving_metrics = metrics.serve(settings.host, settings.port, events.accounts)
    except OSError as exc:
        raise SettingsError(
            f"metrics: {settings.host} port {settings.port} cannot be listened on "
            f"({exc.strerror or exc}): name another"
        ) from exc
    try:
        yield
    finally:
        serving_metrics.close()


async def _first(*futures: "asyncio.Future[Any]") -> None:
    """Return when one is done; raises what ended it."""
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future in done:
        future.result()
