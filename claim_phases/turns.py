"""The node's machine of turns: who has which devices, who waits, who must leave, who is at fault.

Pure: `step(event, now)` takes what happened and returns what to do. The arbiter stores the node
before it carries out any `Send`. Every decision to grant rests on a measurement taken after the
last phase change on each device concerned.
"""

from collections.abc import Mapping
from typing import assert_never

from claim_phases import jobs, policies, verdicts
from claim_phases.changes import Changes, Limits
from claim_phases.escalation import Step
from claim_phases.events import (
    ConditionKind,
    Connected,
    Effect,
    Event,
    Fired,
    Frozen,
    Gone,
    Lost,
    Measured,
    Resumed,
    Said,
    Thawed,
    Timer,
    TimerKind,
    Usage,
)
from claim_phases.faults import Faults
from claim_phases.judge import Judge
from claim_phases.messages import (
    Acquire,
    Cancel,
    Failed,
    Freed,
    Granted,
    Hello,
    Noted,
    Quiesced,
    Released,
    Restored,
    TurnLost,
    Wanted,
    Welcome,
    Yield,
)
from claim_phases.node import Membership, Node, Tenant
from claim_phases.phases import ASIDE, HOLDING, TURN, Phase, Signal
from claim_phases.verdicts import mib

__all__ = ["Limits", "Turns"]

HINT_MAX_S = 1e6
FREED_MAX = 64
"""Words that some of its memory is parked which lead to a measurement, in one release."""


class Turns:
    """One node's arbiter of turns, without IO."""

    def __init__(self, node: Node, limits: Limits) -> None:
        self.node = node
        self._limits = limits
        self._do = Changes(node, limits)
        self._judge = Judge(node, self._do)
        self._faults = Faults(node, self._do, self._judge)

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take in one event at CLOCK_MONOTONIC `now`; return the effects in order."""
        self._do.begin(now)
        self._judge.forget()
        match event:
            case Connected():
                self._connected(event)
            case Said():
                self._said(event)
            case Lost():
                self._lost(event.tenant)
            case Gone():
                self._gone(event)
            case Measured():
                self._judge.measured(event)
            case Fired():
                self._fired(event.timer)
            case Resumed():
                self._resumed()
            case Frozen():
                self._faults.frozen(event)
            case Thawed():
                self._faults.thawed(event)
            case _:
                assert_never(event)
        self._schedule()
        self._note_yield(event)
        return self._do.effects

    # -- sessions -------------------------------------------------------------------------------

    def _connected(self, event: Connected) -> None:
        who, hello = event.who, event.hello
        tenant = self.node.tenants.get(who.tenant)
        known = tenant.epoch if tenant is not None else 0
        if hello.epoch > known:
            self._do.refuse_session(
                who.tenant,
                f"{who.tenant} speaks of epoch {hello.epoch}, and this node's journal knows none "
                f"after {known} for it: end its processes and start them again",
            )
            return
        if tenant is None:
            tenant = self.node.tenants[who.tenant] = Tenant(who, since=self.node.seq)
            for name in who.devices:  # what it holds there counts as its own from now on
                self.node.devices[name].early = 0
            if len(self.node.tenants) == 1:
                self._do.arm(TimerKind.WATCH, "", 0, self._limits.watch_s)
            self._make_way_for_residual(tenant)
        elif tenant.who.incarnation != who.incarnation:
            self._end_of_life(tenant, then=who)
            self._make_way_for_residual(tenant)
        elif tenant.gone:
            reason = f"the processes of {who.tenant} have ended: start them again"
            self._do.refuse_session(who.tenant, reason)
            return
        tenant.connected, tenant.pieces = True, hello.pieces
        if tenant.beyond and tenant.aside and not hello.ahead:  # it knows nothing of what it has
            tenant.parked = False
            self._do.move(tenant, Signal.DISPLACE)
        # What was sent or measured meanwhile is lost.
        tenant.asked = tenant.told_wanted = tenant.told_idle = 0
        self._do.send(tenant, Welcome(tenant.phase, tenant.epoch))
        self._reconcile(tenant, hello)
        if hello.request == 0 and tenant.name in self.node.queue and tenant.frozen is None:
            self._do.dequeue(tenant)
        elif hello.request >= max(tenant.request, 1) and tenant.phase not in TURN:
            # Also one that was refused: the refusal was not heard.
            self._acquire(tenant, hello.request, event.caller)

    def _reconcile(self, tenant: Tenant, hello: Hello) -> None:
        """Bring both records together after a gap: what was said and not heard, on either side."""
        knows = hello.epoch == tenant.epoch
        if tenant.taken and knows and tenant.taken == tenant.epoch and hello.phase not in ASIDE:
            self._do.send(tenant, TurnLost(tenant.taken, tenant.taken_why))
        match tenant.phase:
            case Phase.RESTORING | Phase.RUNNING if knows and hello.phase is Phase.FAULTED:
                self._restore_failed(tenant, "it said so when its session came back")
            case Phase.RESTORING if knows and hello.phase in (Phase.RUNNING, Phase.YIELDED):
                self._do.move(tenant, Signal.RESTORED)
                if hello.phase is Phase.YIELDED:
                    self._do.move(tenant, Signal.YIELD)
            case Phase.RUNNING if knows and hello.phase is Phase.YIELDED:
                self._do.move(tenant, Signal.YIELD)
            case Phase.RESTORING | Phase.RUNNING:
                if hello.phase not in TURN or not knows:
                    self._do.send(tenant, Granted(tenant.epoch, tenant.request))
            case Phase.QUIESCING | Phase.RELEASING | Phase.FAULTED if (
                knows and hello.phase in ASIDE and not (hello.ahead or tenant.parked)
            ):  # else it said so before it was asked for what the device shows all the same
                self._released(tenant)
            case Phase.QUIESCING | Phase.RELEASING:
                self._do.release(tenant)
            case Phase.FAULTED:
                self._do.displace(tenant, tenant.kept)
            case Phase.PARKED | Phase.WAITING | Phase.YIELDED | Phase.VERIFYING:
                pass
            case _:
                assert_never(tenant.phase)

    def _lost(self, name: str) -> None:
        tenant = self.node.tenants.get(name)
        if tenant is not None and tenant.connected:
            self._without_session(tenant)

    def _without_session(self, tenant: Tenant) -> None:
        tenant.connected = False
        self._do.await_session(tenant)

    def _lease_over(self, tenant: Tenant) -> None:
        if tenant.frozen is not None:
            return  # it cannot come back; the lease begins with its thaw
        restored_ahead = bool(tenant.ahead)
        if tenant.name in self.node.queue:
            self._do.dequeue(tenant)
        reason = "its session was lost for longer than the lease"
        if restored_ahead:
            self._do.fault(tenant, Signal.LAPSE, reason, kind=ConditionKind.SESSION_LOST)
            return
        if tenant.phase in (Phase.PARKED, Phase.VERIFYING, Phase.FAULTED):
            return
        lease_s = self._do.lease_s(tenant)
        self._do.tell(
            ConditionKind.SESSION_LOST,
            f"{tenant.name} lost its session for {lease_s:g} s while {tenant.phase} in epoch "
            f"{tenant.epoch}, and its processes live: its turn is taken",
            tenant.name,
        )
        self._do.take(tenant, Signal.LAPSE, reason)

    def _gone(self, event: Gone) -> None:
        tenant = self.node.tenants.get(event.tenant)
        if tenant is not None and tenant.who.incarnation == event.incarnation:
            self._end_of_life(tenant, then=None)

    def _end_of_life(self, tenant: Tenant, then: Membership | None) -> None:
        """All processes of the tenant ended; `then` is its next life, when that is here already."""
        tenant.connected = False
        tenant.gone = True
        if tenant.name in self.node.queue:
            self.node.queue.remove(tenant.name)
        tenant.faulty, tenant.rung, tenant.steps = 0, 0, ()
        if tenant.frozen is not None:
            self._do.discard(tenant)
        self._do.move(tenant, Signal.GONE)
        if then is not None:
            former = tenant.job
            tenant.who, tenant.gone, tenant.request, tenant.parked = then, False, 0, True
            tenant.ran = False
            tenant.sampled, tenant.growing, tenant.residuals = tenant.epoch, False, {}
            jobs.forget(self.node, former)
        if self.node.failed(tenant):
            self._do.free(tenant)  # the dead hold nothing; a grant measures all the same
        else:
            self._judge.look(tenant)

    def _resumed(self) -> None:
        for tenant in self.node.tenants.values():
            tenant.blocked = tenant.attempts = 0  # the timers that these count for are gone
            tenant.thawing = ""  # so is who thawed it
            self._without_session(tenant)
            self._do.arm_phase(tenant)
            if tenant.faulty:
                # The arbiter before may not have lived to do it.
                if Step.CHECKPOINT in tenant.steps:
                    self._do.freeze(tenant)
                if Step.KILL in tenant.steps:
                    self._do.kill(tenant)
                self._do.arm_ladder(tenant)
            if tenant.phase is Phase.VERIFYING:
                self._judge.look(tenant)
        self._do.arm(TimerKind.WATCH, "", 0, self._limits.watch_s)

    # -- what tenants say -----------------------------------------------------------------------

    def _said(self, event: Said) -> None:
        tenant = self.node.tenants.get(event.tenant)
        if tenant is None or not tenant.connected:
            return
        match event.message:
            case Hello():
                pass  # a session says it once, and `Connected` carries it
            case Acquire(request):
                if request > tenant.request:  # else it was said twice
                    self._acquire(tenant, request, event.caller)
            case Cancel(request):
                if request == tenant.request and tenant.name in self.node.queue:
                    self._do.dequeue(tenant)
            case Yield() | Quiesced() | Freed() | Released() | Restored() | Failed():
                if event.message.epoch == tenant.epoch:
                    self._reported(tenant, event.message)
                elif tenant.taken and event.message.epoch == tenant.taken:
                    self._do.send(tenant, TurnLost(tenant.taken, tenant.taken_why))
            case _:
                assert_never(event.message)

    def _reported(
        self, tenant: Tenant, message: Yield | Quiesced | Freed | Released | Restored | Failed
    ) -> None:
        """A report of the present epoch; where it does not fit the phase it came twice or late."""
        match message, tenant.phase:
            case Yield(_, next_s), Phase.RUNNING:
                hint = next_s is not None and 0.0 <= next_s <= HINT_MAX_S
                tenant.back_at = self.node.at + (next_s or 0.0) if hint else 0.0
                self._do.move(tenant, Signal.YIELD)
            case Restored(_, weights), Phase.RESTORING:
                self._do.move(tenant, Signal.RESTORED, weights)
            case ((Yield() | Restored()), _) if tenant.taken and tenant.taken == tenant.epoch:
                self._do.send(tenant, TurnLost(tenant.taken, tenant.taken_why))
            case Quiesced(), Phase.QUIESCING:
                self._do.move(tenant, Signal.QUIESCED)
            case Freed(), Phase.RELEASING if tenant.attempts < FREED_MAX:
                tenant.attempts += 1
                tenant.freed = self.node.seq
            case Released(_, kept), (Phase.QUIESCING | Phase.RELEASING | Phase.FAULTED):
                self._released(tenant, kept)
            case Failed(_, reason), (Phase.RESTORING | Phase.RUNNING):
                self._restore_failed(tenant, reason)
            case Failed(_, reason), (Phase.QUIESCING | Phase.RELEASING):
                self._do.fault(tenant, Signal.FAIL, f"it could not park: {reason}")
            case _:
                pass

    def _note_yield(self, event: Event) -> None:
        """Answer a yield, a late or repeated one too; being told to release is an answer as well.

        Only then may the tenant go on: what it asks others for must not reach the arbiter first.
        """
        match event:
            case Said(name, Yield(epoch)):
                tenant = self.node.tenants.get(name)
                if tenant is not None and (tenant.epoch, tenant.phase) != (epoch, Phase.QUIESCING):
                    self._do.send(tenant, Noted(epoch))
            case _:
                pass

    def _acquire(self, tenant: Tenant, request: int, caller: str) -> None:
        tenant.request, tenant.unasked = request, 0
        holder = self.node.tenants.get(caller)
        if (
            holder is not None
            and holder is not tenant
            and holder.phase in TURN
            and holder.unasked != holder.epoch  # it may yield at once
            and holder in self.node.beside(tenant)
        ):
            self._do.refuse(
                tenant,
                f"the request comes from {holder.name}, which holds the turn (epoch "
                f"{holder.epoch}) and would wait for itself: yield the turn around the request",
                holder.name,
            )
        elif tenant.phase in TURN:
            self._do.send(tenant, Granted(tenant.epoch, tenant.request))
        elif reason := verdicts.crowds_out(self.node, tenant):
            self._do.tell(ConditionKind.NO_ROOM, f"{tenant.name}: {reason}", tenant.name)
            self._do.refuse(tenant, reason)
        else:
            self._do.enqueue(tenant)

    def _released(self, tenant: Tenant, kept: int = 0) -> None:
        self._do.released(tenant, kept)
        self._judge.look(tenant)

    def _restore_failed(self, tenant: Tenant, reason: str) -> None:
        why = f"it could not restore: {reason}"
        self._do.fault(tenant, Signal.FAIL, why, kind=ConditionKind.RESTORE_FAILED)
        self._do.displace(tenant)

    # -- turns ----------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Serve the queue. Who cannot be served keeps its devices from those behind it."""
        reserved: set[str] = set()
        for name in self._order():
            tenant = self.node.tenants[name]
            self._bound_the_wait(tenant)
            if self.node.failed(tenant):
                continue  # it cannot be served, and keeps its other devices from nobody
            if self._must_be_proven(tenant):
                self._do.measure_host(tenant)  # and serve it with the answer
            elif not reserved & set(tenant.who.devices):
                self._serve(tenant)
            if name in self.node.queue:
                reserved |= set(tenant.who.devices)

    def _must_be_proven(self, tenant: Tenant) -> bool:
        """It has just begun to wait: nobody is to leave for a tenant that is refused then."""
        waits = tenant.phase is Phase.WAITING and tenant.connected
        return waits and tenant.unproven and tenant.since == self.node.seq

    def _order(self) -> list[str]:
        queue = [self.node.tenants[name] for name in self.node.queue]
        if len(queue) < 2:
            return [tenant.name for tenant in queue]
        waiting = [jobs.claimant(self.node, tenant) for tenant in queue]
        order = policies.order(waiting, self._limits.patience_s)
        return sorted(order, key=lambda name: not self.node.tenants[name].ahead)  # that is begun

    def _bound_the_wait(self, tenant: Tenant) -> None:
        if not verdicts.causes(self.node, tenant):
            tenant.blocked = 0
        elif not tenant.blocked:
            tenant.blocked = self.node.seq
            self._do.arm(TimerKind.BLOCKED, tenant.name, tenant.blocked, self._limits.blocked_s)

    def _serve(self, tenant: Tenant) -> None:
        if tenant.phase not in (Phase.WAITING, Phase.YIELDED):
            return
        if not tenant.connected and tenant.frozen is None:
            return
        others = self.node.beside(tenant)
        holders = [t for t in others if t.phase in HOLDING]
        for holder in holders:
            self._ask_to_yield(holder, tenant)
        devices = [self.node.devices[name] for name in tenant.who.devices]
        if any(device.foreign for device in devices):
            return
        if holders:
            may = tenant.pieces and not tenant.who.objectives.harvests and tenant.frozen is None
            if may and tenant.phase is Phase.WAITING:
                self._make_room_ahead(tenant, holders)
            return
        residents = [t for t in others if t.phase is Phase.YIELDED]
        keepers = [t for t in others if t.aside and t.kept]
        if tenant.who.objectives.harvests:
            fits = verdicts.fit(self.node, tenant, residents)
            if any(map(self._is_back_soon, residents if fits else residents + keepers)):
                return  # the node looks again at its next watch
        if self._make_way(tenant, residents, keepers):
            return
        if tenant.phase is Phase.YIELDED:
            self._do.grant(tenant, Signal.RESUME)
        elif (usages := self._judge.readings(tenant)) is not None:
            self._grant_into_room(tenant, residents, keepers, usages)
        elif not tenant.asked or tenant.asked < max(device.changed for device in devices):
            self._ask(tenant, attribute=tenant.overdue or bool(keepers or tenant.beyond))

    def _make_room_ahead(self, tenant: Tenant, holders: list[Tenant]) -> None:
        """While all that hold its devices give them back, it may restore into what is free."""
        if any(holder.phase not in (Phase.RELEASING, Phase.VERIFYING) for holder in holders):
            return
        usages = self._judge.readings(tenant)
        if usages is not None and all(usage.tenants is not None for usage in usages.values()):
            size = verdicts.room_ahead(self.node, tenant, usages)
            if size > tenant.beyond:
                self._do.make_room(tenant, size)
        if all(holder.phase is Phase.VERIFYING for holder in holders):
            return  # they are measured for already
        changed = [self.node.devices[name].changed for name in tenant.who.devices]
        newest = max(*changed, *(holder.freed for holder in holders))
        if not tenant.asked or tenant.asked < newest:
            self._ask(tenant, attribute=True)

    def _ask_to_yield(self, holder: Tenant, waiting: Tenant) -> None:
        if holder.phase is not Phase.RUNNING or not holder.connected:
            return
        if holder.told_wanted == holder.epoch:
            return
        first, second = jobs.claimant(self.node, waiting), jobs.claimant(self.node, holder)
        if policies.interrupts(first, second, self._limits.patience_s):
            holder.told_wanted = holder.epoch
            holder.wanted_at = holder.wanted_at or self.node.at
            self._do.send(holder, Wanted(holder.epoch))
            if (leave_s := holder.who.objectives.leave_s) is not None:
                left_s = max(0.0, holder.wanted_at + leave_s - self.node.at)
                self._do.arm(TimerKind.LEAVE, holder.name, holder.epoch, left_s)
        elif holder.told_idle < holder.epoch:
            holder.told_idle = holder.epoch
            self._do.send(holder, Wanted(holder.epoch, idle=True))

    def _is_back_soon(self, resident: Tenant) -> bool:
        """Whether it will want its turn sooner than a harvest is worth its parking."""
        return 0.0 <= resident.back_at - self.node.at < self._limits.gap_s

    def _make_way(self, tenant: Tenant, residents: list[Tenant], keepers: list[Tenant]) -> bool:
        """Whether somebody has to park: what the tenant needs of its memory, and no more.

        Who kept some before does so only if there is no room beside that either.
        """
        if not (residents or keepers) or verdicts.fit(self.node, tenant, residents):
            return False
        for resident in residents:
            self._do.displace(resident, verdicts.room_to_keep(self.node, resident, tenant))
        for keeper in keepers:
            room = verdicts.room_to_keep(self.node, keeper, tenant)
            if room < keeper.kept and not verdicts.fit(self.node, tenant, []):
                self._do.displace(keeper, room)
        return any(one.phase is Phase.QUIESCING for one in residents + keepers)

    def _make_way_for_residual(self, tenant: Tenant) -> None:
        """What one that has just come may keep, others have no use for no more."""
        for other in self.node.beside(tenant):
            room = verdicts.room_to_keep(self.node, other)
            if other.aside and not other.ahead and room < other.kept:
                self._do.displace(other, room)

    def _displace_all(self, residents: list[Tenant]) -> None:
        for resident in residents:
            self._do.displace(resident)

    def _ask(self, tenant: Tenant, *, attribute: bool) -> None:
        """Measure for a grant: once, and again after a phase change or when a re-read is due."""
        tenant.asked = self.node.seq
        self._do.measure(tenant.who.devices, attribute=attribute)

    def _grant_into_room(
        self,
        tenant: Tenant,
        residents: list[Tenant],
        keepers: list[Tenant],
        usages: Mapping[str, Usage],
    ) -> None:
        """Grant when every device is measured free and has the room; look again when not."""
        beyond = any(one.aside and one.beyond for one in (tenant, *self.node.beside(tenant)))
        if beyond and any(usage.tenants is None for usage in usages.values()):
            self._ask(tenant, attribute=True)
            return
        for name in tenant.who.devices:
            limit = verdicts.allowed(self.node, self.node.devices[name], grants_to=tenant)
            apart = verdicts.held_beyond(self.node, usages[name])
            if limit is None or usages[name].used - apart > limit:
                # One has outgrown its declared need; what is kept is not in the way at once.
                self._displace_all(residents + keepers if tenant.overdue else residents)
                self._occupied(tenant)
                return
        short = verdicts.short_of_room(self.node, tenant, usages)
        if short is None:
            self._do.grant(tenant, Signal.GRANT)
        elif short.tenants is None:
            self._ask(tenant, attribute=True)
        elif residents or keepers:
            self._displace_all(residents + keepers)
        else:
            total = self.node.devices[short.device].total
            tenant.refused = self.node.seq
            self._do.refuse(
                tenant,
                f"{tenant.name} needs {mib(tenant.takes)} of {short.device}, and of its "
                f"{mib(total)} only {mib(total - short.used)} are free when all others are parked: "
                f"lower its need or the residual budgets",
            )

    def _occupied(self, tenant: Tenant) -> None:
        if tenant.ahead and tenant.overdue:
            self._do.displace(tenant)  # what is in the way shows when its memory moves no more
            return
        self._do.reread(tenant)
        if tenant.attempts == 1:
            # What it still copies ahead is read in part: that may take as long as a restore.
            limit_s = self._limits.restore_s if tenant.ahead else self._limits.verify_s
            self._do.arm(TimerKind.VERDICT, tenant.name, tenant.since, limit_s)

    # -- timers ---------------------------------------------------------------------------------

    def _fired(self, timer: Timer) -> None:
        tenant = self.node.tenants.get(timer.subject)
        if timer.kind is TimerKind.WATCH:
            self._watch()
        elif tenant is not None:
            self._fired_for(tenant, timer)

    def _watch(self) -> None:
        """Look at all devices. Whose the memory is matters only where there are tenants, or some is
        foreign: that taints its device, and is to be seen to go."""
        foreign = any(device.foreign for device in self.node.devices.values())
        attribute = foreign or bool(self.node.tenants)
        for tenant in self.node.tenants.values():
            if tenant.phase is Phase.PARKED and self._faults.may_be_thawed(tenant):
                self._do.enqueue(tenant)  # it cannot ask, and goes on in a turn of its own
        self._do.measure(tuple(self.node.devices), attribute=attribute)
        self._do.arm(TimerKind.WATCH, "", 0, self._limits.watch_s)

    def _fired_for(self, tenant: Tenant, timer: Timer) -> None:
        if timer.mark != _mark(tenant, timer.kind):
            return  # overtaken by events
        match timer.kind:
            case TimerKind.LEASE:
                self._lease_over(tenant)
            case TimerKind.PHASE:
                self._overdue(tenant)
            case TimerKind.REREAD:
                self._look_again(tenant)
            case TimerKind.VERDICT:
                tenant.overdue = True
                self._look_again(tenant)
            case TimerKind.LADDER:
                self._faults.escalate(tenant)
            case TimerKind.LEAVE:
                self._overstayed(tenant)
            case TimerKind.BLOCKED:
                self._refuse_blocked(tenant)
            case TimerKind.WATCH:
                pass  # it is the node's
            case _:
                assert_never(timer.kind)

    def _look_again(self, tenant: Tenant) -> None:
        if tenant.phase is Phase.VERIFYING:
            self._judge.look(tenant)
        else:
            tenant.asked = 0  # its place in the queue decides whether it is measured for

    def _overdue(self, tenant: Tenant) -> None:
        match tenant.phase:
            case Phase.RESTORING:
                limit = self._limits.restore_s
                self._do.take(tenant, Signal.FAIL, f"it did not restore within {limit:g} s")
                self._do.displace(tenant)
            case Phase.QUIESCING | Phase.RELEASING:
                limit = self._limits.park_s
                self._do.fault(tenant, Signal.FAIL, f"it did not park within {limit:g} s")
            case Phase.VERIFYING:
                tenant.overdue = True
                self._judge.look(tenant)
                self._do.arm_phase(tenant)  # in case that no answer comes
            case _:
                pass

    def _overstayed(self, tenant: Tenant) -> None:
        """The turn is taken, if still somebody waits for it."""
        if tenant.phase is not Phase.RUNNING:
            return
        if not any(other.name in self.node.queue for other in self.node.beside(tenant)):
            tenant.told_wanted, tenant.wanted_at = 0, 0.0  # whoever comes next asks again
            return
        leave_s = tenant.who.objectives.leave_s
        self._do.oust(tenant, f"others waited, and it did not leave in {leave_s:g} s")

    def _refuse_blocked(self, tenant: Tenant) -> None:
        tenant.blocked = 0
        if tenant.name in self.node.queue and (reasons := verdicts.causes(self.node, tenant)):
            self._do.refuse(tenant, "; ".join(reasons))


def _mark(tenant: Tenant, kind: TimerKind) -> int | None:
    """What a timer of this kind counts for now."""
    match kind:
        case TimerKind.LEASE:
            return None if tenant.connected else tenant.lost
        case TimerKind.PHASE | TimerKind.REREAD | TimerKind.VERDICT:
            return tenant.since
        case TimerKind.BLOCKED:
            return tenant.blocked
        case TimerKind.LADDER:
            return tenant.faulty
        case TimerKind.LEAVE:
            return tenant.epoch if tenant.told_wanted == tenant.epoch else None
        case TimerKind.WATCH:
            return None
        case _:
            assert_never(kind)
