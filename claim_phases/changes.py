"""What one step changes in the node, and the effects that follow from each change.

Nothing here decides: `turns` does. Every change of phase goes through `Changes.move`, so the table
of `phases` has the last word.
"""

from dataclasses import dataclass

from claim_phases import jobs
from claim_phases.escalation import Step
from claim_phases.events import (
    Arm,
    Condition,
    ConditionKind,
    Discard,
    Effect,
    Freeze,
    Judged,
    Kill,
    Measure,
    PhaseChanged,
    RoomMade,
    Send,
    Tell,
    Thaw,
    Timer,
    TimerKind,
    Usage,
)
from claim_phases.messages import ArbiterMessage, Granted, Refused, Release, Room, TurnLost
from claim_phases.node import Node, Tenant
from claim_phases.phases import ASIDE, Phase, Signal, after

REREAD_FIRST_S = 0.001
REREAD_LAST_S = 0.05

KEEPING = ASIDE | {Phase.QUIESCING, Phase.RELEASING, Phase.VERIFYING, Phase.FAULTED}
"""The phases in which what a tenant may keep says something: who is late may still keep it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The admin's bounds, in seconds."""

    lease_s: float = 10.0  # a lost session may come back
    verify_s: float = 5.0  # the device's accounting may lag behind a release
    park_s: float = 60.0  # to quiesce, and again to release
    restore_s: float = 600.0  # from the grant to running; an engine starts in it
    blocked_s: float = 10.0  # a waiting tenant is refused when a fault lasts longer
    watch_s: float = 1.0  # between two looks for intruders, strangers and devices that fail
    gap_s: float = 2.0  # who harvests leaves those alone that want their turn sooner
    patience_s: float = 600.0  # nobody waits longer for the sake of a policy


class Changes:
    """The changes of one step after another; `effects` are those of the step that is being made."""

    def __init__(self, node: Node, limits: Limits) -> None:
        self.node = node
        self.effects: list[Effect] = []
        self._limits = limits
        self._now = 0.0

    def begin(self, now: float) -> None:
        """A step begins, at CLOCK_MONOTONIC `now`."""
        self.node.seq += 1
        jobs.count(self.node, now)
        self._now = now
        self.effects = []

    # -- phases ---------------------------------------------------------------------------------

    def move(self, tenant: Tenant, signal: Signal, weights: int | None = None) -> None:
        """Change the phase as the table says; readings from before are of no use from here on."""
        before, tenant.phase = tenant.phase, after(tenant.phase, signal)
        tenant.since = self.node.seq
        tenant.attempts = 0
        tenant.overdue = False
        if tenant.phase is not Phase.WAITING:
            tenant.ahead = 0
        if tenant.gone or tenant.phase not in KEEPING or signal in (Signal.HELD, Signal.INTRUDE):
            tenant.kept = 0
        if not {before, tenant.phase} <= ASIDE:  # else no memory moves
            for name in tenant.who.devices:
                self.node.devices[name].changed = self.node.seq
        ended = tenant.gone and signal is Signal.FREE
        phase = None if ended else tenant.phase
        change = PhaseChanged(tenant.name, before, phase, tenant.epoch, tenant.who.devices, weights)
        self.effects.append(Tell(self._now, change))
        if tenant.kept and tenant.aside:
            self._tell_room(tenant)
        self.arm_phase(tenant)

    def grant(self, tenant: Tenant, signal: Signal) -> None:
        """Begin a turn, under a new epoch."""
        self.node.queue.remove(tenant.name)
        self.node.epoch += 1
        tenant.epoch = self.node.epoch
        tenant.parked = False
        tenant.ran = True
        tenant.fault = ""
        tenant.faulty, tenant.refused, tenant.steps = 0, 0, ()
        tenant.back_at = tenant.wanted_at = 0.0
        jobs.begins(self.node, tenant)
        self.move(tenant, signal)
        if tenant.frozen is not None:
            tenant.unasked = tenant.epoch
            self.thaw(tenant)
        self.send(tenant, Granted(tenant.epoch, tenant.request))

    def await_session(self, tenant: Tenant) -> None:
        """Bound the time that a tenant may be without a session, from now on."""
        tenant.lost = self.node.seq
        self.arm(TimerKind.LEASE, tenant.name, tenant.lost, self.lease_s(tenant))

    def lease_s(self, tenant: Tenant) -> float:
        """The time that a tenant may be without a session."""
        own = tenant.who.objectives.lease_s
        return self._limits.lease_s if own is None else own

    def make_room(self, tenant: Tenant, size: int) -> None:
        """Let a waiting tenant restore so much ahead of its turn. An epoch fences that."""
        if not tenant.ahead:
            self.node.epoch += 1
            tenant.epoch = self.node.epoch
        tenant.ahead, tenant.parked, tenant.ran = size, False, True
        self._tell_room(tenant)
        self.send(tenant, Room(tenant.epoch, size))

    def _tell_room(self, tenant: Tenant) -> None:
        made = RoomMade(tenant.name, tenant.epoch, tenant.beyond, tenant.who.devices)
        self.effects.append(Tell(self._now, made))

    def displace(self, tenant: Tenant, keep: int = 0) -> None:
        """Tell a tenant to release all but `keep` bytes on each device, beside its residual budget.

        Of the release before this one its newest epoch says something already: an epoch fences it.
        """
        if tenant.aside and not tenant.ahead:
            self.node.epoch += 1
            tenant.epoch, tenant.parked = self.node.epoch, False
        self.move(tenant, Signal.DISPLACE)
        tenant.kept = keep
        self.release(tenant)

    def release(self, tenant: Tenant) -> None:
        """Say so (again) to one that is to release."""
        waiting = [other for other in self.node.beside(tenant) if other.name in self.node.queue]
        pieces = any(other.pieces for other in waiting)
        self.send(tenant, Release(tenant.epoch, pieces, tenant.kept))

    def released(self, tenant: Tenant, kept: int) -> None:
        """By its own word the tenant has parked, all but so many bytes on each device."""
        tenant.kept = min(tenant.kept, kept)
        if tenant.phase is Phase.QUIESCING:
            self.move(tenant, Signal.QUIESCED)
        tenant.parked = True
        self.move(tenant, Signal.RELEASED)

    def free(self, tenant: Tenant) -> None:
        """The tenant's memory is measured to be back."""
        tenant.fault = ""
        tenant.faulty, tenant.steps = 0, ()
        if tenant.frozen is None:
            tenant.rung = 0  # else it has not left by itself, and the ladder goes on from here
        self.move(tenant, Signal.FREE)
        if tenant.gone:
            del self.node.tenants[tenant.name]
            jobs.forget(self.node, tenant.job)
        elif tenant.name in self.node.queue:
            self.move(tenant, Signal.ACQUIRE)

    def take(self, tenant: Tenant, signal: Signal, reason: str) -> None:
        """Take a turn away; a tenant that cannot be told now learns it when it next speaks."""
        tenant.taken, tenant.taken_why = tenant.epoch, reason
        self.fault(tenant, signal, reason)
        self.send(tenant, TurnLost(tenant.epoch, reason))

    def oust(self, tenant: Tenant, reason: str) -> None:
        """Take a turn away from one that may still park in time: that is no fault yet."""
        tenant.taken, tenant.taken_why = tenant.epoch, reason
        self.tell(
            ConditionKind.OVERSTAYED, f"{tenant.name} (epoch {tenant.epoch}): {reason}", tenant.name
        )
        self.move(tenant, Signal.LAPSE)
        self.send(tenant, TurnLost(tenant.epoch, reason))
        self.displace(tenant)

    def fault(
        self,
        tenant: Tenant,
        signal: Signal,
        reason: str,
        device: str | None = None,
        size: int | None = None,
        kind: ConditionKind = ConditionKind.FAULTED,
    ) -> None:
        """Something is wrong with a tenant: it counts as holding until its memory is back."""
        tenant.fault = reason
        self.move(tenant, signal)
        if not tenant.faulty:
            tenant.faulty = self.node.seq
            self.arm_ladder(tenant)
        self.tell(
            kind, f"{tenant.name} (epoch {tenant.epoch}): {reason}", tenant.name, device, size
        )

    # -- the queue ------------------------------------------------------------------------------

    def enqueue(self, tenant: Tenant) -> None:
        """Let the tenant wait; one that has no turn to leave first is Waiting from now on."""
        if tenant.name not in self.node.queue:
            jobs.asks(self.node, tenant)
            self.node.queue.append(tenant.name)
            tenant.asked = 0
        if tenant.phase is Phase.PARKED:
            self.move(tenant, Signal.ACQUIRE)

    def dequeue(self, tenant: Tenant) -> None:
        """Let the tenant wait no longer."""
        self.node.queue.remove(tenant.name)
        tenant.blocked = 0
        if tenant.ahead:
            self.displace(tenant)
        elif tenant.phase is Phase.WAITING:
            self.move(tenant, Signal.CANCEL)

    def refuse(self, tenant: Tenant, reason: str, holder: str = "") -> None:
        """Answer the tenant's acquire with the reason why there is no turn."""
        if tenant.name in self.node.queue:
            self.dequeue(tenant)
        self.tell(ConditionKind.REFUSED, f"{tenant.name} gets no turn: {reason}", tenant.name)
        if tenant.request:  # one that is frozen did not ask
            self.send(tenant, Refused(tenant.request, reason, holder))

    # -- effects --------------------------------------------------------------------------------

    def send(self, tenant: Tenant, message: ArbiterMessage) -> None:
        """Send to a connected tenant; for others the next hello makes up for it."""
        if tenant.connected:
            self.effects.append(Send(tenant.name, message))

    def refuse_session(self, name: str, reason: str) -> None:
        """Refuse a session whose tenant may not be on record."""
        self.effects.append(Send(name, Refused(0, reason)))

    def measure(self, devices: tuple[str, ...], *, attribute: bool) -> None:
        """Have devices read after this step, and the host memory of who waits for a first turn."""
        waiting = (self.node.tenants[name] for name in self.node.queue)
        headrooms = tuple(
            tenant.name
            for tenant in waiting
            if tenant.unproven and set(tenant.who.devices) <= set(devices)
        )
        self.effects.append(Measure(devices, attribute, self.node.seq, headrooms))

    def measure_host(self, tenant: Tenant) -> None:
        """Have the tenant's host memory read after this step."""
        self.effects.append(Measure((), False, self.node.seq, (tenant.name,)))

    def reread(self, tenant: Tenant) -> None:
        """Have another look soon: the device's accounting may lag. 1 ms, doubling to 50 ms."""
        delay = min(REREAD_FIRST_S * 2 ** min(tenant.attempts, 16), REREAD_LAST_S)
        tenant.attempts += 1
        self.arm(TimerKind.REREAD, tenant.name, tenant.since, delay)

    def arm_phase(self, tenant: Tenant) -> None:
        """Bound the tenant's phase, where it has a deadline."""
        limits = {
            Phase.RESTORING: self._limits.restore_s,
            Phase.QUIESCING: self._limits.park_s,
            Phase.RELEASING: self._limits.park_s,
            Phase.VERIFYING: self._limits.verify_s,
        }
        if tenant.phase in limits:
            self.arm(TimerKind.PHASE, tenant.name, tenant.since, limits[tenant.phase])

    def arm_ladder(self, tenant: Tenant) -> None:
        """Have the next step taken when it is due."""
        if (rung := tenant.next_rung) is not None:
            self.arm(TimerKind.LADDER, tenant.name, tenant.faulty, rung.after_s)

    def freeze(self, tenant: Tenant) -> None:
        """Have the tenant's processes frozen."""
        self.effects.append(Freeze(tenant.name, tenant.who.devices))

    def thaw(self, tenant: Tenant) -> None:
        """Have them go on, with what they held: the tenant has the room for it."""
        tenant.thawing = tenant.who.incarnation
        self.effects.append(Thaw(tenant.name, tenant.who.devices))

    def discard(self, tenant: Tenant) -> None:
        """Have what is left of it ended: its life is over."""
        tenant.frozen = None
        self.effects.append(Discard(tenant.name, tenant.who.incarnation, tenant.who.devices))

    def kill(self, tenant: Tenant) -> None:
        """Have the tenant's processes killed."""
        self.effects.append(Kill(tenant.name, tenant.who.devices))

    def arm(self, kind: TimerKind, subject: str, mark: int, delay_s: float) -> None:
        """Run a timer."""
        self.effects.append(Arm(Timer(kind, subject, mark), delay_s))

    def judged(self, tenant: Tenant, usage: Usage, *, free: bool) -> None:
        """Tell people what was measured of a release."""
        total = self.node.devices[usage.device].total
        self.effects.append(
            Tell(self._now, Judged(tenant.name, usage.device, usage.used, total, free))
        )

    def tell(
        self,
        kind: ConditionKind,
        message: str,
        tenant: str | None = None,
        device: str | None = None,
        size: int | None = None,
        step: Step | None = None,
    ) -> None:
        """Tell people of a condition, in one sentence."""
        self.effects.append(Tell(self._now, Condition(kind, message, tenant, device, size, step)))
