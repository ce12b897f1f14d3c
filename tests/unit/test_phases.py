"""Each cell of the table: what a signal does in a phase, written down a second time."""

import pytest

from claim_phases.phases import (
    ASIDE,
    HOLDING,
    TRANSITIONS,
    TURN,
    IllegalTransition,
    Phase,
    Signal,
    after,
)

P, W, R, U, Y = Phase.PARKED, Phase.WAITING, Phase.RESTORING, Phase.RUNNING, Phase.YIELDED
Q, L, V, F = Phase.QUIESCING, Phase.RELEASING, Phase.VERIFYING, Phase.FAULTED
o = None

COLUMNS = (P, W, R, U, Y, Q, L, V, F)
CELLS: dict[Signal, tuple[Phase | None, ...]] = {
    # in:             P  W  R  U  Y  Q  L  V  F
    Signal.ACQUIRE: ( W, o, o, o, o, o, o, o, o),
    Signal.CANCEL:  ( o, P, o, o, o, o, o, o, o),
    Signal.GRANT:   ( o, R, o, o, o, o, o, o, o),
    Signal.RESTORED:( o, o, U, o, o, o, o, o, o),
    Signal.YIELD:   ( o, o, o, Y, o, o, o, o, o),
    Signal.RESUME:  ( o, o, o, o, U, o, o, o, o),
    Signal.DISPLACE:( Q, Q, o, o, Q, o, o, o, Q),
    Signal.QUIESCED:( o, o, o, o, o, L, o, o, o),
    Signal.RELEASED:( o, o, o, o, o, o, V, o, V),
    Signal.FREE:    ( o, o, o, o, o, o, o, P, P),
    Signal.HELD:    ( o, o, o, o, o, o, o, F, o),
    Signal.FAIL:    ( o, o, F, F, o, F, F, o, o),
    Signal.LAPSE:   ( o, o, F, F, F, F, F, o, o),
    Signal.INTRUDE: ( F, F, o, o, o, o, o, o, o),
    Signal.GONE:    ( V, V, V, V, V, V, V, V, V),
}  # fmt: skip

EACH_CELL = [
    pytest.param(phase, signal, then, id=f"{phase}-{signal}")
    for signal, row in CELLS.items()
    for phase, then in zip(COLUMNS, row, strict=True)
]


def test_the_cells_are_all() -> None:
    """No phase and no signal is left out."""
    assert set(COLUMNS) == set(Phase)
    assert set(CELLS) == set(Signal)
    assert len(EACH_CELL) == len(Phase) * len(Signal)


@pytest.mark.parametrize(("phase", "signal", "then"), EACH_CELL)
def test_cell(phase: Phase, signal: Signal, then: Phase | None) -> None:
    """The next phase, or an error that says what was not possible; the table stays as it is."""
    before = {row: dict(cells) for row, cells in TRANSITIONS.items()}
    if then is not None:
        assert after(phase, signal) is then
    else:
        with pytest.raises(IllegalTransition, match=f"{phase} cannot take the signal {signal}"):
            after(phase, signal)
    assert before == TRANSITIONS


def test_the_kinds_of_phases() -> None:
    """A turn holds; who is aside does not; only Yielded is neither: resident, and displaceable."""
    assert TURN < HOLDING
    assert not HOLDING & ASIDE
    assert set(Phase) - HOLDING - ASIDE == {Phase.YIELDED}
