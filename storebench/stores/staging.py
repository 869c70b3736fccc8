"""Build a folder out of sight and publish it at once, or leave no trace."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storebench.errors import StorebenchError, from_os_error
from storebench.filesystem import sync
from storebench.system.progress import Say, mute
from storebench.system.scratch import EARLIER, is_at, scratch_folder
from storebench.system.whole_files import made_folder


@contextmanager
def staged(target: Path, say: Say = mute) -> Iterator[None]:
    """Hold the folder of `target` for this process; other processes that want to build there say so and wait."""
    with made_folder(target.parent):
        lock = _locked(target.parent, say)
        try:
            yield
        finally:
            os.close(lock)


def _locked(folder: Path, say: Say) -> int:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # without locks, two processes may build the same
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    say(f"another process builds in {folder}; waiting for it to finish")
                    fcntl.flock(lock, fcntl.LOCK_EX)
            if is_at(lock, folder):  # not removed by a process that has given up
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


@contextmanager
def new_folder(target: Path, *last: str) -> Iterator[Path]:
    """Make an empty folder beside `target`; when the block ends, sync its `last` files and replace `target` by it."""
    with scratch_folder("unfinished", target.parent) as work:
        folder = work / target.name
        try:
            folder.mkdir()
            yield folder
            for name in last:
                sync(folder / name)
            sync(folder)
            if os.path.lexists(target):
                target.rename(work / EARLIER)  # removed with `work`, or put back if `folder` is still in it
            folder.rename(target)
            sync(target.parent)
        except OSError as error:
            raise from_os_error(error, target) from error
        except StorebenchError as error:
            if error.where is not None:
                error.where = error.where.replace(str(folder), str(target))
            error.what = error.what.replace(str(folder), str(target))  # `folder` is gone when this is read
            raise
