"""Temporary folders and shared memory that end with their owner; the next start removes those of killed processes."""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storebench.errors import from_os_error
from storebench.system.processes import end_processes

PREFIX = "storebench-"
EARLIER = "earlier"  # in an unfinished folder, the name of what the folder beside it replaces
SEGMENTS = Path("/dev/shm")  # noqa: S108 - POSIX shared memory is exactly this folder on Linux
SEGMENT_PREFIX = f"{PREFIX}pixels"

_KINDS = (
    "unfinished|place|copied|replicate|trials|forks|conversion|confirmation|comparison|checkup|attempt|kept|nodes"
    "|snapshot-[a-z]+|turns-[0-9]+"
)
# A part of the names of hidden folders: locks may not reach another machine that shares the file system.
NODE = re.sub(r"[^a-z0-9]", "", os.uname().nodename.lower())

_OURS = re.compile(rf"(|\.(?=.*-{NODE}_)){PREFIX}(?P<kind>{_KINDS})-[a-z0-9_]+")
_WITH_PROCESSES = ("place", "replicate", "forks", "conversion", "comparison", "nodes")
_PRIVATE = 0o700


def temporary_place() -> Path:
    """Return the folder for temporary files, the one that `tempfile` would choose."""
    if tempfile.tempdir is None:
        named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
        places = [os.path.abspath(place) for place in (*named, "/tmp", "/var/tmp") if place]  # noqa: PTH100, S108
        usable = (place for place in places if Path(place).is_dir() and os.access(place, os.W_OK | os.X_OK))
        tempfile.tempdir = next(usable, None)
    return Path(tempfile.gettempdir())


@contextmanager
def scratch_folder(kind: str, parent: Path | None = None) -> Iterator[Path]:
    """Make an empty, locked folder for the duration of a with statement, and remove abandoned ones."""
    try:
        folder, lock = locked_folder(kind, parent)
    except OSError as error:
        raise from_os_error(error, parent or error.filename or "the folder for temporary files") from error
    try:
        yield folder
    finally:
        remove(folder, lock)


def locked_folder(kind: str, parent: Path | None = None) -> tuple[Path, int]:
    """Make a folder and return it with its lock; repeat if another process took it for abandoned in the meantime."""
    place = temporary_place() if parent is None else parent
    prefix = f"{PREFIX}{kind}-" if parent is None else f".{PREFIX}{kind}-{NODE}_"
    sweep(place)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        if (lock := _locked(folder, fcntl.LOCK_EX)) is not None:
            return folder, lock


def shared_folder(name: str) -> tuple[Path, int]:
    """Return a folder for temporary files that all processes of this user share, created if needed, and its lock."""
    folder = temporary_place() / name
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=_PRIVATE)
        if (lock := _locked(folder, fcntl.LOCK_SH)) is not None:
            return folder, lock


def _locked(folder: Path, kind: int) -> int | None:
    """Lock a folder and return its lock; None if another process has removed it in the meantime."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # without locks, no process treats it as abandoned
        fcntl.flock(lock, kind)
    if is_at(lock, folder):
        return lock
    os.close(lock)
    return None


def remove(folder: Path, lock: int) -> None:
    """Remove a folder that this process has locked, and release the lock. Processes that were started for it end."""
    try:
        if _has_processes(folder):
            remove_segments_of(end_processes([folder]))
        _delete(folder)
    finally:
        os.close(lock)


def remove_unused(path: Path, lock: int) -> None:
    """Give up a shared folder or segment, and remove it if no other process holds a lock on it."""
    try:
        if lock_alone(lock) and is_at(lock, path):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    finally:
        os.close(lock)


def sweep(place: Path | None = None) -> list[Path]:
    """Remove this user's folders in `place` whose owners have ended, and return them."""
    abandoned: list[tuple[Path, int]] = []
    with contextlib.suppress(OSError), os.scandir(place or temporary_place()) as entries:
        for entry in entries:
            if _OURS.fullmatch(entry.name):
                lock = _lock_of_abandoned(Path(entry.path))
                if lock is not None:
                    abandoned.append((Path(entry.path), lock))
    with_processes = [folder for folder, _ in abandoned if _has_processes(folder)]
    ended = end_processes(with_processes) if with_processes else []
    remove_segments_of(ended)
    for folder, lock in abandoned:
        _delete(folder)
        os.close(lock)
    removed = [folder for folder, _ in abandoned]
    # The ended processes may have held folders of their own.
    return removed + sweep(place) if ended else removed


def sweep_segments() -> None:
    """Remove shared segments of this user whose processes have all ended."""
    for path in SEGMENTS.glob(f"{SEGMENT_PREFIX}-{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            remove_unused(path, handle)


def remove_segments_of(processes: Iterable[int | None]) -> None:
    """Remove torch's shared memory for a batch whose process was killed, or refused memory, while making it."""
    for pid in processes:
        for path in SEGMENTS.glob(f"torch_{pid}_*"):
            with contextlib.suppress(OSError):
                path.unlink()


def lock_alone(handle: int) -> bool:
    """Take the exclusive lock if no process holds one; return True if it was taken."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process holds one, or locks are not supported
        return False
    return True


def is_at(handle: int, path: Path) -> bool:
    """Return True if an open file or folder is still the one at `path`; its last user may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _lock_of_abandoned(folder: Path) -> int | None:
    """Return the lock of an abandoned folder of this user; None for any other folder."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None  # it is gone, or belongs to another user
    about = os.fstat(lock)
    mine = about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) == _PRIVATE
    if mine and lock_alone(lock) and is_at(lock, folder):
        return lock
    os.close(lock)
    return None


def _delete(folder: Path) -> None:
    if os.path.lexists(folder / EARLIER):  # put back if the new one was not renamed yet
        for new in {*folder.iterdir()} - {folder / EARLIER}:
            with contextlib.suppress(OSError):
                (folder / EARLIER).rename(folder.parent / new.name)
    shutil.rmtree(folder, ignore_errors=True)


def _has_processes(folder: Path) -> bool:
    match = _OURS.fullmatch(folder.name)
    return match is not None and match["kind"] in _WITH_PROCESSES


def user_cache_folder() -> Path | None:
    """Return the folder for this user's caches: ``storebench`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "storebench"
    try:
        return Path.home() / ".cache" / "storebench"
    except RuntimeError:
        return None
