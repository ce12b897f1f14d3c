"""Who is next: pure functions from the waiting tenants, oldest first, to the order of service."""

from collections.abc import Callable, Sequence

Policy = Callable[[Sequence[str]], Sequence[str]]


def fifo(waiting: Sequence[str]) -> Sequence[str]:
    """Serve in the order of asking."""
    return waiting
