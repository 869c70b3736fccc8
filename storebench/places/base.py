"""Why a place did not deliver a file."""

from storebench.errors import CellFailedError


class PlaceFailedError(CellFailedError):
    """A place does not answer, refuses, or serves something else than was stored."""


class MissingFileError(PlaceFailedError):
    """A place has no file of this name."""
