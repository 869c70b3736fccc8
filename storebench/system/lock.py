"""Only one process at a time writes to a run's folder: an advisory lock that the kernel releases with its holder."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from storebench.errors import OutputError, from_os_error
from storebench.system.scratch import is_at

_LOCKS = Path("/proc/locks")
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of filesystems without locks: a run can be created there, but is not protected."""

_claimed: set[tuple[int, int]] = set()
"""Device and inode of the folders that this process holds."""


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock a run's folder against other processes; this process may claim it again while it holds the lock."""
    is_new = not folder.exists()
    try:
        handle = _locked(folder)
    except BlockingIOError:
        raise OutputError(
            f"another process is running it{_holder(folder)}",
            where=folder,
            hint="Wait until it ends, or name another --out.",
        ) from None
    except OSError as error:
        raise from_os_error(error, folder) from error
    if handle is None:
        yield
        return
    own = _identity(os.fstat(handle))
    _claimed.add(own)
    try:
        yield
    finally:
        _claimed.discard(own)
        if is_new:
            with contextlib.suppress(OSError):  # it is in use
                folder.rmdir()
        os.close(handle)


def _locked(folder: Path) -> int | None:
    """Return the handle of the locked folder; None if this process already holds the lock."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _identity(os.fstat(handle)) in _claimed:
                os.close(handle)
                return None
            _lock(handle)
            if is_at(handle, folder):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its last holder removed it in the meantime


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder(folder: Path) -> str:
    """Return " (pid N)" for the process that locked a folder; "" if the kernel does not say."""
    try:
        device, inode = _identity(folder.stat())
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return ""
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in lines:
        # 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF; a waiting one has "->" after the number.
        words = line.split()
        if words[1:2] == ["FLOCK"] and wanted in words:
            pid = words[words.index(wanted) - 1]
            return f" (pid {pid})" if pid.isdecimal() and pid != "0" else ""
    return ""
