"""Why a place did not deliver a file, and whether a mount still stands."""

import errno
import uuid
from pathlib import Path
from typing import NamedTuple

from storebench.errors import CellFailedError


class PlaceFailedError(CellFailedError):
    """A place does not answer, refuses, or serves something else than was stored."""


class MissingFileError(PlaceFailedError):
    """A place has no file of this name."""


# Errors of a mount that works.
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}


class MountedPlace(NamedTuple):
    """A folder that is a place, and the device that it was on at first."""

    folder: Path
    device: int

    def lost(self) -> PlaceFailedError | None:
        """Return the error for a mount that has ended since; None if it has not."""
        probe = self.folder / f".{uuid.uuid4().hex}"
        try:
            stands = self.folder.stat().st_dev == self.device
            probe.mkdir()  # a mount may answer from its cache whatever only reads
            probe.rmdir()
        except OSError as error:
            stands = error.errno in _REFUSED
        if stands:
            return None
        return PlaceFailedError("the mount has ended, or its server does not answer", where=self.folder)
