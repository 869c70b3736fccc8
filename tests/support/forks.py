"""Large processes that are forked often: what makes a copy cheap to start and to end."""

import ctypes
import gc
import re
import weakref
from pathlib import Path

_COLLAPSE = 25  # MADV_COLLAPSE, Linux 6.1
_HUGE = 2 << 20
_OWN_MEMORY = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0 +(?:\[heap\])?")


def ready_to_fork() -> None:
    """Spare the garbage collector and the copies of this process what it holds, and a fork most of its time."""
    gc.collect()
    gc.freeze()
    use_huge_pages()


def use_huge_pages() -> None:
    """Ask for huge pages where this process has memory: a fork copies one entry per page, for 400 MB in 20 ms.

    An older kernel says no, and a fork takes its time.
    """
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines():
        if found := _OWN_MEMORY.fullmatch(line):
            first, end = (int(word, 16) for word in found.groups())
            first, end = -(-first // _HUGE) * _HUGE, end // _HUGE * _HUGE
            if first < end:
                libc.madvise(first, end - first, _COLLAPSE)


def leave_finalizers_to_this_process() -> None:
    """Let copies of this process not run at their ends what is to be run at its own: torch alone has a hundred of these.

    What a copy itself registers is run as ever.
    """
    registered: list[weakref.finalize[..., object]] = list(weakref.finalize._registry)  # type: ignore[attr-defined]
    for finalizer in registered:
        finalizer.atexit = False
