"""Write files whole or not at all: under a temporary name on the same file system, synced, then renamed."""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from storebench.filesystem import sync
from storebench.system.scratch import PREFIX, locked_folder, remove

EXIT_NOT_WRITTEN = 74  # EX_IOERR of sysexits.h: a process cannot write its message, the disk is full
FileContent = str | bytes  # text (written as UTF-8) or bytes
_KIND = "unfinished"
_UNFINISHED = f".{PREFIX}{_KIND}-"


def write_whole(path: Path, content: FileContent) -> None:
    """Write one file, and return when it is on disk under its name."""
    with _named(path):
        if path.exists() and not path.is_file() and not path.is_dir():  # a device or a FIFO
            path.write_bytes(_bytes(content))
            return
        with open_whole(path) as file:
            file.write(_bytes(content))


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing; it gets the name `path`, synced, when the with statement ends without an error."""
    with _named(path):
        target = Path(os.path.realpath(path))
        _refuse(target)
        with _unfinished(target.parent) as work:
            new = work / "new"
            with new.open("xb") as file:
                yield file
            _sync_file(new, like=target)
            new.replace(target)
        sync(target.parent)


@contextmanager
def open_message(path: Path) -> Iterator[BinaryIO]:
    """Open a file for another process to read; it gets its name when the with statement ends without an error."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        yield file
    unfinished.replace(path)


def write_message(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON for another process to read; see `open_message`."""
    with open_message(path) as file:
        file.write(json.dumps(content).encode())


def not_written(temporary: Path) -> str:
    """Return the reason and the advice for a process that ended with `EXIT_NOT_WRITTEN`."""
    return f"{temporary}: the disk is full; free some space, or name another folder with TMPDIR"


def write_all(folder: Path, files: Mapping[str, FileContent]) -> list[Path]:
    """Write files of one folder, all of them before the first one gets its name, and return their paths."""
    with _named(folder), made_folder(folder.parent):
        is_new = not folder.exists()
        place = folder.parent if is_new else folder
        with _unfinished(place) as work:
            new = work / "new"
            new.mkdir()
            _fill_all(new, folder, files)
            if is_new:
                new.rename(folder)
            else:
                for name in files:
                    (new / name).replace(folder / name)
        sync(place)
    return [folder / name for name in files]


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make a folder and its parents; after an error, remove those that were created and are empty."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for parent in missing:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Make an error name the requested file, instead of an unfinished file or none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and _UNFINISHED not in str(error.filename):
            raise
        number = error.errno or errno.EIO
        raise OSError(number, error.strerror or os.strerror(number), str(path)) from error


def _refuse(target: Path) -> None:
    """Refuse to replace a folder, or a file that may not be written."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))


def _bytes(content: FileContent) -> bytes:
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content


def _fill_all(new: Path, folder: Path, files: Mapping[str, FileContent]) -> None:
    """Write all files into `new`, then sync them; syncing one by one would flush the journal for each."""
    for name, content in files.items():
        if Path(name).name != name:
            raise ValueError(f"{name!r} is not the name of a file in a folder")
        with _named(folder / name):
            _refuse(folder / name)
            (new / name).write_bytes(_bytes(content))
    for name in files:
        with _named(folder / name):
            _sync_file(new / name, like=folder / name)
    sync(new)


def _sync_file(path: Path, *, like: Path) -> None:
    """Wait until a file is on disk, with the permissions of the one that it will replace."""
    with contextlib.suppress(FileNotFoundError):
        path.chmod(stat.S_IMODE(like.stat().st_mode))
    sync(path)


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """Make a hidden folder in `folder` for the duration of a write; remove those of killed writers."""
    work, lock = locked_folder(_KIND, folder)
    try:
        yield work
    finally:
        remove(work, lock)
