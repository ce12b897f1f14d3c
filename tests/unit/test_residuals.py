"""The trend of what a parked tenant keeps: told in time, and no false alarms."""

import random
from collections.abc import Callable, Iterator

import pytest

from claim_phases.residuals import (
    AHEAD,
    LEAST_PARKS,
    NOISE_BYTES,
    SOON_PARKS,
    WINDOW_PARKS,
    Growth,
    Trend,
)

MIB = 1 << 20
PAGE = 4096
PAGES = 8
"""Noise between two parks, in pages to either side."""

LONG = 3000


def noise(seed: int, pages: int = PAGES) -> Iterator[int]:
    chance = random.Random(seed)
    while True:
        yield chance.randint(-pages, pages) * PAGE


def first_told(size: Callable[[int], int], budget: int, parks: int = LONG) -> tuple[int, Growth]:
    """After which park it is told, and what; -1 when it never is."""
    trend = Trend()
    for park in range(parks):
        trend = trend.with_park(size(park))
        if growth := trend.growth(budget):
            return park + 1, growth
    return -1, Growth(0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("left", [PAGES * PAGE, MIB])
def test_noise_of_a_few_pages_is_no_growth_however_near_the_budget_is(seed: int, left: int) -> None:
    noisy = noise(seed)
    assert first_told(lambda _: 10 * MIB + next(noisy), 10 * MIB + left)[0] == -1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("passes_after", [12, 40, 300, 2000])
def test_a_steady_leak_is_told_before_it_passes_the_budget(seed: int, passes_after: int) -> None:
    noisy, leak = noise(seed), 40 * MIB / passes_after
    after, growth = first_told(lambda park: int(60 * MIB + leak * park) + next(noisy), 100 * MIB)
    assert LEAST_PARKS <= after < passes_after
    true = passes_after - after
    assert 0.5 * true <= growth.left <= 2 * true + 2
    assert growth.left <= min(SOON_PARKS, AHEAD * growth.parks)


@pytest.mark.parametrize("every", [4, 20, 60])
def test_a_leak_in_steps_of_two_mib_is_told_before_it_passes_the_budget(every: int) -> None:
    """So a GPU hands out memory: most parks find no more than the one before."""
    size, passes_after = (lambda park: 2 * MIB * (park // every)), 20 * every
    after, growth = first_told(size, 39 * MIB)
    assert 0 < after < passes_after
    assert growth.now > growth.before


def test_a_leak_that_begins_late_in_a_long_life_is_told_in_time() -> None:
    noisy = noise(1)

    def size(park: int) -> int:
        return 10 * MIB + max(0, park - 2000) * MIB + next(noisy)

    after, growth = first_told(size, 40 * MIB)
    assert 2000 < after < 2030
    assert growth.left <= 30


@pytest.mark.parametrize("at", [1, 3, 5, 100, 1001])
def test_one_step_up_is_no_growth(at: int) -> None:
    """A communicator that is made late."""
    noisy = noise(at)
    told, _ = first_told(lambda park: (30 if park >= at else 0) * MIB + next(noisy), 31 * MIB)
    assert told == -1


def test_a_warm_up_that_dies_out_is_no_growth() -> None:
    told, _ = first_told(lambda park: int(100 * MIB * (1 - 0.3**park)), 101 * MIB)
    assert told == -1


def test_a_shrinking_residual_is_no_growth() -> None:
    assert first_told(lambda park: (LONG - park) * MIB, LONG * MIB)[0] == -1


def test_what_was_given_back_is_no_growth() -> None:
    trend = Trend()
    for size in (*range(60), 1, 1, 1):
        trend = trend.with_park(size * MIB)
    assert trend.growth(60 * MIB) is None


def test_growth_far_below_the_budget_is_told_when_it_comes_near() -> None:
    after, growth = first_told(lambda park: park * MIB, 1000 * MIB)
    assert growth.left <= SOON_PARKS
    assert after >= 1000 - SOON_PARKS - WINDOW_PARKS


def test_what_is_told_are_the_medians_and_the_parks_between_them() -> None:
    trend = Trend()
    for size in (10, 11, 12, 13, 14, 15):
        trend = trend.with_park(size * MIB)
    assert trend.growth(20 * MIB) == Growth(10 * MIB, 14 * MIB, 4, 6)
    assert trend.growth(14 * MIB) == Growth(10 * MIB, 14 * MIB, 4, 0)
    assert trend.growth(27 * MIB) is None  # 13 parks ahead, and 4 were seen


def test_a_rise_counts_from_the_noise_on() -> None:
    for step, told in ((NOISE_BYTES, False), (NOISE_BYTES + PAGE, True)):
        trend = Trend()
        for park in range(LEAST_PARKS):
            trend = trend.with_park(park // 2 * step)
        assert (trend.growth(3 * step) is not None) is told


def test_a_trend_stays_small() -> None:
    trend = Trend()
    for park in range(100_000):
        trend = trend.with_park(park)
        assert len(trend.recent) <= WINDOW_PARKS
        assert len(trend.life) <= WINDOW_PARKS
    assert trend.life[0] == 0
    assert trend.life[-1] >= 100_000 - trend.stride
