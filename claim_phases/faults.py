"""What is done about a tenant at fault, step by step, until its memory is back.

The steps and their order are the admin's (`claim_phases.escalation`). Most of them others take; one
that is frozen is followed here until it goes on.
"""

from typing import assert_never

from claim_phases import verdicts
from claim_phases.changes import Changes
from claim_phases.escalation import Step
from claim_phases.events import ConditionKind, Frozen, Thawed
from claim_phases.judge import Judge
from claim_phases.node import Node, Tenant
from claim_phases.phases import Phase, Signal
from claim_phases.taints import EFFECTS
from claim_phases.verdicts import WHOLE


class Faults:
    """Decides within a step of the machine, as `Judge` does."""

    def __init__(self, node: Node, changes: Changes, judge: Judge) -> None:
        self._node = node
        self._do = changes
        self._judge = judge

    def escalate(self, tenant: Tenant) -> None:
        """The next step about a tenant that is at fault. Its memory alone ends it."""
        rung = tenant.next_rung
        if rung is None:
            return
        if self._node.failed(tenant):  # nobody can tell whether it has left: that is not its fault
            self._do.arm_ladder(tenant)
            return
        tenant.rung = min(tenant.rung + 1, len(tenant.who.ladder))
        if rung.step not in tenant.steps:
            tenant.steps = (*tenant.steps, rung.step)
        fault = tenant.fault
        match rung.step:
            case Step.ASK if tenant.frozen is not None:
                done = "it stands still"
            case Step.ASK if tenant.phase is Phase.FAULTED and tenant.connected:
                self._do.displace(tenant, tenant.kept)
                done = "it is told to release once more"
            case Step.ASK:
                done = (
                    "it has no session in which to ask it" if not tenant.connected else "it parks"
                )
            case Step.CHECKPOINT:
                self._do.freeze(tenant)
                done = "its processes are to be frozen, what they hold moved to the host"
            case Step.KILL:
                self._do.kill(tenant)
                done = "its processes are killed"
            case Step.EVICT:  # the record says it, to whoever evicts
                done = "its pod is to be evicted"
            case Step.TAINT_NO_SCHEDULE | Step.TAINT_NO_EXECUTE:  # to whoever publishes the devices
                devices = ", ".join(tenant.who.devices)
                done = f"a {EFFECTS[rung.step]} taint is to be set on {devices}"
            case _:
                assert_never(rung.step)
        message = f"{tenant.name} is at fault ({fault}): {done}"
        self._do.tell(ConditionKind.ESCALATED, message, tenant.name, step=rung.step)
        if rung.step is not Step.CHECKPOINT or tenant.next_rung is not rung:
            self._do.arm_ladder(tenant)  # to freeze is repeated when it was answered

    def frozen(self, event: Frozen) -> None:
        """It takes a while: the tenant may have left by itself meanwhile, and have a turn again."""
        tenant = self._node.tenants.get(event.tenant)
        if tenant is None or tenant.who.incarnation != event.incarnation:
            return
        again = tenant.next_rung
        if tenant.faulty and again is not None and again.step is Step.CHECKPOINT:
            self._do.arm_ladder(tenant)
        if tenant.gone:
            return
        if event.problem:
            if tenant.faulty:
                message = f"{tenant.name} could not be frozen: {event.problem}"
                self._do.tell(ConditionKind.ESCALATED, message, tenant.name)
            return
        known = tenant.frozen is not None
        tenant.frozen, tenant.thawing, tenant.ran = event.held, "", True
        if not known:
            message = f"{tenant.name} is frozen: what it held is on the host until its next turn"
            self._do.tell(ConditionKind.ESCALATED, message, tenant.name)
        if tenant.phase in WHOLE:
            self._do.thaw(tenant)
            return
        tenant.parked, tenant.ahead, tenant.kept = True, 0, 0
        self._left_frozen(tenant)

    def thawed(self, event: Thawed) -> None:
        """It goes on, or could not, and then it has no turn."""
        tenant = self._node.tenants.get(event.tenant)
        if tenant is None:
            return
        awaited = tenant.thawing == event.incarnation
        if awaited:
            tenant.thawing = ""
        elif tenant.frozen is None:  # else an arbiter that began anew found out how it stands
            return
        if tenant.gone or tenant.who.incarnation != event.incarnation:
            return
        if not event.problem:
            tenant.frozen = None
            message = f"{tenant.name} goes on, with what it held when it was frozen"
            self._do.tell(ConditionKind.CLEARED, message, tenant.name)
            if not tenant.connected:
                self._do.await_session(tenant)
            return
        if tenant.phase in WHOLE:
            self._do.take(tenant, Signal.LAPSE, f"it could not be thawed: {event.problem}")
        if event.later and awaited:
            self._left_frozen(tenant)

    def may_be_thawed(self, tenant: Tenant) -> bool:
        """It is frozen, and nothing stands in its way, or since it was refused something moved."""
        if tenant.frozen is None:
            return False
        changed = max(self._node.devices[name].changed for name in tenant.who.devices)
        return changed > tenant.refused and not verdicts.causes(self._node, tenant)

    def _left_frozen(self, tenant: Tenant) -> None:
        """What it was to release is on the host: as if it had said so itself."""
        if tenant.phase in (Phase.QUIESCING, Phase.RELEASING, Phase.FAULTED):
            self._do.released(tenant, kept=0)
            self._judge.look(tenant)
