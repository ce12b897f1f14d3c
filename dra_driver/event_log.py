"""The node's file of events: what the arbiter tells people, as JSON lines, with the accounts in it.

The file is begun anew when it is large, and one older file is kept. At the head of each, and now
and then in between, a line holds the accounts of all that was told before. So whoever reads the
last such line and what follows it has the accounts of the node since its boot: an arbiter that
starts again, and `tandem top`. Nothing is counted twice, since each event stands either before that
line or after it.

No turn stops for this file. While it cannot be written, what is told is missing in it; a line of
accounts is the first that is written again, so they lack nothing. A line that had room in part is
ended before it and not cut off, since a reader that follows the file may have read that part.
"""

import asyncio
import errno
import json
import logging
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, assert_never

from claim_phases.accounts import Accounts, Group
from claim_phases.escalation import Step
from claim_phases.events import Condition, Judged, PhaseChanged, RoomMade, Told
from claim_phases.node import Membership, Node
from claim_phases.phases import Phase

log = logging.getLogger("tandem.arbiter")

FILE_MAX: Final = 64 << 20
"""Bytes of the file after which it is begun anew."""

ACCOUNTS_EVERY: Final = 1 << 20
"""Bytes of events between two lines of accounts: what a start has to read."""

RETRY_S: Final = 1.0
"""How long a file that could not be written is left alone: all accounts are written next."""

# Within a line's strings the quotes would be escaped.
_ACCOUNTS: Final = b'{"kind": "accounts", '


class EventLog:
    """Writes down what is told: soon, off the path of the step that tells it."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._accounts = recorded(path)
        self._told: list[dict[str, Any]] = []
        self._since_accounts = 0
        self._fd = -1
        self._rest = b""  # of a line that is in the file in part
        self._lacking = False  # what was told is missing in the file: accounts must come next
        self._failing = False
        self._again_at = 0.0
        self._closed = False
        try:
            self._open()
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._failed(exc)
        self._loop = asyncio.get_running_loop()

    def started(self, node: Node) -> None:
        """An arbiter took up the node."""
        tenants = list(node.tenants)
        self._note(
            {"kind": "start", "boot_id": node.boot_id, "epoch": node.epoch, "tenants": tenants}
        )

    def joined(self, who: Membership, job: str) -> None:
        """A tenant said hello. Written down when that is new; an unknown job (empty) is not."""
        self.write()
        known = self._accounts.tenants.get(who.tenant)
        group = Group(job or (known.group.job if known is not None else ""), who.role)
        if known is None or (known.group, known.life) != (group, who.incarnation):
            self._note(
                {
                    "kind": "tenant",
                    "tenant": who.tenant,
                    "job": group.job,
                    "role": group.role,
                    "life": who.incarnation,
                    "devices": list(who.devices),
                }
            )

    def tell(self, what: Told, at: float) -> None:
        """Take note of what is told, of CLOCK_MONOTONIC `at`."""
        if isinstance(what, Condition):
            log.warning("%s: %s", what.kind.value, what.message)
        self._note({"t": at, **_record(what)})

    def accounts(self) -> Accounts:
        """The accounts until now: each call's are no less than those of the calls before."""
        self._again_at = 0.0
        self.write()
        return self._accounts.at(self._clock())

    def close(self) -> None:
        """Write down the rest."""
        self._again_at = 0.0
        self.write()
        self._closed = True
        try:
            self._let_go()
        except OSError as exc:
            self._failed(exc)

    def _note(self, record: dict[str, Any]) -> None:
        if not self._told:
            # The messages of this step leave in the loop's next round: this comes after them.
            self._loop.call_soon(self._loop.call_soon, self.write)
        self._told.append({"t": self._clock(), **record})

    def write(self) -> None:
        """Write down what was told by now, or after a while try again when that failed before."""
        told, self._told = self._told, []
        if self._closed or not (told or self._failing):
            return
        for record in told:
            fold(self._accounts, record)
        if self._failing and self._lacking and self._clock() < self._again_at:
            return
        try:
            self._add("".join(json.dumps(record) + "\n" for record in told).encode())
        except OSError as exc:
            self._failed(exc)
            return
        if self._failing:
            self._failing = False
            log.warning(
                "%s can be written again: events of the time between may be missing in it, the "
                "accounts are whole",
                self._path,
            )

    def _failed(self, exc: OSError) -> None:
        self._again_at = self._clock() + RETRY_S
        if not self._failing:
            self._failing = True
            log.error(
                "%s cannot be written (%s): make room for it, or make it writable; until then "
                "turns go on, and some of their events are lost",
                self._path,
                exc,
            )

    def _add(self, lines: bytes) -> None:
        if self._fd < 0:
            self._open()
            self._lacking = True
        if self._lacking:
            self._add_accounts()
        else:
            self._append(lines)
        if os.fstat(self._fd).st_size > FILE_MAX:
            self._path.replace(before(self._path))
            self._let_go()
            self._open()
            self._add_accounts()
        elif self._since_accounts > ACCOUNTS_EVERY:
            self._add_accounts()

    def _add_accounts(self) -> None:
        record = {"t": self._clock(), "accounts": self._accounts.to_json()}
        self._append(_ACCOUNTS + json.dumps(record)[1:].encode() + b"\n")
        self._since_accounts = 0

    def _append(self, lines: bytes) -> None:
        content, done = self._rest + lines, 0
        self._lacking = True
        try:
            while done < len(content):  # a write that was cut short: the next one says why
                done += os.write(self._fd, content[done:])
        finally:
            if done:
                self._rest = content[done : content.find(b"\n", done - 1) + 1]
        self._lacking = False
        self._since_accounts += len(lines)

    def _open(self) -> None:
        _drop_torn_line(self._path)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def _let_go(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def before(path: Path) -> Path:
    """The older file."""
    return path.with_suffix(".before.jsonl")


def beginnings(path: Path) -> list[tuple[Path, int]]:
    """The files to read for the accounts, in order, and from which byte on."""
    newest = _last_accounts(path)
    if newest is not None:
        return [(path, newest)]
    # An arbiter that was killed when it had just begun the file anew.
    return [(before(path), _last_accounts(before(path)) or 0), (path, 0)]


def fold(accounts: Accounts, record: Mapping[str, Any]) -> Accounts:
    """Take in a line of the file. ValueError when it is not one of this version's."""
    try:
        match record["kind"]:
            case "start":
                accounts.started(record["t"], record["boot_id"], record.get("tenants"))
            case "tenant":
                group = Group(record["job"], record["role"])
                who = record["tenant"], group, record["life"], record["devices"]
                accounts.joined(record["t"], *who)
            case "phase":
                after = None if record["to"] == "Gone" else Phase(record["to"])
                accounts.changed(record["t"], record["tenant"], after, record["devices"])
            case "condition":
                step = record.get("step")
                taken = None if step is None else Step(step)
                accounts.condition(record["condition"], record["tenant"], taken)
            case "accounts":
                return Accounts.from_json(record["accounts"])
            case _:
                pass
    except (KeyError, TypeError) as exc:
        raise ValueError(f"no line of this version: {exc!r}") from exc
    return accounts


def recorded(path: Path) -> Accounts:
    """The accounts in the file. What cannot be read of it is logged, and left out."""
    accounts = Accounts()
    for file, begin in beginnings(path):
        for line in _lines(file, begin):
            try:
                accounts = fold(accounts, json.loads(line))
            except ValueError as exc:
                log.error("%s: a line is left out of the accounts: %s", file, exc)
    return accounts


def _record(what: Told) -> dict[str, Any]:
    match what:
        case PhaseChanged():
            return {
                "kind": "phase",
                "tenant": what.tenant,
                "from": what.before.value,
                "to": what.after.value if what.after is not None else "Gone",
                "epoch": what.epoch,
                "devices": list(what.devices),
                "weights": what.weights,
            }
        case Judged():
            return {"kind": "measured", **asdict(what)}
        case RoomMade():
            return {"kind": "room", **asdict(what)}
        case Condition(kind, message, tenant, device, size, step):
            return {
                "kind": "condition",
                "condition": kind.value,
                "tenant": tenant,
                "device": device,
                "bytes": size,
                "step": None if step is None else step.value,
                "message": message,
            }
        case _:
            assert_never(what)


def _lines(path: Path, begin: int) -> Iterator[bytes]:
    """The complete lines from there on; none when there is no such file, or it is a pipe."""
    if path.is_file():
        with path.open("rb") as file:
            file.seek(begin)
            yield from (line for line in file if line.endswith(b"\n"))


def _last_accounts(path: Path) -> int | None:
    """Where the last line with accounts begins."""
    if not path.is_file() or not path.stat().st_size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = content.rfind(b"\n")  # what follows is torn
        found = content.rfind(_ACCOUNTS, 0, max(0, end))
    return found if found >= 0 else None


def _drop_torn_line(path: Path) -> None:
    """Whoever wrote it was killed meanwhile; the next line must not be glued to it."""
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb+") as file, mmap.mmap(file.fileno(), 0) as content:
        end = content.rfind(b"\n") + 1
        torn = len(content) - end
    if torn:
        log.warning("%s: its last line is torn (%d bytes), and left out", path, torn)
        os.truncate(path, end)
