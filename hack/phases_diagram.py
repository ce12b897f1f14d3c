"""Draws the table of phases (`claim_phases.phases`) as an SVG. The arrows come from the table.

Only the places of the phases are chosen here: a turn goes clockwise around Faulted.
"""

from collections import defaultdict
from dataclasses import dataclass
from math import hypot

from claim_phases.phases import ASIDE, HOLDING, TRANSITIONS, TURN, Phase, Signal

PLACES = {
    Phase.PARKED: (280, 70),
    Phase.WAITING: (625, 70),
    Phase.RESTORING: (850, 70),
    Phase.RUNNING: (850, 250),
    Phase.YIELDED: (850, 430),
    Phase.QUIESCING: (625, 430),
    Phase.RELEASING: (280, 430),
    Phase.VERIFYING: (280, 250),
    Phase.FAULTED: (510, 190),
}
LABELS = {
    (Phase.PARKED, Phase.QUIESCING): 0.74,
    (Phase.PARKED, Phase.FAULTED): 0.75,
    (Phase.VERIFYING, Phase.FAULTED): 0.25,
    (Phase.FAULTED, Phase.VERIFYING): 0.7,
    (Phase.FAULTED, Phase.QUIESCING): 0.25,
    (Phase.WAITING, Phase.QUIESCING): 0.68,
    (Phase.QUIESCING, Phase.FAULTED): 0.62,
}
"""At which fraction of its way an arrow's label stands where the middle is taken."""

ANY = (80, 250)
WIDTH, HEIGHT = 990, 530
HALF = (62, 21)
"""Half of a box's width and height."""

INK, PALE = "#24292f", "#57606a"


@dataclass(frozen=True)
class Kind:
    """Phases of one kind: what that means, and the colours of box and text."""

    meaning: str
    fill: str
    text: str


KINDS = {
    "aside": Kind("within its budget", "#eaeef2", INK),
    "turn": Kind("has the turn", "#1a7f37", "#ffffff"),
    "resident": Kind("resident until displaced", "#54aeff", "#0a3069"),
    "holding": Kind("nobody else is granted", "#d4a72c", "#3b2300"),
    "faulted": Kind("at fault, and holding", "#cf222e", "#ffffff"),
}


def kind(phase: Phase) -> Kind:
    """What a phase means to others."""
    if phase in TURN:
        return KINDS["turn"]
    if phase in ASIDE:
        return KINDS["aside"]
    if phase is Phase.FAULTED:
        return KINDS["faulted"]
    return KINDS["holding" if phase in HOLDING else "resident"]


HEAD = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" text-anchor="middle" font-size="13"
  font-family="system-ui, -apple-system, 'Segoe UI', sans-serif" role="img" aria-labelledby="title">
<title id="title">The phases of a tenant, and the signals that lead from one to the next</title>
<!-- made by hack/generate from claim_phases/phases.py -->
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
  <path d="M0 0L8 4L0 8z" fill="{PALE}"/></marker></defs>
<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>
"""  # noqa: E501 - the picture's lines


def draw() -> str:
    """The whole picture."""
    if missing := set(Phase) - PLACES.keys():
        raise SystemExit(f"hack/phases_diagram.py: give a place to {', '.join(sorted(missing))}")
    everywhere, arrows = signals()
    drawn = [
        arrow(
            *(PLACES[before], PLACES[after], names, (after, before) in arrows),
            LABELS.get((before, after), 0.5),
        )
        for (before, after), names in arrows.items()
    ]
    drawn += [arrow(ANY, PLACES[after], names, False) for after, names in everywhere.items()]
    parts = [
        f'<g stroke="{PALE}" stroke-width="1.3" fill="none">',
        *(line for line, _ in drawn),
        "</g>",
        '<g fill="#ffffff">',
        *(label for _, label in drawn),
        "</g>",
        *(box(PLACES[phase], phase, kind(phase)) for phase in Phase),
    ]
    if everywhere:
        parts.append(box(ANY, "any phase", Kind("", "#ffffff", PALE), dashed=True))
    return HEAD + "\n".join([*parts, *legend(), "</svg>"]) + "\n"


def signals() -> tuple[dict[Phase, list[Signal]], dict[tuple[Phase, Phase], list[Signal]]]:
    """Signals that lead from every phase to the same one, and those of each arrow."""
    everywhere: dict[Phase, list[Signal]] = defaultdict(list)
    arrows: dict[tuple[Phase, Phase], list[Signal]] = defaultdict(list)
    for signal in Signal:
        ends = {before: row[signal] for before, row in TRANSITIONS.items() if signal in row}
        if set(ends) == set(Phase) and len(set(ends.values())) == 1:
            everywhere[ends.popitem()[1]].append(signal)
            continue
        for before, after in ends.items():
            arrows[before, after].append(signal)
    return everywhere, arrows


Point = tuple[float, float]


def arrow(
    start: Point, end: Point, names: list[Signal], paired: bool, label_at: float = 0.5
) -> tuple[str, str]:
    """A line from box to box with its label; of a pair each keeps to its right."""
    way = (end[0] - start[0], end[1] - start[1])
    length = hypot(*way)
    right = (-way[1] / length, way[0] / length)
    aside = 9 if paired else 0
    a, b = ((x + aside * right[0], y + aside * right[1]) for x, y in (start, end))
    for other in {*PLACES.values(), ANY} - {start, end}:
        if inside(a, b, other) is not None:
            raise SystemExit(f"hack/phases_diagram.py: {names} cross the box at {other}: move it")
    leaves, enters = inside(a, b, start), inside(a, b, end)
    assert leaves is not None
    assert enters is not None
    (x1, y1), (x2, y2) = (
        between(a, b, leaves[1] + 4 / length),
        between(a, b, enters[0] - 4 / length),
    )
    text, place = ", ".join(names), between((x1, y1), (x2, y2), label_at)
    label = label_of(text, place, way, right if paired else None)
    return f'<path d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}" marker-end="url(#tip)"/>', label


def label_of(text: str, place: Point, way: Point, right: Point | None) -> str:
    """Beside its line when that is level or has a companion, else upon it."""
    x, y = place
    if way[1] == 0:
        y += 17 if right and right[1] > 0 else -8
    elif right is None:
        width = 7 * len(text)
        y += 4
        gap = f'<rect x="{x - width / 2:.0f}" y="{y - 14:.0f}" width="{width}" height="20"/>'
        return gap + f'<text x="{x:.0f}" y="{y:.0f}" fill="{INK}">{text}</text>'
    else:
        x, y = x + right[0] * 8, y + right[1] * 8 + 4
        anchor = "start" if right[0] > 0 else "end"
        return f'<text x="{x:.0f}" y="{y:.0f}" fill="{INK}" text-anchor="{anchor}">{text}</text>'
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{INK}">{text}</text>'


def inside(a: Point, b: Point, center: Point) -> tuple[float, float] | None:
    """Between which fractions of its way a line runs through a box; None when it does not."""
    enters, leaves = 0.0, 1.0
    for axis in (0, 1):
        way, low = b[axis] - a[axis], center[axis] - HALF[axis]
        ends = [low - a[axis], low + 2 * HALF[axis] - a[axis]]
        if way == 0:
            if ends[0] > 0 or ends[1] < 0:
                return None
            continue
        first, last = sorted(end / way for end in ends)
        enters, leaves = max(enters, first), min(leaves, last)
    return (enters, leaves) if enters < leaves else None


def between(a: Point, b: Point, t: float) -> Point:
    """The point at a fraction of the way."""
    return a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])


def box(center: Point, text: str, look: Kind, *, dashed: bool = False) -> str:
    """A phase."""
    x, y = center
    edge = f' stroke="{PALE}" stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<rect x="{x - HALF[0]:.0f}" y="{y - HALF[1]:.0f}" width="{2 * HALF[0]}" '
        f'height="{2 * HALF[1]}" rx="6" fill="{look.fill}"{edge}/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}" fill="{look.text}">{text}</text>'
    )


def legend() -> list[str]:
    """What the colours mean."""
    parts = ['<g font-size="12" text-anchor="start">']
    x = 30
    for look in KINDS.values():
        parts.append(
            f'<rect x="{x}" y="{HEIGHT - 38}" width="14" height="14" rx="3" fill="{look.fill}"/>'
            f'<text x="{x + 20}" y="{HEIGHT - 27}" fill="{PALE}">{look.meaning}</text>'
        )
        x += 42 + round(6.6 * len(look.meaning))
    return [*parts, "</g>"]
