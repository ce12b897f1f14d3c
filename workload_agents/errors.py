"""What can go wrong on the way to a turn and back. Every message is one line."""


class TandemError(Exception):
    """Base of all; a message says what happened, to which object, why, and what to do next."""


class TurnRefused(TandemError):
    """The arbiter will not grant the turn that was asked for.

    `holder` is the role of the tenant that holds the turn where the request was made on behalf of
    that very tenant (it would wait for itself), else None.
    """

    def __init__(self, why: str, *, holder: str | None = None) -> None:
        super().__init__(why)
        self.holder = holder


class TurnTimeout(TandemError):
    """The turn was not granted before the deadline."""


class TurnLost(TandemError):
    """The turn that was held is over: what was done under its epoch since may have been in vain."""


class ParkFailed(TandemError):
    """Memory may not be given back. Parking is to be retried, never answered by a restore."""


class RestoreFailed(TandemError):
    """Memory is not back, or its content cannot be trusted: nothing may be served from it."""


class WeightsError(TandemError):
    """A version of weights that cannot be published, or that must not be loaded."""
