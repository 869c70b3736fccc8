"""Build a folder out of sight and put it in its place at once, or leave no trace.

Beside the final name ``NAME`` lie, while it is being built, ``.NAME.lock`` (an
``flock``: the kernel drops it when its holder dies, however it dies) and
``.NAME.tmp-PID-RANDOM`` (the work). Who holds the lock may take every such
temporary folder for a dead process's.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storebench.progress import Say, mute

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.tmp-\d+-[0-9a-f]+")


@contextmanager
def staged(target: Path, say: Say = mute) -> Iterator[None]:
    """Hold `target` for this process; whoever else wants it waits, having been told so.

    Folders above it are made; those that are still empty at an error are removed again.
    Temporary folders that dead processes left beside it are removed.
    """
    missing = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    try:
        with _locked(target, say):
            _remove_stale(target, say)
            yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Make an empty folder beside `target`; what is still there in the end is removed."""
    folder = target.with_name(_temporary_name(target))
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, target: Path) -> None:
    """Rename `folder`, whose files are synced, to `target`, and sync that; what was there before is removed."""
    sync_folder(folder)
    old = target.with_name(_temporary_name(target))
    with contextlib.suppress(FileNotFoundError):
        target.rename(old)
    folder.rename(target)
    sync_folder(target.parent)
    if old.is_symlink():
        old.unlink()
    elif old.exists():
        shutil.rmtree(old)


def sync_file(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Wait until a folder's entries are on the disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary_name(target: Path) -> str:
    return f".{target.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}"


def _remove_stale(target: Path, say: Say) -> None:
    for folder in sorted(target.parent.glob(".*.tmp-*")):
        match = _TEMPORARY.fullmatch(folder.name)
        if match is None:
            continue
        owner = target.with_name(match["name"])
        try:
            with contextlib.nullcontext() if owner == target else _locked(owner, mute, wait=False):
                shutil.rmtree(folder)
        except BlockingIOError:
            continue  # its process lives
        say(f"removed {folder}, left behind by a process that was killed")


@contextmanager
def _locked(target: Path, say: Say, *, wait: bool = True) -> Iterator[None]:
    path = target.with_name(f".{target.name}.lock")
    descriptor = _acquire(path, say, wait=wait)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, say: Say, *, wait: bool) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # another process gave up and removed the folder that it had made
        try:
            _flock(descriptor, path, say, wait=wait)
        except BaseException:
            os.close(descriptor)
            raise
        # The previous holder removed the file while we waited for it: then it is no lock any more.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def _flock(descriptor: int, path: Path, say: Say, *, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            raise
        say(f"another process holds {path}; waiting for it to finish")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
