"""The memory of a lane whose producer is another process: a few batches that both processes map, once."""

import mmap
import os
from typing import Any

import torch

from storebench.loading.lanes import SLOTS


class RingMemory:
    """Slots for batches in anonymous shared memory."""

    def __init__(self, file: int | None = None, *, pin: bool = False, slots: int = SLOTS) -> None:
        self.file = os.memfd_create("storebench-ring") if file is None else file
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._slot_bytes = 0
        self._slots = slots
        self._pin = pin
        self._locked = False

    @property
    def slot_bytes(self) -> int:
        """Largest batch, in bytes."""
        return self._slot_bytes

    def fit(self, batch_bytes: int) -> None:
        """Make each slot large enough for a batch of `batch_bytes`. Call it between epochs only: slots move when they grow."""
        if batch_bytes <= self._slot_bytes:
            return
        self._unlock()
        self._slot_bytes = -(-batch_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        size = self._slots * self._slot_bytes
        if os.fstat(self.file).st_size < size:
            os.ftruncate(self.file, size)
        # The map lives for as long as any tensor on it, so a batch that is kept for too long is stale, never a crash.
        mapped = mmap.mmap(self.file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        mapped.madvise(mmap.MADV_DONTFORK)  # the workers that are forked after this one have no use for it
        self._memory = torch.frombuffer(mapped, dtype=torch.uint8)
        self._lock()

    def slot(self, number: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return slot `number`, cut to `shape`, for the producer."""
        return self.at(number * self._slot_bytes, shape)

    def at(self, offset: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the batch at `offset`, for the loop."""
        return self._memory[offset : offset + torch.Size(shape).numel()].view(shape)

    def offset_of(self, pixels: torch.Tensor) -> int | None:
        """Return the offset of a batch in this memory; None if it is in other memory."""
        offset = pixels.data_ptr() - self._memory.data_ptr()
        return offset if 0 <= offset < len(self._memory) else None

    def close(self) -> None:
        """Release the memory."""
        self._unlock()
        self._memory = torch.empty(0, dtype=torch.uint8)
        os.close(self.file)

    def _lock(self) -> None:
        """Page-lock the mapping. If the driver refuses, copies to the GPU are slower, but not wrong."""
        if self._pin and torch.cuda.is_available():
            code = _cudart().cudaHostRegister(self._memory.data_ptr(), len(self._memory), 0)
            self._locked = int(code) == 0

    def _unlock(self) -> None:
        if self._locked:
            _cudart().cudaHostUnregister(self._memory.data_ptr())
            self._locked = False


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no annotation for it
