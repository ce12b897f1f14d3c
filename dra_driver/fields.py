"""Fields of what people write for Tandem, and how their faults are told."""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS = {
    None: 1,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}


def quantity(value: object) -> int:
    """Bytes of a Kubernetes quantity: `384Mi`, `1.5Gi`, `2G`, `0`. Raises ValueError."""
    match = _QUANTITY.fullmatch(str(value)) if type(value) in (int, str) else None
    if match is None:
        raise ValueError(f"must be a size such as 384Mi, got {value!r}")
    number, unit = match.groups()
    size = Decimal(number) * _UNITS[unit]
    if size != int(size):
        raise ValueError(f"must be a whole number of bytes, got {value!r}")
    if size >= 1 << 63:  # as Kubernetes counts
        raise ValueError(f"must be less than 8Ei, got {str(value)[:40]}")
    return int(size)


Size = Annotated[int, BeforeValidator(quantity)]
Capacity = Annotated[int, BeforeValidator(quantity), Field(gt=0)]
# RFC 1123 labels: these names become file names here and object names in a cluster.
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class Strict(BaseModel):
    """Knows its keys and converts nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def fault(loc: tuple[int | str, ...], kind: str, message: str) -> str:
    """One of pydantic's errors in one line, with its path."""
    where = ".".join(str(part) for part in loc if part != "[key]")
    match kind:
        case "extra_forbidden":
            return f"{where}: unknown key"
        case "missing":
            return f"{where}: is missing"
        case "string_pattern_mismatch":
            return f"{where}: must be a name of lower-case letters, digits and inner hyphens"
        case "string_type":
            return f"{where}: must be a string (put numbers in quotes)"
        case _:
            return f"{where}: {message.removeprefix('Value error, ')}"
