"""Every rule of the verdict: held by a run that keeps it, broken by one that does not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from claim_phases.phases import Phase
from tandem.run_files import (
    ArbiterStart,
    Condition,
    DeviceUse,
    Gone,
    PhaseChange,
    Progress,
    Room,
    Run,
    Sample,
    Stranger,
)
from tandem.verdict import BLIND_S, Budget, Rules, judge

MIB = 1 << 20
CAPACITY = 384 * MIB
RULES = Rules(
    capacity={"gpu0": CAPACITY},
    budgets={
        "rollout": Budget(devices=["gpu0"], residual=24 * MIB),
        "trainer": Budget(devices=["gpu0"], residual=8 * MIB),
    },
)
PARKED, WAITING, RESTORING, RUNNING = Phase.PARKED, Phase.WAITING, Phase.RESTORING, Phase.RUNNING
YIELDED, RELEASING, VERIFYING = Phase.YIELDED, Phase.RELEASING, Phase.VERIFYING


def change(
    t: float,
    tenant: str,
    after: Phase | Gone,
    epoch: int = 0,
    devices: tuple[str, ...] = ("gpu0",),
) -> PhaseChange:
    return PhaseChange(t, tenant, None, after, epoch, devices, None)


def sample(
    t: float,
    rollout: int = 0,
    trainer: int = 0,
    *,
    lasts: float = 0.005,
    strangers: Sequence[Stranger] = (),
    total: int = CAPACITY,
) -> Sample:
    held = {"rollout": {"gpu0": rollout * MIB}, "trainer": {"gpu0": trainer * MIB}}
    used = DeviceUse((rollout + trainer) * MIB, total)
    return Sample(t, t + lasts, {"gpu0": used}, held, tuple(strangers))


def run(
    changes: Sequence[PhaseChange],
    samples: Sequence[Sample] = (),
    conditions: Sequence[Condition] = (),
    starts: Sequence[ArbiterStart] = (ArbiterStart(0.0, "boot", 0),),
    rooms: Sequence[Room] = (),
) -> Run:
    return Run(
        starts=tuple(starts),
        changes=tuple(changes),
        measured=(),
        conditions=tuple(conditions),
        samples=tuple(samples),
        progress=(Progress(0.0, 1),),
        notes=(),
        rooms=tuple(rooms),
    )


# The rollout runs, yields, parks; the trainer restores as room appears, and runs.
HANDOVER = (
    change(0.0, "rollout", PARKED),
    change(0.0, "trainer", PARKED),
    change(0.1, "rollout", RESTORING, 1),
    change(0.5, "rollout", RUNNING, 1),
    change(1.0, "rollout", YIELDED, 1),
    change(1.0, "trainer", WAITING, 1),
    change(1.1, "rollout", RELEASING, 1),
    change(1.2, "trainer", RESTORING, 2),
    change(1.3, "rollout", VERIFYING, 1),
    change(1.4, "rollout", PARKED, 1),
    change(1.5, "trainer", RUNNING, 2),
)
SAMPLES = (
    sample(0.05),
    sample(0.3, rollout=200),
    sample(0.8, rollout=300),
    sample(1.05, rollout=300, trainer=8),
    sample(1.25, rollout=200, trainer=150),
    sample(1.45, rollout=24, trainer=200),
    sample(1.6, rollout=24, trainer=300),
)


def only(violations: Sequence[str]) -> str:
    assert len(violations) == 1, violations
    return violations[0]


def test_a_run_that_keeps_every_rule_has_no_violation() -> None:
    assert judge(run(HANDOVER, SAMPLES), RULES) == ()


def test_a_parked_tenant_above_its_budget_is_named_with_bytes_budget_and_time() -> None:
    samples = (*SAMPLES, sample(1.7, rollout=40, trainer=300), sample(1.8, rollout=64))
    told = only(judge(run(HANDOVER, samples), RULES))
    assert told == (
        "rollout held 64.0 MiB of gpu0 while it was Parked (its residual budget is 24.0 MiB),"
        " in 2 samples from 1.70 to 1.80 s"
    )


def test_a_waiting_tenant_above_its_budget() -> None:
    told = only(judge(run(HANDOVER, (*SAMPLES, sample(1.06, trainer=9))), RULES))
    assert told.startswith("trainer held 9.0 MiB of gpu0 while it was Waiting")


AHEAD = (
    *HANDOVER[:7],
    change(1.3, "rollout", VERIFYING, 1),
    change(1.4, "rollout", PARKED, 1),
    change(1.45, "trainer", RESTORING, 3),
    change(1.5, "trainer", RUNNING, 3),
)
ROOMS = (
    Room(1.15, "trainer", 2, 50 * MIB, ("gpu0",)),
    Room(1.25, "trainer", 2, 90 * MIB, ("gpu0",)),
)


def test_what_is_restored_into_room_that_was_free_is_no_breach() -> None:
    samples = (*SAMPLES[:4], sample(1.2, rollout=200, trainer=58), sample(1.3, trainer=98))
    assert judge(run(AHEAD, samples, rooms=ROOMS), RULES) == ()


def test_what_is_kept_counts_into_what_the_device_has() -> None:
    """It stands still, so the sum of a sample says something."""
    changes = (*HANDOVER[:9], change(1.4, "rollout", PARKED, 1), change(1.5, "trainer", RUNNING, 2))
    kept = Room(1.4, "rollout", 1, 100 * MIB, ("gpu0",))
    fits = sample(1.6, rollout=100, trainer=CAPACITY // MIB - 100)
    assert judge(run(changes, (*SAMPLES, fits), rooms=(kept,)), RULES) == ()
    more = sample(1.6, rollout=101, trainer=CAPACITY // MIB - 100)
    told = only(judge(run(changes, (*SAMPLES, more), rooms=(kept,)), RULES))
    assert told.startswith("tenants held ")


def test_more_than_the_room_that_was_free() -> None:
    samples = (*SAMPLES[:4], sample(1.2, rollout=200, trainer=59))
    told = only(judge(run(AHEAD, samples, rooms=ROOMS), RULES))
    assert told.startswith(
        "trainer held 59.0 MiB of gpu0 while it was Waiting (its residual budget is 8.0 MiB, and"
        " 50.0 MiB were free for it)"
    )


def test_room_ends_with_the_wait() -> None:
    changes = (*AHEAD[:6], change(1.2, "trainer", PARKED, 2))
    told = only(judge(run(changes, (sample(1.3, trainer=9),), rooms=ROOMS[:1]), RULES))
    assert told.startswith("trainer held 9.0 MiB of gpu0 while it was Parked")


def test_a_tenant_that_holds_memory_before_its_hello() -> None:
    changes = [one for one in HANDOVER if one.tenant == "rollout"]
    told = only(judge(run(changes, (sample(0.3, rollout=200, trainer=9),)), RULES))
    assert told.startswith("trainer held 9.0 MiB of gpu0 while it was without a session")


def test_memory_after_the_end_of_a_tenant() -> None:
    changes = (*HANDOVER, change(1.7, "rollout", "Gone", 1))
    told = only(judge(run(changes, (*SAMPLES, sample(1.8, rollout=25, trainer=300))), RULES))
    assert "rollout held 25.0 MiB" in told


def test_a_sample_that_reaches_into_another_phase_is_not_held_against_it() -> None:
    straddling = sample(1.39, rollout=64, lasts=0.02)
    assert judge(run(HANDOVER, (*SAMPLES[:5], straddling, *SAMPLES[5:])), RULES) == ()


def test_memory_on_a_device_that_is_not_the_tenants() -> None:
    rules = replace(RULES, capacity={"gpu0": CAPACITY, "gpu1": CAPACITY})
    samples = [
        replace(one, devices={"gpu0": one.devices["gpu0"], "gpu1": DeviceUse(0, CAPACITY)})
        for one in SAMPLES
    ]
    samples[-1] = replace(samples[-1], tenants={"rollout": {"gpu1": MIB}})
    assert "rollout held 1.0 MiB of gpu1" in only(judge(run(HANDOVER, samples), rules))


def test_two_tenants_that_both_hold_a_device() -> None:
    changes = (
        *HANDOVER[:4],
        change(0.6, "rollout", Phase.FAULTED, 1),
        change(0.7, "trainer", RUNNING, 2),
    )
    told = only(judge(run(changes, (sample(0.8, rollout=150, trainer=200),)), RULES))
    assert told == (
        "two tenants held gpu0 at once: rollout (Faulted) 150.0 MiB and trainer (Running)"
        " 200.0 MiB, at 0.80 s"
    )


def test_a_yielded_tenant_may_stay_resident_beside_a_running_one() -> None:
    changes = (*HANDOVER[:5], change(1.05, "trainer", RUNNING, 2))
    samples = (sample(0.8, rollout=150), sample(1.2, rollout=150, trainer=200))
    assert judge(run(changes, samples), RULES) == ()


def test_two_turns_on_one_device_at_once() -> None:
    changes = (*HANDOVER[:4], change(0.7, "trainer", RESTORING, 2))
    assert only(judge(run(changes), RULES)) == (
        "trainer became Restoring (epoch 2) on gpu0 while rollout was Running (epoch 1),"
        " at 0.70 s: two turns at once"
    )


def test_turns_on_disjoint_devices_may_overlap() -> None:
    rules = Rules(
        capacity={"gpu0": CAPACITY},
        budgets={"rollout": Budget(["gpu0"], 0), "trainer": Budget(["gpu1"], 0)},
    )
    changes = (change(0.1, "rollout", RUNNING, 1), change(0.2, "trainer", RUNNING, 2, ("gpu1",)))
    assert judge(run(changes), rules) == ()


def test_an_epoch_that_does_not_grow() -> None:
    changes = (*HANDOVER, change(1.6, "trainer", PARKED, 2), change(1.7, "rollout", RUNNING, 2))
    assert only(judge(run(changes), RULES)) == (
        "rollout was granted epoch 2 at 1.70 s although epoch 2 had been granted: epochs must grow"
    )


def test_an_arbiter_that_starts_with_an_older_epoch() -> None:
    starts = (ArbiterStart(0.0, "boot", 0), ArbiterStart(2.0, "boot", 1))
    assert only(judge(run(HANDOVER, starts=starts), RULES)) == (
        "the arbiter started with epoch 1 at 2.00 s although epoch 2 had been granted"
    )


def test_a_stranger_is_foreign_and_no_tenant_is_blamed() -> None:
    strangers = [Stranger(77, "miner", "gpu0", 64 * MIB)]
    samples = (*SAMPLES, sample(1.7, trainer=300, strangers=strangers))
    assert only(judge(run(HANDOVER, samples), RULES)) == (
        "process 77 (miner), which belongs to no tenant, held 64.0 MiB of gpu0: foreign memory,"
        " at 1.70 s"
    )


def test_a_device_of_another_size_than_declared() -> None:
    told = only(judge(run(HANDOVER, (sample(0.5, total=2 * CAPACITY),)), RULES))
    assert told.startswith(f"gpu0 was of {2 * CAPACITY} bytes, declared are {CAPACITY} bytes")


def test_more_resident_than_the_device_holds() -> None:
    changes = (*HANDOVER[:5], change(1.05, "trainer", RUNNING, 2))
    told = only(judge(run(changes, (sample(1.2, rollout=200, trainer=200),)), RULES))
    assert told == "tenants held 400.0 MiB of gpu0, which has 384.0 MiB, at 1.20 s"


@pytest.mark.parametrize("void", ["Intruder", "DeviceFailed"])
def test_conditions_are_told_once_with_their_sentence_and_harmless_ones_not_at_all(
    void: Literal["Intruder", "DeviceFailed"],
) -> None:
    def condition(t: float, kind: Literal["Intruder", "DeviceFailed", "Refused"]) -> Condition:
        return Condition(t, kind, "rollout", "gpu0", MIB, "something is wrong")

    conditions = [condition(0.2, void), condition(0.3, void), condition(0.4, "Refused")]
    assert only(judge(run(HANDOVER, conditions=conditions), RULES)) == (
        f"{void}: something is wrong (at 0.20 s)"
    )


def test_time_without_a_sample_cannot_be_vouched_for() -> None:
    changes = (*HANDOVER, change(9.0, "trainer", "Gone", 2))
    told = only(judge(run(changes, SAMPLES), RULES))
    assert told.startswith("the observer took no sample from 1.60 to 9.00 s")
    samples = [sample(t * BLIND_S / 2) for t in range(10)]
    assert judge(run(changes, samples), RULES) == ()


def test_a_run_in_which_nobody_said_hello_proves_nothing() -> None:
    assert "no tenant ever said hello" in only(judge(run((), SAMPLES[:1]), RULES))
