"""Only one process at a time writes to a run's folder: an advisory lock that the kernel releases with its holder."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from storebench.errors import OutputError, from_os_error

_LOCKS = Path("/proc/locks")
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of filesystems without locks: a run can be created there, but is not protected."""

_claimed: set[Path] = set()
"""The folders that this process holds."""


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock a run's folder against other processes; this process may claim it again while it holds the lock."""
    path, is_new = folder.resolve(), not folder.exists()
    if path in _claimed:
        yield
        return
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(
                f"another process is running it{_holder(folder)}",
                where=folder,
                hint="Wait until it ends, or name another --out.",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise from_os_error(error, folder) from error
        _claimed.add(path)
        try:
            yield
        finally:
            _claimed.discard(path)
            if is_new:
                with contextlib.suppress(OSError):  # it is in use
                    folder.rmdir()


def _holder(folder: Path) -> str:
    """Return " (pid N)" for the process that locked a folder; "" if the kernel does not say."""
    with contextlib.suppress(OSError, ValueError):
        status = folder.stat()
        file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in _LOCKS.read_text(encoding="ascii").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF; a waiting one has "->" after the number.
            words = line.split()
            if words[1:2] == ["FLOCK"] and words[5:6] == [file] and int(words[4]) > 0:
                return f" (pid {words[4]})"
    return ""
