"""Read all pixels into memory when opening, and index them in Python or in C++: the upper bound for every store."""

import multiprocessing
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import cast

import numpy as np

from storebench.arrays import Indices, Pixels
from storebench.codecs import any_size
from storebench.errors import UsageError
from storebench.formats.arrays import Batch, check_range
from storebench.formats.base import Fetched, Reader
from storebench.formats.common import damaged, load_array, load_labels
from storebench.formats.memory.audit import checked_header, decode_pack, pack_offsets
from storebench.formats.memory.write import DATA_FILE, LABELS_FILE, PAYLOADS_FILE
from storebench.formats.options import Options
from storebench.formats.windows import Windows
from storebench.manifest import Manifest


def _load_pixels(store: Path, manifest: Manifest) -> Pixels:
    """Read and decode the whole store: uint8 [N, H, W, C] in private memory."""
    _refuse_if_too_large(manifest.count * manifest.dataset.image_bytes)
    if manifest.codec != "raw":
        pixels = np.empty((manifest.count, *manifest.dataset.image_shape), dtype=np.uint8)
        decode_pack(store, manifest.codec, pixels)
        return pixels
    checked_header(store / DATA_FILE, manifest)
    return cast("Pixels", load_array(store / DATA_FILE))


def _load_files(store: Path, manifest: Manifest) -> tuple[bytes, list[int]]:
    """Read a pack of image files: all their bytes, and where each begins and the last one ends."""
    _refuse_if_too_large(manifest.payload_bytes)
    offsets, path = pack_offsets(store, manifest.count), store / PAYLOADS_FILE
    content = path.read_bytes()
    if len(content) != offsets[-1]:
        raise damaged("the pack and its offsets do not belong together", path)
    return content, offsets.tolist()


def _refuse_if_too_large(needed: int) -> None:
    import psutil

    available = psutil.virtual_memory().available
    if needed > available:
        raise UsageError(
            f"the samples need {needed / 2**30:.1f} GiB of memory and {available / 2**30:.1f} GiB are available",
            hint="Use a smaller --size or --limit, or another backend.",
        )


class MemoryPythonReader(Reader):
    """Index sample by sample in Python and collate, as a plain Dataset with the default collate does."""

    _files = b""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / LABELS_FILE, manifest.count)
        if any_size(manifest.codec):
            self.pixels = np.empty((0, *self.image_shape), np.uint8)
            self._files, self._offsets = _load_files(store, manifest)
        else:
            self.pixels = _load_pixels(store, manifest)
            self.payload_codec = "raw"

    def _fetch(self, indices: Indices) -> list[bytes]:
        if self.payload_codec != "raw":
            files, offsets = self._files, self._offsets
            return [files[offsets[number] : offsets[number + 1]] for number in self._checked(indices)]
        pixels = self.pixels
        return [pixels[number].tobytes() for number in self._checked(indices)]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        pixels = self.pixels
        np.stack([pixels[number] for number in self._checked(indices)], out=out)
        return Fetched(out.nbytes)

    def _close(self) -> None:
        self._files = b""
        del self.pixels


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
