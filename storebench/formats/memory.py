"""Decoded pixels in one array in memory: what every store would like to be as fast as."""

import contextlib
import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from storebench.codecs import Payload, get_codec
from storebench.errors import CorruptDataError, UsageError
from storebench.formats.base import (
    Batch,
    Format,
    FormatInfo,
    Indices,
    Reader,
    ReaderInfo,
    Traits,
    Usage,
    Writer,
)
from storebench.formats.support import (
    NPY_ERRORS,
    batch_bytes,
    checked,
    damaged,
    load_array,
    load_integers,
    load_labels,
    save_array,
    sync_folder,
)
from storebench.manifest import Manifest, StoreSpec

DATA_FILE = "data.npy"
PAYLOADS_FILE = "payloads.bin"
OFFSETS_FILE = "offsets.npy"
LABELS_FILE = "labels.npy"

Pixels = npt.NDArray[np.uint8]


class MemoryWriter(Writer):
    """Write one .npy array of raw pixels, or one pack of encoded payloads with their offsets."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels: list[int] = []
        self._offsets = [0]
        self._raw = spec.codec == "raw"
        self._file: IO[bytes] = (folder / (DATA_FILE if self._raw else PAYLOADS_FILE)).open("xb")
        if self._raw:
            shape = (spec.dataset.count, *spec.dataset.image_shape)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, payload: Payload, label: int) -> None:
        """Write one payload behind the last."""
        self._file.write(payload)
        self._labels.append(label)
        self._offsets.append(self._offsets[-1] + len(payload))

    def close(self) -> None:
        """Write labels and offsets and sync."""
        self._file.close()
        save_array(self.folder / LABELS_FILE, np.asarray(self._labels, dtype=np.int64))
        if not self._raw:
            save_array(self.folder / OFFSETS_FILE, np.asarray(self._offsets, dtype=np.int64))
        sync_folder(self.folder)

    def abort(self) -> None:
        """Close the file; what it still buffered may not fit on the disk."""
        with contextlib.suppress(OSError):
            self._file.close()


def _load_pixels(store: Path, manifest: Manifest) -> Pixels:
    """Read and decode the whole store: uint8 [N, H, W, C] in private memory."""
    _refuse_if_too_large(manifest)
    if manifest.codec != "raw":
        return _decode_pack(store, manifest)
    _checked_header(store / DATA_FILE, manifest)
    return cast("Pixels", load_array(store / DATA_FILE))


def _checked_header(path: Path, manifest: Manifest) -> int:
    """Return how many bytes precede the pixels in a .npy file that holds what the manifest says."""
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise damaged("the file is missing", path) from None
    except NPY_ERRORS as error:
        raise damaged(f"the file does not read ({error})", path) from error
    shape = (manifest.count, *manifest.dataset.image_shape)
    if mapped.shape != shape or mapped.dtype != np.uint8:
        raise damaged(f"{mapped.dtype}{mapped.shape} where uint8{shape} was expected", path)
    return int(mapped.offset)


def _refuse_if_too_large(manifest: Manifest) -> None:
    import psutil

    needed = manifest.count * manifest.dataset.image_bytes
    available = psutil.virtual_memory().available
    if needed > available:
        raise UsageError(
            f"the pixels need {needed / 2**30:.1f} GiB of memory and {available / 2**30:.1f} GiB are available",
            hint="Use a smaller --size or --limit, or another backend.",
        )


def pack_offsets(store: Path, count: int) -> npt.NDArray[np.int64]:
    """Return where each payload of a store's pack begins, and where the last one ends: int64 [count + 1].

    Raises
    ------
    CorruptStoreError
        A file is missing, or the offsets are not those of the pack.
    """
    path = store / PAYLOADS_FILE
    if not path.is_file():
        raise damaged("the file is missing", path)
    offsets = load_integers(store / OFFSETS_FILE)
    whole = offsets.shape == (count + 1,) and offsets[0] == 0 and offsets[-1] == path.stat().st_size
    if not whole or (np.diff(offsets) < 0).any():
        raise damaged("the pack and its offsets do not belong together", path)
    return offsets


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


class PackReader(Reader):
    """Read the files of the store sample by sample; for verification, which may not need all memory."""

    def __init__(self, store: Path, manifest: Manifest, options: Mapping[str, str]) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / LABELS_FILE, manifest.count)
        self._path = store / (DATA_FILE if manifest.codec == "raw" else PAYLOADS_FILE)
        if not self._path.is_file():
            raise damaged("the file is missing", self._path)
        self._offsets = self._find_offsets()
        self._file = self._path.open("rb", buffering=0)

    def fetch(self, indices: Indices) -> list[bytes]:
        """Return the payloads of `indices`."""
        return [self._read(number) for number in checked(indices, self.manifest.count)]

    def fetch_into(self, indices: Indices, out: Batch) -> int:
        """Copy raw pixels into `out`."""
        batch = batch_bytes(out, len(indices))
        batch[:] = b"".join(self.fetch(indices))
        return len(batch)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _find_offsets(self) -> npt.NDArray[np.int64]:
        count = self.manifest.count
        if self.manifest.codec == "raw":
            step = self.manifest.dataset.image_bytes
            return np.arange(count + 1) * step + _checked_header(self._path, self.manifest)
        return pack_offsets(self._path.parent, count)

    def _read(self, number: int) -> bytes:
        start, end = self._offsets[number : number + 2].tolist()
        payload = os.pread(self._file.fileno(), end - start, start)
        if len(payload) != end - start:
            raise damaged(f"sample {number} has {len(payload)} bytes, not {end - start}", self._path)
        return payload


class MemoryFormat(Format):
    """One array, read at the opening."""

    info = FormatInfo(
        name="memory",
        summary="decoded pixels in one array in memory, read at the opening",
        default_codec="raw",
        default_reader="python",
        traits=Traits(
            fork_safe=True, holds_pixels=True, note="each process that opens it holds all pixels once more"
        ),
        usage=Usage.EXPERT,
        expert_would="An expert would change nothing: the pixels are one C-contiguous array.",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the paper's two ways, in Python and in C++, and one copy for all processes."""
        from storebench.formats.memory_shared import MemorySharedReader

        native = Traits(fork_safe=True, holds_pixels=True, releases_gil=True, note=self.info.traits.note)
        shared = Traits(
            fork_safe=True,
            holds_pixels=True,
            releases_gil=True,
            note="all processes of a machine share one copy; the first one fills it",
        )
        return {
            "python": ReaderInfo(
                reader=MemoryPythonReader,
                summary="one index a sample in Python, then collate",
                usage=Usage.NEWCOMER,
                expert_would="An expert would gather the whole batch in one call, as memory:native does.",
            ),
            "native": ReaderInfo(
                reader=MemoryNativeReader,
                summary="one index_select a batch in C++ (ATen)",
                traits=native,
                usage=Usage.EXPERT,
                expert_would="An expert would give it more threads where cores are idle.",
            ),
            "shared": ReaderInfo(
                reader=MemorySharedReader,
                summary="one copy in shared memory for all processes",
                traits=shared,
                usage=Usage.EXPERT,
                expert_would="An expert would change nothing: all processes gather from one copy.",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return the writer of the array, or of the pack of payloads."""
        return MemoryWriter(folder, spec)

    def auditor(self, store: Path, manifest: Manifest) -> Reader:
        """Return a reader that leaves the pixels on the disk."""
        return PackReader(store, manifest, {})
