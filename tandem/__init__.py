"""Rollout and trainer take turns on the same GPUs.

>>> import tandem
>>> with tandem.turn("trainer") as turn:
...     turn.hold(model, optimizer)
...     with turn.yielded():
...         completions = ask(engine_url)
"""

from workload_agents.errors import (
    ParkFailed,
    RestoreFailed,
    TandemError,
    TurnLost,
    TurnRefused,
    TurnTimeout,
    WeightsError,
)
from workload_agents.turn import Turn, turn

__all__ = [
    "ParkFailed",
    "RestoreFailed",
    "TandemError",
    "Turn",
    "TurnLost",
    "TurnRefused",
    "TurnTimeout",
    "WeightsError",
    "turn",
]
