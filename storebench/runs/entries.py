"""Checks on a run's folder: the names that a run writes to must be its own folders and regular files."""

import os
import stat
from pathlib import Path

from storebench.errors import CorruptDataError, from_os_error
from storebench.fileio.reading import kind_of
from storebench.runs.records import LOGS_DIR, RECORDS_NAME, STEPS_DIR, STEPS_NAME, SUPERSEDED_NAME

_FOLDERS = (STEPS_DIR, LOGS_DIR)
_MAY_BE_LINKS = (RECORDS_NAME, SUPERSEDED_NAME)


def make_run_folders(folder: Path) -> None:
    """Make the folders of a run, which may exist already; a copy of a run may lack those that were empty."""
    check_entries(folder)
    try:
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, folder) from error


def check_entries(folder: Path) -> None:
    """Refuse entries of a run's folder that a run would not have there."""
    try:
        for name in _FOLDERS:
            _check_folder(folder / name)
        for name in _MAY_BE_LINKS:
            _check_file(folder / name, follow_links=True)
        _check_file(folder / STEPS_NAME, follow_links=False)
    except OSError as error:
        raise from_os_error(error, folder) from error


def _check_folder(path: Path) -> None:
    """Refuse a link, even one to a folder, because a run would remove files of another folder."""
    if not os.path.lexists(path):
        return
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise CorruptDataError(
            f"{_kind(mode)}, but a run needs its own folder here",
            where=path,
            hint="Replace it with a folder, or name another --out.",
        )


def _check_file(path: Path, *, follow_links: bool) -> None:
    try:
        mode = path.stat(follow_symlinks=follow_links).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise CorruptDataError(
            f"{_kind(mode)}, not a regular file",
            where=path,
            hint="Replace it with the file of the run, or name another --out.",
        )


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISREG(mode):
        return "a file"
    return "a folder" if stat.S_ISDIR(mode) else kind_of(mode)
