"""The compiled kernel, one call per batch: draw windows, cut them out of raw images, and copy whole samples."""

import ctypes
import functools
import struct
from pathlib import Path

import numpy as np

from storebench.arrays import Bytes, Integers

LIBRARY = Path(__file__).with_name("_kernel.abi3.so")
"""What setuptools builds of ``kernel.c``; it calls nothing of Python's."""

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
    """Return the kernel; None if it was not built, because there was no C compiler, or cannot be loaded."""
    try:
        return Kernel(ctypes.CDLL(str(LIBRARY)))
    except OSError:
        return None
