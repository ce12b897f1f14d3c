"""What Prometheus is told: every figure of the accounts, and no name of a pod."""

import asyncio
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from claim_phases.accounts import Accounts, Group
from claim_phases.escalation import Step
from claim_phases.phases import Phase
from dra_driver import metrics
from tests.unit.test_accounts import handover

LABELS = ("job", "role", "phase", "why", "device", "condition", "step")


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (one.name, *(one.labels[name] for name in LABELS if name in one.labels)): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


async def scraped(accounts: Accounts) -> str:
    serving = metrics.serve("127.0.0.1", 0, lambda: accounts)
    try:
        port = serving.server.server_address[1]
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/metrics")
    finally:
        serving.close()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - of this test
        return str(answer.read().decode())


async def test_the_figures_are_those_of_the_accounts() -> None:
    accounts = handover()
    accounts.joined(115.0, "gone", Group("a", "trainer"), "1", ("gpu0",))
    accounts.changed(116.0, "gone", None, ())
    accounts.condition("Intruder")
    for step in (Step.ASK, Step.KILL, Step.KILL):
        accounts.condition("Escalated", "y", step)
    text = await scraped(accounts.at(120.0))
    told = samples(text)
    assert told["tandem_device_seconds_total", "a", "trainer", "Running"] == 10.0
    assert told["tandem_device_seconds_total", "a", "trainer", "Parked"] == 7.0 + 1.0
    assert told["tandem_device_seconds_total", "b", "rollout", "Waiting"] == 5.0
    assert told["tandem_lost_seconds_total", "b", "rollout", "turn"] == 4.0
    assert told["tandem_lost_seconds_total", "b", "rollout", "swap"] == 1.0
    assert told["tandem_turns_total", "b", "rollout"] == 1.0
    assert told["tandem_slowdown", "b", "rollout"] == 2.0
    assert told["tandem_tenants", "b", "rollout", "Running"] == 1.0
    assert told["tandem_device_busy_seconds_total", "gpu0"] == 19.0
    assert told["tandem_device_exposed_swap_seconds_total", "gpu0"] == 1.0
    assert told["tandem_conditions_total", "Intruder"] == 1.0
    assert told["tandem_conditions_total", "Escalated"] == 3.0
    assert told["tandem_escalation_steps_total", "b", "rollout", "ask"] == 1.0
    assert told["tandem_escalation_steps_total", "b", "rollout", "kill"] == 2.0


async def test_pods_come_and_go_and_the_series_stay_the_same() -> None:
    accounts = Accounts()
    for number in range(50):
        name, t = f"ns/secret-pod-{number}", 100.0 + number
        accounts.joined(t, name, Group("ns/job", "trainer"), str(number), ("gpu0",))
        accounts.changed(t, name, Phase.RUNNING, ("gpu0",))
        accounts.changed(t + 1, name, None, ())
    text = await scraped(accounts)
    assert "secret-pod" not in text
    assert samples(text)["tandem_device_seconds_total", "ns/job", "trainer", "Running"] == 50.0
    assert len(samples(text)) < 20


async def test_an_address_that_is_taken_is_an_error_at_once() -> None:
    first = metrics.serve("127.0.0.1", 0, Accounts)
    try:
        with pytest.raises(OSError, match="in use"):
            metrics.serve("127.0.0.1", first.server.server_address[1], Accounts)
    finally:
        first.close()
