"""The compiled kernel, one call per batch: draw windows, cut them out of raw images, and copy whole samples."""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import stat
import struct
import subprocess
from pathlib import Path

import numpy as np

from storebench.arrays import Bytes, Integers
from storebench.errors import StorebenchError
from storebench.system.scratch import scratch_folder, user_cache_folder

KERNEL = Path(__file__).with_name("kernel.c")

_FLAGS = ("-O3", "-shared", "-fPIC", "-x", "c", "-")
_TIMEOUT_S = 60
_MODE = 0o755

# Bytes of a source that is the whole address space.
_ANYWHERE = 2**63 - 1

# An array's ``ctypes.data`` takes a microsecond, and there are six of them in a batch of 40.
_struct_in = ctypes.pythonapi.PyCapsule_GetPointer
_struct_in.restype = ctypes.c_void_p
_struct_in.argtypes = [ctypes.py_object, ctypes.c_char_p]

# Each argument of a call takes ctypes 0.1 us, and all of them packed into one take 0.3 us.
_CUT, _DRAW = struct.Struct("@PqPPqqqqqqP"), struct.Struct("@QPqqqqP")


class Kernel:
    """The functions of the compiled library. They release the GIL and take C-contiguous arrays."""

    def __init__(self, library: ctypes.CDLL) -> None:
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self._cut = library.storebench_cut
        self._cut.restype = number
        self._cut.argtypes = [ctypes.c_char_p]
        self._rows = library.storebench_rows
        self._rows.restype = number
        self._rows.argtypes = [pointer, number, pointer, number, number, pointer]
        self._draw = library.storebench_draw
        self._draw.restype = None
        self._draw.argtypes = [ctypes.c_char_p]

    def cut(
        self,
        source: Bytes | None,
        offsets: Integers,
        places: Integers,
        image_shape: tuple[int, int, int],
        out: Bytes,
    ) -> int:
        """Cut a window of each image into `out`, and return the number of windows before the first impossible one."""
        # The capsules hold what the kernel reads until it returns.
        held = None if source is None else source.__array_struct__
        offset, place, batch = offsets.__array_struct__, places.__array_struct__, out.__array_struct__
        _, height, width, _ = out.shape
        packed = _CUT.pack(
            0 if source is None else _struct_in(held, None),
            _ANYWHERE if source is None else source.size,
            _struct_in(offset, None),
            _struct_in(place, None),
            len(offsets),
            *image_shape,
            height,
            width,
            _struct_in(batch, None),
        )
        cut: int = self._cut(packed)
        return cut

    def rows(self, source: Bytes, offsets: Integers, out: Bytes) -> int:
        """Copy the sample at each of `offsets` into `out`; return the number of samples before the first outside."""
        held, offset, batch = source.__array_struct__, offsets.__array_struct__, out.__array_struct__
        copied: int = self._rows(
            _struct_in(held, None),
            source.size,
            _struct_in(offset, None),
            len(offsets),
            out.shape[1],
            _struct_in(batch, None),
        )
        return copied

    def draw(self, stream: int, indices: Integers, ranges: tuple[int, int], *, mirror: bool) -> Integers:
        """Draw a place for each index, int64 [n, 3], below `ranges` (top, left), from a stream of random bits."""
        places = np.empty((len(indices), 3), np.int64)
        index, place = indices.__array_struct__, places.__array_struct__
        self._draw(
            _DRAW.pack(
                stream, _struct_in(index, None), len(indices), *ranges, mirror, _struct_in(place, None)
            )
        )
        return places


@functools.cache
def load_kernel() -> Kernel | None:
    """Return the kernel, compiled by the first process that needs it; None if there is no working C compiler."""
    library = load_compiled(KERNEL.read_text(encoding="utf-8"), user_cache_folder())
    return None if library is None else Kernel(library)


def load_compiled(source: str, folder: Path | None) -> ctypes.CDLL | None:
    """Return the library that C source compiles to, from `folder` if it was compiled before."""
    try:
        compiler = shlex.split(os.environ.get("CC") or "cc")
    except ValueError:  # a quotation that does not end
        compiler = ["cc"]
    # The name changes with everything that decides the library's content.
    parts = "\0".join([source, *compiler, *_FLAGS, platform.machine()])
    name = f"kernel-{hashlib.blake2b(parts.encode(), digest_size=10).hexdigest()}.so"
    if folder is not None:
        with contextlib.suppress(OSError):
            about = (folder / name).stat()
            # Only this user can have written it.
            if about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return ctypes.CDLL(str(folder / name))
    return _compile(source, compiler, folder, name)


def _compile(source: str, compiler: list[str], folder: Path | None, name: str) -> ctypes.CDLL | None:
    """Compile and load; keep the library in `folder` if that can be written and executed, or compile it for now."""
    for parent in dict.fromkeys((folder, None)):
        with contextlib.suppress(OSError, StorebenchError, subprocess.SubprocessError):
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            with scratch_folder("kept", parent) as scratch:
                built = scratch / name
                command = [*compiler, *_FLAGS, "-o", str(built)]
                subprocess.run(
                    command, input=source.encode(), capture_output=True, timeout=_TIMEOUT_S, check=True
                )
                built.chmod(_MODE)
                library = ctypes.CDLL(str(built))
                if parent is not None:
                    built.replace(parent / name)
                return library
    return None
