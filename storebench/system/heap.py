"""Memory that stays with the process when it is freed, so that using it again causes no page faults."""

from storebench.system.libc import LIBC

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of glibc
_NEVER = -1


def keep_freed_memory() -> bool:
    """Let this process keep all memory that it frees, and return whether the C library can; only glibc can."""
    mallopt = getattr(LIBC, "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
