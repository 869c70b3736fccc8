"""What the kernel tells of folders: which of them are listed, and which of their files are opened (inotify)."""

import ctypes
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")


@contextmanager
def opened_in(folders: Sequence[Path]) -> Iterator[Callable[[], list[str]]]:
    """Watch some folders; yield what returns the names that any process has opened since, "" for a folder itself."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert handle >= 0, os.strerror(ctypes.get_errno())
    try:
        for folder in folders:
            watched = libc.inotify_add_watch(handle, os.fsencode(folder), _IN_OPEN)
            assert watched >= 0, os.strerror(ctypes.get_errno())
        yield lambda: list(_names(handle))
    finally:
        os.close(handle)


def _names(handle: int) -> Iterator[str]:
    while True:
        try:
            raw = os.read(handle, 1 << 16)
        except BlockingIOError:
            return
        while raw:
            _, _, _, length = _EVENT.unpack_from(raw)
            yield os.fsdecode(raw[_EVENT.size : _EVENT.size + length].rstrip(b"\0"))
            raw = raw[_EVENT.size + length :]
