"""What the API is told of turns."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from claim_phases.escalation import Step
from claim_phases.events import Condition, ConditionKind
from claim_phases.node import Device, Membership, Node, Tenant
from claim_phases.phases import Phase
from dra_driver.checkpoint import Allocated, Prepared
from dra_driver.cluster import ApiError
from dra_driver.config import Agreement
from dra_driver.status import Teller, claim_status, pod_event

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
CLAIM = Prepared(
    "a-claim", "team-a", "grpo", (Allocated("gpu", "n", "gpu-0", None),), Agreement("grpo", 1, 0)
)


def node(trainer: Phase, rollout: Phase) -> Node:
    def tenant(name: str, phase: Phase, epoch: int) -> Tenant:
        who = Membership(f"team-a/{name}", name, f"uid-{name}/7:1", ("gpu-0",), None, 0)
        return Tenant(who, phase=phase, epoch=epoch)

    tenants = [tenant("trainer", trainer, 8), tenant("rollout", rollout, 7)]
    devices = {"gpu-0": Device("gpu-0", 100), "gpu-1": Device("gpu-1", 100)}
    return Node("boot", devices, epoch=8, tenants={one.name: one for one in tenants})


def test_a_claim_tells_phases_holder_and_epoch() -> None:
    body = claim_status(CLAIM, node(Phase.RUNNING, Phase.PARKED), NOW, None)
    assert body["metadata"] == {"name": "grpo", "namespace": "team-a", "uid": "a-claim"}
    (device,) = body["status"]["devices"]
    assert (device["driver"], device["pool"], device["device"]) == ("tandem-gpu.io", "n", "gpu-0")
    assert "shareID" not in device
    (held,) = device["conditions"]
    assert (held["status"], held["reason"]) == ("True", "Running")
    assert held["message"] == "team-a/trainer (trainer) is Running in epoch 8"
    assert device["data"]["holder"] == "team-a/trainer"
    assert device["data"]["tenants"] == [
        {"name": "team-a/rollout", "role": "rollout", "phase": "Parked", "epoch": 7},
        {"name": "team-a/trainer", "role": "trainer", "phase": "Running", "epoch": 8},
    ]


def test_a_claim_names_the_pod_that_is_to_be_evicted() -> None:
    about = node(Phase.FAULTED, Phase.WAITING)
    trainer = about.tenants["team-a/trainer"]
    trainer.steps = (Step.ASK,)

    def evict() -> list[str | None]:
        (device,) = claim_status(CLAIM, about, NOW, None)["status"]["devices"]
        return [tenant.get("evict") for tenant in device["data"]["tenants"]]

    assert evict() == [None, None]
    trainer.steps = (Step.ASK, Step.EVICT)
    assert evict() == [None, "uid-trainer"]


def test_a_claim_tells_that_its_device_failed_and_who_still_holds_it() -> None:
    about = node(Phase.PARKED, Phase.WAITING)
    about.devices["gpu-0"].failed = "device gpu-0: XID 79"

    def held() -> tuple[str, str, str]:
        (device,) = claim_status(CLAIM, about, NOW, None)["status"]["devices"]
        (told,) = device["conditions"]
        return told["status"], told["reason"], told["message"]

    assert held() == ("False", "DeviceFailed", "no turn: device gpu-0: XID 79")
    about.tenants["team-a/trainer"].phase = Phase.FAULTED
    assert held() == ("True", "Faulted", "team-a/trainer (trainer) is Faulted in epoch 8")


@pytest.mark.parametrize("kind", [ConditionKind.DEVICE_FAILED, ConditionKind.CLEARED])
async def test_a_failed_device_and_its_return_are_told_in_the_claims_status(
    kind: ConditionKind,
) -> None:
    teller = Teller(Api(), node(Phase.PARKED, Phase.PARKED), "n", [CLAIM], lambda: 0.0)
    teller.note(Condition(kind, "gpu-0", device="gpu-0"))
    assert teller._changed.is_set()


def test_a_condition_keeps_the_time_of_its_last_transition() -> None:
    first = claim_status(CLAIM, node(Phase.RUNNING, Phase.PARKED), NOW, None)
    later = NOW + timedelta(seconds=9)
    second = claim_status(CLAIM, node(Phase.QUIESCING, Phase.WAITING), later, first)
    third = claim_status(CLAIM, node(Phase.PARKED, Phase.YIELDED), later, second)
    times = [
        body["status"]["devices"][0]["conditions"][0]["lastTransitionTime"]
        for body in (first, second, third)
    ]
    assert times == ["2026-11-29T12:00:00Z", "2026-11-29T12:00:00Z", "2026-11-29T12:00:09Z"]


def test_a_condition_is_told_on_the_pod_or_on_the_node() -> None:
    about = node(Phase.RUNNING, Phase.FAULTED)
    intruder = Condition(ConditionKind.INTRUDER, "x" * 2000, "team-a/rollout", "gpu-0", 5)
    event = pod_event(intruder, about, "n", NOW)
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team-a",
        "name": "rollout",
        "uid": "uid-rollout",
    }
    assert (event["type"], event["reason"], len(event["note"])) == ("Warning", "Intruder", 1024)
    foreign = Condition(ConditionKind.FOREIGN_MEMORY, "1 MiB", None, "gpu-0", 5)
    event = pod_event(foreign, about, "n", NOW)
    assert event["regarding"]["kind"] == "Node"
    assert event["metadata"]["namespace"] == "default"


class Api:
    """Fails as often as it is told to."""

    def __init__(self, *failures: int) -> None:
        self.failures = list(failures)
        self.applied: list[dict[str, Any]] = []
        self.told = asyncio.Event()

    async def apply_claim_status(self, namespace: str, name: str, body: dict[str, Any]) -> None:
        if self.failures:
            raise ApiError("PATCH", self.failures.pop(0))
        self.applied.append(body)
        self.told.set()

    async def tell(self, event: dict[str, Any]) -> None:
        raise AssertionError(event)


async def test_a_claim_that_is_prepared_again_is_told_again() -> None:
    """Meanwhile the API server cleared its status."""
    api = Api()
    teller = Teller(api, node(Phase.PARKED, Phase.PARKED), "n", [CLAIM], lambda: 0.0)
    await teller._apply(CLAIM)
    await teller._apply(CLAIM)
    assert len(api.applied) == 1
    teller.forget(CLAIM.uid)
    await teller._apply(CLAIM)
    assert len(api.applied) == 2


@pytest.mark.parametrize(("failure", "again"), [(0, True), (409, True), (503, True), (422, False)])
async def test_what_may_pass_by_itself_is_tried_again(failure: int, again: bool) -> None:
    teller = Teller(Api(failure), node(Phase.PARKED, Phase.PARKED), "n", [CLAIM], lambda: 0.0)
    await teller._apply(CLAIM)
    assert teller._changed.is_set() is again


async def test_the_same_about_the_same_pod_is_told_once_a_minute() -> None:
    """A pod that asks again and again must not crowd out what others are told of."""
    now = 100.0
    about = node(Phase.PARKED, Phase.PARKED)
    teller = Teller(Api(), about, "n", [CLAIM], lambda: now)
    no_room = Condition(ConditionKind.NO_ROOM, "too little", "team-a/trainer")
    for _ in range(1000):
        teller.note(no_room)
    teller.note(replace(no_room, tenant="team-a/rollout"))
    assert teller._notices.qsize() == 2
    now += 61.0
    teller.note(no_room)
    teller.note(replace(no_room, message="less still"))
    assert teller._notices.qsize() == 4


async def test_a_driver_that_starts_tells_how_it_is() -> None:
    """The one before may not have lived to tell that a pod is to be evicted, or is well again."""
    api = Api()
    teller = Teller(api, node(Phase.FAULTED, Phase.PARKED), "n", [CLAIM], lambda: 0.0)
    telling = asyncio.create_task(teller.run())
    await asyncio.wait_for(api.told.wait(), 10)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
