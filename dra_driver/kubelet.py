"""The kubelet's side of the driver: registration, preparing claims, health (KEP-4381, KEP-4680)."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Collection, Iterable
from pathlib import Path
from typing import Any, Final

import grpc

from claim_phases.node import Device
from dra_driver import cdi
from dra_driver.checkpoint import Prepared
from dra_driver.claims import Claims, PrepareError
from dra_driver.kubelet_api import dra_pb2 as dra
from dra_driver.kubelet_api import health_pb2 as health
from dra_driver.kubelet_api import registration_pb2 as registration
from dra_driver.kubelet_api.dra_pb2_grpc import DRAPluginServicer, add_DRAPluginServicer_to_server
from dra_driver.kubelet_api.health_pb2_grpc import (
    DRAResourceHealthServicer,
    add_DRAResourceHealthServicer_to_server,
)
from dra_driver.kubelet_api.registration_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from dra_driver.layout import Layout
from dra_driver.names import DRIVER

log = logging.getLogger("tandem.kubelet")

VERSIONS: Final = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
HEALTH_TIMEOUT_S: Final = 30
HEALTH_EVERY_S: Final = 10.0
"""The kubelet takes a device of which it heard nothing for the timeout for unknown."""

Context = grpc.aio.ServicerContext[Any, Any]


class Plugin(DRAPluginServicer):
    """Answers each claim of a call by itself: one that fails spoils no other."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    async def NodePrepareResources(  # noqa: N802 - the .proto's
        self, request: dra.NodePrepareResourcesRequest, context: Context
    ) -> dra.NodePrepareResourcesResponse:
        answers = await asyncio.gather(*(self._prepare(claim) for claim in request.claims))
        return dra.NodePrepareResourcesResponse(
            claims={claim.uid: one for claim, one in zip(request.claims, answers, strict=True)}
        )

    async def NodeUnprepareResources(  # noqa: N802
        self, request: dra.NodeUnprepareResourcesRequest, context: Context
    ) -> dra.NodeUnprepareResourcesResponse:
        answers = await asyncio.gather(*(self._unprepare(claim) for claim in request.claims))
        return dra.NodeUnprepareResourcesResponse(
            claims={claim.uid: one for claim, one in zip(request.claims, answers, strict=True)}
        )

    async def _prepare(self, claim: dra.Claim) -> dra.NodePrepareResourceResponse:
        try:
            prepared = await self._claims.prepare(claim.namespace, claim.name, claim.uid)
        except PrepareError as exc:
            log.error("cannot prepare %s", exc)
            return dra.NodePrepareResourceResponse(error=str(exc))
        except Exception as exc:
            log.exception("preparing claim %s/%s broke", claim.namespace, claim.name)
            return dra.NodePrepareResourceResponse(error=f"{type(exc).__name__}: {exc}")
        return dra.NodePrepareResourceResponse(devices=_devices(prepared))

    async def _unprepare(self, claim: dra.Claim) -> dra.NodeUnprepareResourceResponse:
        try:
            await self._claims.unprepare(claim.uid)
        except PrepareError as exc:
            log.error("cannot unprepare %s", exc)
            return dra.NodeUnprepareResourceResponse(error=str(exc))
        except Exception as exc:
            log.exception("unpreparing claim %s/%s broke", claim.namespace, claim.name)
            return dra.NodeUnprepareResourceResponse(error=f"{type(exc).__name__}: {exc}")
        return dra.NodeUnprepareResourceResponse()


def _devices(prepared: Prepared) -> Iterable[dra.Device]:
    for result in prepared.results:
        yield dra.Device(
            request_names=[result.request],
            pool_name=result.pool,
            device_name=result.device,
            cdi_device_ids=[cdi.device_id(prepared, result.device)],
            share_id=result.share,
        )


class Health(DRAResourceHealthServicer):
    """Streams the whole list each time: the arbiter's record of them, which its watch keeps.

    A parked tenant is healthy; this is for real faults.
    """

    def __init__(self, pool: str, devices: Collection[Device]) -> None:
        self._pool = pool
        self._devices = devices

    async def NodeWatchResources(  # noqa: N802
        self, request: health.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        while True:
            yield health.NodeWatchResourcesResponse(devices=map(self._health, self._devices))
            await asyncio.sleep(HEALTH_EVERY_S)

    def _health(self, device: Device) -> health.DeviceHealth:
        return health.DeviceHealth(
            device=health.DeviceIdentifier(pool_name=self._pool, device_name=device.name),
            health=health.UNHEALTHY if device.failed else health.HEALTHY,
            last_updated_time=int(time.time()),
            health_check_timeout_seconds=HEALTH_TIMEOUT_S,
            message=device.failed,
        )


class Registration(RegistrationServicer):
    """Says where the plugin is."""

    def __init__(self, endpoint: Path) -> None:
        self._endpoint = endpoint

    async def GetInfo(  # noqa: N802
        self, request: registration.InfoRequest, context: Context
    ) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=VERSIONS,
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        if request.plugin_registered:
            log.info("the kubelet registered %s", DRIVER)
        else:
            log.error("the kubelet did not register %s: %s", DRIVER, request.error)
        return registration.RegistrationStatusResponse()


@contextlib.asynccontextmanager
async def serving(
    layout: Layout, instance: str, plugin: Plugin, watch: Health
) -> AsyncIterator[None]:
    """Serve the kubelet. `instance` tells this driver's sockets from another's beside it.

    At the end only these sockets are removed: a successor may already serve its own.
    """
    endpoint = layout.plugin / f"dra-{instance}.sock"
    register = layout.registry / f"{DRIVER}-{instance}-reg.sock"
    # This driver has the node alone: others' sockets are left over.
    for left in (*layout.plugin.glob("dra-*.sock"), *layout.registry.glob(f"{DRIVER}-*-reg.sock")):
        left.unlink(missing_ok=True)
    # The plugin first: the kubelet calls it as soon as it is registered.
    served = grpc.aio.server()
    add_DRAPluginServicer_to_server(plugin, served)
    add_DRAResourceHealthServicer_to_server(watch, served)
    served.add_insecure_port(f"unix:{endpoint}")
    registered = grpc.aio.server()
    add_RegistrationServicer_to_server(Registration(endpoint), registered)
    registered.add_insecure_port(f"unix:{register}")
    try:
        await served.start()
        await registered.start()
        yield
    finally:
        # The registration first: the kubelet takes its end for the plugin's.
        register.unlink(missing_ok=True)
        await registered.stop(grace=0)
        await served.stop(grace=1.0)
        endpoint.unlink(missing_ok=True)
