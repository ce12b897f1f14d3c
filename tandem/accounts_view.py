"""The accounts as people read them: the table of `tandem top`, the words of `tandem explain`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from claim_phases.accounts import Account, Accounts, DeviceAccount, Group
from claim_phases.phases import Phase
from tandem import figures
from tandem.local_view import STYLES
from tandem.reasons import Reason, reasons


class UnknownTenant(Exception):
    """Nobody is called so, or several are; the message names who there is."""


@dataclass(frozen=True)
class Row:
    """A tenant, or (`name` and `phase` None) all of a group that have left. `since_s`: ago."""

    name: str | None
    group: Group
    phase: Phase | None
    since_s: float
    devices: tuple[str, ...]
    account: Account

    @property
    def called(self) -> str:
        return self.name or "/".join(filter(None, [self.group.job, self.group.role]))

    @property
    def reasons(self) -> list[Reason]:
        return reasons(self.account, self.group)

    def to_json(self) -> dict[str, Any]:
        account = self.account
        slowdown = account.slowdown
        return {
            "tenant": self.name,
            "job": self.group.job,
            "role": self.group.role,
            "phase": None if self.phase is None else self.phase.value,
            "phase_s": _s(self.since_s),
            "devices": list(self.devices),
            "turns": account.turns,
            "running_s": _s(account.running / 1e9),
            "waited_s": _s(account.waited / 1e9),
            "swapped_s": _s(account.swapped / 1e9),
            "slowdown": None if slowdown is None else round(slowdown, 4),
            "reason": str(self.reasons[0]) if self.reasons else None,
            "lost": [
                {
                    "why": one.cause.why.value,
                    "job": one.cause.whose.job,
                    "role": one.cause.whose.role,
                    "s": _s(one.seconds),
                    "share": round(one.share, 4),
                    "words": one.words,
                }
                for one in self.reasons
            ],
            "phases_s": {phase.value: _s(spent / 1e9) for phase, spent in account.spent.items()},
            "device_s": {phase.value: _s(spent / 1e9) for phase, spent in account.device.items()},
        }


def rows(accounts: Accounts) -> list[Row]:
    """Who is there, by job, role and name; then who has left, by job and role."""
    there = [
        Row(name, one.group, one.phase, (accounts.now - one.since) / 1e9, one.devices, one.account)
        for name, one in accounts.tenants.items()
    ]
    left = [Row(None, group, None, 0.0, (), account) for group, account in accounts.past.items()]
    return [
        *sorted(there, key=lambda row: (row.group, row.name)),
        *sorted(left, key=lambda row: row.group),
    ]


def find(accounts: Accounts, name: str) -> Row:
    """The row of a tenant: by its name, its pod's name, job/role or role. Raises UnknownTenant."""
    known = rows(accounts)
    for calls in (_by_name, _by_pod, _by_group, _by_role):
        found = [row for row in known if name == calls(row)]
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(row.called for row in found)
            raise UnknownTenant(f"{name} may be any of {several}: name one in full")
    there = ", ".join(dict.fromkeys(row.called for row in known)) or "nobody yet"
    raise UnknownTenant(f"no tenant is called {name}; there is {there}")


def _by_name(row: Row) -> str | None:
    return row.name


def _by_pod(row: Row) -> str | None:
    return row.name.rpartition("/")[2] if row.name is not None else None


def _by_group(row: Row) -> str:
    return f"{row.group.job}/{row.group.role}"


def _by_role(row: Row) -> str:
    return row.group.role


def to_json(accounts: Accounts) -> dict[str, Any]:
    """All of it; seconds, `t` of CLOCK_MONOTONIC."""
    return {
        "t": _s(accounts.now / 1e9),
        "tenants": [row.to_json() for row in rows(accounts) if row.name is not None],
        "gone": [row.to_json() for row in rows(accounts) if row.name is None],
        "devices": {
            name: {
                "known_s": _s(one.known / 1e9),
                "busy_s": _s(one.busy / 1e9),
                "exposed_swap_s": _s(one.exposed / 1e9),
            }
            for name, one in accounts.devices.items()
        },
        "conditions": dict(accounts.conditions),
    }


def top(accounts: Accounts) -> RenderableType:
    """A line for each device, the tenants' figures, and what each lost most of its time to."""
    shown = rows(accounts)
    devices = [_device(name, one) for name, one in sorted(accounts.devices.items())]
    return Lines(*devices, _figures(shown), "", _losses(shown))


def _figures(shown: Sequence[Row]) -> Table:
    table = _table("tenant", "phase")
    for column in ("turns", "running", "waited", "swapped", "slowdown"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in shown:
        account = row.account
        phase = None if row.phase is None else _phase(row.phase, figures.brief(row.since_s))
        table.add_row(
            _name(row),
            phase,
            str(account.turns),
            *(
                figures.brief(spent / 1e9)
                for spent in (account.running, account.waited, account.swapped)
            ),
            "" if account.slowdown is None else f"{account.slowdown:.2f}",
        )
    return table


def _losses(shown: Sequence[Row]) -> Table:
    table = _table("tenant", "role", "job")
    table.add_column("most of what it lost")
    for row in shown:
        reason = str(row.reasons[0]) if row.reasons else ""
        table.add_row(_name(row), Text(row.group.role), Text(row.group.job), Text(reason))
    return table


def _table(*columns: str) -> Table:
    """A table whose first column, of names as long as pods', gives way on a small terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number > 0, overflow="fold")
    return table


def _name(row: Row) -> Text:
    return Text(f"{row.called} (gone)", style="dim") if row.name is None else Text(row.name)


def explain(row: Row) -> RenderableType:
    """The slowdown of one, and each part of what it lost."""
    account = row.account
    who = Text.assemble((row.called, "bold"))
    if row.phase is not None:
        who.append(f" ({row.group.role} of job {row.group.job})" if row.group.job else "")
        who.append(" is ").append_text(_phase(row.phase, f"for {figures.duration(row.since_s)}"))
    else:
        who.append(" has left")
    return Lines(who, Text(_verdict(account)), *_parts(row))


def _verdict(account: Account) -> str:
    lost = sum(account.lost.values())
    if account.slowdown is None:
        return f"no turn yet, so no slowdown; {figures.duration(lost / 1e9)} lost so far"
    in_turns = f"{figures.duration(account.running / 1e9)} in {account.turns} turns"
    if not lost:
        return f"as fast as alone: {in_turns}, nothing lost to others"
    return (
        f"slowdown {account.slowdown:.2f}: {in_turns}, and {figures.duration(lost / 1e9)} in which "
        f"it wanted to run and did not"
    )


def _parts(row: Row) -> Iterator[Text]:
    for one in row.reasons:
        share = f"{one.share:.0%}".replace("%", " %")
        yield Text(f"  {share:>5}  {figures.duration(one.seconds):>9}  {one.words}")


def _device(name: str, one: DeviceAccount) -> Text:
    known = one.known or 1
    busy, exposed = _percent(one.busy / known), _percent(one.exposed / known)
    return Text(
        f"{name}: busy {busy} of {figures.duration(one.known / 1e9)}; exposed swap {exposed} "
        f"({figures.duration(one.exposed / 1e9)})"
    )


def _phase(phase: Phase, since: str) -> Text:
    return Text.assemble((phase.value, STYLES.get(phase, "")), f" {since}")


def _percent(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _s(seconds: float) -> float:
    return round(seconds, 6)
