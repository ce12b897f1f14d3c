"""The checks can fail: each seeded fault of a machine is caught by a walk through a small world."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest

from claim_phases import turns, verdicts
from claim_phases.events import (
    Connected,
    Effect,
    Event,
    Gone,
    Headroom,
    Measured,
    Said,
    Unread,
    Usage,
)
from claim_phases.judge import Judge
from claim_phases.messages import Acquire, Cancel, Hello, Quiesced, Released
from claim_phases.node import Device, Membership, Node, Tenant
from claim_phases.phases import HOLDING, TURN, Phase, Signal
from claim_phases.tenancy import Act, Say, Tenancy
from claim_phases.turns import Turns
from tests.model.records import LIMITS, Spec, TenantSpec
from tests.model.walk import Faults, FoundViolation, walk
from tests.model.world import World, honest_tenancy
from tests.model.worlds import (
    apart,
    asked,
    cramped,
    escalated,
    frozen,
    harvested,
    overlapping,
    pair,
    ranked,
    residents,
    roomy,
    three,
    wide,
)


class Mutant(Turns):
    """A machine with one seeded fault."""

    def __init__(self, node: Node) -> None:
        super().__init__(node, LIMITS)


class NoFence(Mutant):
    """Takes every message for one of the present epoch."""

    def _said(self, event: Said) -> None:
        tenant = self.node.tenants.get(event.tenant)
        if tenant is not None and not isinstance(event.message, Hello | Acquire | Cancel):
            event = replace(event, message=replace(event.message, epoch=tenant.epoch))
        super()._said(event)


class GrantsUnmeasured(Mutant):
    """Grants where it should measure first."""

    def _ask(self, tenant: Tenant, *, attribute: bool) -> None:
        self._do.grant(tenant, Signal.GRANT)


class _OldReadings(Judge):
    def _counts(self, answer: Usage | Unread, asked: int) -> bool:
        return True


class UsesOldReadings(Mutant):
    """Uses a reading from before the last phase change."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._judge = _OldReadings(node, self._do)


class LapsedIsParked(Mutant):
    """Takes a holder that was not heard of for a lease for one that parked."""

    def _lease_over(self, tenant: Tenant) -> None:
        super()._lease_over(tenant)
        tenant.parked = True


class ForgetsEpochs(Mutant):
    """Counts on from the epochs of the present holders after a restart."""

    def _resumed(self) -> None:
        super()._resumed()
        held = [t.epoch for t in self.node.tenants.values() if t.phase in TURN]
        self.node.epoch = max(held, default=0)


class AnyDeath(Mutant):
    """Takes the end of a tenant's former life for the end of its present one."""

    def _gone(self, event: Gone) -> None:
        tenant = self.node.tenants.get(event.tenant)
        if tenant is not None:
            super()._gone(replace(event, incarnation=tenant.who.incarnation))


class SharesDevices(Mutant):
    """Lets a tenant resume while another has the turn on its device."""

    def _serve(self, tenant: Tenant) -> None:
        if tenant.phase is Phase.YIELDED and tenant.connected:
            self._do.grant(tenant, Signal.RESUME)
        else:
            super()._serve(tenant)


class BlamesTenants(Mutant):
    """Takes whatever is too much on a device for its tenants' memory."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._judge = _Blaming(node, self._do)


class _Blaming(Judge):
    def measured(self, event: Measured) -> None:
        usages = [
            replace(usage, tenants=tuple((t.name, usage.used) for t in self._node.on(usage.device)))
            if usage.foreign
            else usage
            for usage in event.usages
        ]
        super().measured(replace(event, usages=tuple(usages)))


class ForgetsRefusals(Mutant):
    """Takes a request that it answered for one whose answer was heard."""

    def _connected(self, event: Connected) -> None:
        tenant = self.node.tenants.get(event.who.tenant)
        if tenant is not None and tenant.request == event.hello.request:
            tenant.request += 1
        super()._connected(event)


class ForgetsWanted(Mutant):
    """Takes a holder that was told that others wait for one that heard it."""

    def _connected(self, event: Connected) -> None:
        tenant = self.node.tenants.get(event.who.tenant)
        told = tenant.told_wanted if tenant is not None else 0
        super()._connected(event)
        if tenant is not None:
            tenant.told_wanted = told

    def _ask_to_yield(self, holder: Tenant, waiting: Tenant) -> None:
        super()._ask_to_yield(holder, waiting)
        holder.told_wanted = holder.epoch


class ForgetsBlocked(Mutant):
    """Takes the timers of the arbiter before it for its own."""

    def _resumed(self) -> None:
        blocked = {name: tenant.blocked for name, tenant in self.node.tenants.items()}
        super()._resumed()
        for name, tenant in self.node.tenants.items():
            tenant.blocked = blocked[name]


class AlwaysMeasures(Mutant):
    """Measures for a waiting tenant at each step, whatever the step was about."""

    def _serve(self, tenant: Tenant) -> None:
        if tenant.phase is Phase.WAITING:
            tenant.asked = 0
        super()._serve(tenant)


class ForgetsQueue(Mutant):
    """Begins with an empty queue after a restart."""

    def _resumed(self) -> None:
        self.node.queue.clear()
        super()._resumed()


class LossIsDeath(Mutant):
    """Takes a session that broke for the end of the tenant's processes."""

    def _lost(self, name: str) -> None:
        tenant = self.node.tenants.get(name)
        if tenant is not None:
            self._end_of_life(tenant, then=None)


class TrustsReleases(Mutant):
    """Takes a tenant's word that it parked for a reading of its devices."""

    def _released(self, tenant: Tenant, kept: int = 0) -> None:
        self._do.released(tenant, kept)
        said = tuple(Usage(device, 0) for device in tenant.who.devices)
        self._judge.measured(Measured(self.node.seq, said))


class ServesWhoFits(Mutant):
    """Keeps no devices for the head of the queue."""

    def _schedule(self) -> None:
        for name in list(self.node.queue):
            self._serve(self.node.tenants[name])


def by_budgets(node: Node, device: Device, **_: object) -> int:
    """What all tenants of a device may keep, whatever they do."""
    return sum(tenant.budget for tenant in node.on(device.name))


class PassesOver(Mutant):
    """Does not count these phases as holding."""

    passed: frozenset[Phase]

    def step(self, event: Event, now: float) -> list[Effect]:
        with (
            patch.object(turns, "HOLDING", HOLDING - self.passed),
            patch.object(verdicts, "allowed", by_budgets),
        ):
            return super().step(event, now)


class PassesOverFaulted(PassesOver):
    """Takes the devices of a tenant at fault for free when they look so."""

    passed = frozenset({Phase.FAULTED})


class PassesOverLeaving(PassesOver):
    """Does not wait for a tenant that was told to release."""

    passed = frozenset({Phase.QUIESCING, Phase.RELEASING})


class GrantsTheOldEpoch(Mutant):
    """Grants each turn under the epoch of the one before."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        grant = self._do.grant

        def of_the_same_epoch(tenant: Tenant, signal: Signal) -> None:
            self.node.epoch = max(0, self.node.epoch - (self.node.epoch > 1))
            grant(tenant, signal)

        self._do.grant = of_the_same_epoch  # type: ignore[method-assign]


class NeverSaysWanted(Mutant):
    """Tells no holder that somebody waits."""

    def _ask_to_yield(self, holder: Tenant, waiting: Tenant) -> None:
        pass


class GrantsOnce(Mutant):
    """Does not say again what a session that broke may not have heard."""

    def _reconcile(self, tenant: Tenant, hello: Hello) -> None:
        pass


class WaitsTwice(Mutant):
    """Puts a tenant that asks again behind itself."""

    def _acquire(self, tenant: Tenant, request: int, caller: str) -> None:
        waits = tenant.name in self.node.queue
        super()._acquire(tenant, request, caller)
        if waits and tenant.name in self.node.queue:
            self.node.queue.append(tenant.name)


class ServesTheDead(Mutant):
    """Leaves a tenant that ended in the queue."""

    def _end_of_life(self, tenant: Tenant, then: Membership | None) -> None:
        queue = list(self.node.queue)
        super()._end_of_life(tenant, then)
        self.node.queue[:] = queue


class LetsThemWait(Mutant):
    """Refuses nobody who waits behind a fault."""

    def _refuse_blocked(self, tenant: Tenant) -> None:
        pass


class HasNoDeadlines(Mutant):
    """Waits for ever for a tenant that does not leave."""

    def _overdue(self, tenant: Tenant) -> None:
        pass


class SeesNoIntruders(Mutant):
    """Takes what tenants hold without a turn for nothing."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._judge = _Blind(node, self._do)


class _Blind(Judge):
    def _judge_bystander(self, tenant: Tenant, usages: Mapping[str, Usage], *, whole: bool) -> None:
        pass


class SeesNoStrangers(Mutant):
    """Takes what processes of no tenant hold for nothing."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._judge = _Trusting(node, self._do)


class _Trusting(Judge):
    def _judge_device(self, device: Device, usage: Usage) -> None:
        pass


class TakesUnreadForEmpty(Mutant):
    """Takes a device that could not be read for one that nobody uses."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._judge = _Hopeful(node, self._do)


class _Hopeful(Judge):
    def measured(self, event: Measured) -> None:
        empty = tuple(Usage(unread.device, 0) for unread in event.unread)
        super().measured(Measured(event.asked, (*event.usages, *empty)))


class KeepsTurnsOnFailedDevices(Mutant):
    """Notes that a device failed, and tells none of its tenants."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._judge = _Indifferent(node, self._do)


class _Indifferent(Judge):
    def _failed(self, device: Device, reason: str) -> None:
        device.failed, device.changed = reason, self._node.seq


class LostIsParked(Mutant):
    """Takes what a tenant held on a device that failed for gone."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._judge = _Forgetful(node, self._do)


class _Forgetful(Judge):
    def _failed(self, device: Device, reason: str) -> None:
        super()._failed(device, reason)
        for tenant in self._node.on(device.name):
            if tenant.phase is Phase.FAULTED:
                self._do.free(tenant)


class SamplesTurns(Mutant):
    """Takes what a tenant holds in its turn for what it keeps while parked."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._judge = _Eager(node, self._do)


class _Eager(Judge):
    def _judge_bystander(self, tenant: Tenant, usages: Mapping[str, Usage], *, whole: bool) -> None:
        super()._judge_bystander(tenant, usages, whole=whole)
        self._sample(tenant, usages)


class IgnoresPolicies(Mutant):
    """Serves in the order of asking."""

    def _order(self) -> list[str]:
        return list(self.node.queue)


class IgnoresRoom(Mutant):
    """Grants without a look at what is in use."""

    def _grant_into_room(
        self,
        tenant: Tenant,
        residents: list[Tenant],
        keepers: list[Tenant],
        usages: Mapping[str, Usage],
    ) -> None:
        self._do.grant(tenant, Signal.GRANT)


class SeesRoomEverywhere(Mutant):
    """Takes only what runs for what needs room."""

    def step(self, event: Event, now: float) -> list[Effect]:
        with patch.object(verdicts, "room_ahead", self._room_ahead):
            return super().step(event, now)

    @staticmethod
    def _room_ahead(_: Node, tenant: Tenant, __: object) -> int:
        return (tenant.who.need or 0) - tenant.residual


class JudgesBySum(Mutant):
    """Asks how much is in use and not whose it is, also where one restores ahead."""

    def _ask(self, tenant: Tenant, *, attribute: bool) -> None:
        super()._ask(tenant, attribute=attribute and not tenant.ahead)

    def _grant_into_room(
        self,
        tenant: Tenant,
        residents: list[Tenant],
        keepers: list[Tenant],
        usages: Mapping[str, Usage],
    ) -> None:
        if all(
            usage.used <= by_budgets(self.node, self.node.devices[name])
            for name, usage in usages.items()
        ):
            self._do.grant(tenant, Signal.GRANT)

    def step(self, event: Event, now: float) -> list[Effect]:
        with patch.object(verdicts, "allowed", by_budgets):
            return super().step(event, now)


class TakesKeptForParked(Mutant):
    """Grants beside one that kept some as if that were not there."""

    def _grant_into_room(
        self,
        tenant: Tenant,
        residents: list[Tenant],
        keepers: list[Tenant],
        usages: Mapping[str, Usage],
    ) -> None:
        if keepers:
            self._do.grant(tenant, Signal.GRANT)
        else:
            super()._grant_into_room(tenant, residents, keepers, usages)

    def _make_way(self, tenant: Tenant, residents: list[Tenant], _: list[Tenant]) -> bool:
        return super()._make_way(tenant, residents, [])


class ForgetsAhead(Mutant):
    """Lets one that gives up its wait keep what it restored ahead."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        dequeue = self._do.dequeue

        def without_a_release(tenant: Tenant) -> None:
            tenant.ahead = 0
            dequeue(tenant)

        self._do.dequeue = without_a_release  # type: ignore[method-assign]


class IgnoresTheHost(Mutant):
    """Grants without room on the host: whether a tenant could park again is nobody's business."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._judge = _BlindToHosts(node, self._do)


class _BlindToHosts(Judge):
    def _judge_headroom(self, headroom: Headroom, asked: int) -> None:
        pass


class TakesLivesForOne(Mutant):
    """Takes what was seen of a tenant's former life for true of its next."""

    def _end_of_life(self, tenant: Tenant, then: Membership | None) -> None:
        ran = tenant.ran
        super()._end_of_life(tenant, then)
        tenant.ran = ran


class CountsParkedTwice(Mutant):
    """Asks for room to park at each turn, as if nothing of the tenant were parked there."""

    def _acquire(self, tenant: Tenant, request: int, caller: str) -> None:
        tenant.ran = False
        super()._acquire(tenant, request, caller)


class KeepsLossesToItself(Mutant):
    """Does not say to a tenant that its turn was taken."""

    def _lease_over(self, tenant: Tenant) -> None:
        super()._lease_over(tenant)
        tenant.taken = 0

    def _reconcile(self, tenant: Tenant, hello: Hello) -> None:
        if tenant.phase is not Phase.FAULTED:
            super()._reconcile(tenant, hello)


class KeepsSteps(Mutant):
    """Takes the steps about a fault that is over for steps about its tenant."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        free = self._do.free

        def keeping(tenant: Tenant) -> None:
            kept = tenant.faulty, tenant.rung, tenant.steps
            free(tenant)
            tenant.faulty, tenant.rung, tenant.steps = kept

        self._do.free = keeping  # type: ignore[method-assign]


class TakesGrantsTwice(Tenancy):
    """Takes a grant that is said again for a new turn."""

    def _granted(self, epoch: int) -> list[Act]:
        if epoch == self.epoch and self.phase not in (Phase.RESTORING, Phase.RUNNING):
            self.epoch -= 1
        return super()._granted(epoch)


class ThawsAtOnce(Mutant):
    """Lets a tenant that is frozen go on when it is in the queue, whoever has its device."""

    def _serve(self, tenant: Tenant) -> None:
        if tenant.frozen is not None and tenant.phase is Phase.WAITING:
            self._do.grant(tenant, Signal.GRANT)
        else:
            super()._serve(tenant)


class ForgetsTheFrozen(Mutant):
    """Waits for who stands still to ask."""

    def _watch(self) -> None:
        with patch.object(self._do, "enqueue"):
            super()._watch()


class BelievesItself(Tenancy):
    """Parks nothing where it knows of nothing that is there."""

    def _park(self, pieces: bool = False, keep: int = 0) -> list[Act]:
        if not self._held:
            return [Say(Quiesced(self.epoch)), Say(Released(self.epoch))]
        return super()._park(pieces, keep)


@dataclass(frozen=True)
class Seeded:
    """A seeded fault, the world in which it is caught, and as what."""

    caught: str
    spec: Spec
    faults: Faults
    machine: type[Mutant] | None = None
    tenancy: Callable[[TenantSpec], Tenancy] = honest_tenancy
    sends_first: bool = False

    def world(self) -> World:
        """A world with this fault in it."""
        world = World(self.spec)
        if self.machine is not None:
            world = World(self.spec, self.machine, self.tenancy, self.sends_first)
        return world


def made_by(kind: type[Tenancy]) -> Callable[[TenantSpec], Tenancy]:
    """Tenants with this machine."""
    return lambda spec: kind(spec.name, pieces=spec.pieces)


SEEDED = {
    "no fence": Seeded(
        "no message of an older epoch changes anything", pair(2), Faults(echoes=1), NoFence
    ),
    "grants unmeasured": Seeded(
        "a was granted without a measurement", pair(1), Faults(), GrantsUnmeasured
    ),
    "uses old readings": Seeded(
        "b was granted where 60 of gpu0 are in use and 15 allowed",
        pair(1),
        Faults(cheats=1),
        UsesOldReadings,
    ),
    "a lapsed holder is parked": Seeded(
        "a is Parked and holds 60", pair(1), Faults(breaks=1, lapses=1, looks=1), LapsedIsParked
    ),
    "stores after sending": Seeded(
        "epochs strictly grow", pair(1), Faults(crashes=1), Mutant, sends_first=True
    ),
    "forgets epochs": Seeded("stored 1", pair(1), Faults(crashes=1), ForgetsEpochs),
    "any death": Seeded(
        "each believe to have the turn on gpu0", pair(1), Faults(deaths=1), AnyDeath
    ),
    "harvests first": Seeded("which came first", harvested(), Faults(), IgnoresPolicies),
    "ignores priority": Seeded("which came first", ranked(), Faults(), IgnoresPolicies),
    "shares devices": Seeded("have turns on gpu0", residents(), Faults(), SharesDevices),
    "blames tenants": Seeded(
        "blamed for what others hold", pair(1), Faults(strangers=1), BlamesTenants
    ),
    "forgets refusals": Seeded("stuck", pair(1), Faults(cheats=1, breaks=1), ForgetsRefusals),
    "forgets wanted": Seeded("stuck", pair(1), Faults(breaks=1), ForgetsWanted),
    "forgets blocked": Seeded("stuck", pair(1), Faults(strangers=1, crashes=1), ForgetsBlocked),
    "always measures": Seeded(
        "nothing loops for ever", apart(), Faults(strangers=2), AlwaysMeasures
    ),
    "takes grants twice": Seeded(
        "a is Parked and holds 60", pair(2), Faults(echoes=1), Mutant, made_by(TakesGrantsTwice)
    ),
    "forgets the queue": Seeded(
        "a waits outside of the queue", pair(1), Faults(crashes=1), ForgetsQueue
    ),
    "a loss is a death": Seeded(
        "this node's journal knows none after 0 for it", pair(1), Faults(breaks=1), LossIsDeath
    ),
    "trusts releases": Seeded(
        "b was granted without a measurement", pair(1), Faults(cheats=1), TrustsReleases
    ),
    "serves who fits": Seeded("b was granted before w", wide(), Faults(), ServesWhoFits),
    "passes over the faulted": Seeded(
        "b was granted beside a, Faulted", pair(1), Faults(breaks=1, lapses=1), PassesOverFaulted
    ),
    "passes over the leaving": Seeded(
        "b was granted beside a, Releasing", pair(1), Faults(), PassesOverLeaving
    ),
    "grants the old epoch": Seeded("epochs strictly grow", pair(2), Faults(), GrantsTheOldEpoch),
    "never says wanted": Seeded("stuck", pair(1), Faults(), NeverSaysWanted),
    "grants once": Seeded("stuck", pair(1), Faults(breaks=1), GrantsOnce),
    "waits twice": Seeded("twice in the queue", pair(2), Faults(cancels=1, breaks=1), WaitsTwice),
    "serves the dead": Seeded("b is in the queue and", pair(1), Faults(deaths=1), ServesTheDead),
    "lets them wait": Seeded("stuck", pair(1), Faults(cheats=1), LetsThemWait),
    "has no deadlines": Seeded("stuck", pair(1), Faults(cheats=1), HasNoDeadlines),
    "sees no intruders": Seeded("stuck", pair(1), Faults(intrusions=1), SeesNoIntruders),
    "sees no strangers": Seeded("stuck", pair(1), Faults(strangers=1), SeesNoStrangers),
    "takes the unread for empty": Seeded(
        "a was granted gpu0, which could not be measured",
        pair(1),
        Faults(breakdowns=1),
        TakesUnreadForEmpty,
    ),
    "keeps turns on failed devices": Seeded(
        "on a device that failed", pair(1), Faults(breakdowns=1, looks=1), KeepsTurnsOnFailedDevices
    ),
    "the lost is parked": Seeded(
        "a is Parked and holds 60", pair(1), Faults(breakdowns=1, looks=1), LostIsParked
    ),
    "samples turns": Seeded("a kept (60,), says its trend", pair(1), Faults(looks=1), SamplesTurns),
    "ignores room": Seeded(
        "a was granted where 60 of gpu0 are in use", pair(1), Faults(strangers=1), IgnoresRoom
    ),
    "sees room everywhere": Seeded(
        "b has room for some of its memory, and there is none",
        overlapping(),
        Faults(),
        SeesRoomEverywhere,
    ),
    "takes what is kept for parked": Seeded(
        "c has its turn, and there is none on gpu0", three(), Faults(), TakesKeptForParked
    ),
    "judges by the sum": Seeded(
        "b was granted where 30 of gpu0 are in use", roomy(), Faults(cheats=1), JudgesBySum
    ),
    "forgets what was restored ahead": Seeded(
        "b is Parked and holds", overlapping(), Faults(cancels=1), ForgetsAhead
    ),
    "ignores the host": Seeded(
        "a was granted its first turn, and could not park again",
        cramped(1),
        Faults(crowds=1),
        IgnoresTheHost,
    ),
    "takes lives for one": Seeded(
        "a was granted its first turn, and could not park again",
        cramped(2),
        Faults(crowds=1, deaths=1),
        TakesLivesForOne,
    ),
    "counts the parked twice": Seeded(
        "a could park, and is refused", cramped(2), Faults(), CountsParkedTwice
    ),
    "keeps losses to itself": Seeded(
        "a yields a turn that was taken, and is not told",
        pair(1),
        Faults(breaks=1, lapses=1),
        KeepsLossesToItself,
    ),
    "believes itself": Seeded(
        "a says that it parked, and did not try to",
        asked(),
        Faults(intrusions=1, looks=1),
        Mutant,
        made_by(BelievesItself),
    ),
    "thaws at once": Seeded(
        "a was granted without a measurement", frozen(), Faults(cheats=1), ThawsAtOnce
    ),
    "forgets the frozen": Seeded("stuck", frozen(), Faults(cheats=1), ForgetsTheFrozen),
    "keeps steps": Seeded(
        "gpu0 is tainted, and no tenant of it is at fault",
        escalated(),
        Faults(breaks=1, lapses=1),
        KeepsSteps,
    ),
}


def catch(seeded: Seeded) -> str:
    """Walk until the fault shows; return how it did."""
    try:
        walked = walk(seeded.world(), seeded.faults)
    except FoundViolation as found:
        return str(found)
    return (
        f"stuck:\n  {walked.stuck[0]}" if walked.stuck else f"not caught in {walked.states} states"
    )


def test_the_list_is_long_enough() -> None:
    """So many ways to get it wrong are known to be seen."""
    assert len(SEEDED) >= 30


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_fault_is_caught(name: str) -> None:
    """What a mutant does wrong is seen, and named."""
    assert SEEDED[name].caught in catch(SEEDED[name])
