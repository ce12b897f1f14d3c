"""Judges measurements: whose memory is back, who intrudes, what is foreign."""

from collections.abc import Mapping

from claim_phases import verdicts
from claim_phases.changes import Changes
from claim_phases.events import ConditionKind, Headroom, Measured, Unread, Usage
from claim_phases.messages import Warned
from claim_phases.node import Device, Node, Tenant
from claim_phases.phases import HOLDING, Phase, Signal
from claim_phases.residuals import Trend
from claim_phases.verdicts import mib

LOSING = HOLDING - {Phase.VERIFYING, Phase.FAULTED} | {Phase.YIELDED}
"""The phases in which a tenant has memory on its devices that it still needs."""


class Judge:
    """Keeps the readings of one step, those that no phase change has overtaken."""

    def __init__(self, node: Node, changes: Changes) -> None:
        self._node = node
        self._do = changes
        self._fresh: dict[str, Usage] = {}

    def forget(self) -> None:
        """A step begins: what was read in the one before counts no more."""
        self._fresh = {}

    def readings(self, tenant: Tenant) -> Mapping[str, Usage] | None:
        """This step's readings, where they cover all of the tenant's devices."""
        return self._fresh if self._fresh.keys() >= set(tenant.who.devices) else None

    def look(self, tenant: Tenant) -> None:
        """Measure for a release: by the sum where that can tell, else by owner.

        Devices that failed are looked at with the watch: the tenant is judged when all are back,
        or when its processes end.
        """
        if self._node.failed(tenant):
            return
        devices = [self._node.devices[name] for name in tenant.who.devices]
        by_owner = tenant.overdue or any(
            device.foreign or verdicts.allowed(self._node, device) is None for device in devices
        )
        self._do.measure(tenant.who.devices, attribute=by_owner)

    def measured(self, event: Measured) -> None:
        """Use what was read, unless a phase changed on the device since it was asked for."""
        for unread in event.unread:
            if self._counts(unread, event.asked):
                self._failed(self._node.devices[unread.device], unread.reason)
        self._fresh = {u.device: u for u in event.usages if self._counts(u, event.asked)}
        for name in self._fresh:
            self._answers(self._node.devices[name])
        attributed = {u.device: u for u in self._fresh.values() if u.tenants is not None}
        for usage in attributed.values():
            self._judge_device(self._node.devices[usage.device], usage)
        answered = {usage.device for usage in event.usages} | {u.device for u in event.unread}
        for tenant in list(self._node.tenants.values()):
            mine = set(tenant.who.devices)
            if tenant.phase is not Phase.VERIFYING:
                if here := mine & attributed.keys():
                    self._judge_bystander(tenant, attributed, whole=here == mine)
            elif self._fresh.keys() >= mine:
                self._judge_release(tenant)
            elif answered >= mine:
                self.look(tenant)  # a phase change overtook the answer
        for headroom in event.headrooms:
            self._judge_headroom(headroom, event.asked)

    def _counts(self, answer: Usage | Unread, asked: int) -> bool:
        device = self._node.devices.get(answer.device)
        return device is not None and asked >= device.changed

    def _failed(self, device: Device, reason: str) -> None:
        """What tenants have on a device that failed is lost, and nobody can say how much is free.

        Whoever has memory there is told, and counts as holding: nobody is granted the devices.
        """
        if device.failed:
            return
        device.failed, device.changed = reason, self._node.seq
        self._do.tell(
            ConditionKind.DEVICE_FAILED,
            f"{device.name} failed ({reason}): no turn is granted on it until it answers again",
            device=device.name,
        )
        lost = f"{device.name} failed ({reason}): what it held there is lost"
        for tenant in self._node.on(device.name):
            if tenant.phase in LOSING:
                self._do.take(tenant, Signal.LAPSE, lost)
            elif tenant.phase is Phase.VERIFYING and tenant.gone:
                self._do.free(tenant)
            elif tenant.ahead:
                self._do.refuse(tenant, lost)
            elif tenant.aside and tenant.kept:
                self._do.displace(tenant)

    def _answers(self, device: Device) -> None:
        if device.failed:
            device.failed = ""
            message = f"{device.name} answers again"
            self._do.tell(ConditionKind.CLEARED, message, device=device.name)

    def _judge_release(self, tenant: Tenant) -> None:
        """Is the memory of a tenant that says it released really back?

        Not while some of it is on its way there with a thaw, or may be.
        """
        if tenant.thawing:
            self._do.reread(tenant)
            return
        usages = [self._fresh[name] for name in tenant.who.devices]
        back = [verdicts.is_back(self._node, tenant, usage) for usage in usages]
        final = tenant.overdue and all(usage.tenants is not None for usage in usages)
        if not all(back) and not final:
            self._do.reread(tenant)
            return
        for usage, free in zip(usages, back, strict=True):
            self._do.judged(tenant, usage, free=free)
        over = verdicts.over_budget(tenant, self._fresh)
        if over is None:
            self._do.free(tenant)
            return
        name, held = over
        did = "its processes ended" if tenant.gone else "it said that it parked"
        reason = (
            f"{did}, and {mib(held)} of {name} are still its, where {mib(tenant.budget)} may be"
        )
        self._do.fault(tenant, Signal.HELD, reason, name, held)

    def _judge_bystander(self, tenant: Tenant, usages: Mapping[str, Usage], *, whole: bool) -> None:
        """An attributed reading tells intruders, and faulted tenants that have left after all.

        A turn that was taken is not over with that: its tenant may yet restore, and must say that
        it parked, or end.
        """
        over = verdicts.over_budget(tenant, usages)
        if tenant.aside and over is not None:
            name, held = over
            had_room = bool(tenant.beyond)
            reason = (
                f"it holds {mib(held)} of {name} without a turn, where {mib(tenant.budget)} may be"
            )
            self._do.fault(tenant, Signal.INTRUDE, reason, name, held, ConditionKind.INTRUDER)
            self._do.send(tenant, Warned(f"Intruder: {reason}"))
            if had_room:
                self._do.displace(tenant)
        elif not whole:
            return
        elif tenant.phase is Phase.FAULTED and over is None and (tenant.parked or tenant.gone):
            self._do.tell(ConditionKind.CLEARED, f"{tenant.name} has left its devices", tenant.name)
            self._do.free(tenant)
        elif tenant.aside and tenant.epoch > tenant.sampled and not tenant.ahead:
            self._sample(tenant, usages)

    def _sample(self, tenant: Tenant, usages: Mapping[str, Usage]) -> None:
        """The first attributed reading after a park says what the tenant keeps; does it grow?"""
        if tenant.frozen is not None:
            return
        tenant.sampled = tenant.epoch
        tenant.residuals = {
            name: tenant.residuals.get(name, Trend()).with_park(
                max(0, (usages[name].of(tenant.name) or 0) - tenant.kept)
            )
            for name in tenant.who.devices
        }
        if tenant.growing:
            return
        budget = tenant.residual
        grows = {name: trend.growth(budget) for name, trend in tenant.residuals.items()}
        found = [(growth.left, name, growth) for name, growth in grows.items() if growth]
        if not found:
            return
        tenant.growing = True
        left, name, growth = min(found)
        self._do.tell(
            ConditionKind.RESIDUAL_GROWING,
            f"{tenant.name} keeps more of {name} each time that it parks: from "
            f"{mib(growth.before)} to {mib(growth.now)} in {growth.parks} measured parks, its "
            f"residual budget is {mib(budget)}, and in about {left} more it passes that and is at "
            f"fault: restart it before then",
            tenant.name,
            name,
            growth.now,
        )

    def _judge_headroom(self, headroom: Headroom, asked: int) -> None:
        """Who waits for its first turn, and could not park again after it, waits in vain."""
        tenant = self._node.tenants.get(headroom.tenant)
        if tenant is None or tenant.phase is not Phase.WAITING or asked < tenant.since:
            return
        if tenant.unproven and (reason := verdicts.cannot_park(tenant, headroom)):
            self._do.tell(ConditionKind.NO_ROOM, f"{tenant.name}: {reason}", tenant.name)
            self._do.refuse(tenant, reason)

    def _judge_device(self, device: Device, usage: Usage) -> None:
        """What belongs to none of its tenants taints a device; they are not blamed for it."""
        excess = verdicts.excess(self._node, device, usage)
        device.early = excess.early
        if not excess.seen:
            # The sum and the owners are read one after the other: bytes of nobody mean something
            # only while no tenant's memory moves, and when a second reading finds them too.
            present = self._node.on(device.name)
            still = all(tenant.aside and not tenant.ahead for tenant in present)
            before, device.unseen = device.unseen, excess.size if still else 0
            if excess.size and not (still and before):
                return
        size = excess.held or excess.size
        if excess.size and excess.whose != device.whose:
            self._do.tell(
                ConditionKind.INTRUDER if excess.intruder else ConditionKind.FOREIGN_MEMORY,
                f"{mib(size)} of {device.name} belong to {excess.whose}: no turn is granted "
                f"on it until they are gone",
                excess.intruder or None,
                device.name,
                size,
            )
        elif device.foreign and not excess.size:
            message = f"{device.name} is free of foreign memory"
            self._do.tell(ConditionKind.CLEARED, message, device=device.name)
        device.foreign, device.whose = excess.size, excess.whose if excess.size else ""
