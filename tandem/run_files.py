"""The files of a run: what the arbiter, the observer and the trainer wrote, as frozen dataclasses.

Every file is JSON lines, and every `t` is CLOCK_MONOTONIC in seconds, so the files can be joined.
A file may be read while it grows (`Tail`); both ways parse with the same types.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from claim_phases.escalation import Step
from claim_phases.phases import Phase
from dra_driver.event_log import before

EVENTS: Final = "events.jsonl"
SAMPLES: Final = "samples.jsonl"
PROGRESS: Final = "progress.jsonl"

Gone = Literal["Gone"]
"""What follows the last phase of a tenant whose processes ended."""

_Bytes = Annotated[int, Field(ge=0)]


class RunFileError(Exception):
    """A file of a run that cannot be read; the message names the file and the line."""


@dataclass(frozen=True)
class ArbiterStart:
    """The arbiter started (again): a change of boot id would mean that epochs began anew."""

    t: float
    boot_id: str
    epoch: int
    kind: Literal["start"] = "start"


@dataclass(frozen=True)
class PhaseChange:
    """A tenant went from one claim phase to another; `before` is None at its first hello.

    `weights` is the version of the weights that the tenant serves, None unless it is an engine.
    """

    t: float
    tenant: str
    before: Annotated[Phase | Gone | None, Field(alias="from")]
    after: Annotated[Phase | Gone, Field(alias="to")]
    epoch: int
    devices: tuple[str, ...]
    weights: int | None
    kind: Literal["phase"] = "phase"


@dataclass(frozen=True)
class Measured:
    """The arbiter read a device to verify what `tenant` released; `free`: the turn may pass."""

    t: float
    device: str
    used: _Bytes
    total: _Bytes
    free: bool
    tenant: str
    kind: Literal["measured"] = "measured"


@dataclass(frozen=True)
class Room:
    """A tenant may hold so much on each device without a turn, beyond its residual budget."""

    t: float
    tenant: str
    epoch: int
    size: _Bytes
    devices: tuple[str, ...]
    kind: Literal["room"] = "room"


@dataclass(frozen=True)
class Condition:
    """Something that should not be; `message` is the sentence that a person reads.

    `step`: that the escalation took, if it did.
    """

    t: float
    condition: Literal[
        "Cleared",
        "DeviceFailed",
        "Escalated",
        "Overstayed",
        "Faulted",
        "ForeignMemory",
        "Intruder",
        "NoRoom",
        "NotTainted",
        "Refused",
        "ResidualGrowing",
        "RestoreFailed",
        "SessionLost",
    ]
    tenant: str | None
    device: str | None
    bytes: _Bytes | None
    message: str
    step: Step | None = None
    kind: Literal["condition"] = "condition"


@dataclass(frozen=True)
class Joined:
    """A tenant said hello: whose it is. `life` differs between two lives of one tenant."""

    t: float
    tenant: str
    job: str
    role: str
    life: str
    devices: tuple[str, ...]
    kind: Literal["tenant"] = "tenant"


@dataclass(frozen=True)
class AccountsKept:
    """The accounts of all that was told before (claim_phases.accounts); `books` reads them."""

    t: float
    kind: Literal["accounts"] = "accounts"


Event = ArbiterStart | PhaseChange | Measured | Room | Condition | Joined | AccountsKept


@dataclass(frozen=True)
class DeviceUse:
    """A device as statvfs tells it, in bytes."""

    used: _Bytes
    total: _Bytes


@dataclass(frozen=True)
class Stranger:
    """A process of no tenant that maps memory of a device."""

    pid: int
    name: str
    device: str
    bytes: _Bytes


@dataclass(frozen=True)
class Sample:
    """One look of the observer, begun at `t0` and ended at `t1`.

    `tenants` maps a tenant to its bytes by device; whoever holds nothing may be absent.
    """

    t0: float
    t1: float
    devices: Mapping[str, DeviceUse]
    tenants: Mapping[str, Mapping[str, _Bytes]]
    strangers: tuple[Stranger, ...]


@dataclass(frozen=True)
class Progress:
    """An iteration as the trainer tells it; further keys of its line are its own affair.

    `weights_check` is the mean absolute difference of the sampled tokens' log-probabilities
    between the engine and the trainer.
    """

    t: float
    iteration: int
    reward: float | None = None
    loss: float | None = None
    weights_version: int | None = None
    weights_check: float | None = None


Record = Event | Sample | Progress


@dataclass(frozen=True)
class Run:
    """All that a run's folder says, each kind in the order of time.

    `notes` are sentences about what was left out or is missing, for whoever reads the figures.
    What happened before `since` is there for what it says of the time after, and is not shown.
    """

    starts: tuple[ArbiterStart, ...]
    changes: tuple[PhaseChange, ...]
    measured: tuple[Measured, ...]
    conditions: tuple[Condition, ...]
    samples: tuple[Sample, ...]
    progress: tuple[Progress, ...]
    notes: tuple[str, ...]
    since: float = -math.inf
    rooms: tuple[Room, ...] = ()

    @property
    def span(self) -> tuple[float, float]:
        """When the first and the last thing happened that is shown, in any of the files."""
        moments = [event.t for kind in (self.starts, self.changes, self.measured) for event in kind]
        moments += [condition.t for condition in self.conditions]
        moments += [moment for sample in self.samples for moment in (sample.t0, sample.t1)]
        moments += [progress.t for progress in self.progress]
        return (max(self.since, min(moments)), max(moments)) if moments else (0.0, 0.0)

    def last(self, seconds: float) -> "Run":
        """The same, of which only the last seconds are shown."""
        since = self.span[1] - seconds
        return replace(
            self,
            conditions=tuple(one for one in self.conditions if one.t >= since),
            samples=tuple(one for one in self.samples if one.t0 >= since),
            progress=tuple(one for one in self.progress if one.t >= since),
            since=since,
        )


_T = TypeVar("_T")


class Tail(Generic[_T]):
    """One file of a run, read on from where the last read ended. It need not exist yet."""

    def __init__(self, path: Path, line_type: TypeAdapter[_T]) -> None:
        self._path = path
        self._line_type = line_type
        self._offset = 0
        self._lines = 0
        self.torn = b""
        """What follows the last end of a line: a line that is being written, or never will be."""

    def read(self) -> list[_T]:
        """Return the records of the lines that were completed since the last read.

        Raises:
            RunFileError: a complete line is malformed.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(added)
        *complete, self.torn = (self.torn + added).split(b"\n")
        return list(self._parsed(complete))

    def _parsed(self, lines: list[bytes]) -> Iterator[_T]:
        for line in lines:
            self._lines += 1
            try:
                yield self._line_type.validate_json(line, strict=True)
            except ValidationError as exc:
                raise RunFileError(f"{self._path}:{self._lines}: {_first_fault(exc)}") from exc


def events(folder: Path) -> Tail[Event]:
    """The arbiter's file of the run in `folder`."""
    return _events(folder / EVENTS)


def _events(path: Path) -> Tail[Event]:
    kinds: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])
    return Tail(path, kinds)


def samples(folder: Path) -> Tail[Sample]:
    """The observer's file of the run in `folder`."""
    return Tail(folder / SAMPLES, TypeAdapter(Sample))


def progress(folder: Path) -> Tail[Progress]:
    """The trainer's file of the run in `folder`."""
    return Tail(folder / PROGRESS, TypeAdapter(Progress))


def take_progress(folder: Path, printed: bytes, t: float) -> None:
    """Take down a line that the trainer printed at `t`, if it is of an iteration.

    That is a JSON object with the key "iteration"; a trainer prints what else it likes.
    """
    if not printed.startswith(b"{"):
        return
    try:
        told = json.loads(printed)
    except ValueError:
        return
    if "iteration" in told:
        with (folder / PROGRESS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"t": t} | told) + "\n")


def read_run(folder: Path) -> Run:
    """Read a run that has ended.

    A torn last line (its writer was killed) is left out and told in `Run.notes`; so is a file that
    is missing.

    Raises:
        RunFileError: `folder` has no events, or a line is malformed.
    """
    if not (folder / EVENTS).is_file():
        raise RunFileError(f"{folder}: no {EVENTS}, so this is not a run's folder: name another")
    notes: list[str] = []
    told = _whole(events(folder), folder / EVENTS, notes)
    older = before(folder / EVENTS)
    if older.is_file():
        told += _whole(_events(older), older, notes)
    happened = sorted(told, key=lambda event: event.t)
    return Run(
        starts=tuple(event for event in happened if isinstance(event, ArbiterStart)),
        changes=tuple(event for event in happened if isinstance(event, PhaseChange)),
        measured=tuple(event for event in happened if isinstance(event, Measured)),
        conditions=tuple(event for event in happened if isinstance(event, Condition)),
        samples=tuple(
            sorted(_whole(samples(folder), folder / SAMPLES, notes), key=lambda one: one.t0)
        ),
        progress=tuple(
            sorted(_whole(progress(folder), folder / PROGRESS, notes), key=lambda one: one.t)
        ),
        notes=tuple(notes),
        rooms=tuple(event for event in happened if isinstance(event, Room)),
    )


def _whole(tail: Tail[_T], path: Path, notes: list[str]) -> list[_T]:
    if not path.is_file():
        notes.append(f"{path.name} is missing: what it would tell is unknown")
        return []
    records = tail.read()
    if tail.torn:
        notes.append(
            f"{path.name}:{len(records) + 1}: the last line is torn ({len(tail.torn)} bytes; its "
            "writer was killed) and left out"
        )
    return records


def _first_fault(exc: ValidationError) -> str:
    """The faults of a line as one clause: the first in full, for we wrote the line."""
    first, *others = exc.errors(include_url=False)
    where = ".".join(str(part) for part in first["loc"])
    what = f"{where}: {first['msg']}" if where else first["msg"]
    given = "" if first["type"] == "json_invalid" else f", got {first['input']!r:.60}"
    more = f" ({len(others)} more)" if others else ""
    return f"{what}{given}{more}".replace(os.linesep, " ")
