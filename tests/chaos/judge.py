"""Did everything hold that must? Pure: joins what was done with what was seen and said.

The bytes are the kernel's (the observer's samples and the gauge's looks); `tandem.verdict` joins
them with the turns. An arbiter that is killed between a step and its line in the event log leaves a
gap there: it says at its next start how things stand, and for the time between the phases are not
known, so no sample of it is judged by phases. The gauge needs no phases, but for the times in which
one tenant was given room while another parked.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from claim_phases.phases import TURN, Phase
from tandem.figures import mib
from tandem.run_files import ArbiterStart, PhaseChange, Run, Sample
from tandem.verdict import Rules
from tandem.verdict import judge as verdict

ALLOWED: Final = (
    "is at fault:",
    "its session was lost for longer than the lease",
    "it did not park",
)
"""What a tenant may be told when it gets no turn, or loses one: that a stopped one is at fault."""

AFTER_A_HANG: Final = (*ALLOWED, "it did not restore within")
"""What one may be told that hung itself."""


@dataclass(frozen=True)
class Word:
    """What a tenant said: waits, turn, left, asks, answered, failed, broken or done."""

    t: float
    who: str
    says: str
    epoch: int
    why: str
    updates: int


@dataclass(frozen=True)
class Struck:
    """A blow that was dealt; `tenant` is its victim's."""

    t: float
    act: str
    victim: str
    tenant: str | None


@dataclass(frozen=True)
class Hang:
    """From when to when a part of a tenant hung, and what ended that: it was thawed or killed by
    the arbiter, or struck by us.
    """

    t: float
    until: float
    tenant: str
    end: str


@dataclass(frozen=True)
class ArbiterEnd:
    """An arbiter that ended, with the queue and each tenant's epoch as its journal has them."""

    t: float
    struck: bool
    queue: tuple[str, ...]
    epochs: Mapping[str, int]


@dataclass(frozen=True)
class TenantEnd:
    """A tenant whose processes ended; `struck`: it was killed."""

    t: float
    tenant: str
    struck: bool


@dataclass(frozen=True)
class Above:
    """From the first to the last look of the gauge that found more on a device than one tenant
    holds; `used` is the most.
    """

    t: float
    until: float
    device: str
    used: int


@dataclass(frozen=True)
class Chaos:
    """All that is known of a run.

    `digests`: what each tenant's state must be at its end. `cancelling`: those that may give up a
    wait by themselves, as an agent does whose callers left. `refusing`: whoever waits may be
    refused because another hangs.
    """

    run: Run
    rules: Rules
    words: Sequence[Word]
    blows: Sequence[Struck]
    arbiter_ends: Sequence[ArbiterEnd]
    tenant_ends: Sequence[TenantEnd]
    above: Sequence[Above]
    digests: Mapping[str, str]
    bound_s: float
    lease_s: float
    cancelling: frozenset[str]
    hangs: Sequence[Hang] = ()
    refusing: bool = True


def judge(chaos: Chaos) -> tuple[str, ...]:
    """Every violation, one sentence each."""
    run, _ = known(chaos.run)
    return (
        *_gauge(chaos),
        *verdict(replace(run, conditions=()), chaos.rules),
        *_conditions(chaos),
        *_said_turns(chaos),
        *_places(chaos),
        *_stuck(chaos),
        *_ladder(chaos),
        *_failures(chaos),
        *_states(chaos),
    )


# -- what was told ------------------------------------------------------------------------------


def known(run: Run) -> tuple[Run, int]:
    """The run as far as its phases are known, and how many samples lie where they are not."""
    changes = list(run.changes)
    gaps: list[tuple[float, float]] = []
    for start in run.starts[1:]:
        before = [change for change in changes if change.t < start.t]
        now = _restated(changes, start)
        newest = {change.tenant: change for change in before}
        lost = [
            change
            for tenant, change in newest.items()
            if (
                tenant in now
                and (now[tenant].after, now[tenant].epoch) != (change.after, change.epoch)
            )
            or (tenant not in now and change.after != "Gone")
        ]
        if lost or now.keys() - newest.keys():
            gaps.append((before[-1].t if before else start.t, start.t))
        gone = [
            replace(change, t=start.t, before=change.after, after="Gone")
            for change in lost
            if change.tenant not in now
        ]
        # Turns last: who had one before them has it no more.
        ordered = sorted(now.values(), key=lambda one: (one.after in TURN, one.epoch))
        changes = [
            *before,
            *gone,
            *(replace(one, t=start.t) for one in ordered),
            *(one for one in changes if one.t >= start.t and one not in now.values()),
        ]
    blind = [_in_gap(sample, gaps) for sample in run.samples]
    samples = tuple(
        replace(sample, tenants={}, strangers=()) if skip else sample
        for sample, skip in zip(run.samples, blind, strict=True)
    )
    return replace(run, changes=tuple(changes), samples=samples), sum(blind)


def _restated(changes: Sequence[PhaseChange], start: ArbiterStart) -> dict[str, PhaseChange]:
    """What an arbiter says of each tenant as it starts: before anything changes."""
    found: dict[str, PhaseChange] = {}
    for change in (one for one in changes if one.t >= start.t):
        if change.before != change.after or change.tenant in found:
            break
        found[change.tenant] = change
    return found


def _in_gap(sample: Sample, gaps: Sequence[tuple[float, float]]) -> bool:
    return any(sample.t0 <= end and begin <= sample.t1 for begin, end in gaps)


# -- the rules ----------------------------------------------------------------------------------


def _gauge(chaos: Chaos) -> Iterator[str]:
    for device in sorted({look.device for look in chaos.above}):
        shared = list(_shared(chaos.run, device))
        looks = [
            look
            for look in chaos.above
            if look.device == device
            and not any(begin <= look.t and look.until <= end for begin, end in shared)
        ]
        if not looks:
            continue
        worst = max(looks, key=lambda look: look.used)
        yield (
            f"{mib(worst.used)} of {device} were in use at {_at(chaos, worst.t)}, more than any"
            f" tenant holds, so two held it at once; {len(looks)} times in all"
        )


def _shared(run: Run, device: str) -> Iterator[tuple[float, float]]:
    """When one that waited had room on the device while another gave it back."""
    for room in run.rooms:
        if device in room.devices:
            ends = (
                change.t
                for change in run.changes
                if change.tenant == room.tenant
                and change.t > room.t
                and change.before != change.after
            )
            yield room.t, next(ends, math.inf)


def _conditions(chaos: Chaos) -> Iterator[str]:
    for one in chaos.run.conditions:
        if one.condition in ("Intruder", "ForeignMemory"):
            yield f"{one.condition} at {_at(chaos, one.t)}: {one.message}"


def _said_turns(chaos: Chaos) -> Iterator[str]:
    """By the tenants' own words: no epoch is two tenants', no two are in their turns at once."""
    owner: dict[int, str] = {}
    inside: dict[str, Word] = {}
    ends = [(end.t, end.tenant) for end in chaos.tenant_ends]
    ends += [
        (blow.t, blow.tenant)
        for blow in chaos.blows
        if blow.act in ("kill", "hang") and blow.tenant
    ]
    said: list[tuple[float, Word | str]] = [(word.t, word) for word in chaos.words]
    for t, what in sorted([*said, *ends], key=lambda one: one[0]):
        if isinstance(what, str) or what.says != "turn":
            inside.pop(what if isinstance(what, str) else what.who, None)
            continue
        if (of := owner.setdefault(what.epoch, what.who)) != what.who:
            yield f"epoch {what.epoch} was granted to {of} and to {what.who} (at {_at(chaos, t)})"
        for other in inside.values():
            if _share(chaos, other.who, what.who):
                yield (
                    f"{what.who} was in its turn (epoch {what.epoch}) at {_at(chaos, t)} while"
                    f" {other.who} was in epoch {other.epoch}"
                )
        inside[what.who] = what


def _places(chaos: Chaos) -> Iterator[str]:
    """Who waited when an arbiter ended is granted in that order, unless it died or gave up."""
    for end in chaos.arbiter_ends:
        for name in end.queue:
            out = _put_out(chaos, end, name)
            if out is not None and not _left(chaos, name, end.t, out.t):
                yield (
                    f"{name} lost its place: it waited when the arbiter was killed at"
                    f" {_at(chaos, end.t)}, and was put out of the queue at {_at(chaos, out.t)}"
                )
        granted = {name: _granted(chaos, end, name) for name in end.queue}
        for first, second in combinations(end.queue, 2):
            ahead, behind = granted[first], granted[second]
            if behind is None or not _share(chaos, first, second):
                continue
            if (ahead is None or behind.epoch < ahead.epoch) and not _left(
                chaos, first, end.t, behind.t
            ):
                yield (
                    f"{first} lost its place: it waited before {second} when the arbiter was killed"
                    f" at {_at(chaos, end.t)}, and {second} was granted epoch {behind.epoch} first"
                )


def _put_out(chaos: Chaos, end: ArbiterEnd, tenant: str) -> PhaseChange | None:
    later = (
        one
        for one in chaos.run.changes
        if one.tenant == tenant and one.t > end.t and one.before != one.after
    )
    first = next(later, None)
    if first is None or (first.before, first.after) != (Phase.WAITING, Phase.PARKED):
        return None
    return first


def _granted(chaos: Chaos, end: ArbiterEnd, tenant: str) -> PhaseChange | None:
    later = (one for one in chaos.run.changes if one.tenant == tenant and one.t > end.t)
    return next((one for one in later if one.epoch > end.epochs.get(tenant, 0)), None)


def _left(chaos: Chaos, tenant: str, begin: float, end: float) -> bool:
    """Whether the tenant died in this time, or left the queue as it may.

    It may have died before the arbiter did, which did not live to see it.
    """
    deaths = [blow.t for blow in chaos.blows if blow.act == "kill" and blow.tenant == tenant]
    deaths += [one.t for one in chaos.tenant_ends if one.tenant == tenant]
    waited = (
        change.t
        for change in chaos.run.changes
        if change.tenant == tenant
        and change.t <= begin
        and change.before != change.after == Phase.WAITING
    )
    since = max(waited, default=begin)
    refused = [
        one.t
        for one in chaos.run.conditions
        if one.tenant == tenant and one.condition in ("Refused", "SessionLost")
    ]
    left = [
        change.t
        for change in chaos.run.changes
        if change.tenant == tenant
        and (change.before, change.after) == (Phase.WAITING, Phase.PARKED)
        and (tenant in chaos.cancelling or _serves_for(chaos, change.t) >= chaos.lease_s)
    ]
    return any(since <= t <= end for t in deaths) or any(
        begin <= t <= end for t in [*refused, *left]
    )


def _serves_for(chaos: Chaos, t: float) -> float:
    """How long the arbiter of that moment had run: a lease is not over before that."""
    return t - max((start.t for start in chaos.run.starts if start.t <= t), default=t)


def waits(chaos: Chaos) -> dict[str, float]:
    """The longest wait of each tenant, in seconds; of a trainer also for its engine's answer."""
    since: dict[str, float] = {}
    longest: dict[str, float] = {}
    ends = [(end.t, end.tenant) for end in chaos.tenant_ends]
    said: list[tuple[float, Word | str]] = [(word.t, word) for word in chaos.words]
    for t, what in sorted([*said, *ends], key=lambda one: one[0]):
        if isinstance(what, str):
            since.pop(what, None)
            since.pop(f"{what} asks", None)
            continue
        match what.says:
            case "waits":
                since.setdefault(what.who, t)
                continue
            case "asks":
                since[f"{what.who} asks"] = t
                continue
            case "answered":
                who = f"{what.who} asks"
            case _:
                who = what.who
        if (begun := since.pop(who, None)) is not None:
            longest[who] = max(longest.get(who, 0.0), t - begun)
    return longest


def _stuck(chaos: Chaos) -> Iterator[str]:
    for who, waited in waits(chaos).items():
        if waited > chaos.bound_s:
            yield f"{who} waited for {waited:.1f} s, longer than the bound of {chaos.bound_s:g} s"


def _ladder(chaos: Chaos) -> Iterator[str]:
    """Nothing is done about anybody but who hangs."""
    for one in chaos.run.conditions:
        if one.condition == "Escalated" and not _hung(chaos, one.tenant, one.t):
            yield f"{one.tenant} did not hang at {_at(chaos, one.t)}, and yet: {one.message}"


def _may_fail(chaos: Chaos, word: Word) -> bool:
    if _hung(chaos, word.who, word.t, and_after=chaos.bound_s):
        return any(reason in word.why for reason in AFTER_A_HANG)
    return chaos.refusing and any(reason in word.why for reason in ALLOWED)


def _hung(chaos: Chaos, tenant: str | None, t: float, and_after: float = 0.0) -> bool:
    """Whether it did at that time, or had so many seconds before."""
    return any(
        hang.tenant == tenant and hang.t <= t <= hang.until + and_after for hang in chaos.hangs
    )


def _failures(chaos: Chaos) -> Iterator[str]:
    for word in chaos.words:
        if word.says == "broken":
            yield f"{word.who} at {_at(chaos, word.t)}: {word.why}"
        elif word.says == "failed" and not _may_fail(chaos, word):
            yield f"{word.who} got no turn at {_at(chaos, word.t)}: {word.why}"
        elif word.says == "answered" and word.why.startswith("409"):
            yield f"{word.who} was refused as the holder that it was not: {word.why}"
    done = {word.who for word in chaos.words if word.says == "done"}
    for end in chaos.tenant_ends:
        if not end.struck and end.tenant in chaos.digests and end.tenant not in done:
            yield f"{end.tenant} ended by itself at {_at(chaos, end.t)}: see its log"


def _states(chaos: Chaos) -> Iterator[str]:
    states = {word.who: word for word in chaos.words if word.says == "done"}
    for tenant, digest in chaos.digests.items():
        word = states.get(tenant)
        if word is None:
            yield f"{tenant} did not come to its end"
        elif word.why != digest:
            yield (
                f"the state of {tenant} after {word.updates} updates is {word.why[:12]}, and"
                f" undisturbed it is {digest[:12]}"
            )


def _share(chaos: Chaos, one: str, other: str) -> bool:
    budgets = chaos.rules.budgets
    return bool(set(budgets[one].devices) & set(budgets[other].devices))


def _at(chaos: Chaos, t: float) -> str:
    return f"{t - chaos.run.span[0]:.2f} s"
