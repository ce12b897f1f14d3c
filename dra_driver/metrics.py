"""The node's accounts as Prometheus reads them.

Labels are jobs, roles, phases, causes, steps and devices, never pods: their number is bounded (see
claim_phases.accounts). A counter goes on where it was when the driver starts again; it may also
begin anew, as Prometheus expects.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from claim_phases.accounts import Accounts, Why

WITHIN_S: Final = 5.0
"""How long a question waits for the arbiter's loop, whose accounts they are."""

_GROUP: Final = ("job", "role")


def families(accounts: Accounts) -> Iterable[Metric]:
    """The accounts as metrics; times in seconds."""
    device_seconds = CounterMetricFamily(
        "tandem_device_seconds",
        "Time of tenants in a claim phase, times the number of their devices.",
        labels=[*_GROUP, "phase"],
    )
    lost = CounterMetricFamily(
        "tandem_lost_seconds",
        "Time in which tenants wanted to run and did not: another's turn, fault or start, a swap, "
        "or nobody.",
        labels=[*_GROUP, "why"],
    )
    turns = CounterMetricFamily("tandem_turns", "Turns that ran.", labels=_GROUP)
    steps = CounterMetricFamily(
        "tandem_escalation_steps",
        "Steps of the DeviceClass's escalation that were taken about tenants at fault.",
        labels=[*_GROUP, "step"],
    )
    slowdown = GaugeMetricFamily(
        "tandem_slowdown",
        "Time in turns and lost, by time in turns: an estimate of the slowdown against running "
        "alone.",
        labels=_GROUP,
    )
    for group, account in accounts.groups().items():
        named = (group.job, group.role)
        for phase, spent in account.device.items():
            device_seconds.add_metric((*named, phase.value), spent / 1e9)
        for why in Why:
            spent = sum(passed for cause, passed in account.lost.items() if cause.why is why)
            lost.add_metric((*named, why.value), spent / 1e9)
        turns.add_metric(named, account.turns)
        for step, times in account.steps.items():
            steps.add_metric((*named, step.value), times)
        if account.slowdown is not None:
            slowdown.add_metric(named, account.slowdown)
    yield from (device_seconds, lost, turns, steps, slowdown)
    yield _tenants(accounts)
    yield from _devices(accounts)
    conditions = CounterMetricFamily(
        "tandem_conditions", "What was told to be wrong.", labels=("condition",)
    )
    for kind, count in accounts.conditions.items():
        conditions.add_metric((kind,), count)
    yield conditions


def _tenants(accounts: Accounts) -> Metric:
    family = GaugeMetricFamily(
        "tandem_tenants", "Tenants in a claim phase now.", labels=[*_GROUP, "phase"]
    )
    count: dict[tuple[str, str, str], int] = {}
    for tenant in accounts.tenants.values():
        labels = (tenant.group.job, tenant.group.role, tenant.phase.value)
        count[labels] = count.get(labels, 0) + 1
    for labels, number in count.items():
        family.add_metric(labels, number)
    return family


def _devices(accounts: Accounts) -> Iterable[Metric]:
    busy = CounterMetricFamily(
        "tandem_device_busy_seconds",
        "Time in which a tenant ran on the device, or started.",
        labels=("device",),
    )
    exposed = CounterMetricFamily(
        "tandem_device_exposed_swap_seconds",
        "Time of handovers in which nobody ran on the device and somebody waited.",
        labels=("device",),
    )
    for name, device in accounts.devices.items():
        busy.add_metric((name,), device.busy / 1e9)
        exposed.add_metric((name,), device.exposed / 1e9)
    return busy, exposed


@dataclass(frozen=True, slots=True)
class Serving:
    """The server, in threads of its own."""

    server: Any
    thread: Any

    def close(self) -> None:
        """Listen no more."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def serve(host: str, port: int, accounts: Callable[[], Accounts]) -> Serving:
    """Answer GET /metrics; `accounts` is called in the running loop. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(_Accounts(asyncio.get_running_loop(), accounts))
    server, thread = start_http_server(port, host, registry)
    return Serving(server, thread)


class _Accounts(Collector):
    """Asks the loop for the accounts, whenever somebody asks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, accounts: Callable[[], Accounts]) -> None:
        self._loop = loop
        self._accounts = accounts

    def describe(self) -> Iterable[Metric]:
        """What there is, without asking."""
        return families(Accounts())

    def collect(self) -> Iterable[Metric]:
        """What there is now."""
        asked = asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        return families(asked.result(WITHIN_S))

    async def _ask(self) -> Accounts:
        return self._accounts()
