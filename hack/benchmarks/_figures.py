"""What a benchmark says: spreads of times, and figures with the bounds that they must keep."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Milliseconds."""

    p50: float
    p99: float
    n: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread":
        """The median, and the 99th percentile by nearest rank."""
        ranked = sorted(seconds)
        return cls(
            p50=median(ranked) * 1e3,
            p99=ranked[math.ceil(len(ranked) * 0.99) - 1] * 1e3,
            n=len(ranked),
        )


@dataclass(frozen=True)
class Bound:
    """A figure that was measured, and what it must not pass."""

    figure: str
    value: float
    at_most: float = math.inf
    at_least: float = -math.inf

    @property
    def kept(self) -> bool:
        """Whether the figure is within; one that is not a number is not."""
        return self.at_least <= self.value <= self.at_most

    def __str__(self) -> str:
        limit = f"at least {self.at_least:g}"
        if self.at_most < math.inf:
            limit = f"at most {self.at_most:g}"
        return f"{self.figure:46}{self.value:8.3f}   {limit}{'' if self.kept else '   MISSED'}"


def as_json(result: Mapping[str, Any], bounds: Sequence[Bound]) -> str:
    """One object: the result, and beside it each bound with whether it was kept."""
    told = [
        {
            **{key: value for key, value in asdict(bound).items() if value not in _NO_LIMIT},
            "kept": bound.kept,
        }
        for bound in bounds
    ]
    return json.dumps({**result, "bounds": told})


def report(
    result: Mapping[str, Any], table: Sequence[str], bounds: Sequence[Bound], output: str
) -> int:
    """Print a benchmark's result; the exit status is 0 when all bounds are kept, else 1."""
    if output == "json":
        print(as_json(result, bounds))
    else:
        print("\n".join([*table, "", *map(str, bounds)]))
    return 0 if all(bound.kept for bound in bounds) else 1


def progress(line: str) -> None:
    """Tell on stderr how far a benchmark is."""
    print(line, file=sys.stderr, flush=True)


_NO_LIMIT = (math.inf, -math.inf)
