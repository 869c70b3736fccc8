"""Memory that stays with the process when it is freed, so that using it again causes no page faults."""

from storebench.system.libc import LIBC

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of glibc
_NEVER = -1


def keep_freed_memory() -> bool:
    """Let this process keep all memory that it frees, and return whether the C library can; only glibc can.

    glibc maps every large block afresh and returns it to the kernel when it is freed. Training on a CPU allocates its gradients
    in every step, so it would pay for their pages in every step, almost half of a step of CaffeNet (`benchmarks/heap.py`). If
    another allocator replaces glibc's, this has no effect.
    """
    mallopt = getattr(LIBC, "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
