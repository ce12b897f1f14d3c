"""The small worlds that are walked through, each with the faults that it is about."""

from dataclasses import replace

from claim_phases.escalation import Rung, Step
from claim_phases.policies import Objectives, PolicyName
from tests.model.records import Spec, TenantSpec
from tests.model.walk import Faults


def pair(turns_each: int) -> Spec:
    """The smallest world: two tenants that do not fit beside each other on one device."""
    a = TenantSpec("a", ("gpu0",), need=60, residual=10)
    b = TenantSpec("b", ("gpu0",), need=70, residual=5)
    return Spec((("gpu0", 100),), (a, b), turns_each)


def overlapping() -> Spec:
    """The pair, and one of them can be restored in pieces while the other parks."""
    spec = pair(1)
    first, second = spec.tenants
    return replace(spec, tenants=(first, replace(second, pieces=True)))


def roomy() -> Spec:
    """What the one may restore ahead is more than the other holds."""
    a = TenantSpec("a", ("gpu0",), need=30, residual=10)
    b = TenantSpec("b", ("gpu0",), need=90, residual=5, pieces=True)
    return Spec((("gpu0", 100),), (a, b), 1)


def mutual() -> Spec:
    """Both can."""
    spec = pair(1)
    return replace(spec, tenants=tuple(replace(one, pieces=True) for one in spec.tenants))


def three() -> Spec:
    """What the first keeps for the sake of the second is too much for the third."""
    a = TenantSpec("a", ("gpu0",), need=60, residual=5, pieces=True)
    b = TenantSpec("b", ("gpu0",), need=50, residual=5)
    c = TenantSpec("c", ("gpu0",), need=80, residual=5)
    return Spec((("gpu0", 100),), (a, b, c), 1)


def asked() -> Spec:
    """One of the pair is asked to release once more when it is at fault."""
    spec = pair(1)
    first, second = spec.tenants
    return replace(spec, tenants=(replace(first, ladder=(Rung(Step.ASK, 5.0),)), second))


def escalated() -> Spec:
    """One of the pair is asked, its device tainted, then it is killed, when it is at fault."""
    spec = pair(1)
    ladder = (Rung(Step.ASK, 5.0), Rung(Step.TAINT_NO_SCHEDULE, 5.0), Rung(Step.KILL, 5.0))
    first, second = spec.tenants
    return replace(spec, tenants=(replace(first, ladder=ladder), second))


def frozen() -> Spec:
    """One of the pair is frozen when it is at fault."""
    spec = pair(1)
    first, second = spec.tenants
    return replace(spec, tenants=(replace(first, ladder=(Rung(Step.CHECKPOINT, 5.0),)), second))


def tainted_and_frozen() -> Spec:
    """Before that its device is tainted."""
    ladder = (Rung(Step.TAINT_NO_SCHEDULE, 5.0), Rung(Step.CHECKPOINT, 5.0))
    spec = pair(1)
    first, second = spec.tenants
    return replace(spec, tenants=(replace(first, ladder=ladder), second))


def harvested() -> Spec:
    """One takes only what two others do not want."""
    spec = three()
    first, *others = spec.tenants
    harvests = replace(first, pieces=False, objectives=Objectives(PolicyName.HARVEST, leave_s=5.0))
    return replace(spec, tenants=(harvests, *others))


def overstayed() -> Spec:
    """One of the pair harvests, and soon leaves or loses its turn."""
    spec = pair(1)
    first, second = spec.tenants
    harvests = Objectives(PolicyName.HARVEST, leave_s=5.0)
    return replace(spec, tenants=(replace(first, objectives=harvests), second))


def ranked() -> Spec:
    """Three that do not fit beside each other, the last of the highest priority."""
    spec = three()
    tenants = (
        replace(one, pieces=False, objectives=Objectives(PolicyName.PRIORITY, priority=rank))
        for rank, one in enumerate(spec.tenants)
    )
    return replace(spec, tenants=tuple(tenants))


def residents() -> Spec:
    """Two tenants that fit beside each other: nobody is displaced."""
    a = TenantSpec("a", ("gpu0",), need=40, residual=10)
    b = TenantSpec("b", ("gpu0",), need=50, residual=5)
    return Spec((("gpu0", 100),), (a, b), 2)


def cramped(turns_each: int) -> Spec:
    """One of the pair parks into a pod whose memory just takes it, if nobody else uses that."""
    spec = pair(turns_each)
    first, second = spec.tenants
    return replace(spec, tenants=(replace(first, memory=55), second))


def apart() -> Spec:
    """Two tenants that share no device."""
    a = TenantSpec("a", ("gpu0",), need=60, residual=10)
    b = TenantSpec("b", ("gpu1",), need=70, residual=5)
    return Spec((("gpu0", 100), ("gpu1", 100)), (a, b), 1)


def wide() -> Spec:
    """A tenant of two devices beside one on each."""
    a = TenantSpec("a", ("gpu0",), need=60, residual=10)
    b = TenantSpec("b", ("gpu1",), need=60, residual=10)
    w = TenantSpec("w", ("gpu0", "gpu1"), need=70, residual=5)
    return Spec((("gpu0", 100), ("gpu1", 100)), (a, b, w), 1)


def beside_a_wide_one() -> Spec:
    """A tenant of two devices, and one on the second of them."""
    spec = wide()
    return replace(spec, tenants=spec.tenants[1:])


def alone() -> Spec:
    """One tenant."""
    spec = pair(2)
    return replace(spec, tenants=spec.tenants[:1])


WORLDS: dict[str, tuple[Spec, Faults]] = {
    "two turns each": (pair(2), Faults(looks=1)),
    "room for both": (residents(), Faults(looks=1)),
    "a wide tenant": (wide(), Faults()),
    "the arbiter crashes": (pair(1), Faults(crashes=1, looks=1)),
    "a session breaks, a lease lapses": (pair(1), Faults(breaks=1, lapses=1, looks=1)),
    "a fault is escalated": (escalated(), Faults(breaks=1, lapses=1)),
    "a tenant dies": (pair(1), Faults(deaths=1)),
    "an agent begins anew": (pair(1), Faults(agent_crashes=1, failures=1)),
    "memory commands fail": (pair(1), Faults(failures=1, timeouts=1)),
    "a release that is none": (pair(1), Faults(cheats=1, breaks=1, looks=1)),
    "accounting lags": (pair(1), Faults(lags=1, timeouts=1)),
    "a stranger comes and leaves": (pair(1), Faults(strangers=2, looks=1)),
    "a device fails and comes back": (pair(1), Faults(breakdowns=2, looks=1)),
    "one of two devices fails": (beside_a_wide_one(), Faults(breakdowns=1, looks=1)),
    "a tenant of a failed device dies": (alone(), Faults(breakdowns=2, deaths=1, looks=1)),
    "a tenant intrudes": (asked(), Faults(intrusions=1, looks=1)),
    "a tenant at fault is frozen": (frozen(), Faults(crashes=1, cheats=1)),
    "a tenant cannot be frozen, or thawed": (tainted_and_frozen(), Faults(failures=1, cheats=1)),
    "one harvests": (harvested(), Faults()),
    "one harvests for too long": (overstayed(), Faults(timeouts=1)),
    "each has its priority": (ranked(), Faults()),
    "messages come again": (pair(1), Faults(echoes=1)),
    "waits are given up": (pair(2), Faults(cancels=1)),
    "each restores while the other parks": (mutual(), Faults()),
    "what is kept is too much for a third": (three(), Faults()),
    "overlapping, the arbiter crashes": (overlapping(), Faults(crashes=1)),
    "overlapping, a session breaks": (overlapping(), Faults(breaks=1)),
    "overlapping, an agent begins anew": (overlapping(), Faults(agent_crashes=1)),
    "overlapping, a memory command fails": (overlapping(), Faults(failures=1)),
    "overlapping, a release that is none": (overlapping(), Faults(cheats=1)),
    "overlapping, a tenant intrudes": (overlapping(), Faults(intrusions=1)),
    "overlapping, messages come again": (overlapping(), Faults(echoes=1)),
    "overlapping, a stranger comes": (overlapping(), Faults(strangers=1)),
    "overlapping, accounting lags": (overlapping(), Faults(lags=1)),
    "overlapping, a wait is given up": (overlapping(), Faults(cancels=1)),
    "a pod's memory is short": (cramped(2), Faults(crowds=2)),
}

BEGUN: dict[str, tuple[Spec, tuple[str, ...], Faults]] = {
    "two have turns, a wide one waits, the arbiter crashes": (
        wide(),
        ("a", "b"),
        Faults(crashes=1),
    ),
    "a wide one has its turn, two wait, a session breaks": (wide(), ("w",), Faults(breaks=1)),
    "one of three keeps some, a session breaks": (three(), ("a",), Faults(breaks=1)),
    "one of three has its turn, each its priority, the arbiter crashes": (
        ranked(),
        ("a",),
        Faults(crashes=1),
    ),
}
"""Three tenants, and who of them have turns at the beginning."""

UNRELIABLE: dict[str, tuple[Spec, Faults]] = {
    "a message is lost, and a session breaks": (pair(1), Faults(drops=1, breaks=1)),
    "a message overtakes another": (pair(2), Faults(overtakes=1)),
    "overlapping, a message is lost": (overlapping(), Faults(drops=1)),
    "overlapping, a message overtakes another": (overlapping(), Faults(overtakes=1)),
}
"""A stream that goes on without a message, or has them in another order, is none of gRPC's: nobody
is owed an answer in it, but nothing unsafe may come of it.
"""
