"""Let processes of one machine take turns: LMDBIO's STAG, with file locks."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize
from pathlib import Path

from storebench.system.scratch import remove_unused, shared_folder


class Turns:
    """At most `at_a_time` of the processes that read `path` are inside `one` at any moment."""

    def __init__(self, path: Path, at_a_time: int) -> None:
        tag = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=8).hexdigest()
        self._folder, self._lock = shared_folder(f"storebench-turns-{os.geteuid()}-{tag}")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._slots = [os.open(self._folder / str(number), flags, 0o600) for number in range(at_a_time)]
        self._release = Finalize(self, remove_unused, args=(self._folder, self._lock), exitpriority=0)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a turn and hold it."""
        slot = self._take()
        try:
            yield
        finally:
            fcntl.flock(slot, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock files, and remove them if no other process has them. Calling it twice is harmless."""
        for slot in self._slots:
            os.close(slot)
        self._slots = []
        self._release()

    def _take(self) -> int:
        for slot in self._slots:
            try:
                fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return slot
        # All are taken: queue for one of them, different processes for different ones.
        slot = self._slots[os.getpid() % len(self._slots)]
        fcntl.flock(slot, fcntl.LOCK_EX)
        return slot
