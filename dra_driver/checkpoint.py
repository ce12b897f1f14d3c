"""What is prepared on this node, on disk: it must survive the driver and a reboot.

A file that cannot be read stops the driver: what it held might be given away a second time.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from claim_phases.escalation import Rung, Step
from claim_phases.policies import Objectives, PolicyName
from dra_driver.config import Agreement, Role
from dra_driver.layout import replace_file

VERSION: Final = 1


class CheckpointError(Exception):
    """The checkpoint cannot be read or stored."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """One result of an allocation that is this driver's: `request` as pods may name it.

    `admin`: with admin access, which looks at a device whoever else uses it.
    """

    request: str
    pool: str
    device: str
    share: str | None
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A claim that pods of this node use or are about to use."""

    uid: str
    namespace: str
    name: str
    results: tuple[Allocated, ...]
    agreement: Agreement

    @property
    def devices(self) -> tuple[str, ...]:
        """Each device once, in the order of the allocation."""
        return tuple(dict.fromkeys(result.device for result in self.results))

    @property
    def admin(self) -> bool:
        """Whether its pods only look at devices: they are no tenants."""
        return all(result.admin for result in self.results)

    @property
    def told(self) -> str:
        """The claim, for people."""
        return f"claim {self.namespace}/{self.name}"


class Checkpoint:
    """The prepared claims by UID. Raises CheckpointError when there is a file that is not one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._claims = {one.uid: one for one in _read(path)}

    def get(self, uid: str) -> Prepared | None:
        return self._claims.get(uid)

    def __iter__(self) -> Iterator[Prepared]:
        return iter(list(self._claims.values()))

    def put(self, prepared: Prepared) -> None:
        """It is on disk when this returns; else CheckpointError, and nothing changed."""
        self._store(self._claims | {prepared.uid: prepared})

    def remove(self, uid: str) -> None:
        """As `put`."""
        self._store({key: one for key, one in self._claims.items() if key != uid})

    def _store(self, claims: dict[str, Prepared]) -> None:
        record = {"version": VERSION, "claims": [asdict(one) for one in claims.values()]}
        try:
            replace_file(self._path, (json.dumps(record, indent=1) + "\n").encode())
        except OSError as exc:
            raise CheckpointError(
                f"{self._path}: cannot be written ({exc.strerror}): make room for it"
            ) from exc
        self._claims = claims


def _read(path: Path) -> list[Prepared]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise CheckpointError(f"{path}: cannot be read: {exc.strerror}") from exc
    try:
        record = json.loads(content)
        if record["version"] != VERSION:
            raise CheckpointError(
                f"{path}: has version {record['version']!r}, this driver knows {VERSION}: run the "
                f"driver that wrote it, drain the node, then change the driver"
            )
        return [_prepared(one) for one in record["claims"]]
    except (ValueError, KeyError, TypeError) as exc:
        raise CheckpointError(
            f"{path}: is not a checkpoint ({exc!r}): drain the node, then remove the file"
        ) from exc


def _prepared(raw: Mapping[str, Any]) -> Prepared:
    agreed = raw["agreement"]
    roles = {name: Role(**role) for name, role in agreed["roles"].items()}
    return Prepared(
        raw["uid"],
        raw["namespace"],
        raw["name"],
        tuple(Allocated(**result) for result in raw["results"]),
        Agreement(
            agreed["job"],
            agreed["weights"],
            agreed["residual"],
            roles,
            # Drivers before protocol 0.2 wrote neither of these.
            _objectives(agreed.get("objectives", {})),
            tuple(Rung(Step(one["step"]), one["after_s"]) for one in agreed.get("ladder", ())),
        ),
    )


def _objectives(raw: Mapping[str, Any]) -> Objectives:
    return Objectives(**{**raw, "policy": PolicyName(raw.get("policy", PolicyName.FIFO))})
