"""Build a folder out of sight and publish it at once, or leave no trace."""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storebench.errors import OutputError, StorebenchError, from_os_error
from storebench.fileio.whole_files import made_folder
from storebench.filesystem import sync
from storebench.progress import Say, mute

WhenMade = Callable[[Path], tuple[str, int] | None]
"""Function that returns when the content of a folder was made, as a sortable value; None if it is not complete."""

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.tmp-\d+-[0-9a-f]+")
_LOCK = re.compile(r"\.(?P<name>.+\+.+)\.lock")  # of FORMAT+CODEC, not of any other program


@contextmanager
def staged(target: Path, when_made: WhenMade, say: Say = mute) -> Iterator[None]:
    """Hold `target` for this process; other processes that want it say so and wait."""
    with made_folder(target.parent), _locked(target, say):
        _settle(target, when_made, say)
        tidy(target.parent, when_made, say)
        yield
        _settle(target, when_made, say)  # removes a copy that was kept while the target was damaged


@contextmanager
def new_folder(target: Path, *last: str) -> Iterator[Path]:
    """Make an empty folder beside `target`; when the block ends, sync its `last` files and rename it to `target`."""
    folder = target.with_name(_temporary_name(target))
    try:
        folder.mkdir()
        yield folder
        for name in last:
            sync(folder / name)
        _publish(folder, target)
    except OSError as error:
        raise from_os_error(error, target) from error
    except StorebenchError as error:
        if error.where is not None:
            error.where = error.where.replace(str(folder), str(target))
        error.what = error.what.replace(str(folder), str(target))  # `folder` is gone when this is read
        raise
    finally:
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, target: Path) -> None:
    """Rename `folder`, whose files are synced, to `target`, and remove an earlier one."""
    # A process that is killed between the two renames leaves the earlier one hidden beside it: `restore` finds it.
    sync(folder)
    earlier = target.with_name(_temporary_name(target)) if os.path.lexists(target) else None
    try:
        if earlier is not None:
            target.rename(earlier)
        folder.rename(target)
        sync(target.parent)
    except BaseException:
        if earlier is not None:
            with contextlib.suppress(OSError):  # the first error is reported
                if os.path.lexists(target):
                    remove(earlier)
                else:
                    earlier.rename(target)
        raise
    if earlier is not None:
        remove(earlier)


def remove(path: Path) -> None:
    """Remove a folder with its content, a file, or a symbolic link without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def tidy(folder: Path, when_made: WhenMade, say: Say = mute) -> None:
    """Settle the remains of dead processes in `folder` if no other process holds the locks; never wait."""
    with contextlib.suppress(OSError):
        matches = [_TEMPORARY.fullmatch(path.name) or _LOCK.fullmatch(path.name) for path in folder.iterdir()]
        for name in sorted({match["name"] for match in matches if match}):
            with contextlib.suppress(OSError), _locked(folder / name, mute, wait=False):
                _settle(folder / name, when_made, say)


def restore(target: Path, when_made: WhenMade, say: Say = mute) -> None:
    """Rename `target` back if a process was killed while it replaced it; never wait."""
    real = Path(os.path.realpath(target))
    if os.path.lexists(real):
        return
    hidden = [folder for folder in _temporary_folders(real) if when_made(folder)]
    if not hidden:
        return
    try:
        with _locked(real, mute, wait=False):
            _settle(real, when_made, say)
    except BlockingIOError:
        return  # the process that holds the lock is alive
    except OSError as error:
        raise OutputError(
            f"a process that was killed left it as {hidden[-1]}, and it cannot be renamed ({error.strerror})",
            where=target,
        ) from error


def _temporary_name(target: Path) -> str:
    return f".{target.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}"


def _temporary_folders(target: Path) -> list[Path]:
    try:
        siblings = sorted(target.parent.iterdir())
    except FileNotFoundError:
        return []
    matches = ((path, _TEMPORARY.fullmatch(path.name)) for path in siblings)
    return [path for path, match in matches if match and match["name"] == target.name]


def _settle(target: Path, when_made: WhenMade, say: Say) -> None:
    """Rename `target` back if it is missing, and remove temporary folders that are not needed; the lock is held."""
    whole: dict[Path, tuple[str, int]] = {}
    for folder in _temporary_folders(target):
        made = when_made(folder)
        if made is None:
            _discard(folder, say)
        else:
            whole[folder] = made
    if whole and not os.path.lexists(target):
        newest = max(whole, key=lambda folder: whole[folder])
        newest.rename(target)
        sync(target.parent)
        del whole[newest]
        say(f"put {target} back: a process that was killed left it as {newest.name}")
    if whole and when_made(target) is not None:
        for folder in whole:
            _discard(folder, say)


def _discard(folder: Path, say: Say) -> None:
    try:
        remove(folder)
    except OSError as error:
        say(f"{folder}, left behind by a process that was killed, cannot be removed ({error.strerror})")
    else:
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
            continue  # another process has given up and removed the folder that it had made
        try:
            _flock(descriptor, path, say, wait=wait)
        except BaseException:
            os.close(descriptor)
            raise
        # If the previous holder removed the file while we waited for it, it is no longer a lock.
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
