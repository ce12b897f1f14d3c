"""The docs' diagram of the phases has all that the table has."""

from pathlib import Path
from xml.etree import ElementTree as ET

from claim_phases.phases import TRANSITIONS, Phase, Signal
from hack import phases_diagram

SVG = "{http://www.w3.org/2000/svg}"
DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_each_transition_is_drawn_or_leads_there_from_any_phase() -> None:
    everywhere, arrows = phases_diagram.signals()
    drawn = {
        before: {
            **{signal: after for after, signals in everywhere.items() for signal in signals},
            **{
                s: after
                for (start, after), names in arrows.items()
                if start is before
                for s in names
            },
        }
        for before in Phase
    }
    assert drawn == TRANSITIONS


def test_the_picture_has_every_phase_and_signal() -> None:
    picture = ET.fromstring((DOCS / "phases.svg").read_text())  # noqa: S314 - our own
    words = [text.text or "" for text in picture.iter(f"{SVG}text")]
    assert set(Phase) <= set(words)
    assert set(Signal) <= {word for text in words for word in text.split(", ")}
