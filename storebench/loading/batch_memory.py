"""Memory of batches: regions shared with a worker, and memory that is used again when nothing refers to it."""

import ctypes
import io
import mmap
import os
import pickle
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from storebench.arrays import Bytes
from storebench.system.libc import LIBC
from storebench.units import format_bytes

_MMAP = LIBC.mmap
_MMAP.restype = ctypes.c_void_p
_MMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_FAILED = ctypes.c_void_p(-1).value

# Memory of this many batches is kept for the next ones; more is given back to the system.
KEPT = 4

_ALIGNED = 64


def _watched(memory: Bytes, on_death: Callable[[], object]) -> torch.Tensor:
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
        return _watched(memory, lambda: self._free.append(memory))[:size].view(shape)


class Regions:
    """Regions of anonymous shared memory. A loop lends them to a worker, and gets each back with a batch in it."""

    def __init__(self, file: int | None = None, *, pin: bool = False) -> None:
        self.file = os.memfd_create("storebench-ring") if file is None else file
        self.region_bytes = mmap.PAGESIZE
        self._pin = pin and torch.cuda.is_available()
        self._sizes: dict[int, int] = {}
        self._maps: dict[int, Bytes] = {}
        # Of offsets; only appended to and taken from, which threads may do at once.
        self._free: deque[int] = deque()
        self._owner = os.getpid()

    def fit(self, batch_bytes: int) -> None:
        """Lend regions of at least this size from now on."""
        self.region_bytes = max(self.region_bytes, -(-batch_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)

    def lend(self) -> tuple[int, int]:
        """Return offset and size of a region that is free."""
        while self._free:
            offset = self._free.pop()
            size = self._sizes[offset]
            if size >= self.region_bytes:
                return offset, size
            self._empty(offset)
            del self._maps[offset], self._sizes[offset]
        end = os.fstat(self.file).st_size
        os.ftruncate(self.file, end + self.region_bytes)
        self._sizes[end] = self.region_bytes
        return end, self.region_bytes

    def at(self, offset: int, size: int) -> Bytes:
        """Return the memory of a region, uint8 [size]."""
        if offset not in self._maps:
            self._maps[offset] = _mapped(self.file, offset, size, pin=self._pin)
        return self._maps[offset]

    def held(self, offset: int, size: int) -> torch.Tensor:
        """Return the memory of a region, uint8 [size]; the region is free when all views of it are gone."""
        return _watched(self.at(offset, size), lambda: self.free(offset))

    def free(self, offset: int) -> None:
        """Let a region be lent again."""
        if os.getpid() != self._owner or offset not in self._sizes:  # a forked child, or closed meanwhile
            return
        if len(self._free) < KEPT:
            self._free.append(offset)
        else:
            self._empty(offset)
            self._free.appendleft(offset)

    def close(self) -> None:
        """Release all regions that nothing refers to; the others live as long as their batches."""
        self._sizes.clear()
        self._maps.clear()
        self._free.clear()
        os.close(self.file)

    def _empty(self, offset: int) -> None:
        """Give the pages of a region back to the system; they read as zeros."""
        memory = self.at(offset, self._sizes[offset])
        LIBC.madvise(ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(len(memory)), mmap.MADV_REMOVE)


def _mapped(file: int, offset: int, size: int, *, pin: bool) -> Bytes:
    """Map a part of a file of shared memory, with its pages; Python's own maps each take a file descriptor."""
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    address = _MMAP(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, offset)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), f"no shared memory for a batch of {format_bytes(size)}")
    memory = (ctypes.c_uint8 * size).from_address(address)
    # Page-locked for a GPU. If the driver refuses, copies to the GPU are slower, but not wrong.
    locked = pin and int(_cudart().cudaHostRegister(address, size, 0)) == 0
    weakref.finalize(memory, _unmap, address, size, locked=locked).atexit = False
    return np.ctypeslib.as_array(memory)


def _unmap(address: int, size: int, *, locked: bool) -> None:
    if locked:
        _cudart().cudaHostUnregister(address)
    LIBC.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no annotation for it


class Placing(pickle.Pickler):
    """Pickle an object, but copy its tensors into a region as far as they fit."""

    def __init__(self, out: io.BytesIO, region: torch.Tensor) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self._region = region
        self.used = 0

    def persistent_id(self, item: Any) -> Any:
        if type(item) is not torch.Tensor or item.layout is not torch.strided or not item.is_cpu:
            return None
        begin = -(-self.used // _ALIGNED) * _ALIGNED
        self.used = begin + item.numel() * item.element_size()
        if self.used > len(self._region):
            return None
        strides = torch.empty_like(item, device="meta").stride()
        place = (begin, self.used, item.dtype, tuple(item.shape), strides)
        target = _at(self._region, *place)
        if target.data_ptr() != item.data_ptr():  # or it was made there
            target.copy_(item.detach())
        return place


class Placed(pickle.Unpickler):
    """Unpickle an object whose tensors are in a region."""

    def __init__(self, message: bytes, region: torch.Tensor) -> None:
        super().__init__(io.BytesIO(message))
        self._region = region

    def persistent_load(self, place: Any) -> torch.Tensor:
        return _at(self._region, *place)


def _at(
    region: torch.Tensor,
    begin: int,
    end: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> torch.Tensor:
    return region[begin:end].view(dtype).as_strided(shape, strides)
