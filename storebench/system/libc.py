"""The C library of this process, for system calls that Python does not wrap."""

import ctypes

# Its functions; `ctypes.get_errno` returns the error of the last call in this thread.
LIBC = ctypes.CDLL(None, use_errno=True)

LIBC.syscall.restype = ctypes.c_long

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of glibc
_NEVER = -1


def keep_freed_memory() -> bool:
    """Let this process keep all memory that it frees, and return True if the C library can; only glibc can."""
    mallopt = getattr(LIBC, "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
