"""Which devices pods should be kept from, and how strictly: read off the node's record.

A taint is not stored: it is there while what it is about is on record, so whoever takes up the node
again finds the same ones.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from claim_phases.escalation import Step
from claim_phases.node import Node


class TaintEffect(StrEnum):
    """What becomes of pods that do not tolerate it (Kubernetes' device taints, KEP-5055)."""

    NO_SCHEDULE = "NoSchedule"  # no claim is allocated the device
    NO_EXECUTE = "NoExecute"  # and every pod whose claim has it is evicted


class Reason(StrEnum):
    """What is wrong with the device."""

    FAULTED = "faulted"  # a tenant at fault does not leave it, and its ladder came to that step
    FOREIGN_MEMORY = "foreign-memory"  # no turn is granted on it until that is gone
    FAILED = "failed"  # it cannot be read


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A reason to keep pods from a device."""

    reason: Reason
    effect: TaintEffect


Taints = dict[str, tuple[Taint, ...]]
"""By device; those without any are left out."""

EFFECTS: Final = {
    Step.TAINT_NO_SCHEDULE: TaintEffect.NO_SCHEDULE,
    Step.TAINT_NO_EXECUTE: TaintEffect.NO_EXECUTE,
}


def tainted(node: Node) -> Taints:
    """The devices that are tainted now."""
    found: dict[str, set[Taint]] = {}
    for tenant in node.tenants.values():
        steps = [step for step in tenant.steps if step in EFFECTS]
        for name in tenant.who.devices if steps else ():
            found.setdefault(name, set()).update(
                Taint(Reason.FAULTED, EFFECTS[step]) for step in steps
            )
    for device in node.devices.values():
        wrong = {Reason.FOREIGN_MEMORY: device.foreign, Reason.FAILED: device.failed}
        for reason in (reason for reason, so in wrong.items() if so):
            taint = Taint(reason, TaintEffect.NO_SCHEDULE)
            found.setdefault(device.name, set()).add(taint)
    return {name: tuple(sorted(taints)) for name, taints in found.items()}
