"""Does what a parked tenant keeps on a device grow, and when will it pass its budget? Pure.

A trend is two windows of measured parks: the newest ones, and some of the tenant's whole life, so
that a fast leak shows soon and a slow one at all. The rule, for each window: cut it into thirds. If
the median of each third is above that of the third before by more than noise, and the second rise
is no mere rest of the first, then what is kept grows at the pace of the medians. One step up, such
as a communicator that is made late, is one rise and no growth; so is a warm-up that dies out. It is
told when that pace passes the budget soon, and not much later than it has been seen for.
"""

from dataclasses import dataclass
from math import ceil
from statistics import median_low
from typing import Self

WINDOW_PARKS = 9
LEAST_PARKS = 6
"""A leak that passes the budget in fewer is found by the verification of the release alone."""

NOISE_BYTES = 64 << 10
"""A rise of 16 pages or less between thirds is none."""

REST = 0.5
"""The second rise is at least so much of the first; less is a warm-up that dies out."""

NEWEST_PARKS = 3
"""What it keeps now is their median."""

SOON_PARKS = 200
AHEAD = 3.0
"""Parks to come for each that was seen: a trend says nothing of what lies further ahead."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Bytes that one tenant kept on one device: of its newest parks, and of each `stride`-th."""

    parks: int = 0
    recent: tuple[int, ...] = ()
    life: tuple[int, ...] = ()
    stride: int = 1

    def with_park(self, size: int) -> Self:
        """The trend with one more park, of that many bytes."""
        life, stride = self.life, self.stride
        if self.parks % stride == 0:
            life = (*life, size)
        if len(life) > WINDOW_PARKS:
            life, stride = life[::2], stride * 2
        recent = (*self.recent, size)[-WINDOW_PARKS:]
        return type(self)(self.parks + 1, recent, life, stride)

    def growth(self, budget: int) -> "Growth | None":
        """How it grows, if it passes the budget soon: by the window that says sooner."""
        if self.parks < LEAST_PARKS:
            return None
        now = median_low(self.recent[-NEWEST_PARKS:])
        to_now = self.parks - 1 - NEWEST_PARKS // 2  # from the first park of the tenant's life
        found = (
            _growth(self.recent, 1, len(self.recent) - self.parks + to_now, now, budget),
            _growth(self.life, self.stride, to_now, now, budget),
        )
        return min(filter(None, found), key=lambda growth: growth.left, default=None)


@dataclass(frozen=True, slots=True)
class Growth:
    """From so many bytes to so many in `parks` parks; in `left` more the budget is passed."""

    before: int
    now: int
    parks: int
    left: int


def _growth(
    window: tuple[int, ...], stride: int, to_now: int, now: int, budget: int
) -> Growth | None:
    """By one window, whose first park was `to_now` parks before that of `now`."""
    if len(window) < LEAST_PARKS:
        return None
    third = len(window) // 3
    start = len(window) - 3 * third
    thirds = (window[start + n * third :][:third] for n in range(3))
    first, middle, last = map(median_low, thirds)
    rise, again = middle - first, last - middle
    if min(rise, again) <= NOISE_BYTES or again < REST * rise or now < last - NOISE_BYTES:
        return None
    left = max(0.0, (budget - now) * 2 * third * stride / (last - first))
    parks = to_now - (start + (third - 1) // 2) * stride
    if left > min(SOON_PARKS, AHEAD * parks):
        return None
    return Growth(first, now, parks, ceil(left))
