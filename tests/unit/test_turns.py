"""The node's machine of turns, in scenarios: what happened goes in, what to do comes out.

A `Scene` has the machine, the true bytes on its devices and a clock that stands until the scenario
moves it. After every step it checks that the journal's snapshot reads back as the same node, that
epochs only grow, and that no device has two turns.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from claim_phases.escalation import Rung, Step
from claim_phases.events import (
    Arm,
    Condition,
    ConditionKind,
    Connected,
    Discard,
    Effect,
    Event,
    Fired,
    Freeze,
    Gone,
    Headroom,
    Judged,
    Kill,
    Lost,
    Measure,
    Measured,
    PhaseChanged,
    Resumed,
    Said,
    Send,
    Tell,
    Thaw,
    Timer,
    TimerKind,
    Told,
    Unread,
    Usage,
)
from claim_phases.messages import (
    Acquire,
    ArbiterMessage,
    Cancel,
    Failed,
    Granted,
    Hello,
    Noted,
    Quiesced,
    Refused,
    Release,
    Released,
    Restored,
    TenantMessage,
    TurnLost,
    Wanted,
    Warned,
    Welcome,
    Yield,
)
from claim_phases.node import Device, Membership, Node, Tenant
from claim_phases.phases import TURN, Phase
from claim_phases.policies import Objectives
from claim_phases.taints import Reason, Taint, TaintEffect, tainted
from claim_phases.turns import Limits, Turns

MIB = 1 << 20
TOTAL = 100
STRANGER = "(a process of no tenant)"
NOBODY = "(no process that can be seen)"
LIMITS = Limits(park_s=20.0, restore_s=30.0)


def member(
    name: str, need: int | None, residual: int, devices: tuple[str, ...] = ("gpu0",)
) -> Membership:
    """A tenant, with its bytes in MiB."""
    size = None if need is None else need * MIB
    return Membership(name, name, f"{name}, life 1", devices, size, residual * MIB)


ROLLOUT = member("rollout", 80, 5)
TRAINER = member("trainer", 70, 3)


class Scene:
    """A node, and what its machine had it do."""

    def __init__(self, *members: Membership, baseline: int = 0) -> None:
        names = sorted({name for who in members for name in who.devices})
        devices = {name: Device(name, TOTAL * MIB, baseline * MIB) for name in names}
        self.node = Node("a-boot", devices)
        self.members = {who.tenant: who for who in members}
        self.held = {(name, STRANGER): baseline for name in names}  # MiB by device and owner
        self.broken: set[str] = set()
        self.now = 100.0
        self.asked: list[Measure] = []
        self.timers: dict[tuple[TimerKind, str], tuple[float, Timer]] = {}
        self.ending: set[str] = set()  # tenants of which a process has begun to end
        self.left: dict[str, int] = {}  # MiB of the host memory of tenants, where that is limited
        self.killed: list[str] = []
        self.frozen: list[str] = []
        self.thawed: list[str] = []
        self.discarded: list[str] = []
        self.rereads_ms: list[float] = []
        self.told: list[Told] = []
        self._sent: dict[str, list[ArbiterMessage]] = {}
        self._requests = 0
        self._newest = 0
        self._turns = Turns(self.node, LIMITS)

    def step(self, event: Event) -> list[Effect]:
        effects = self._turns.step(event, self.now)
        for effect in effects:
            match effect:
                case Send(name, message):
                    self._sent.setdefault(name, []).append(message)
                case Measure():
                    self.asked.append(effect)
                case Arm(timer, delay_s):
                    self.timers[timer.kind, timer.subject] = self.now + delay_s, timer
                    if timer.kind is TimerKind.REREAD:
                        self.rereads_ms.append(round(delay_s * 1000, 3))
                case Kill(name):
                    self.killed.append(name)
                case Freeze(name):
                    self.frozen.append(name)
                case Thaw(name):
                    self.thawed.append(name)
                case Discard(name):
                    self.discarded.append(name)
                case Tell(at, what):
                    assert at == self.now
                    self.told.append(what)
                    self._check_epoch(what)
        assert self.stored() == self.node
        for device in self.node.devices:
            assert sum(tenant.phase in TURN for tenant in self.node.on(device)) <= 1
        return effects

    def _check_epoch(self, what: Told) -> None:
        match what:
            case PhaseChanged(before=before, after=after, epoch=epoch):
                if after in TURN and before not in TURN:
                    assert epoch > self._newest
                    self._newest = epoch
            case _:
                pass

    def stored(self) -> Node:
        return Node.from_json(json.loads(json.dumps(self.node.to_json())))

    def restart(self) -> None:
        """The arbiter dies, and another begins with what is stored."""
        self.node = self.stored()
        self._turns = Turns(self.node, LIMITS)
        self.asked.clear()
        self.timers.clear()
        self.step(Resumed())

    # -- memory and time ------------------------------------------------------------------------

    def hold(self, owner: str, size: int, device: str = "gpu0") -> None:
        self.held[device, owner] = size

    def reading(self) -> Measured:
        """Read for the oldest open question, now; the scenario says when the machine hears it."""
        ask = self.asked.pop(0)
        limited = [name for name in ask.headrooms if name in self.left]
        sound = [device for device in ask.devices if device not in self.broken]
        return Measured(
            ask.asked,
            tuple(self._usage(device, ask.attribute) for device in sound),
            tuple(Unread(device, "XID 79") for device in ask.devices if device in self.broken),
            tuple(Headroom(name, self.left[name] * MIB, 512 * MIB) for name in limited),
        )

    def _usage(self, device: str, attribute: bool) -> Usage:
        here = {owner: mib * MIB for (name, owner), mib in self.held.items() if name == device}
        used = sum(here.values())
        if not attribute:
            return Usage(device, used)
        foreign = here.pop(STRANGER)
        here.pop(NOBODY, None)
        budgets = tuple((name, self._budget(name, device)) for name in here)
        ending = frozenset(self.ending)
        return Usage(device, used, tuple(sorted(here.items())), foreign, budgets, ending)

    def _budget(self, name: str, device: str) -> int:
        who = self.members[name]
        return who.residual if device in who.devices else 0

    def answer(self) -> None:
        """Answer what is asked, until nothing is."""
        for _ in range(10):
            if not self.asked:
                return
            self.step(self.reading())
        raise AssertionError("the machine measures without end")

    def wait(self, seconds: float) -> None:
        """Let time pass: timers fire, and what they ask is answered."""
        end = self.now + seconds
        while due := [(at, key) for key, (at, _) in self.timers.items() if at <= end]:
            self.now, key = min(due)
            self.step(Fired(self.timers.pop(key)[1]))
            self.answer()
        self.now = end

    # -- tenants --------------------------------------------------------------------------------

    def hello(
        self,
        name: str,
        phase: Phase = Phase.PARKED,
        epoch: int = 0,
        request: int = 0,
        caller: str = "",
    ) -> list[Effect]:
        hello = Hello(name, phase, epoch, request)
        return self.step(Connected(self.members[name], hello, caller))

    def say(self, name: str, message: TenantMessage, caller: str = "") -> list[Effect]:
        return self.step(Said(name, message, caller))

    def acquire(self, name: str, caller: str = "") -> int:
        self._requests += 1
        self.say(name, Acquire(self._requests), caller)
        return self._requests

    def restored(self, name: str) -> None:
        who = self.members[name]
        for device in who.devices:
            self.hold(name, (who.need or 0) // MIB, device)
        self.say(name, Restored(self.epoch(name)))
        assert self.phase(name) is Phase.RUNNING

    def run(self, name: str) -> int:
        """From the acquire to Running; return the epoch."""
        self.acquire(name)
        self.answer()
        if self.phase(name) is Phase.RESTORING:
            self.restored(name)
        assert self.phase(name) is Phase.RUNNING
        return self.epoch(name)

    def leave(self, name: str) -> list[Effect]:
        return self.say(name, Yield(self.epoch(name)))

    def park(self, name: str, keeps: int = 0) -> list[Effect]:
        """The tenant parks, and says so; what it keeps is what is left in truth."""
        for device in self.members[name].devices:
            self.hold(name, keeps, device)
        self.say(name, Quiesced(self.epoch(name)))
        return self.say(name, Released(self.epoch(name)))

    def end(self, name: str, keeps: int = 0) -> None:
        """The tenant's processes end."""
        for device in self.members[name].devices:
            self.hold(name, keeps, device)
        self.step(Gone(name, self.members[name].incarnation))

    def tenant(self, name: str) -> Tenant:
        return self.node.tenants[name]

    def phase(self, name: str) -> Phase:
        return self.tenant(name).phase

    def epoch(self, name: str) -> int:
        return self.tenant(name).epoch

    def heard(self, name: str) -> list[ArbiterMessage]:
        """What the tenant was sent since the last look."""
        return self._sent.pop(name, [])

    def refusal(self, name: str) -> str:
        (message,) = self.heard(name)
        assert isinstance(message, Refused)
        assert message.request == self.tenant(name).request
        return message.reason

    def conditions(self) -> list[Condition]:
        """The conditions told since the last look, but refusals."""
        told, self.told = self.told, []
        found = [what for what in told if isinstance(what, Condition)]
        return [what for what in found if what.kind is not ConditionKind.REFUSED]

    def state(self) -> dict[str, Any]:
        """All that is stored, but the count of steps and the times."""
        return {**self.node.to_json(), "seq": None, "at": None, "jobs": None}


def scene(*members: Membership, baseline: int = 0) -> Scene:
    """A node on which each of these tenants has said hello; by default a pair that cannot fit."""
    made = Scene(*(members or (ROLLOUT, TRAINER)), baseline=baseline)
    for name in made.members:
        made.hello(name)
        assert made.heard(name) == [Welcome(Phase.PARKED, 0)]
    return made


def trainer_in(phase: Phase) -> Scene:
    """The trainer in a phase of its third turn; the rollout has the turn, or waits for it."""
    it = scene()
    for _ in range(2):
        it.run("trainer")
        it.leave("trainer")
    if phase in (Phase.PARKED, Phase.WAITING):
        it.acquire("rollout")
        it.park("trainer", keeps=3)
        it.answer()
        it.restored("rollout")
        if phase is Phase.WAITING:
            it.acquire("trainer")
    elif phase is Phase.RESTORING:
        it.acquire("rollout")
        it.park("trainer", keeps=3)
        it.say("rollout", Cancel(it.tenant("rollout").request))
        it.answer()
        it.acquire("trainer")
        it.answer()
        it.hold("trainer", 40)
        it.acquire("rollout")
    else:
        it.run("trainer")
        if phase is not Phase.RUNNING:
            it.leave("trainer")
        if phase is not Phase.YIELDED:
            it.acquire("rollout")
        if phase is Phase.FAULTED:
            it.say("trainer", Failed(3, "requests in flight"))
        if phase in (Phase.RELEASING, Phase.VERIFYING):
            it.say("trainer", Quiesced(3))
        if phase is Phase.VERIFYING:
            it.say("trainer", Released(3))
    it.heard("trainer")
    it.heard("rollout")
    assert it.phase("trainer") is phase
    return it


def test_one_handover_from_the_first_acquire_to_the_other_tenants_turn() -> None:
    it = scene()
    request = it.acquire("rollout")
    assert it.phase("rollout") is Phase.WAITING
    it.answer()
    assert it.heard("rollout") == [Granted(1, request)]
    it.restored("rollout")

    waits = it.acquire("trainer")
    assert it.heard("rollout") == [Wanted(1)]
    it.leave("rollout")
    assert it.heard("rollout") == [Release(1)]
    it.park("rollout", keeps=5)
    assert it.phase("rollout") is Phase.VERIFYING
    assert it.heard("trainer") == []
    it.step(it.reading())  # the reading that tells the rollout free has room for the trainer, too
    assert it.phase("rollout") is Phase.PARKED
    assert it.heard("trainer") == [Granted(2, waits)]
    assert Judged("rollout", "gpu0", 5 * MIB, 100 * MIB, free=True) in it.told
    assert it.conditions() == []


# -- a grant rests on a fresh measurement -------------------------------------------------------


def test_a_grant_waits_for_its_measurement() -> None:
    it = scene()
    it.acquire("trainer")
    (ask,) = it.asked
    assert (ask.devices, ask.attribute) == (("gpu0",), False)
    assert it.heard("trainer") == []
    it.step(Lost("rollout"))  # nothing about the device
    assert it.asked == [ask]
    assert it.phase("trainer") is Phase.WAITING


def test_a_reading_from_before_a_phase_change_on_the_device_is_ignored() -> None:
    it = scene()
    it.acquire("trainer")
    stale = it.reading()
    it.end("rollout")  # Parked -> Verifying on the same device
    assert len(it.asked) == 1  # the machine knows that it must ask again
    before = it.state()
    it.step(stale)
    assert it.heard("trainer") == []
    assert it.state() == before
    it.answer()
    assert it.phase("trainer") is Phase.RESTORING


def test_a_stale_reading_does_not_tell_a_release_free() -> None:
    it = scene(ROLLOUT, TRAINER, member("critic", 20, 1))
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.park("rollout", keeps=5)
    stale = it.reading()
    it.end("critic")
    it.hold("rollout", 40)
    it.step(stale)
    assert it.phase("rollout") is Phase.VERIFYING
    it.answer()
    assert it.phase("rollout") is Phase.VERIFYING
    assert it.heard("trainer") == []


def test_who_asks_and_gives_up_again_and_again_overtakes_no_reading() -> None:
    """No memory moves in that, and whoever does so would keep others from being measured."""
    it = scene(ROLLOUT, TRAINER, member("critic", 20, 1))
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.park("rollout", keeps=5)
    reading = it.reading()
    for _ in range(3):
        it.say("critic", Cancel(it.acquire("critic")))
    it.step(reading)
    assert it.phase("rollout") is Phase.PARKED
    it.answer()
    assert it.phase("trainer") is Phase.RESTORING


def test_a_phase_change_on_another_device_overtakes_nothing() -> None:
    it = scene(member("left", 80, 5, ("gpu0",)), member("right", 80, 5, ("gpu1",)))
    it.acquire("left")
    reading = it.reading()
    it.acquire("right")
    it.step(reading)
    assert it.phase("left") is Phase.RESTORING


def test_a_reading_of_some_devices_grants_nothing() -> None:
    it = scene(member("wide", 80, 5, ("gpu0", "gpu1")))
    it.acquire("wide")
    both = it.reading()
    it.step(Measured(both.asked, both.usages[:1]))
    assert it.phase("wide") is Phase.WAITING
    it.step(both)
    assert it.phase("wide") is Phase.RESTORING


def test_a_resident_tenant_resumes_in_the_same_step_and_nothing_is_measured() -> None:
    it = scene()
    it.run("rollout")
    it.leave("rollout")
    it.heard("rollout")
    request = it.acquire("rollout")
    assert it.heard("rollout") == [Granted(2, request)]
    assert it.phase("rollout") is Phase.RUNNING
    assert it.asked == []


def test_what_was_there_at_first_is_nobodys_fault() -> None:
    it = scene(baseline=10)
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.park("rollout", keeps=5)
    it.answer()
    assert it.phase("trainer") is Phase.RESTORING
    it.wait(5)
    assert it.conditions() == []


def test_a_need_that_no_park_can_make_room_for_is_refused_in_words() -> None:
    it = scene(member("rollout", 80, 40), TRAINER)
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.park("rollout", keeps=40)
    it.answer()
    assert it.refusal("trainer") == (
        "trainer needs 70.0 MiB of gpu0, and of its 100.0 MiB only 60.0 MiB are free when all "
        "others are parked: lower its need or the residual budgets"
    )
    assert it.phase("trainer") is Phase.PARKED


def test_whose_residual_budget_leaves_a_former_tenant_too_little_gets_no_turn() -> None:
    it = scene(member("a", 80, 5), member("b", 70, 15), member("c", 30, 6))
    it.run("b")
    it.leave("b")
    it.acquire("a")
    it.park("b", keeps=15)
    it.answer()
    it.restored("a")
    it.told.clear()
    it.acquire("c")
    reason = (
        "its residual budget of 6.0 MiB leaves a too little: that needs 80.0 MiB of gpu0, the "
        "others may keep 21.0 MiB, 0.0 MiB are foreign, and all is 100.0 MiB: lower the residual "
        "budget"
    )
    assert it.refusal("c") == reason
    (told,) = it.conditions()
    assert (told.kind, told.message) == (ConditionKind.NO_ROOM, f"c: {reason}")
    it.end("b")
    it.answer()
    it.acquire("c")
    it.answer()
    assert it.heard("c") == []  # it waits


def test_a_former_tenant_that_can_never_run_keeps_nobody_out() -> None:
    it = scene(member("a", 200, 5), member("b", 70, 15))
    it.acquire("b")
    it.answer()
    assert it.phase("b") is Phase.RESTORING


def test_what_a_tenant_kept_while_parked_is_part_of_its_need() -> None:
    it = scene(member("rollout", 80, 30), TRAINER)
    it.hold("rollout", 28)
    it.hold("trainer", 3)
    it.acquire("trainer")
    assert [ask.attribute for ask in it.asked] == [False]
    it.step(it.reading())
    assert it.phase("trainer") is Phase.WAITING  # 69 MiB are free, by the sum
    assert [ask.attribute for ask in it.asked] == [True]
    it.step(it.reading())
    assert it.phase("trainer") is Phase.RESTORING


# -- the device's accounting lags ---------------------------------------------------------------


def released_but_held(mib: int) -> Scene:
    """The rollout says that it parked, the device says otherwise, and the trainer waits."""
    it = scene()
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.park("rollout", keeps=mib)
    it.heard("rollout")
    it.conditions()
    it.answer()
    return it


def test_memory_that_comes_back_late_is_read_again_from_1_ms_doubling_to_50_ms() -> None:
    it = released_but_held(40)
    it.wait(0.2)
    assert it.rereads_ms == [1, 2, 4, 8, 16, 32, 50, 50, 50]
    assert it.phase("rollout") is Phase.VERIFYING
    assert it.heard("trainer") == []
    it.hold("rollout", 5)
    it.wait(0.05)
    assert it.phase("rollout") is Phase.PARKED
    assert it.phase("trainer") is Phase.RESTORING
    it.restored("trainer")
    rereads = len(it.rereads_ms)
    it.wait(10)
    assert len(it.rereads_ms) == rereads
    assert it.conditions() == []


def test_the_verdict_at_the_deadline_names_the_tenant_and_its_bytes() -> None:
    it = released_but_held(40)
    it.wait(4.999)
    assert it.conditions() == []
    it.wait(0.001)
    said = "it said that it parked, and 40.0 MiB of gpu0 are still its, where 5.0 MiB may be"
    assert it.conditions() == [
        Condition(ConditionKind.FAULTED, f"rollout (epoch 1): {said}", "rollout", "gpu0", 40 * MIB)
    ]
    assert it.phase("rollout") is Phase.FAULTED
    it.wait(10)
    assert it.refusal("trainer") == f"rollout is at fault: {said}"


def test_a_faulted_tenant_whose_memory_is_back_after_all_is_cleared() -> None:
    it = released_but_held(40)
    it.wait(6)
    it.conditions()
    it.hold("rollout", 5)
    it.wait(1)
    assert it.phase("rollout") is Phase.PARKED
    assert it.tenant("rollout").fault == ""
    assert it.phase("trainer") is Phase.RESTORING
    assert it.conditions() == [
        Condition(ConditionKind.CLEARED, "rollout has left its devices", "rollout")
    ]


def test_a_release_is_not_blamed_for_a_strangers_bytes() -> None:
    it = released_but_held(5)
    assert it.phase("trainer") is Phase.RESTORING
    it = scene()
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.hold(STRANGER, 10)
    it.park("rollout", keeps=5)
    it.answer()
    it.wait(5)
    assert it.phase("rollout") is Phase.PARKED
    assert it.phase("trainer") is Phase.WAITING
    (told,) = it.conditions()
    assert (told.kind, told.tenant) == (ConditionKind.FOREIGN_MEMORY, None)


def test_bytes_of_a_release_that_no_process_holds_keep_the_next_one_waiting() -> None:
    it = scene()
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.hold(NOBODY, 40)
    it.park("rollout")
    it.heard("trainer")
    it.answer()
    it.wait(0.9)
    assert it.phase("rollout") is Phase.VERIFYING
    it.wait(3)
    assert it.phase("rollout") is Phase.PARKED  # the owners were read: none of it is its
    assert it.phase("trainer") is Phase.WAITING
    (told,) = it.conditions()
    assert (told.kind, told.tenant) == (ConditionKind.FOREIGN_MEMORY, None)
    it.hold(NOBODY, 0)
    it.wait(1)
    assert it.phase("trainer") is Phase.RESTORING


# -- foreign memory -----------------------------------------------------------------------------

FOREIGN = (
    "10.0 MiB of gpu0 belong to processes of no tenant (ForeignMemory): no turn is granted on it "
    "until they are gone"
)


def test_foreign_memory_taints_the_device_blames_no_tenant_and_clears() -> None:
    it = scene()
    it.hold(STRANGER, 10)
    it.acquire("trainer")
    it.answer()
    it.wait(1)
    assert it.conditions() == [
        Condition(ConditionKind.FOREIGN_MEMORY, FOREIGN, None, "gpu0", 10 * MIB)
    ]
    assert [tenant.fault for tenant in it.node.tenants.values()] == ["", ""]
    assert tainted(it.node) == {"gpu0": (Taint(Reason.FOREIGN_MEMORY, TaintEffect.NO_SCHEDULE),)}
    assert it.phase("trainer") is Phase.WAITING
    it.wait(5)
    assert it.conditions() == []  # told once
    it.hold(STRANGER, 0)
    it.wait(1)
    assert it.phase("trainer") is Phase.RESTORING
    assert it.conditions() == [
        Condition(ConditionKind.CLEARED, "gpu0 is free of foreign memory", None, "gpu0")
    ]
    assert tainted(it.node) == {}


@pytest.mark.parametrize("restarts", [False, True])
def test_foreign_memory_is_seen_to_be_gone_also_when_no_tenant_is_left(*, restarts: bool) -> None:
    """While the device is tainted, none may come."""
    it = scene(ROLLOUT)
    it.hold(STRANGER, 10)
    it.wait(1)
    it.end("rollout")
    it.answer()
    it.wait(5)
    assert it.node.tenants == {}
    assert "gpu0" in tainted(it.node)
    if restarts:
        it.restart()
    it.hold(STRANGER, 0)
    it.wait(1)
    assert tainted(it.node) == {}


def test_who_waits_for_a_tainted_device_is_refused_in_bounded_time() -> None:
    it = scene()
    it.hold(STRANGER, 10)
    it.wait(1)
    it.acquire("trainer")
    it.wait(9.9)
    assert it.heard("trainer") == []
    it.wait(0.1)
    assert it.refusal("trainer") == (
        "10.0 MiB of gpu0 belong to processes of no tenant (ForeignMemory)"
    )
    assert it.phase("trainer") is Phase.PARKED


def test_foreign_memory_takes_no_turn_away_and_holds_up_a_resume() -> None:
    it = scene()
    it.run("trainer")
    it.hold(STRANGER, 10)
    it.wait(2)
    assert it.phase("trainer") is Phase.RUNNING
    assert [told.kind for told in it.conditions()] == [ConditionKind.FOREIGN_MEMORY]
    it.leave("trainer")
    it.acquire("trainer")
    it.wait(1)
    assert it.phase("trainer") is Phase.YIELDED
    it.hold(STRANGER, 0)
    it.wait(1)
    assert it.phase("trainer") is Phase.RUNNING


def test_bytes_of_nobody_count_when_a_second_reading_finds_them() -> None:
    it = scene()
    it.hold(NOBODY, 10)
    it.wait(1)
    assert it.conditions() == []
    it.wait(1)
    (told,) = it.conditions()
    assert (told.kind, told.tenant, told.size) == (ConditionKind.FOREIGN_MEMORY, None, 10 * MIB)
    assert "10.0 MiB of gpu0 belong to nobody that can be seen" in told.message


def test_bytes_of_nobody_are_those_that_a_tenant_may_hold_which_ends() -> None:
    it = scene()
    budget = it.node.tenants["trainer"].budget // MIB
    it.ending.add("trainer")
    it.hold(NOBODY, budget)
    it.wait(3)
    assert it.conditions() == []
    it.hold(NOBODY, budget + 10)
    it.wait(2)
    (told,) = it.conditions()
    assert (told.kind, told.tenant, told.size) == (ConditionKind.FOREIGN_MEMORY, None, 10 * MIB)


def test_bytes_of_nobody_that_come_and_go_count_for_nothing() -> None:
    it = scene()
    for mib in (10, 0, 10, 0, 10):
        it.hold(NOBODY, mib)
        it.wait(1)
    assert it.conditions() == []


def test_bytes_of_nobody_count_for_nothing_while_a_tenants_memory_moves() -> None:
    it = scene()
    it.run("trainer")
    it.hold(NOBODY, 10)
    it.wait(5)
    assert it.conditions() == []
    it.leave("trainer")
    it.wait(5)
    assert it.conditions() == []


def test_bytes_of_nobody_are_read_twice_while_all_is_still() -> None:
    """Six MiB: the parked tenants' budgets have room for them, so nobody waits for their end."""
    it = scene()
    it.hold(NOBODY, 6)
    it.wait(1)  # once, and then the trainer's memory moves
    it.run("trainer")
    it.wait(2)
    it.leave("trainer")
    it.acquire("rollout")
    it.say("rollout", Cancel(it.tenant("rollout").request))
    it.park("trainer")
    it.answer()
    assert it.phase("trainer") is Phase.PARKED
    it.wait(1)
    assert it.conditions() == []
    it.wait(1)
    assert [told.kind for told in it.conditions()] == [ConditionKind.FOREIGN_MEMORY]


def test_a_device_that_stays_occupied_is_read_by_owner_at_the_deadline() -> None:
    it = scene()
    it.hold(STRANGER, 10)
    it.acquire("trainer")
    it.answer()
    at, verdict = it.timers[TimerKind.VERDICT, "trainer"]
    assert at == it.now + LIMITS.verify_s
    it.step(Fired(verdict))
    assert [ask.attribute for ask in it.asked] == [True]
    it.answer()
    assert [told.kind for told in it.conditions()] == [ConditionKind.FOREIGN_MEMORY]


# -- intruders ----------------------------------------------------------------------------------


def test_a_parked_tenant_that_uses_its_device_is_an_intruder_until_it_leaves() -> None:
    it = scene()
    it.hold("rollout", 5)
    it.wait(1)
    assert it.conditions() == []  # its residual budget
    it.hold("rollout", 40)
    it.wait(1)
    reason = "it holds 40.0 MiB of gpu0 without a turn, where 5.0 MiB may be"
    assert it.conditions() == [
        Condition(
            ConditionKind.INTRUDER, f"rollout (epoch 0): {reason}", "rollout", "gpu0", 40 * MIB
        )
    ]
    assert it.heard("rollout") == [Warned(f"Intruder: {reason}")]
    assert it.phase("rollout") is Phase.FAULTED
    it.acquire("trainer")
    it.wait(10)
    assert it.refusal("trainer") == f"rollout is at fault: {reason}"
    it.hold("rollout", 5)
    it.wait(1)
    assert it.phase("rollout") is Phase.PARKED
    it.run("trainer")


def test_an_intruder_that_waits_keeps_its_place_or_is_refused_for_its_own_fault() -> None:
    it = scene()
    it.run("trainer")
    it.acquire("rollout")
    it.hold("rollout", 40)
    it.wait(1)
    assert it.phase("rollout") is Phase.FAULTED
    it.hold("rollout", 5)
    it.wait(1)
    assert it.phase("rollout") is Phase.WAITING
    it.hold("rollout", 40)
    it.heard("rollout")
    it.wait(1)
    it.heard("rollout")
    it.wait(10)
    assert it.refusal("rollout").startswith("rollout is at fault: it holds 40.0 MiB")
    assert it.phase("trainer") is Phase.RUNNING


def test_a_tenant_on_a_device_that_is_not_its_own_taints_it_by_name() -> None:
    it = scene(member("left", 80, 5, ("gpu0",)), member("right", 80, 5, ("gpu1",)))
    it.run("right")
    it.hold("right", 20, "gpu0")
    it.acquire("left")
    it.answer()
    it.wait(1)
    (told,) = it.conditions()
    assert (told.kind, told.tenant, told.device) == (ConditionKind.INTRUDER, "right", "gpu0")
    assert it.phase("right") is Phase.RUNNING
    it.wait(10)
    assert it.refusal("left") == "20.0 MiB of gpu0 belong to right, which has no turn (Intruder)"
    it.hold("right", 0, "gpu0")
    it.wait(1)
    it.run("left")


def test_a_tenant_that_has_not_said_hello_is_an_intruder_above_its_budget() -> None:
    it = Scene(ROLLOUT, TRAINER)
    it.hello("trainer")
    it.hold("rollout", 5)
    it.wait(1)
    assert it.conditions() == []
    it.run("trainer")  # its limit, 3 MiB, is exceeded by the 5 that the rollout may hold
    it.hold("rollout", 40)
    it.wait(1)
    (told,) = it.conditions()
    assert (told.kind, told.tenant, told.size) == (ConditionKind.INTRUDER, "rollout", 40 * MIB)
    it.hold("rollout", 5)
    it.wait(1)
    (told,) = it.conditions()
    assert told.kind is ConditionKind.CLEARED


def test_what_a_tenant_holds_at_its_hello_counts_once() -> None:
    it = Scene(ROLLOUT, TRAINER)
    it.hello("trainer")
    it.hold("rollout", 5)
    it.wait(1)
    it.hello("rollout")
    it.hold("trainer", 4)  # 9 MiB, of 8: room for the rollout's 5 is not there twice
    it.acquire("trainer")
    it.answer()
    assert it.phase("trainer") is Phase.WAITING


# -- sessions -----------------------------------------------------------------------------------

LAPSED = "its session was lost for longer than the lease"


def test_a_session_that_comes_back_within_its_lease_keeps_the_turn() -> None:
    it = scene()
    it.run("rollout")
    it.step(Lost("rollout"))
    it.wait(9.9)
    it.heard("rollout")
    it.hello("rollout", Phase.RUNNING, 1)
    assert it.heard("rollout") == [Welcome(Phase.RUNNING, 1)]
    it.wait(30)
    assert it.phase("rollout") is Phase.RUNNING
    assert it.conditions() == []


def test_a_lease_counts_from_the_newest_loss() -> None:
    it = scene()
    it.run("rollout")
    it.step(Lost("rollout"))
    it.wait(8)
    it.hello("rollout", Phase.RUNNING, 1)
    it.step(Lost("rollout"))
    it.wait(8)
    assert it.phase("rollout") is Phase.RUNNING


def test_a_tenants_own_lease_comes_before_the_nodes() -> None:
    patient = replace(ROLLOUT, objectives=Objectives(lease_s=60.0))
    it = scene(patient, TRAINER)
    it.run("rollout")
    it.step(Lost("rollout"))
    it.wait(59.9)
    assert it.phase("rollout") is Phase.RUNNING
    it.wait(0.2)
    assert it.phase("rollout") is Phase.FAULTED
    lost, _ = it.conditions()
    assert lost.message.startswith("rollout lost its session for 60 s while Running in epoch 1")


def test_a_lapsed_lease_takes_the_turn_and_the_next_word_tells() -> None:
    it = scene()
    it.run("rollout")
    it.acquire("trainer")
    it.step(Lost("rollout"))
    it.heard("rollout")
    it.wait(10)
    assert it.conditions() == [
        Condition(
            ConditionKind.SESSION_LOST,
            "rollout lost its session for 10 s while Running in epoch 1, and its processes live: "
            "its turn is taken",
            "rollout",
        ),
        Condition(ConditionKind.FAULTED, f"rollout (epoch 1): {LAPSED}", "rollout"),
    ]
    assert it.phase("rollout") is Phase.FAULTED
    assert it.heard("rollout") == []  # it cannot be told
    assert it.phase("trainer") is Phase.WAITING  # a faulted tenant counts as holding
    it.hello("rollout", Phase.RUNNING, 1)
    assert it.heard("rollout") == [Welcome(Phase.FAULTED, 1), TurnLost(1, LAPSED), Release(1)]
    it.say("rollout", Yield(1))
    assert it.heard("rollout") == [TurnLost(1, LAPSED)]
    it.park("rollout", keeps=5)
    it.answer()
    assert it.phase("trainer") is Phase.RESTORING
    it.restored("trainer")
    it.leave("trainer")
    it.acquire("rollout")
    it.park("trainer", keeps=3)
    it.answer()
    it.restored("rollout")
    it.heard("rollout")
    it.say("rollout", Yield(1))  # in epoch 3, a last word of the turn that was taken
    assert it.heard("rollout") == [TurnLost(1, LAPSED), Noted(1)]
    assert it.phase("rollout") is Phase.RUNNING


def test_memory_that_is_gone_does_not_end_a_turn_that_was_taken() -> None:
    """It may yet restore: it must say that it parked, or end."""
    it = scene()
    it.run("rollout")
    it.step(Lost("rollout"))
    it.hold("rollout", 0)
    it.wait(20)
    assert it.phase("rollout") is Phase.FAULTED
    it.hello("rollout", Phase.PARKED, 1)
    it.answer()
    assert it.phase("rollout") is Phase.PARKED


def test_a_lapsed_lease_of_who_waits_costs_its_place_only() -> None:
    it = trainer_in(Phase.WAITING)
    it.step(Lost("trainer"))
    it.wait(10)
    assert (it.phase("trainer"), it.node.queue) == (Phase.PARKED, [])
    assert it.conditions() == []
    assert it.phase("rollout") is Phase.RUNNING


def test_nobody_without_a_session_is_granted() -> None:
    it = scene()
    it.acquire("trainer")
    it.step(Lost("trainer"))
    it.answer()
    assert it.phase("trainer") is Phase.WAITING
    it.heard("trainer")
    it.hello("trainer", Phase.WAITING, 0, request=1)
    it.answer()
    assert it.heard("trainer") == [Welcome(Phase.WAITING, 0), Granted(1, 1)]


def test_a_grant_that_was_not_heard_is_said_again() -> None:
    it = trainer_in(Phase.RESTORING)
    it.step(Lost("trainer"))
    it.hello("trainer", Phase.WAITING, 2, request=it.tenant("trainer").request)
    assert it.heard("trainer") == [
        Welcome(Phase.RESTORING, 3),
        Granted(3, it.tenant("trainer").request),
    ]


def test_a_restore_and_a_yield_that_were_not_heard_are_in_the_hello() -> None:
    it = trainer_in(Phase.RESTORING)
    it.step(Lost("trainer"))
    it.hello("trainer", Phase.YIELDED, 3)
    assert it.heard("trainer") == [Welcome(Phase.RESTORING, 3), Release(3)]
    assert it.phase("trainer") is Phase.QUIESCING


def test_a_release_that_was_not_heard_is_said_again_and_one_that_was_done_is_believed() -> None:
    it = trainer_in(Phase.QUIESCING)
    it.step(Lost("trainer"))
    it.hello("trainer", Phase.YIELDED, 3)
    assert it.heard("trainer") == [Welcome(Phase.QUIESCING, 3), Release(3)]
    it.step(Lost("trainer"))
    it.hold("trainer", 3)
    it.hello("trainer", Phase.PARKED, 3)
    assert it.phase("trainer") is Phase.VERIFYING
    it.answer()
    assert it.phase("rollout") is Phase.RESTORING


def test_a_failed_restore_that_was_not_heard_is_in_the_hello() -> None:
    it = trainer_in(Phase.RESTORING)
    it.step(Lost("trainer"))
    it.hello("trainer", Phase.FAULTED, 3)
    assert it.heard("trainer") == [Welcome(Phase.RESTORING, 3), Release(3)]
    assert it.phase("trainer") is Phase.QUIESCING


def test_a_hello_that_waits_no_more_leaves_the_queue() -> None:
    it = trainer_in(Phase.WAITING)
    it.step(Lost("trainer"))
    it.hello("trainer", Phase.PARKED, 2)
    assert (it.phase("trainer"), it.node.queue) == (Phase.PARKED, [])


@pytest.mark.parametrize("known", [False, True])
def test_a_hello_of_an_epoch_that_the_journal_does_not_know_is_refused(known: bool) -> None:
    it = trainer_in(Phase.PARKED) if known else Scene(TRAINER)
    if known:
        it.step(Lost("trainer"))
    before, epoch = it.state(), 2 if known else 0
    effects = it.hello("trainer", Phase.RUNNING, epoch + 1, request=50)
    assert effects == [
        Send(
            "trainer",
            Refused(
                0,
                f"trainer speaks of epoch {epoch + 1}, and this node's journal knows none after "
                f"{epoch} for it: end its processes and start them again",
            ),
        )
    ]
    assert it.state() == before


# -- the end of a tenant ------------------------------------------------------------------------


@pytest.mark.parametrize("phase", list(Phase))
def test_a_tenant_may_end_in_every_phase_and_the_other_goes_on(phase: Phase) -> None:
    it = trainer_in(phase)
    it.end("trainer")
    assert it.phase("trainer") is Phase.VERIFYING  # it is over when the memory is back
    it.answer()
    assert set(it.node.tenants) == {"rollout"}
    assert "trainer" not in it.node.queue
    if phase is Phase.YIELDED:  # nobody had asked yet
        it.acquire("rollout")
        it.answer()
    if phase not in (Phase.PARKED, Phase.WAITING):  # there the rollout has had the turn all along
        it.restored("rollout")
    assert it.phase("rollout") is Phase.RUNNING
    changes = [what for what in it.told if isinstance(what, PhaseChanged)]
    assert [c.after for c in changes if c.tenant == "trainer"][-1] is None
    assert it.heard("trainer") == []


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.YIELDED, Phase.VERIFYING, Phase.FAULTED])
def test_bytes_that_outlive_a_tenants_processes_keep_it_on_record(phase: Phase) -> None:
    it = trainer_in(phase)
    if phase is Phase.YIELDED:
        it.acquire("rollout")
    it.conditions()
    it.hold("rollout", 5)  # its own budget: there is no room in it for another's bytes
    it.end("trainer", keeps=2)  # a dead tenant has no residual budget
    it.wait(5)
    assert it.phase("trainer") is Phase.FAULTED
    assert it.conditions()[-1].message == (
        "trainer (epoch 3): its processes ended, and 2.0 MiB of gpu0 are still its, where 0.0 MiB "
        "may be"
    )
    assert it.phase("rollout") is Phase.WAITING
    it.hold("trainer", 0)
    it.wait(1)
    assert "trainer" not in it.node.tenants
    assert it.phase("rollout") is Phase.RESTORING


def test_the_end_of_an_older_life_changes_nothing() -> None:
    it = trainer_in(Phase.RUNNING)
    before = it.state()
    assert it.step(Gone("trainer", "trainer, life 0")) == []
    assert it.step(Gone("critic", "critic, life 1")) == []
    assert it.state() == before


@pytest.mark.parametrize("end_is_heard", [True, False])
def test_a_new_life_waits_until_the_memory_of_the_old_one_is_back(end_is_heard: bool) -> None:
    it = trainer_in(Phase.RUNNING)
    it.say("rollout", Cancel(it.tenant("rollout").request))
    old = it.members["trainer"]
    if end_is_heard:
        it.end("trainer", keeps=60)
        it.answer()
    it.hold("trainer", 60)
    it.members["trainer"] = replace(old, incarnation="trainer, life 2")
    request = 1  # a new life counts anew
    assert request < it.tenant("trainer").request
    it.hello("trainer", Phase.WAITING, request=request)
    assert it.heard("trainer") == [Welcome(Phase.VERIFYING, 3)]
    it.answer()
    it.wait(0.5)
    assert it.phase("trainer") is Phase.VERIFYING
    it.step(Gone("trainer", old.incarnation))  # late, and about the life before
    assert it.tenant("trainer").connected
    it.hold("trainer", 0)
    it.wait(0.1)
    assert it.heard("trainer") == [Granted(4, request)]


def test_a_life_that_has_ended_may_not_come_back() -> None:
    it = trainer_in(Phase.RUNNING)
    it.end("trainer", keeps=60)
    it.answer()
    before = it.state()
    effects = it.hello("trainer", Phase.RUNNING, 3)
    reason = "the processes of trainer have ended: start them again"
    assert effects == [Send("trainer", Refused(0, reason))]
    assert it.state() == before


# -- the queue ----------------------------------------------------------------------------------


def test_turns_are_served_in_the_order_of_asking() -> None:
    it = scene(*(member(name, 80, 1) for name in "abcd"))
    it.run("a")
    for name in "cbd":
        it.acquire(name)
    served = []
    holder = "a"
    while it.node.queue:
        it.leave(holder)
        it.park(holder, keeps=1)
        it.answer()
        (holder,) = [t.name for t in it.node.tenants.values() if t.phase is Phase.RESTORING]
        it.restored(holder)
        served.append(holder)
    assert served == ["c", "b", "d"]


def test_a_tenant_that_asks_again_waits_behind_those_who_waited() -> None:
    it = scene(*(member(name, 80, 1) for name in "abc"))
    it.run("a")
    it.acquire("b")
    it.acquire("c")
    it.leave("a")
    it.acquire("a")
    it.park("a", keeps=1)
    it.answer()
    assert it.phase("b") is Phase.RESTORING
    assert it.node.queue == ["c", "a"]
    assert it.phase("a") is Phase.WAITING


def test_the_head_of_the_queue_reserves_its_devices_so_that_a_wide_tenant_is_not_starved() -> None:
    wide = member("wide", 80, 1, ("gpu0", "gpu1"))
    it = scene(wide, member("left", 80, 1, ("gpu0",)), member("right", 80, 1, ("gpu1",)))
    it.run("left")
    it.acquire("wide")
    it.acquire("right")
    assert it.asked == []  # gpu1 is free, and reserved
    it.wait(5)
    assert it.phase("right") is Phase.WAITING
    it.leave("left")
    it.park("left", keeps=1)
    it.answer()
    assert it.phase("wide") is Phase.RESTORING
    assert it.phase("right") is Phase.WAITING
    it.restored("wide")
    it.leave("wide")
    it.park("wide", keeps=1)
    it.answer()
    assert it.phase("right") is Phase.RESTORING


def test_a_wide_tenant_that_waits_no_more_lets_the_others_go() -> None:
    wide = member("wide", 80, 1, ("gpu0", "gpu1"))
    it = scene(wide, member("left", 80, 1, ("gpu0",)), member("right", 80, 1, ("gpu1",)))
    it.run("left")
    request = it.acquire("wide")
    it.acquire("right")
    it.say("wide", Cancel(request))
    it.answer()
    assert it.phase("wide") is Phase.PARKED
    assert it.phase("right") is Phase.RESTORING


def test_tenants_with_disjoint_devices_run_at_once() -> None:
    it = scene(member("left", 80, 5, ("gpu0",)), member("right", 80, 5, ("gpu1",)))
    assert (it.run("left"), it.run("right")) == (1, 2)
    assert {it.phase("left"), it.phase("right")} == {Phase.RUNNING}
    assert Wanted(1) not in it.heard("left")


def test_an_acquire_that_is_said_twice_counts_once() -> None:
    it = trainer_in(Phase.WAITING)
    before = it.state()
    assert it.say("trainer", Acquire(it.tenant("trainer").request)) == []
    assert it.state() == before


def test_an_acquire_that_comes_again_after_its_cancel_counts_no_more() -> None:
    it = trainer_in(Phase.PARKED)
    request = it.acquire("trainer")
    it.say("trainer", Cancel(request))
    before = it.state()
    assert it.say("trainer", Acquire(request)) == []
    assert it.say("trainer", Acquire(request - 1)) == []
    assert it.state() == before


def test_a_cancel_of_an_older_acquire_changes_nothing() -> None:
    it = trainer_in(Phase.WAITING)
    before = it.state()
    assert it.say("trainer", Cancel(it.tenant("trainer").request - 1)) == []
    assert it.state() == before


def test_a_holder_is_told_once_per_turn_that_it_is_wanted() -> None:
    it = scene(ROLLOUT, TRAINER, member("critic", 80, 1))
    it.run("rollout")
    it.heard("rollout")
    it.acquire("trainer")
    it.acquire("critic")
    it.wait(3)
    assert it.heard("rollout") == [Wanted(1)]
    it.step(Lost("rollout"))
    it.hello("rollout", Phase.RUNNING, 1)  # it may not have heard it
    assert it.heard("rollout") == [Welcome(Phase.RUNNING, 1), Wanted(1)]


# -- tenants side by side -----------------------------------------------------------------------


def test_tenants_whose_declared_needs_fit_stay_resident_and_take_turns_for_nothing() -> None:
    it = scene(member("rollout", 50, 5), member("trainer", 50, 5))
    it.run("rollout")
    it.leave("rollout")
    it.heard("rollout")
    it.run("trainer")
    assert it.heard("rollout") == []
    assert it.phase("rollout") is Phase.YIELDED
    request = it.acquire("rollout")
    assert Wanted(2) in it.heard("trainer")
    it.leave("trainer")
    assert it.heard("trainer") == [Noted(2)]
    assert it.heard("rollout") == [Granted(3, request)]
    assert it.asked == []
    assert (it.phase("rollout"), it.phase("trainer")) == (Phase.RUNNING, Phase.YIELDED)


@pytest.mark.parametrize("undeclared", ["rollout", "trainer"])
def test_a_tenant_of_no_declared_need_has_the_device_to_itself(undeclared: str) -> None:
    needs = {"rollout": 20, "trainer": 20}
    it = scene(*(member(n, None if n == undeclared else mib, 5) for n, mib in needs.items()))
    it.run("rollout")
    it.leave("rollout")
    it.heard("rollout")
    it.acquire("trainer")
    assert it.heard("rollout") == [Release(1)]


def test_a_resident_that_has_outgrown_its_declared_need_is_displaced() -> None:
    it = scene(member("rollout", 50, 5), member("trainer", 40, 5))
    it.run("rollout")
    it.leave("rollout")
    it.heard("rollout")
    it.hold("rollout", 58)
    it.acquire("trainer")
    it.answer()
    assert it.heard("rollout") == [Release(1)]
    assert it.phase("trainer") is Phase.WAITING
    it.park("rollout", keeps=5)
    it.answer()
    assert it.phase("trainer") is Phase.RESTORING


# -- an acquire on behalf of the holder ---------------------------------------------------------

ITSELF = (
    "the request comes from trainer, which holds the turn (epoch 3) and would wait for itself: "
    "yield the turn around the request"
)


def test_an_acquire_on_behalf_of_the_holder_is_refused_at_once_and_names_it() -> None:
    it = trainer_in(Phase.RUNNING)
    it.say("rollout", Cancel(it.tenant("rollout").request))
    request = it.acquire("rollout", caller="trainer")
    assert it.heard("rollout") == [Refused(request, ITSELF, "trainer")]
    assert (it.phase("rollout"), it.node.queue) == (Phase.PARKED, [])
    assert it.heard("trainer") == []


def test_an_acquire_on_behalf_of_the_holder_is_refused_in_a_hello_too() -> None:
    it = trainer_in(Phase.RESTORING)
    it.step(Lost("rollout"))
    request = it.tenant("rollout").request
    it.hello("rollout", Phase.WAITING, 0, request, caller="trainer")
    assert it.heard("rollout") == [
        Welcome(Phase.WAITING, 0),
        Refused(request, ITSELF, "trainer"),
    ]
    assert it.phase("rollout") is Phase.PARKED


def test_an_acquire_on_behalf_of_a_tenant_that_yielded_waits_for_its_turn() -> None:
    it = trainer_in(Phase.YIELDED)
    it.acquire("rollout", caller="trainer")
    assert it.heard("rollout") == []
    assert it.heard("trainer") == [Release(3)]


@pytest.mark.parametrize("phase", [Phase.QUIESCING, Phase.VERIFYING, Phase.FAULTED])
def test_an_acquire_on_behalf_of_a_tenant_that_leaves_waits_for_its_turn(phase: Phase) -> None:
    it = trainer_in(phase)
    it.acquire("rollout", caller="trainer")
    assert it.heard("rollout") == []
    assert it.node.queue == ["rollout"]


def test_an_acquire_on_behalf_of_a_holder_of_other_devices_waits_for_nobody() -> None:
    it = scene(member("left", 80, 5, ("gpu0",)), member("right", 80, 5, ("gpu1",)))
    it.run("left")
    it.acquire("right", caller="left")
    it.answer()
    assert it.phase("right") is Phase.RESTORING


# -- the answer to a yield ----------------------------------------------------------------------


def test_a_yield_is_noted_in_the_same_step_each_time_that_it_is_said() -> None:
    it = trainer_in(Phase.RUNNING)
    it.say("rollout", Cancel(it.tenant("rollout").request))
    for _ in range(3):
        assert Send("trainer", Noted(3)) in it.say("trainer", Yield(3))
        assert it.phase("trainer") is Phase.YIELDED
    it.heard("trainer")
    it.acquire("trainer")
    it.say("trainer", Yield(3))  # late: the turn of epoch 4 has begun
    assert it.heard("trainer")[1:] == [Noted(3)]
    assert it.phase("trainer") is Phase.RUNNING


def test_a_release_in_the_same_step_is_the_answer() -> None:
    it = trainer_in(Phase.RUNNING)
    effects = it.say("trainer", Yield(3))
    assert [e.message for e in effects if isinstance(e, Send)] == [Release(3)]


@pytest.mark.parametrize("phase", [Phase.RELEASING, Phase.VERIFYING, Phase.PARKED, Phase.FAULTED])
def test_a_yield_that_comes_after_the_release_is_noted_and_changes_nothing(phase: Phase) -> None:
    it = trainer_in(phase)
    before, epoch = it.state(), it.epoch("trainer")
    assert it.say("trainer", Yield(epoch)) == [Send("trainer", Noted(epoch))]
    assert it.state() == before


# -- faults -------------------------------------------------------------------------------------


def test_who_waits_behind_a_failed_park_is_refused_in_bounded_time_with_the_sentence() -> None:
    it = trainer_in(Phase.QUIESCING)
    it.say("trainer", Failed(3, "requests in flight"))
    it.wait(9.9)
    assert it.heard("rollout") == []
    it.wait(0.1)
    assert it.refusal("rollout") == ("trainer is at fault: it could not park: requests in flight")
    assert it.phase("rollout") is Phase.PARKED
    it.acquire("rollout")
    it.wait(5)
    it.park("trainer", keeps=3)  # it tried again
    it.answer()
    assert it.phase("rollout") is Phase.RESTORING
    it.restored("rollout")
    it.heard("rollout")
    it.wait(20)
    assert it.heard("rollout") == []
    assert it.tenant("trainer").fault == ""


@pytest.mark.parametrize("phase", [Phase.QUIESCING, Phase.RELEASING])
def test_a_park_that_takes_too_long_is_a_fault_and_its_late_release_counts(phase: Phase) -> None:
    it = trainer_in(phase)
    it.wait(19.9)
    assert it.phase("trainer") is phase
    it.wait(0.1)
    assert it.phase("trainer") is Phase.FAULTED
    assert it.conditions()[-1].message == ("trainer (epoch 3): it did not park within 20 s")
    it.park("trainer", keeps=3)
    it.answer()
    assert it.phase("trainer") is Phase.PARKED
    assert it.phase("rollout") is Phase.RESTORING


def test_a_restore_that_takes_too_long_loses_the_turn() -> None:
    it = trainer_in(Phase.RESTORING)
    it.say("rollout", Cancel(it.tenant("rollout").request))
    it.wait(30)
    late = "it did not restore within 30 s"
    assert it.heard("trainer") == [TurnLost(3, late), Release(3)]
    assert it.phase("trainer") is Phase.QUIESCING
    it.say("trainer", Restored(3))
    assert it.heard("trainer") == [TurnLost(3, late)]
    it.park("trainer", keeps=3)
    it.answer()
    assert it.phase("trainer") is Phase.PARKED


def test_a_failed_restore_is_told_to_release_what_there_is() -> None:
    it = trainer_in(Phase.RESTORING)
    it.say("trainer", Failed(3, "no room"))
    assert it.heard("trainer") == [Release(3)]
    told = it.conditions()[-1]
    assert told.kind is ConditionKind.RESTORE_FAILED
    assert told.message == "trainer (epoch 3): it could not restore: no room"
    it.park("trainer", keeps=3)
    it.answer()
    assert it.phase("rollout") is Phase.RESTORING


def test_who_waits_behind_a_resident_without_a_session_is_refused_when_its_lease_is_over() -> None:
    it = trainer_in(Phase.YIELDED)
    it.step(Lost("trainer"))
    it.acquire("rollout")
    assert it.heard("trainer") == []  # it cannot be told to release
    it.wait(LIMITS.lease_s + LIMITS.blocked_s)
    assert it.refusal("rollout") == f"trainer is at fault: {LAPSED}"


def test_a_timer_that_was_overtaken_changes_nothing() -> None:
    it = scene()
    overtaken: dict[TimerKind, Timer] = {}

    def note(kind: TimerKind, name: str) -> None:
        overtaken[kind] = it.timers[kind, name][1]

    it.step(Lost("rollout"))
    note(TimerKind.LEASE, "rollout")
    it.hello("rollout")
    it.hold(STRANGER, 10)
    it.acquire("rollout")
    it.answer()
    note(TimerKind.VERDICT, "rollout")
    note(TimerKind.REREAD, "rollout")
    it.wait(1)
    note(TimerKind.BLOCKED, "rollout")
    it.hold(STRANGER, 0)
    it.wait(1)
    note(TimerKind.PHASE, "rollout")
    it.restored("rollout")
    it.step(Lost("rollout"))
    it.acquire("trainer")
    it.asked.clear()
    before = it.state()
    assert set(overtaken) == set(TimerKind) - {TimerKind.WATCH, TimerKind.LEAVE, TimerKind.LADDER}
    for timer in overtaken.values():
        assert it.step(Fired(timer)) == []
        assert it.state() == before


# -- a device that fails ------------------------------------------------------------------------

LOST = "gpu0 failed (XID 79): what it held there is lost"
WATCH_S = LIMITS.watch_s


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.FAULTED])
def test_whoever_has_memory_on_a_device_that_fails_is_told_that_it_is_lost(phase: Phase) -> None:
    it = trainer_in(phase)
    it.asked.clear()
    it.conditions()
    it.broken.add("gpu0")
    it.wait(WATCH_S)
    told, *of_tenants = it.conditions()
    assert (told.kind, told.device, told.message) == (
        ConditionKind.DEVICE_FAILED,
        "gpu0",
        "gpu0 failed (XID 79): no turn is granted on it until it answers again",
    )
    loser = "rollout" if phase in (Phase.PARKED, Phase.WAITING) else "trainer"
    if phase is Phase.VERIFYING:  # it has parked, and stays so until that can be measured
        assert (it.phase("trainer"), of_tenants) == (Phase.VERIFYING, [])
        return
    assert [(one.kind, one.tenant) for one in of_tenants] == [(ConditionKind.FAULTED, loser)]
    assert it.phase(loser) is Phase.FAULTED
    assert TurnLost(it.epoch(loser), LOST) in it.heard(loser)


def test_a_failure_is_told_once_and_so_is_the_return() -> None:
    it = trainer_in(Phase.RUNNING)
    it.broken.add("gpu0")
    it.wait(10 * WATCH_S)
    it.broken.clear()
    it.wait(10 * WATCH_S)
    kinds = [one.kind for one in it.conditions() if one.device == "gpu0"]
    assert kinds == [ConditionKind.DEVICE_FAILED, ConditionKind.CLEARED]


def test_intruders_are_looked_for_at_most_once_a_second_and_on_no_turns_path() -> None:
    looks: list[Measure] = []

    class Counting(Scene):
        def step(self, event: Event) -> list[Effect]:
            effects = super().step(event)
            looks.extend(effect for effect in effects if isinstance(effect, Measure))
            return effects

    it = Counting(ROLLOUT, TRAINER, member("other", 70, 1))
    for name in it.members:
        it.hello(name)
    it.run("trainer")
    looks.clear()
    for _ in range(100):  # in ten seconds
        it.leave("trainer")
        it.acquire("trainer")
        assert it.phase("trainer") is Phase.RUNNING
        it.wait(0.1)
    assert all(look.attribute for look in looks)
    assert 9 <= len(looks) <= 10


def test_a_failed_device_is_read_with_the_watch_and_not_more_often() -> None:
    it = trainer_in(Phase.VERIFYING)
    it.broken.add("gpu0")
    it.answer()
    it.acquire("trainer")
    assert it.asked == []
    asked = []
    for timer in sorted(it.timers):
        it.step(Fired(it.timers[timer][1]))
        asked += [(timer[0], ask.attribute) for ask in it.asked]
        it.answer()
    assert asked == [(TimerKind.WATCH, True)]


def test_nothing_is_granted_on_a_device_that_fails_in_the_measurement_for_it() -> None:
    it = scene()
    it.acquire("rollout")
    it.broken.add("gpu0")
    it.answer()
    assert it.phase("rollout") is Phase.WAITING
    it.wait(LIMITS.blocked_s)
    assert it.refusal("rollout") == "gpu0 failed (XID 79)"
    it.acquire("rollout")
    it.broken.clear()
    it.wait(WATCH_S)
    assert it.phase("rollout") is Phase.RESTORING


@pytest.mark.parametrize("parks", ["before it is back", "after it"])
def test_a_loser_that_lives_holds_until_its_device_is_back_and_measured_free(parks: str) -> None:
    it = trainer_in(Phase.RELEASING)
    it.broken.add("gpu0")
    it.wait(WATCH_S)
    if parks == "before it is back":
        it.park("trainer", keeps=3)
    it.wait(LIMITS.blocked_s)
    assert it.refusal("rollout") == "gpu0 failed (XID 79)"
    assert it.phase("trainer") in (Phase.VERIFYING, Phase.FAULTED)
    it.broken.clear()
    it.wait(WATCH_S)
    it.acquire("rollout")
    it.answer()
    if parks == "after it":
        assert it.phase("rollout") is Phase.WAITING
        it.park("trainer", keeps=3)
        it.answer()
    assert (it.phase("trainer"), it.phase("rollout")) == (Phase.PARKED, Phase.RESTORING)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("dies_first", [False, True])
def test_the_dead_hold_nothing_of_a_failed_device(phase: Phase, *, dies_first: bool) -> None:
    it = trainer_in(phase)
    it.asked.clear()
    it.broken.add("gpu0")
    if not dies_first:
        it.wait(WATCH_S)
    it.end("trainer")
    it.wait(WATCH_S)
    assert set(it.node.tenants) == {"rollout"}
    assert it.phase("rollout") not in TURN


def test_a_new_life_on_a_failed_device_is_parked_at_once() -> None:
    it = trainer_in(Phase.RUNNING)
    it.broken.add("gpu0")
    it.wait(WATCH_S)
    it.heard("trainer")
    it.members["trainer"] = replace(TRAINER, incarnation="trainer, life 2")
    it.hold("trainer", 0)
    it.hello("trainer", request=9)
    assert it.phase("trainer") is Phase.WAITING
    it.broken.clear()
    it.wait(WATCH_S)
    assert it.phase("rollout") is Phase.RESTORING  # it came first


def test_a_reading_from_before_the_failure_does_not_end_it() -> None:
    it = trainer_in(Phase.RUNNING)
    it.step(Fired(it.timers[TimerKind.WATCH, ""][1]))
    before = it.reading()
    it.broken.add("gpu0")
    it.wait(WATCH_S)
    it.step(before)
    assert it.node.devices["gpu0"].failed == "XID 79"


def test_a_failed_device_keeps_a_wide_tenants_other_devices_from_nobody() -> None:
    wide = member("wide", 80, 1, ("gpu0", "gpu1"))
    it = scene(wide, member("right", 80, 1, ("gpu1",)))
    it.broken.add("gpu0")
    it.wait(WATCH_S)
    it.acquire("wide")
    it.run("right")
    it.acquire("wide")
    assert it.heard("right") == [Granted(1, it.tenant("right").request)]
    it.wait(LIMITS.blocked_s)
    assert it.refusal("wide") == "gpu0 failed (XID 79)"


def test_who_waits_for_a_wide_tenant_that_cannot_be_measured_is_told() -> None:
    wide = member("wide", 80, 1, ("gpu0", "gpu1"))
    it = scene(wide, member("right", 80, 1, ("gpu1",)))
    it.run("wide")
    it.acquire("right")
    it.leave("wide")
    it.park("wide", keeps=1)
    it.broken.add("gpu0")
    it.answer()
    it.heard("right")
    it.wait(LIMITS.blocked_s)
    words = "wide cannot be measured to have left: gpu0 failed (XID 79)"
    assert it.refusal("right") == words


def test_a_failure_is_known_over_a_restart() -> None:
    it = trainer_in(Phase.RUNNING)
    it.broken.add("gpu0")
    it.wait(WATCH_S)
    it.restart()
    assert it.node.devices["gpu0"].failed == "XID 79"
    it.hello("rollout", Phase.WAITING, 0, request=9)
    it.heard("rollout")
    it.wait(LIMITS.blocked_s)
    assert it.refusal("rollout") == "gpu0 failed (XID 79)"


def test_a_device_is_watched_also_when_it_has_no_tenants() -> None:
    it = Scene(ROLLOUT)
    it.step(Resumed())
    it.broken.add("gpu0")
    it.wait(WATCH_S)
    assert it.node.devices["gpu0"].failed == "XID 79"
    it.broken.clear()
    it.wait(WATCH_S)
    assert it.node.devices["gpu0"].failed == ""


# -- a residual that grows ----------------------------------------------------------------------


def parks(it: Scene, keeps: int) -> None:
    """The rollout has a turn, then the trainer; the watch looks while the rollout is parked."""
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.park("rollout", keeps=keeps)
    it.answer()
    it.restored("trainer")
    it.wait(WATCH_S)
    it.acquire("rollout")
    it.leave("trainer")
    it.park("trainer", keeps=3)
    it.answer()


def test_a_residual_that_grows_is_told_before_it_passes_the_budget_and_once_in_a_life() -> None:
    it = scene(member("rollout", 80, 20), TRAINER)
    for keeps in range(1, 21):
        parks(it, keeps)
    told = [one for one in it.conditions() if one.kind is ConditionKind.RESIDUAL_GROWING]
    assert [(one.tenant, one.device, one.size) for one in told] == [("rollout", "gpu0", 8 * MIB)]
    assert told[0].message == (
        "rollout keeps more of gpu0 each time that it parks: from 2.0 MiB to 8.0 MiB in 6 measured "
        "parks, its residual budget is 20.0 MiB, and in about 12 more it passes that and is at "
        "fault: restart it before then"
    )


def test_a_next_life_begins_with_no_trend_and_is_told_again() -> None:
    it = scene(member("rollout", 80, 20), TRAINER)
    for keeps in range(1, 13):
        parks(it, keeps)
    it.conditions()
    it.end("rollout")
    it.answer()
    it.members["rollout"] = replace(it.members["rollout"], incarnation="rollout, life 2")
    it.hello("rollout")
    assert it.tenant("rollout").residuals == {}
    for keeps in range(1, 6):
        parks(it, keeps)
    assert it.conditions() == []
    for keeps in range(6, 13):
        parks(it, keeps)
    assert [one.kind for one in it.conditions()] == [ConditionKind.RESIDUAL_GROWING]


@pytest.mark.parametrize("end_is_heard", [True, False])
def test_a_former_lifes_park_is_no_sample_of_the_next(*, end_is_heard: bool) -> None:
    it = trainer_in(Phase.RELEASING)
    if end_is_heard:
        it.end("trainer")
    it.members["trainer"] = replace(TRAINER, incarnation="trainer, life 2")
    it.hold("trainer", 0)
    it.hello("trainer")
    it.answer()
    it.wait(3 * WATCH_S)
    assert it.tenant("trainer").residuals == {}


def test_a_park_is_one_sample_however_long_it_lasts_and_costs_no_reading() -> None:
    it = scene(member("rollout", 80, 20), TRAINER)
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.park("rollout", keeps=7)
    (ask,) = it.asked
    assert not ask.attribute
    it.answer()
    assert it.tenant("rollout").residuals == {}
    for held in (7, 8, 9):
        it.hold("rollout", held)
        it.wait(WATCH_S)
    assert it.tenant("rollout").residuals["gpu0"].recent == (7 * MIB,)


def test_a_reading_of_before_the_park_is_no_sample() -> None:
    it = scene(member("rollout", 80, 20), TRAINER)
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.step(Fired(it.timers[TimerKind.WATCH, ""][1]))
    it.hold("rollout", 7)
    before = it.reading()
    it.park("rollout", keeps=7)
    it.answer()
    it.step(before)
    assert it.tenant("rollout").residuals == {}


# -- epochs -------------------------------------------------------------------------------------

REPORTS: list[Callable[[int], TenantMessage]] = [
    Yield,
    Quiesced,
    Released,
    Restored,
    lambda epoch: Failed(epoch, "late"),
]


@pytest.mark.parametrize("phase", list(Phase))
def test_a_message_of_another_epoch_changes_nothing(phase: Phase) -> None:
    it = trainer_in(phase)
    before = it.state()
    for report in REPORTS:
        for epoch in (1, 99):
            message = report(epoch)
            noted = [Send("trainer", Noted(epoch))] if isinstance(message, Yield) else []
            assert it.say("trainer", message) == noted
            assert it.state() == before


@pytest.mark.parametrize("phase", list(Phase))
def test_a_report_that_does_not_fit_the_phase_changes_nothing(phase: Phase) -> None:
    """It came twice, or late. `Failed` is left out where it may come at any time of a turn."""
    fits = {
        Phase.RESTORING: (Restored, Failed),
        Phase.RUNNING: (Yield, Failed),
        Phase.QUIESCING: (Quiesced, Released, Failed),
        Phase.RELEASING: (Released, Failed),
        Phase.FAULTED: (Released,),
    }
    it = trainer_in(phase)
    before, epoch = it.state(), it.epoch("trainer")
    for message in (report(epoch) for report in REPORTS):
        if not isinstance(message, fits.get(phase, ())):
            effects = it.say("trainer", message)
            assert effects in ([], [Send("trainer", Noted(epoch))])
            assert it.state() == before


def test_words_of_nobody_and_of_who_has_no_session_change_nothing() -> None:
    it = trainer_in(Phase.RUNNING)
    it.step(Lost("trainer"))
    before = it.state()
    for name in ("trainer", "critic"):
        assert it.say(name, Released(3)) == []
        assert it.say(name, Acquire(90)) == []
    assert it.step(Lost("trainer")) == []
    assert it.step(Lost("critic")) == []
    assert it.state() == before


def test_each_turn_has_a_larger_epoch_over_tenants_devices_lives_and_arbiters() -> None:
    it = scene(member("left", 80, 5, ("gpu0",)), member("right", 80, 5, ("gpu1",)))
    epochs = [it.run("left"), it.run("right")]
    it.leave("left")
    epochs.append(it.run("left"))
    it.restart()
    it.hello("left", Phase.YIELDED, 3)
    epochs.append(it.run("left"))
    it.end("left")
    it.answer()
    it.members["left"] = replace(it.members["left"], incarnation="left, life 2")
    it.hello("left")
    epochs.append(it.run("left"))
    assert epochs == [1, 2, 3, 4, 5]


# -- the arbiter restarts -----------------------------------------------------------------------


def test_the_running_tenant_keeps_running_over_a_restart() -> None:
    it = trainer_in(Phase.RUNNING)
    it.restart()
    it.wait(9)
    it.hello("trainer", Phase.RUNNING, 3)
    it.hello("rollout", Phase.WAITING, 0, request=it.tenant("rollout").request)
    assert it.heard("trainer") == [Welcome(Phase.RUNNING, 3), Wanted(3)]
    it.wait(30)
    assert it.phase("trainer") is Phase.RUNNING
    assert it.phase("rollout") is Phase.WAITING
    assert it.conditions() == []


def test_a_tenant_that_does_not_come_back_after_a_restart_loses_its_turn_with_its_lease() -> None:
    it = trainer_in(Phase.RUNNING)
    it.restart()
    it.wait(10)
    assert it.phase("trainer") is Phase.FAULTED


def test_a_release_is_measured_again_after_a_restart() -> None:
    it = trainer_in(Phase.VERIFYING)
    it.hold("trainer", 3)
    it.restart()
    it.answer()
    assert it.phase("trainer") is Phase.PARKED
    assert it.phase("rollout") is Phase.WAITING  # it has no session yet
    it.hello("rollout", Phase.WAITING, 0, request=it.tenant("rollout").request)
    it.answer()
    assert it.phase("rollout") is Phase.RESTORING


@pytest.mark.parametrize(
    ("phase", "deadline"),
    [(Phase.RESTORING, LIMITS.restore_s), (Phase.RELEASING, LIMITS.park_s)],
)
def test_deadlines_hold_over_a_restart(phase: Phase, deadline: float) -> None:
    it = trainer_in(phase)
    it.restart()
    it.hello("trainer", phase, 3)
    it.wait(deadline)
    assert it.tenant("trainer").fault != ""


@pytest.mark.parametrize("restart_after", [0.0, 9.0])
def test_who_waits_behind_a_fault_is_refused_over_a_restart(restart_after: float) -> None:
    it = trainer_in(Phase.FAULTED)
    it.wait(restart_after)
    it.restart()
    it.hello("rollout", Phase.WAITING, 0, request=it.tenant("rollout").request)
    assert it.heard("rollout") == [Welcome(Phase.WAITING, 0)]
    it.wait(LIMITS.blocked_s)
    assert it.refusal("rollout") == "trainer is at fault: it could not park: requests in flight"


# -- the memory on the host ---------------------------------------------------------------------


PARKS = replace(TRAINER, host=67 * MIB)


def test_who_could_not_park_gets_no_turn_and_nobody_leaves_for_it() -> None:
    it = scene(ROLLOUT, PARKS)
    it.run("rollout")
    it.leave("rollout")
    it.heard("rollout")
    it.left["trainer"] = 66
    it.acquire("trainer")
    it.answer()
    reason = (
        "it could not park: that moves 67.0 MiB into its pod's memory, which has 66.0 MiB left "
        "within its limit of 512.0 MiB: raise the limit by at least 1 MiB, or say in the claim how "
        "much parking moves (`host`)"
    )
    assert it.refusal("trainer") == reason
    (told,) = it.conditions()
    assert (told.kind, told.message) == (ConditionKind.NO_ROOM, f"trainer: {reason}")
    assert (told.tenant, it.phase("trainer")) == ("trainer", Phase.PARKED)
    assert (it.phase("rollout"), it.heard("rollout")) == (Phase.YIELDED, [])
    it.left["trainer"] = 67
    it.acquire("trainer")
    it.answer()
    assert it.phase("rollout") is Phase.QUIESCING


def test_who_waits_behind_another_is_told_at_once_that_it_could_not_park() -> None:
    it = scene(ROLLOUT, member("other", 80, 5), PARKS)
    it.run("rollout")
    it.acquire("other")
    it.left["trainer"] = 0
    it.acquire("trainer")
    it.answer()
    assert it.refusal("trainer").startswith("it could not park")
    assert it.phase("other") is Phase.WAITING


def test_who_asks_in_vain_has_no_device_read_for_it() -> None:
    """Asking again and again would spend the re-reads of a release that is being measured."""
    it = scene(ROLLOUT, PARKS)
    it.run("rollout")
    it.left["trainer"] = 0
    it.acquire("trainer")
    assert [(ask.devices, ask.headrooms) for ask in it.asked] == [((), ("trainer",))]
    it.answer()
    assert it.refusal("trainer").startswith("it could not park")
    assert it.asked == []


def test_a_first_grant_rests_on_a_reading_of_the_host_at_that_moment() -> None:
    it = scene(ROLLOUT, PARKS)
    it.run("rollout")
    it.left["trainer"] = 100
    it.acquire("trainer")
    it.answer()
    it.leave("rollout")
    it.left["trainer"] = 10
    it.park("rollout", keeps=5)
    it.answer()
    assert it.refusal("trainer").startswith("it could not park")


def test_what_is_parked_already_needs_no_second_room() -> None:
    it = scene(ROLLOUT, PARKS)
    it.left["trainer"] = 67
    it.run("trainer")
    it.leave("trainer")
    it.acquire("rollout")
    it.park("trainer", keeps=3)
    it.left["trainer"] = 0
    it.answer()
    it.restored("rollout")
    it.restart()
    it.hello("rollout", Phase.RUNNING, it.epoch("rollout"))
    it.hello("trainer", Phase.PARKED, it.epoch("trainer"))
    it.leave("rollout")
    it.acquire("trainer")
    it.park("rollout", keeps=5)
    assert [ask.headrooms for ask in it.asked] == [()]
    it.answer()
    assert it.phase("trainer") is Phase.RESTORING


def test_the_next_life_has_parked_nothing_yet() -> None:
    it = scene(ROLLOUT, PARKS)
    it.left["trainer"] = 67
    it.run("trainer")
    it.hold("trainer", 0)
    it.left["trainer"] = 66
    it.members["trainer"] = replace(PARKS, incarnation="trainer, life 2")
    it.heard("trainer")
    it.hello("trainer", request=1)
    it.answer()
    welcome, refused = it.heard("trainer")
    assert isinstance(welcome, Welcome)
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("it could not park")


def test_where_no_limit_is_known_nobody_is_refused() -> None:
    it = scene(ROLLOUT, PARKS)
    it.run("trainer")


# -- the journal's snapshot ---------------------------------------------------------------------


def snapshot() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(json.dumps(trainer_in(Phase.RELEASING).node.to_json()))
    return stored


@pytest.mark.parametrize("version", [None, 0, 8, "7"])
def test_a_snapshot_of_another_version_is_refused(version: object) -> None:
    with pytest.raises(ValueError, match=rf"state version {version}, this arbiter reads 7"):
        Node.from_json({**snapshot(), "state_version": version})


def test_a_snapshot_of_version_6_is_read() -> None:
    data = snapshot() | {"state_version": 6}
    for tenant in data["tenants"].values():
        del tenant["unasked"]
    assert Node.from_json(data) == Node.from_json(snapshot())


def test_a_snapshot_of_version_5_is_read() -> None:
    """What was done about a fault by then is known: no step of its ladder is repeated."""
    data = snapshot() | {"state_version": 5}
    for name, faulty in (("trainer", 7), ("rollout", 0)):
        tenant = data["tenants"][name]
        tenant |= {"rung": 1, "faulty": faulty}
        tenant["who"]["ladder"] = [["evict", 30.0], ["kill", 60.0]]
        del tenant["steps"], tenant["who"]["objectives"]["lease_s"]
    read = Node.from_json(data).tenants
    assert (read["trainer"].steps, read["rollout"].steps) == ((Step.EVICT,), ())


def test_a_snapshot_of_version_4_is_read() -> None:
    data = snapshot() | {"state_version": 4}
    for tenant in data["tenants"].values():
        for key in ("frozen", "thawing", "refused", "steps"):
            del tenant[key]
    assert Node.from_json(data) == Node.from_json(snapshot())


def test_a_snapshot_of_version_2_is_read() -> None:
    data = snapshot() | {"state_version": 2}
    for device in data["devices"].values():
        del device["failed"]
    for tenant in data["tenants"].values():
        for key in ("kept", "sampled", "growing", "residuals", "frozen", "thawing", "refused"):
            del tenant[key]
        del tenant["steps"]
    assert Node.from_json(data) == Node.from_json(snapshot())


@pytest.mark.parametrize("key", sorted(snapshot()))
def test_a_snapshot_that_lacks_a_part_is_refused(key: str) -> None:
    data = snapshot()
    del data[key]
    with pytest.raises(ValueError, match=r"state version None|not a whole snapshot"):
        Node.from_json(data)


@pytest.mark.parametrize(
    "path",
    [
        ("devices", "gpu0", "name"),
        ("devices", "gpu0", "total"),
        ("tenants", "trainer", "who"),
        ("tenants", "trainer", "phase"),
        *(("tenants", "trainer", "who", name) for name in Membership.__slots__),
    ],
    ids=".".join,
)
def test_a_snapshot_with_a_record_that_is_not_whole_is_refused(path: tuple[str, ...]) -> None:
    data = snapshot()
    *parents, key = path
    record = data
    for name in parents:
        record = record[name]
    del record[key]
    with pytest.raises(ValueError, match="not a whole snapshot"):
        Node.from_json(data)


def test_a_snapshot_with_something_unknown_is_refused() -> None:
    data = snapshot()
    data["tenants"]["trainer"]["colour"] = "green"
    with pytest.raises(ValueError, match="not a whole snapshot"):
        Node.from_json(data)
    data = snapshot()
    data["tenants"]["trainer"]["phase"] = "Dancing"
    with pytest.raises(ValueError, match="Dancing"):
        Node.from_json(data)


# -- where restoring ahead, failing devices and ladders meet ---------------------------------------


def trainer_ahead() -> Scene:
    """The rollout parks, and the trainer has restored what there was room for beside it."""
    it = scene()
    it.step(Connected(TRAINER, Hello("trainer", pieces=True)))
    it.run("rollout")
    it.acquire("trainer")
    it.leave("rollout")
    it.say("rollout", Quiesced(1))
    it.answer()
    assert it.tenant("trainer").ahead == (TOTAL - 80 - 3) * MIB
    it.hold("trainer", TOTAL - 80)
    it.heard("trainer")
    return it


def test_memory_that_nobody_is_seen_to_hold_is_found_though_one_restores_ahead() -> None:
    it = trainer_ahead()
    it.hold(NOBODY, 10)
    it.park("rollout", keeps=5)
    it.answer()
    assert it.phase("trainer") is Phase.WAITING
    it.wait(LIMITS.restore_s)
    assert it.heard("trainer") == [Release(2)]
    it.park("trainer", keeps=3)
    it.wait(LIMITS.verify_s + LIMITS.blocked_s + 3)
    assert it.refusal("trainer").startswith("10.0 MiB of gpu0 belong to nobody that can be seen")


def test_what_was_restored_ahead_on_a_device_that_fails_is_lost_in_words() -> None:
    it = trainer_ahead()
    it.broken.add("gpu0")
    it.wait(LIMITS.watch_s)
    release, refused = it.heard("trainer")
    assert release == Release(2)
    assert isinstance(refused, Refused)
    assert refused.reason == "gpu0 failed (XID 79): what it held there is lost"


def test_who_restored_ahead_and_is_lost_for_longer_than_the_lease_is_at_fault() -> None:
    it = trainer_ahead()
    it.park("rollout", keeps=5)
    it.step(Lost("trainer"))
    it.wait(LIMITS.lease_s)
    assert it.phase("trainer") is Phase.FAULTED
    assert [told.kind for told in it.conditions()] == [ConditionKind.SESSION_LOST]
    it.hold("trainer", 3)  # it has not said that it parked: it may yet restore
    it.wait(LIMITS.watch_s)
    assert it.phase("trainer") is Phase.FAULTED


def test_a_ladder_waits_while_a_device_cannot_say_whether_its_tenant_left() -> None:
    ladder = (Rung(Step.ASK, 5.0), Rung(Step.KILL, 5.0))
    it = scene(replace(TRAINER, ladder=ladder))
    it.run("trainer")
    it.broken.add("gpu0")
    it.wait(60)
    assert it.phase("trainer") is Phase.FAULTED
    assert it.killed == []
    it.broken.clear()
    it.wait(12)
    assert it.killed == ["trainer"]


def test_an_intruder_is_seen_on_a_device_that_answers() -> None:
    wide = member("wide", 70, 3, ("gpu0", "gpu1"))
    it = scene(wide, ROLLOUT)
    it.broken.add("gpu1")
    it.wait(LIMITS.watch_s)
    it.conditions()
    it.hold("wide", 20)
    it.wait(LIMITS.watch_s)
    (told,) = it.conditions()
    assert (told.kind, told.tenant, told.device) == (ConditionKind.INTRUDER, "wide", "gpu0")


# -- parking in part -------------------------------------------------------------------------------


def trainer_leaves(*members: Membership) -> Scene:
    """The trainer, which can park in pieces, yielded its turn, and the rollout asks."""
    it = scene(*members)
    it.step(Connected(it.tenant("trainer").who, Hello("trainer", pieces=True)))
    it.run("trainer")
    it.leave("trainer")
    it.heard("trainer")
    it.acquire("rollout")
    return it


@pytest.mark.parametrize(
    ("members", "keep"),
    [
        ((TRAINER, ROLLOUT), TOTAL - 80 - 3),
        ((TRAINER, replace(ROLLOUT, need=None)), 0),
        ((TRAINER, ROLLOUT, member("third", 10, 9)), TOTAL - 80 - 3 - 9),
        ((TRAINER, replace(ROLLOUT, need=TOTAL * MIB)), 0),
    ],
    ids=["room", "nobody said what it needs", "a third one's residual", "no room"],
)
def test_a_tenant_keeps_what_the_next_one_has_no_use_for(
    members: tuple[Membership, ...], keep: int
) -> None:
    it = trainer_leaves(*members)
    assert it.heard("trainer") == [Release(1, keep=keep * MIB)]


def test_who_parks_in_one_piece_keeps_nothing() -> None:
    it = scene()
    it.run("rollout")
    it.leave("rollout")
    it.heard("rollout")
    it.acquire("trainer")
    assert it.heard("rollout") == [Release(1)]


def test_more_than_it_said_to_have_kept_is_too_much() -> None:
    it = trainer_leaves(TRAINER, ROLLOUT)
    it.hold("trainer", 3 + 10)
    it.say("trainer", Released(1, 9 * MIB))
    it.wait(LIMITS.verify_s)
    assert it.phase("trainer") is Phase.FAULTED


def test_nor_does_its_word_give_it_more_than_it_was_let_keep() -> None:
    it = trainer_leaves(TRAINER, ROLLOUT)
    it.say("trainer", Released(1, 90 * MIB))
    assert it.tenant("trainer").kept == (TOTAL - 80 - 3) * MIB


def test_what_is_kept_goes_when_its_process_begins_anew() -> None:
    it = trainer_leaves(TRAINER, ROLLOUT)
    it.hold("trainer", 3 + 9)
    it.say("trainer", Released(1, 9 * MIB))
    it.answer()
    assert it.phase("rollout") is Phase.RESTORING
    it.step(Connected(it.tenant("trainer").who, Hello("trainer", pieces=True)))
    assert (it.phase("trainer"), it.tenant("trainer").kept) == (Phase.QUIESCING, 9 * MIB)
    assert it.heard("trainer")[-1] == Release(1, keep=9 * MIB)


def kept_nine(*members: Membership) -> Scene:
    """The trainer parked all but 9, and the rollout was granted."""
    it = trainer_leaves(*(members or (TRAINER, ROLLOUT)))
    it.hold("trainer", 3 + 9)
    it.say("trainer", Released(1, 9 * MIB))
    it.answer()
    it.heard("trainer")
    return it


def test_memory_of_nobody_beside_what_is_kept_is_nobodys() -> None:
    it = trainer_leaves(TRAINER, ROLLOUT)
    it.hold("trainer", 3 + 9)
    it.hold(NOBODY, 10)
    it.say("trainer", Released(1, 9 * MIB))
    it.answer()
    assert it.phase("rollout") is Phase.WAITING
    it.wait(LIMITS.verify_s + LIMITS.blocked_s + 3)
    assert it.refusal("rollout").startswith("10.0 MiB of gpu0 belong to nobody that can be seen")
    assert it.phase("trainer") is Phase.PARKED


def test_what_is_kept_is_no_part_of_the_residual() -> None:
    it = kept_nine()
    it.wait(LIMITS.watch_s)
    assert it.tenant("trainer").residuals["gpu0"].recent == (3 * MIB,)


def test_who_parks_too_late_may_keep_what_it_was_let_keep() -> None:
    it = trainer_leaves(TRAINER, ROLLOUT)
    it.wait(LIMITS.park_s)
    assert it.phase("trainer") is Phase.FAULTED
    it.hold("trainer", 3 + 9)
    it.say("trainer", Released(1, 9 * MIB))
    it.answer()
    assert it.phase("trainer") is Phase.PARKED


def test_who_was_lost_while_it_parked_may_too() -> None:
    it = trainer_leaves(TRAINER, ROLLOUT)
    it.step(Lost("trainer"))
    it.wait(LIMITS.lease_s)
    assert it.phase("trainer") is Phase.FAULTED
    it.step(Connected(it.tenant("trainer").who, Hello("trainer", Phase.RELEASING, 1, pieces=True)))
    it.hold("trainer", 3 + 9)
    it.say("trainer", Released(1, 9 * MIB))
    it.answer()
    assert it.phase("trainer") is Phase.PARKED


def test_the_residual_of_one_that_comes_is_room_that_none_may_keep() -> None:
    it = kept_nine(TRAINER, replace(ROLLOUT, need=(TOTAL - 3 - 9) * MIB))
    assert it.phase("rollout") is Phase.RESTORING
    it.step(Connected(member("third", 10, 4), Hello("third")))
    assert it.heard("trainer") == [Release(3, keep=5 * MIB)]


def test_who_kept_some_on_a_device_that_fails_is_told_to_park_it() -> None:
    it = kept_nine()
    it.broken.add("gpu0")
    it.wait(LIMITS.watch_s)
    assert it.heard("trainer") == [Release(3)]
