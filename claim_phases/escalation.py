"""What is done about a tenant that is at fault and does not leave: one step after another.

The ladder is the admin's. It begins when the fault does and ends as soon as the tenant's memory is
measured to be back; nobody else is granted meanwhile, whatever the step.
"""

from dataclasses import dataclass
from enum import StrEnum


class Step(StrEnum):
    """What can be done."""

    ASK = "ask"  # tell it to release once more
    CHECKPOINT = "checkpoint"  # freeze its processes, their device memory on the host
    EVICT = "evict"  # have the cluster's controller evict its pod
    KILL = "kill"  # SIGKILL to its processes
    TAINT_NO_SCHEDULE = "taint-no-schedule"  # no claim is allocated its devices any more
    TAINT_NO_EXECUTE = "taint-no-execute"  # every pod with a claim to its devices is evicted


@dataclass(frozen=True, slots=True)
class Rung:
    """One step, and how long after the one before (the first: after the fault) it is taken."""

    step: Step
    after_s: float
