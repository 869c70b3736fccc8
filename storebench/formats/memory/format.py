"""The format: decoded pixels in one array, its writer, and readers that hold or share it."""

import functools
import math
import multiprocessing
from collections.abc import Mapping
from multiprocessing.context import ForkProcess
from pathlib import Path

import numpy as np

from storebench.arrays import Indices
from storebench.codecs import any_size
from storebench.errors import UsageError
from storebench.formats.base import Fetched, Format, FormatInfo, Reader, ReaderInfo, Traits, Writer
from storebench.formats.common import load_labels
from storebench.formats.options import Options
from storebench.formats.packed import LABELS_FILE, ArrayWriter, map_packed, read_packed
from storebench.formats.reads.shared_pixels import SharedPixelsReader, store_tag
from storebench.formats.windows import Batch, Windows, check_range
from storebench.record.manifest import Manifest, StoreSpec


class PackReader(Reader):
    """Read sample by sample from the mapped file, for verification, which must not take all memory."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / LABELS_FILE, manifest.count)
        self.pixels, _, self._bounds = map_packed(store, manifest)

    def _fetch(self, indices: Indices) -> list[bytes]:
        content, bounds = self.pixels.reshape(-1), self._bounds
        return [content[bounds[number] : bounds[number + 1]].tobytes() for number in self._checked(indices)]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        pixels = self.pixels
        np.stack([pixels[number] for number in self._checked(indices)], out=out)
        return Fetched(out.nbytes)

    def _close(self) -> None:
        del self.pixels


def _refuse_if_too_large(needed: int) -> None:
    import psutil

    available = psutil.virtual_memory().available
    if needed > available:
        raise UsageError(
            f"the samples need {needed / 2**30:.1f} GiB of memory and {available / 2**30:.1f} GiB are available",
            hint="Use a smaller --size or --limit, or another backend.",
        )


class MemoryPythonReader(PackReader):
    """Index sample by sample in Python and collate, as a plain Dataset with the default collate does."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        shape: tuple[int, ...] = (self._bounds[-1],)
        if not any_size(manifest.codec):
            shape, size = (manifest.count, *self.image_shape), manifest.dataset.image_bytes
            self.payload_codec, self._bounds = "raw", range(0, (manifest.count + 1) * size, size)
        _refuse_if_too_large(math.prod(shape))
        self.pixels = np.empty(shape, np.uint8)
        read_packed(store, manifest, self.pixels)


class MemoryNativeReader(MemoryPythonReader):
    """Gather the whole batch in one call of compiled C++ (ATen's index_select)."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        import torch

        super().__init__(store, manifest, options)
        if isinstance(multiprocessing.current_process(), ForkProcess):
            # A forked process does not inherit ATen's threads, and would wait for them forever.
            torch.set_num_threads(1)
        self._torch = torch
        self._tensor = torch.from_numpy(self.pixels)

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        """Gather into the caller's memory; ATen checks the indices."""
        torch = self._torch
        torch.index_select(self._tensor, 0, torch.from_numpy(indices), out=torch.from_numpy(out))
        return Fetched(out.nbytes)

    def _fetch_windows(self, indices: Indices, windows: Windows, out: Batch) -> Fetched:
        check_range(indices, len(self.pixels))
        windows.cut(self.pixels, out, indices)
        return Fetched(len(indices) * self.manifest.dataset.image_bytes)

    def _close(self) -> None:
        del self._tensor
        super()._close()


class MemorySharedReader(SharedPixelsReader):
    """Gather from pixels in shared memory, decoded there by the first process that opened them."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / LABELS_FILE, manifest.count)
        fill = functools.partial(read_packed, store, manifest)
        offsets = np.asarray(map_packed(store, manifest)[2]) if any_size(manifest.codec) else None
        self._share(store_tag(store, manifest), fill, offsets)


_HELD = Traits(holds_pixels=True)
_ONCE_EACH = "each process that opens it holds all pixels once more"


class MemoryFormat(Format):
    """One array, read when the store is opened."""

    info = FormatInfo(
        name="memory",
        summary="decoded pixels in one array in memory, read at the opening",
        default_codec="raw",
        default_reader="python",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "python": ReaderInfo(
                reader=MemoryPythonReader,
                summary="one index per sample in Python, then collate",
                traits=_HELD,
                note=_ONCE_EACH,
            ),
            "native": ReaderInfo(
                reader=MemoryNativeReader,
                summary="one index_select per batch in C++ (ATen)",
                traits=_HELD,
                note=_ONCE_EACH,
            ),
            "shared": ReaderInfo(
                reader=MemorySharedReader,
                summary="one copy in shared memory for all processes",
                traits=_HELD,
                note="all processes of a machine share one copy; the first one fills it",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return ArrayWriter(folder, spec)

    def auditor(self, store: Path, manifest: Manifest) -> Reader:
        return PackReader(store, manifest, Options())


class NullFormat(Format):
    """The reference that stores nothing: a few ready batches, served in rotation."""

    info = FormatInfo(
        name="null",
        summary="no storage: a few real batches that are in memory already, the ceiling of every backend",
        default_codec="raw",
        default_reader="ready",
        borrows="memory+raw",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "ready": ReaderInfo(
                reader=PackReader,
                summary="serve a few real batches in turn",
                traits=Traits(holds_pixels=True, ready_made=True),
                note="its samples are real ones, but not those of the plan",
            )
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:  # noqa: ARG002 - refused in any case
        raise UsageError(
            "the backend null stores nothing", where=folder, hint="It is only for 'run' and 'bench'."
        )
