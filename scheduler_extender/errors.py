"""What can go wrong between us and the API server."""


class ApiError(Exception):
    """A request failed; the message says which, on what, and why. `status` is 0 without answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def gone(self) -> bool:
        """The object does not exist, or not any more."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """It exists already, or was changed meanwhile."""
        return self.status == 409
