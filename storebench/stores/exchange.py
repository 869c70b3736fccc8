"""Replace a folder by another without a moment in which either could be lost."""

import contextlib
import ctypes
import errno
import os
import shutil
from pathlib import Path

from storebench.system.libc import LIBC

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
"""Errors of kernels, file systems and sandboxes that cannot exchange two names."""


def replace(folder: Path, target: Path, aside: Path) -> None:
    """Put `folder` in the place of `target`; an earlier `target` is then called `folder`."""
    if not os.path.lexists(target):
        folder.rename(target)
        return
    try:
        exchange(folder, target)
    except OSError as error:
        if error.errno not in _CANNOT_EXCHANGE:
            raise
        _rename_both(folder, target, aside)


def exchange(path: Path, other: Path) -> None:
    """Exchange two names in one step."""
    names = os.fsencode(path), os.fsencode(other)
    try:
        failed = LIBC.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE))
    except AttributeError:  # glibc before 2.28, musl before 1.2.6
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(path), None, str(other)) from None
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path), None, str(other))


def remove(path: Path) -> None:
    """Remove a folder with its content, a file, or a symbolic link without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _rename_both(folder: Path, target: Path, aside: Path) -> None:
    try:
        target.rename(aside)
        folder.rename(target)
        aside.rename(folder)
    except BaseException:
        try:
            _undo(target, aside)
        except KeyboardInterrupt:  # an interrupt must not leave the place empty
            _undo(target, aside)
            raise
        raise


def _undo(target: Path, aside: Path) -> None:
    """Rename `aside` back if its place is empty, and remove it if the new one is there; the first error is reported."""
    with contextlib.suppress(OSError):
        if os.path.lexists(target):
            remove(aside)
        else:
            aside.rename(target)
