"""Replace one folder by another without a moment in which either could be lost."""

import contextlib
import ctypes
import errno
import os
import shutil
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
"""What kernels, file systems and sandboxes say that cannot exchange two names."""


def replace(folder: Path, target: Path, aside: Path) -> None:
    """Put `folder` in the place of `target`; what was there, if anything was, is then called `folder`.

    One call exchanges the two names where the kernel and the file system can do that. Elsewhere they are renamed one
    after the other. An error or an interrupt between these renamings puts the old one back. A kill there leaves no
    `target`, but both of them whole: the old one as `aside`, the new one as `folder`.

    Parameters
    ----------
    folder
        The new one.
    target
        The place: a folder, a file or a symbolic link (which is not followed), or nothing yet.
    aside
        A name on the same file system that nothing has.

    Raises
    ------
    OSError
        Nothing was put in place.
    """
    if not os.path.lexists(target):
        folder.rename(target)
        return
    try:
        exchange(folder, target)
    except OSError as error:
        if error.errno not in _CANNOT_EXCHANGE:
            raise
        _rename_both(folder, target, aside)


def exchange(one: Path, other: Path) -> None:
    """Exchange two names in one step.

    Raises
    ------
    OSError
        Nothing was renamed; of errno ENOSYS where the C library does not know how.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    try:
        failed = libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE))
    except AttributeError:  # glibc before 2.28, musl before 1.2.6
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(one), None, str(other)) from None
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


def remove(path: Path) -> None:
    """Remove a folder with everything in it, a file, or a symbolic link and not what it points to."""
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
        except KeyboardInterrupt:  # it must not leave a place empty
            _undo(target, aside)
            raise
        raise


def _undo(target: Path, aside: Path) -> None:
    """Put `aside` back where nothing is, and remove it where the new one is. What failed first is what is told."""
    with contextlib.suppress(OSError):
        if os.path.lexists(target):
            remove(aside)
        else:
            aside.rename(target)
