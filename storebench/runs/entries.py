"""What a run's folder may hold under the names that a run writes to: folders of its own, and regular files.

A ``steps`` that is a link would let a run remove files of another folder, and a FIFO would make it wait for ever.
"""

import os
import stat
from pathlib import Path

from storebench.errors import CorruptDataError, from_os_error
from storebench.fileio.reading import kind_of
from storebench.runs.conversions import CONVERSIONS_NAME
from storebench.runs.records import LOGS_DIR, RECORDS_NAME, STEPS_DIR, SUPERSEDED_NAME

_FOLDERS = (STEPS_DIR, LOGS_DIR)
_FILES = (RECORDS_NAME, SUPERSEDED_NAME, CONVERSIONS_NAME)


def make_run_folders(folder: Path) -> None:
    """Make the folders of a run, which may be there already; a copy of a run may lack those that were empty.

    Parameters
    ----------
    folder
        The run's folder. It may be a link, and so may the files of records in it.

    Raises
    ------
    CorruptDataError
        Something in it is a link or no folder where a run has a folder, or no regular file where a run has one.
        Nothing was made.
    OutputError
        A folder cannot be made.
    """
    try:
        for name in _FOLDERS:
            _check_folder(folder / name)
        for name in _FILES:
            _check_file(folder / name)
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, folder) from error


def _check_folder(path: Path) -> None:
    """Refuse a link, even one to a folder: a run would remove files of another folder."""
    if not os.path.lexists(path):
        return
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise CorruptDataError(
            f"{_kind(mode)}, where a run has a folder of its own",
            where=path,
            hint="Replace it by a folder, or name another --out.",
        )


def _check_file(path: Path) -> None:
    if not path.exists():
        return
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise CorruptDataError(
            f"{_kind(mode)}, not a regular file",
            where=path,
            hint="Replace it by the file of the run, or name another --out.",
        )


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISREG(mode):
        return "a file"
    return "a folder" if stat.S_ISDIR(mode) else kind_of(mode)
