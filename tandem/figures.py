"""Figures as text: bytes, durations and a curve in a terminal."""

import math
from collections.abc import Sequence

_MIB = 1 << 20
_TICKS = "▁▂▃▄▅▆▇█"
# Bits of a braille cell's dots, by column and by row from the top (Unicode 15, section 21.1).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def mib(amount: int) -> str:
    """Bytes as MiB with one decimal, small amounts as KiB or bytes, so that nothing reads as 0."""
    if amount >= _MIB or amount == 0:
        return f"{amount / _MIB:.1f} MiB"
    return f"{amount / 1024:.1f} KiB" if amount >= 1024 else f"{amount} B"


def duration(seconds: float) -> str:
    """Seconds with the unit that a person would choose, to three digits."""
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    for scale, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * scale >= 1 or seconds == 0:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def brief(seconds: float) -> str:
    """The same in at most seven characters, for columns; hours from the first on."""
    if seconds < 60:
        return duration(seconds).replace(" ", "")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as one line of block characters, lowest to highest."""
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = high - low or 1.0
    return "".join(_TICKS[int((value - low) / span * (len(_TICKS) - 1))] for value in shown)


def curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """Plot values over their index as `height` lines of at most `width` braille characters.

    Args:
        values: in order; values that are not finite leave a gap, and none at all gives no line.
        width: columns of text; fewer are used when there are fewer than two values a column.
        height: lines of text; the lowest value is on the last line, the highest on the first.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return []
    low, high = min(finite), max(finite)
    columns = min(2 * width, max(2, 4 * len(values)))
    rows = 4 * height
    cells = [[0] * (columns // 2) for _ in range(height)]
    previous: int | None = None
    for column in range(columns // 2 * 2):
        value = _at(values, column / max(1, columns - 1))
        if not math.isfinite(value):
            previous = None
            continue
        part = (value - low) / (high - low) if high > low else 0.5
        row = round((1 - part) * (rows - 1))
        # A steep step is joined by a vertical stroke, so that the line does not break apart.
        joined = row if previous is None else previous
        for dot in range(min(row, joined), max(row, joined) + 1):
            cells[dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
        previous = row
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]


def _at(values: Sequence[float], part: float) -> float:
    """The value at a part (0 to 1) of the way through `values`, linear between neighbours."""
    position = part * (len(values) - 1)
    left = math.floor(position)
    right = min(left + 1, len(values) - 1)
    return values[left] + (values[right] - values[left]) * (position - left)
