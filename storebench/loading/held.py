"""Memory of batches that a training script may keep: it is used again when nothing refers to it any more."""

import ctypes
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np
import torch

from storebench.arrays import Bytes
from storebench.system.libc import LIBC
from storebench.units import format_bytes

_MMAP = LIBC.mmap
_MMAP.restype = ctypes.c_void_p
_MMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_FAILED = ctypes.c_void_p(-1).value

KEPT = 4
"""Memory of so many batches is kept for the next ones; more is given back to the system."""


def watched(memory: Bytes, on_death: Callable[[], object]) -> torch.Tensor:
    """Return a tensor on `memory`, uint8 [n]; `on_death` is called when it and all views of it are gone."""
    view = memory[:]
    weakref.finalize(view, on_death).atexit = False
    return torch.from_numpy(view)  # a storage of torch refers to the array that it was made from


class HeldMemory:
    """Allocate in this process."""

    def __init__(self, *, pin: bool = False) -> None:
        self._free: deque[Bytes] = deque(maxlen=KEPT)
        self._pin = pin

    def __call__(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a uint8 tensor of `shape`, in memory that nothing else refers to."""
        if self._pin:  # torch's allocator waits for copies to the GPU before it gives memory out again
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        size = torch.Size(shape).numel()
        memory = self._free.pop() if self._free else np.empty(size, np.uint8)
        if len(memory) < size:
            memory = np.empty(size, np.uint8)
        return watched(memory, lambda: self._free.append(memory))[:size].view(shape)


class Regions:
    """Regions of shared memory that a loop lends to a worker, and gets back with a batch in each."""

    def __init__(self) -> None:
        self.file = os.memfd_create("storebench-batches")
        self.region_bytes = mmap.PAGESIZE
        self._maps: dict[int, Bytes] = {}
        self._free: deque[int] = (
            deque()
        )  # of offsets; only appended to and taken from, which threads may do at once
        self._owner = os.getpid()

    def fit(self, batch_bytes: int) -> None:
        """Lend regions of at least this size from now on."""
        self.region_bytes = max(self.region_bytes, -(-batch_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)

    def lend(self) -> tuple[int, int]:
        """Return offset and size of a region that nothing refers to."""
        while self._free:
            offset = self._free.pop()
            size = len(self._maps[offset])
            if size >= self.region_bytes:
                return offset, size
            _empty(self._maps.pop(offset))
        end = os.fstat(self.file).st_size
        os.ftruncate(self.file, end + self.region_bytes)
        return end, self.region_bytes

    def returned(self, offset: int, size: int) -> torch.Tensor:
        """Return the memory of a region, uint8 [size], which can be lent again when all views of it are gone."""
        if offset not in self._maps:
            self._maps[offset] = mapped(self.file, offset, size)
        return watched(self._maps[offset], lambda: self.free(offset))

    def free(self, offset: int) -> None:
        """Let a region be lent again."""
        if os.getpid() != self._owner or offset not in self._maps:  # a forked child, or closed meanwhile
            return
        if len(self._free) < KEPT:
            self._free.append(offset)
        else:
            _empty(self._maps[offset])
            self._free.appendleft(offset)

    def close(self) -> None:
        """Release all regions that nothing refers to; the others live as long as their batches."""
        self._maps.clear()
        self._free.clear()
        os.close(self.file)


def mapped(file: int, offset: int, size: int) -> Bytes:
    """Map a part of a file of shared memory, with its pages; Python's own maps each take a file descriptor."""
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    address = _MMAP(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, offset)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), f"no shared memory for a batch of {format_bytes(size)}")
    memory = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, LIBC.munmap, ctypes.c_void_p(address), ctypes.c_size_t(size)).atexit = False
    return np.ctypeslib.as_array(memory)


def _empty(memory: Bytes) -> None:
    """Give the pages of a map back to the system; they read as zeros."""
    LIBC.madvise(ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(len(memory)), mmap.MADV_REMOVE)
