"""Protocol scenarios as text: commands go into the node's machine, its effects come out.

A transcript is paragraphs. Each begins with comments and commands, one a line; what the machine had
done after them follows behind `----`, a line an effect:

    connect a role=rollout devices=gpu0 need=40
    say a acquire 1
    ----
    a <- Welcome Parked epoch=0
    a: Parked -> Waiting
    measure gpu0

The commands:

- `device gpu0 size=100 baseline=10`: a device; needed only where it is not an empty one of 100 MiB
- `limits park_s=20`: the admin's bounds from here on
- `connect a role=trainer devices=gpu0,gpu1 need=40 residual=5`: a hello, with what the node knows
  of the tenant (said once; `host=35` is what parking moves). `phase= epoch= request= protocol=` are
  its own words; `life=2`: it began anew; `for=b`: the acquire in it is on behalf of b. And also:
  `policy=harvest priority=2 leave_s=5`, `ladder=ask:5,kill:10`
- `say a acquire 1`, `say a failed 1 reason="no room"`: a message, its fields in order or by name;
  `for=b`, as above
- `measured gpu0 used=40 a=40 foreign=0`: the answer to the oldest open question about these
  devices; owners only where the machine asked for them; `left=a:30/100`: of a's host memory,
  where it asked for that (alone, it may be) and there is a limit; `failed=gpu0`: that could not
  be read
- `fire lease a`: the timer runs out, and the clock goes on to that moment
- `lost a`: its session broke; `gone a`, `gone a life=1`: all processes of that life ended
- `frozen a held=40`: its processes are; `problem="why"`: they could not be; `thawed a`, the same,
  `later=yes`: a later turn may be tried
- `restart`: the arbiter dies, and another begins with what is stored
- `state`: what is on record
- `quietly`, first in a paragraph: what its commands lead to is not shown

Sizes are MiB. Fields at their default are left out, so a field that the protocol gains changes no
transcript that does not use it.
"""

import json
import shlex
from dataclasses import MISSING, Field, fields, replace
from enum import EnumType
from typing import Any, get_args

from claim_phases.escalation import Rung, Step
from claim_phases.events import (
    Arm,
    Condition,
    Connected,
    Effect,
    Event,
    Fired,
    Frozen,
    Gone,
    Headroom,
    Judged,
    Lost,
    Measure,
    Measured,
    PhaseChanged,
    Resumed,
    RoomMade,
    Said,
    Send,
    Tell,
    Thawed,
    Timer,
    TimerKind,
    Unread,
    Usage,
)
from claim_phases.messages import Hello, TenantMessage
from claim_phases.node import Device, Membership, Node, Tenant
from claim_phases.phases import Phase
from claim_phases.policies import Objectives
from claim_phases.taints import tainted
from claim_phases.turns import Limits, Turns
from claim_phases.verdicts import MIB, mib

SEPARATOR = "----"
QUIETLY = "quietly"
OBJECTIVES = {f.name for f in fields(Objectives)}
FACTS = {f.name for f in fields(Membership)} - {"tenant", "incarnation"} | OBJECTIVES
MESSAGES = {cls.__name__.lower(): cls for cls in get_args(TenantMessage)}


class ScriptError(Exception):
    """A command that makes no sense, and where."""


def replay(text: str) -> str:
    """The transcript as the machine of today would write it."""
    script = Script()
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        head, separator, _ = paragraph.partition(f"\n{SEPARATOR}")
        commands = [line for line in head.splitlines() if not line.startswith("#")]
        if commands:
            quiet = commands[0] == QUIETLY
            effects = [line for command in commands[quiet:] for line in script.run(command)]
            shown = ["not shown"] if quiet else effects or ["nothing"]
            head = "\n".join([head, SEPARATOR, *shown])
        elif separator:
            raise ScriptError(f"no command in the paragraph {paragraph!r}")
        paragraphs.append(head)
    return "\n\n".join(paragraphs) + "\n"


class Script:
    """The machine of one node, its clock, its timers, and what it waits to hear measured."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.node = Node("a-boot", {})
        self.turns = Turns(self.node, self.limits)
        self.now = 0.0
        self.asked: list[Measure] = []
        self.timers: dict[tuple[TimerKind, str], tuple[Timer, float]] = {}
        self.members: dict[str, Membership] = {}

    def run(self, command: str) -> list[str]:
        """Carry out one command; return what came of it."""
        verb, *words = shlex.split(command)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        try:
            return getattr(self, f"_do_{verb}")(*names, **options)  # type: ignore[no-any-return]
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise ScriptError(f"{command!r}: {type(exc).__name__}: {exc}") from exc

    def step(self, event: Event) -> list[Effect]:
        """One step of the machine; what is stored of it must read back as the same node."""
        effects = self.turns.step(event, self.now)
        for effect in effects:
            match effect:
                case Measure():
                    self.asked.append(effect)
                case Arm(timer, delay_s):
                    self.timers[timer.kind, timer.subject] = (timer, self.now + delay_s)
                case _:
                    pass
        if self._stored() != self.node:
            raise ScriptError(f"{event}: what is stored is not what lives")
        return effects

    def _stored(self) -> Node:
        return Node.from_json(json.loads(json.dumps(self.node.to_json())))

    def _take(self, event: Event) -> list[str]:
        return [shown(effect) for effect in self.step(event)]

    # -- commands -------------------------------------------------------------------------------

    def _do_device(self, name: str, size: str = "100", baseline: str = "0") -> list[str]:
        self.node.devices[name] = Device(name, int(size) * MIB, int(baseline) * MIB)
        return []

    def _do_limits(self, **seconds: str) -> list[str]:
        self.limits = replace(self.limits, **{name: float(s) for name, s in seconds.items()})
        self.turns = Turns(self.node, self.limits)
        return []

    def _do_connect(self, name: str, **options: str) -> list[str]:
        life, caller = options.pop("life", ""), options.pop("for", "")
        facts = {key: options.pop(key) for key in FACTS if key in options}
        if name not in self.members or facts:
            self.members[name] = self._member(name, **facts)
        if life:
            self.members[name] = replace(self.members[name], incarnation=f"{name}/{life}")
        who = self.members[name]
        hello = Hello(**_values(Hello, {"role": who.role} | options))
        return self._take(Connected(who, hello, caller))

    def _member(self, name: str, devices: str = "gpu0", **facts: str) -> Membership:
        names = tuple(devices.split(","))
        for device in names:
            if device not in self.node.devices:
                self._do_device(device)
        values: dict[str, Any] = {"role": name, "need": None, "residual": 0}
        wishes = {key: facts.pop(key) for key in OBJECTIVES if key in facts}
        values["objectives"] = Objectives(**_values(Objectives, wishes))
        rungs = (rung.split(":") for rung in facts.pop("ladder", "").split(",") if rung)
        values["ladder"] = tuple(Rung(Step(step), float(after_s)) for step, after_s in rungs)
        values |= _values(Membership, facts)
        sizes = ("need", "residual", "host")
        values |= {key: int(facts[key]) * MIB for key in sizes if key in facts}
        return Membership(name, incarnation=f"{name}/1", devices=names, **values)

    def _do_say(self, name: str, kind: str, *values: str, **options: str) -> list[str]:
        cls = MESSAGES[kind]
        behalf = options.pop("for", "")
        named = dict(zip((f.name for f in fields(cls)), values, strict=False))
        return self._take(Said(name, cls(**_values(cls, named | options)), behalf))

    def _do_measured(self, *devices: str, failed: str = "", **held: str) -> list[str]:
        ask = next((ask for ask in self.asked if ask.devices == devices), None)
        if ask is None:
            raise ValueError(f"that was not asked for; open: {self.asked}")
        self.asked.remove(ask)
        headrooms = tuple(map(_headroom, held.pop("left", "").split()))
        if {headroom.tenant for headroom in headrooms} - set(ask.headrooms):
            raise ValueError("the machine asked for the host memory of others, or none")
        sizes = {owner: int(size) * MIB for owner, size in held.items()}
        broken = failed.split(",") if failed else []
        unread = tuple(Unread(name, "it does not answer") for name in broken)
        devices = tuple(name for name in devices if name not in broken)
        used = sizes.pop("used") if devices else 0
        if not ask.attribute:
            if sizes:
                raise ValueError("the machine asked for the sum alone")
            sums = tuple(Usage(d, used) for d in devices)
            return self._take(Measured(ask.asked, sums, unread, headrooms))
        foreign = sizes.pop("foreign", 0)
        owners = tuple(sorted(sizes.items()))
        usages = tuple(
            Usage(device, used, owners, foreign, tuple((o, self._budget(o, device)) for o in sizes))
            for device in devices
        )
        return self._take(Measured(ask.asked, usages, unread, headrooms))

    def _budget(self, name: str, device: str) -> int:
        who = self.members[name]
        return who.residual if device in who.devices else 0

    def _do_fire(self, kind: str, subject: str = "") -> list[str]:
        timer, at = self.timers.pop((TimerKind(kind), subject))
        self.now = max(self.now, at)
        return self._take(Fired(timer))

    def _do_lost(self, name: str) -> list[str]:
        return self._take(Lost(name))

    def _do_gone(self, name: str, life: str = "") -> list[str]:
        return self._take(Gone(name, f"{name}/{life}" if life else self.members[name].incarnation))

    def _do_frozen(self, name: str, held: str = "0", problem: str = "") -> list[str]:
        return self._take(Frozen(name, self.members[name].incarnation, int(held) * MIB, problem))

    def _do_thawed(self, name: str, problem: str = "", later: str = "") -> list[str]:
        life = self.members[name].incarnation
        return self._take(Thawed(name, life, problem, later == "yes"))

    def _do_restart(self) -> list[str]:
        self.node = self._stored()
        self.turns = Turns(self.node, self.limits)
        self.asked.clear()
        self.timers.clear()
        return self._take(Resumed())

    def _do_state(self) -> list[str]:
        queue = ", ".join(self.node.queue) or "nobody"
        return [
            f"epoch {self.node.epoch}, in the queue: {queue}",
            *(_tenant(tenant) for tenant in self.node.tenants.values()),
            *(
                f"{device.name}: {mib(device.foreign)} belong to {device.whose}"
                for device in self.node.devices.values()
                if device.foreign
            ),
            *(
                f"{name} is tainted {', '.join(f'{one.reason}:{one.effect}' for one in taints)}"
                for name, taints in tainted(self.node).items()
            ),
            *(
                f"{device.name} failed: {device.failed}"
                for device in self.node.devices.values()
                if device.failed
            ),
        ]


# -- words ------------------------------------------------------------------------------------


def shown(effect: object) -> str:
    """An effect in a line, also one that is new here."""
    match effect:
        case Send(tenant, message):
            return f"{tenant} <- {_record(message)}"
        case Measure(devices, attribute, _, headrooms):
            host = f"the host memory of {' '.join(headrooms)}" if headrooms else ""
            sums = f"{' '.join(devices)}{' by owner' if attribute else ''}"
            return f"measure {', '.join(filter(None, [sums, host]))}"
        case Arm(timer, delay_s):
            subject = f" {timer.subject}" if timer.subject else ""
            return f"timer {timer.kind}{subject} {_duration(delay_s)}"
        case Tell(_, PhaseChanged(tenant, before, after, epoch)):
            return f"{tenant}: {before} -> {after or 'ended'}, epoch {epoch}"
        case Tell(_, Judged(tenant, device, used, total, free)):
            verdict = "free" if free else "held"
            return f"told {device}: {mib(used)} of {mib(total)} in use: {verdict} ({tenant})"
        case Tell(_, RoomMade(tenant, epoch, size)):
            return f"told room: {tenant} may hold {mib(size)} more without a turn, epoch {epoch}"
        case Tell(_, Condition(kind, message)):
            return f"told {kind}: {message}"
        case Tell(_, other):
            return f"told {_record(other)}"
        case _:
            return _record(effect)


def _headroom(text: str) -> Headroom:
    tenant, _, sizes = text.partition(":")
    left, limit = (int(size) * MIB for size in sizes.split("/"))
    return Headroom(tenant, left, limit)


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _record(thing: Any) -> str:
    """Its kind and its fields, but those at their default."""
    shown = [type(thing).__name__]
    for f in fields(thing):
        value = getattr(thing, f.name)
        if isinstance(value, tuple):
            value = ",".join(map(str, value))
        if value != _default(f):
            word = json.dumps(value) if isinstance(value, str) and " " in value else f"{value}"
            shown.append(word if isinstance(value, Phase) else f"{f.name}={word}")
    return " ".join(shown)


def _default(f: "Field[Any]") -> Any:
    return MISSING if f.default is MISSING or f.name == "phase" else f.default


def _tenant(tenant: Tenant) -> str:
    noted = {
        "no session": not tenant.connected and not tenant.gone,
        "its processes ended": tenant.gone,
        "frozen": tenant.frozen is not None,
        f"at fault: {tenant.fault}": tenant.fault,
        f"epoch {tenant.taken} was taken": tenant.taken,
    }
    return ", ".join(
        [
            f"{tenant.name} {tenant.phase}",
            f"epoch {tenant.epoch}",
            *(n for n, so in noted.items() if so),
        ]
    )


def _values(cls: type, texts: dict[str, str]) -> dict[str, Any]:
    """The fields' values, of the fields' types."""
    types = {f.name: f.type for f in fields(cls)}
    return {name: _value(types[name], text) for name, text in texts.items()}


def _value(kind: Any, text: str) -> Any:
    if isinstance(kind, EnumType):
        return kind(text)
    if kind is str:
        return text
    if kind is bool:
        return text == "yes"
    return float(text) if "." in text else int(text)
