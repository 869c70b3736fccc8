"""Let processes of one machine take turns: LMDBIO's STAG, with file locks."""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """At most `at_a_time` of the processes that read `path` are inside `one` at any moment.

    A process that dies gives its turn back, because the kernel drops its locks.
    """

    def __init__(self, path: Path, at_a_time: int) -> None:
        tag = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
        folder = Path(tempfile.gettempdir())
        names = [folder / f"storebench-turns-{os.getuid()}-{tag}-{number}" for number in range(at_a_time)]
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._slots = [os.open(name, flags, 0o600) for name in names]

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a turn and hold it."""
        slot = self._take()
        try:
            yield
        finally:
            fcntl.flock(slot, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock files. They stay, empty: removing one would let a second process lock another."""
        for slot in self._slots:
            os.close(slot)
        self._slots = []

    def _take(self) -> int:
        for slot in self._slots:
            try:
                fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return slot
        # All are taken: queue for one of them, and different processes for different ones.
        slot = self._slots[os.getpid() % len(self._slots)]
        fcntl.flock(slot, fcntl.LOCK_EX)
        return slot
