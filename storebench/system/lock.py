"""Only one process at a time writes to a run's folder: an advisory lock that the kernel releases with its holder."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from storebench.errors import OutputError, from_os_error

# Errors of filesystems without locks: a run can be created there, but is not protected.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)

# The folders that this process holds.
_claimed: set[Path] = set()


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
                "another process is running it",
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
