"""The C library of this process, for system calls that Python does not wrap."""

import ctypes

LIBC = ctypes.CDLL(None, use_errno=True)
"""Its functions; `ctypes.get_errno` returns the error of the last call in this thread."""

LIBC.syscall.restype = ctypes.c_long
