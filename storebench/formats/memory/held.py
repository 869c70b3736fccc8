"""Read all pixels into memory when opening, and index them in Python or in C++: the upper bound for every store."""

import multiprocessing
from collections.abc import Mapping
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from storebench.codecs import get_codec
from storebench.errors import CorruptDataError, UsageError
from storebench.formats.base import Batch, Indices, Reader
from storebench.formats.common import batch_bytes, checked, damaged, load_array, load_labels
from storebench.formats.memory.audit import checked_header, pack_offsets
from storebench.formats.memory.write import DATA_FILE, LABELS_FILE, PAYLOADS_FILE
from storebench.manifest import Manifest

Pixels = npt.NDArray[np.uint8]


def _load_pixels(store: Path, manifest: Manifest) -> Pixels:
    """Read and decode the whole store: uint8 [N, H, W, C] in private memory."""
    _refuse_if_too_large(manifest)
    if manifest.codec != "raw":
        return _decode_pack(store, manifest)
    checked_header(store / DATA_FILE, manifest)
    return cast("Pixels", load_array(store / DATA_FILE))


def _refuse_if_too_large(manifest: Manifest) -> None:
    import psutil

    needed = manifest.count * manifest.dataset.image_bytes
    available = psutil.virtual_memory().available
    if needed > available:
        raise UsageError(
            f"the pixels need {needed / 2**30:.1f} GiB of memory and {available / 2**30:.1f} GiB are available",
            hint="Use a smaller --size or --limit, or another backend.",
        )


def _decode_pack(store: Path, manifest: Manifest) -> Pixels:
    codec = get_codec(manifest.codec)
    offsets, path = pack_offsets(store, manifest.count), store / PAYLOADS_FILE
    pixels = np.empty((manifest.count, *manifest.dataset.image_shape), dtype=np.uint8)
    with path.open("rb") as file:
        for number, size in enumerate(np.diff(offsets).tolist()):
            try:
                codec.decode_into(file.read(size), pixels[number])
            except CorruptDataError as error:
                raise damaged(f"sample {number}: {error.what}", path) from error
    return pixels


class MemoryPythonReader(Reader):
    """Index sample by sample in Python and collate, as a plain Dataset with the default collate does."""

    def __init__(self, store: Path, manifest: Manifest, options: Mapping[str, str]) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / LABELS_FILE, manifest.count)
        self._pixels: Pixels | None = _load_pixels(store, manifest)
        self.payload_codec = "raw"

    @property
    def pixels(self) -> Pixels:
        """All pixels, uint8 [N, H, W, C]."""
        if self._pixels is None:
            raise RuntimeError("the reader is closed")
        return self._pixels

    def fetch(self, indices: Indices) -> list[bytes]:
        """Return the raw pixels of each image."""
        pixels = self.pixels
        return [pixels[number].tobytes() for number in checked(indices, self.manifest.count)]

    def fetch_into(self, indices: Indices, out: Batch) -> int:
        """Collate one view an image."""
        pixels = self.pixels
        numbers = checked(indices, self.manifest.count)
        batch = batch_bytes(out, len(numbers))
        if numbers:
            np.stack([pixels[number] for number in numbers], out=out[: len(numbers)])
        return len(batch)

    def close(self) -> None:
        """Free the pixels."""
        self._pixels = None


class MemoryNativeReader(MemoryPythonReader):
    """Gather the whole batch in one call of compiled C++ (ATen's index_select)."""

    def __init__(self, store: Path, manifest: Manifest, options: Mapping[str, str]) -> None:
        import torch

        super().__init__(store, manifest, options)
        if isinstance(multiprocessing.current_process(), ForkProcess):
            # ATen's threads did not come along, and it would wait for them for ever.
            torch.set_num_threads(1)
        self._torch = torch
        self._tensor: torch.Tensor | None = torch.from_numpy(self.pixels)

    def fetch_into(self, indices: Indices, out: Batch) -> int:
        """Gather into the caller's memory; ATen checks the indices and the shapes."""
        torch = self._torch
        if self._tensor is None:
            raise RuntimeError("the reader is closed")
        count = len(indices)
        batch = out if len(out) == count else out[:count]
        if batch.shape[0] != count or not batch.flags.c_contiguous:
            raise ValueError("the batch is too small or not C-contiguous")
        # ATen would resize a result of another shape, away from the caller's memory.
        if batch.shape[1:] != self.image_shape:
            raise ValueError(f"images of {batch.shape[1:]} where {self.image_shape} were expected")
        if count:
            torch.index_select(self._tensor, 0, torch.from_numpy(indices), out=torch.from_numpy(batch))
        return batch.nbytes

    def close(self) -> None:
        """Free the pixels."""
        self._tensor = None
        super().close()
