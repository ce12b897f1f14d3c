"""When to try again what failed: later each time. Time is passed in."""

from collections.abc import Container
from typing import Final

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0


def delay_s(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(LONGEST_S, FIRST_S * 2.0 ** (failures - 1))


class Backoff:
    """What failed, by key, and when each may be tried again."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def may(self, key: str, now: float) -> bool:
        """Whether it is time to try."""
        return key not in self._failures or self._failures[key][1] <= now

    def failed(self, key: str, now: float) -> None:
        """Count a failure."""
        failures = self._failures.get(key, (0, 0.0))[0] + 1
        self._failures[key] = (failures, now + delay_s(failures))

    def succeeded(self, key: str) -> None:
        """Forget its failures."""
        self._failures.pop(key, None)

    def keep(self, keys: Container[str]) -> None:
        """Forget all but these."""
        self._failures = {key: one for key, one in self._failures.items() if key in keys}

    def next_try(self, *, after: float) -> float | None:
        """When the first of them that could not be tried at `after` may be."""
        return min((at for _, at in self._failures.values() if at > after), default=None)
