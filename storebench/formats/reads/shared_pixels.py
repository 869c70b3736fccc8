"""Pixels in POSIX shared memory, filled by the first process that opens them, and the readers that gather from them."""

import contextlib
import fcntl
import hashlib
import mmap
import os
import random
import time
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np

from storebench.arrays import Indices, Pixels
from storebench.errors import OutputError, UsageError
from storebench.formats.base import Fetched, Reader
from storebench.formats.reads.direct_file import Offsets
from storebench.formats.windows import Batch, Windows, check_range
from storebench.probes.rates import compiled
from storebench.record.manifest import Manifest
from storebench.system.scratch import (
    SEGMENT_PREFIX,
    SEGMENTS,
    is_at,
    lock_alone,
    remove_unused,
    sweep_segments,
)

_HEADER_BYTES = 4096
_COMPLETE = b"storebench pixels, complete"

# Write all pixels into the array, uint8 [N, H, W, C].
FillPixels = Callable[[Pixels], None]


class SharedPixels:
    """One array that every process of this user on this machine shares, read-only once it is filled."""

    def __init__(self, identity: str, shape: tuple[int, ...], fill: FillPixels) -> None:
        sweep_segments()
        self.path = SEGMENTS / f"{SEGMENT_PREFIX}-{os.getuid()}-{identity}"
        self.filled_here = False
        size = int(np.prod(shape, dtype=np.int64))
        handle = self._locked(shape, size, fill)
        try:
            # Mapped with all its pages, so that the first epoch does not pay for a fault per page.
            self._map = mmap.mmap(
                handle, _HEADER_BYTES + size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ
            )
        except BaseException:
            os.close(handle)
            raise
        self.array: Pixels = np.frombuffer(self._map, np.uint8, size, _HEADER_BYTES).reshape(shape)
        self._release = Finalize(self, remove_unused, args=(self.path, handle), exitpriority=0)

    def close(self) -> None:
        """Unmap, and remove the segment if no other process uses it. Calling it twice is harmless."""
        self.array = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # a view is still in use; the mapping ends with it
            self._map.close()
        self._release()

    def _locked(self, shape: tuple[int, ...], size: int, fill: FillPixels) -> int:
        """Return a handle of the complete segment that holds the shared lock."""
        while True:
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise OutputError(f"no shared memory ({error.strerror})", where=self.path) from error
            try:
                # No process ever waits for the exclusive lock, because readers hold the shared one while they read.
                if lock_alone(handle) and is_at(handle, self.path) and not _is_complete(handle):
                    self._fill(handle, shape, size, fill)
                # This waits only for a process that fills it. Changing the lock is not atomic, so check again.
                fcntl.flock(handle, fcntl.LOCK_SH)
                if is_at(handle, self.path) and _is_complete(handle):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            # The process that filled it died, or several came at once and blocked each other.
            os.close(handle)
            time.sleep(random.uniform(0, 0.005))

    def _fill(self, handle: int, shape: tuple[int, ...], size: int, fill: FillPixels) -> None:
        room = os.statvfs(SEGMENTS)
        if size > room.f_bavail * room.f_frsize:
            self.path.unlink()
            raise UsageError(
                f"the pixels need {size / 2**20:.0f} MiB of shared memory",
                where=SEGMENTS,
                hint="Use a smaller --size or --limit, or another backend.",
            )
        try:
            os.ftruncate(handle, 0)
            # Touching a page for which there is no memory would kill the process; this call fails instead.
            os.posix_fallocate(handle, 0, _HEADER_BYTES + size)
            # It is unmapped with its last view, which an error's traceback may hold.
            mapped = mmap.mmap(handle, _HEADER_BYTES + size)
            fill(np.frombuffer(mapped, np.uint8, size, _HEADER_BYTES).reshape(shape))
        except BaseException as error:
            self.path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise OutputError(f"no shared memory ({error.strerror})", where=self.path) from error
            raise
        os.pwrite(handle, _COMPLETE, 0)
        self.filled_here = True


def _is_complete(handle: int) -> bool:
    return os.pread(handle, len(_COMPLETE), 0) == _COMPLETE


def store_tag(store: Path, manifest: Manifest) -> str:
    """Return a key that changes with the store's path, samples, build and codec."""
    inode = store.stat().st_ino
    parts = (store.resolve(), manifest.samples_digest, manifest.created_utc, inode, manifest.codec)
    text = "\0".join(map(str, parts))
    return hashlib.blake2b(os.fsencode(text), digest_size=10).hexdigest()


class SharedPixelsReader(Reader):
    """Gather from pixels in shared memory; a subclass calls `_share` in its constructor."""

    _shared: SharedPixels

    def _share(self, identity: str, fill: FillPixels, offsets: Offsets | None = None) -> None:
        """Attach to what `identity` names; in the first process that does so, `fill` writes it.

        It is all pixels, or with `offsets` the bytes of image files as they are.
        """
        if offsets is None:
            self.payload_codec, shape = "raw", (self.manifest.count, *self.image_shape)
        else:
            self._offsets: list[int] = offsets.tolist()
        self._shared = SharedPixels(identity, shape if offsets is None else (self._offsets[-1],), fill)

    def _fetch(self, indices: Indices) -> list[bytes]:
        if self.payload_codec == "raw":
            return self._raw_payloads(indices)
        content, offsets = self._shared.array, self._offsets
        return [content[offsets[number] : offsets[number + 1]].tobytes() for number in self._checked(indices)]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        pixels = self._shared.array
        check_range(indices, len(pixels))
        compiled(pixels, indices, out)
        return Fetched(out.nbytes)

    def _fetch_windows(self, indices: Indices, windows: Windows, out: Batch) -> Fetched:
        pixels = self._shared.array
        check_range(indices, len(pixels))
        windows.cut(pixels, out, indices)
        return Fetched(len(indices) * self.manifest.dataset.image_bytes)

    def notes(self) -> dict[str, str]:
        return {"shared memory": "filled by this reader" if self._shared.filled_here else "was there already"}

    def _close(self) -> None:
        self._shared.close()  # the last process to do so removes the memory
