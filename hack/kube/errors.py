"""The one exception that a user sees."""


class LocalkubeError(Exception):
    """The command cannot be carried out; the first line says why and what to do next."""
