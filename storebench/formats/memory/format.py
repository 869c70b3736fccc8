"""The format: decoded pixels in one array, its writer, and readers that hold or share it."""

import array
import contextlib
import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices, Pixels
from storebench.codecs import Payload, any_size, get_codec
from storebench.errors import UsageError
from storebench.formats.base import Fetched, Format, FormatInfo, Reader, ReaderInfo, Traits, Writer
from storebench.formats.common import (
    NPY_ERRORS,
    damaged,
    decode_sample,
    load_array,
    load_integers,
    load_labels,
    save_array,
    sync_folder,
    wrong_length,
)
from storebench.formats.options import Options
from storebench.formats.reads.shared_pixels import SharedPixelsReader, store_tag
from storebench.formats.windows import Batch, Windows, check_range
from storebench.record.manifest import Manifest, StoreSpec

DATA_FILE = "data.npy"
PAYLOADS_FILE = "payloads.bin"
OFFSETS_FILE = "offsets.npy"
LABELS_FILE = "labels.npy"


class MemoryWriter(Writer):
    """Write one .npy array of raw pixels, or one pack of encoded payloads with their offsets."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels, self._offsets = array.array("q"), array.array("q", [0])
        self._raw = spec.codec == "raw"
        self._file: IO[bytes] = (folder / (DATA_FILE if self._raw else PAYLOADS_FILE)).open("xb")
        if self._raw:
            shape = (spec.dataset.count, *spec.dataset.image_shape)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, payload: Payload, label: int) -> None:
        self._file.write(payload)
        self._labels.append(label)
        self._offsets.append(self._offsets[-1] + len(payload))

    def close(self) -> None:
        self._file.close()
        save_array(self.folder / LABELS_FILE, np.asarray(self._labels, dtype=np.int64))
        if not self._raw:
            save_array(self.folder / OFFSETS_FILE, np.asarray(self._offsets, dtype=np.int64))
        sync_folder(self.folder)

    def abort(self) -> None:
        """Close the file; buffered bytes may not fit on the disk."""
        with contextlib.suppress(OSError):
            self._file.close()


def checked_header(path: Path, manifest: Manifest) -> int:
    """Return the number of bytes before the pixels in a .npy file that matches its manifest."""
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise damaged("the file is missing", path) from None
    except NPY_ERRORS as error:
        raise damaged(f"the file cannot be read ({error})", path) from error
    shape = (manifest.count, *manifest.dataset.image_shape)
    if mapped.shape != shape or mapped.dtype != np.uint8:
        raise damaged(f"{mapped.dtype}{mapped.shape} where uint8{shape} was expected", path)
    return int(mapped.offset)


def pack_offsets(store: Path, count: int) -> npt.NDArray[np.int64]:
    """Return the offsets of the payloads in a store's pack, and the end of the last one: int64 [count + 1]."""
    path = store / PAYLOADS_FILE
    if not path.is_file():
        raise damaged("the file is missing", path)
    offsets = load_integers(store / OFFSETS_FILE)
    whole = offsets.shape == (count + 1,) and offsets[0] == 0 and offsets[-1] == path.stat().st_size
    if not whole or (np.diff(offsets) < 0).any():
        raise damaged("the pack and its offsets do not belong together", path)
    return offsets


def decode_pack(store: Path, codec: str, pixels: npt.NDArray[np.uint8]) -> None:
    """Decode every payload of a store's pack into ``pixels``, uint8 [N, H, W, C]."""
    decoder, path = get_codec(codec), store / PAYLOADS_FILE
    offsets = pack_offsets(store, len(pixels))
    with path.open("rb") as file:
        for number, size in enumerate(np.diff(offsets).tolist()):
            decode_sample(decoder, file.read(size), pixels[number], number, path)


class PackReader(Reader):
    """Read the files of the store sample by sample, for verification, which must not take all memory."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / LABELS_FILE, manifest.count)
        self._path = store / (DATA_FILE if manifest.codec == "raw" else PAYLOADS_FILE)
        if not self._path.is_file():
            raise damaged("the file is missing", self._path)
        if manifest.codec == "raw":
            step = manifest.dataset.image_bytes
            self._offsets = np.arange(manifest.count + 1) * step + checked_header(self._path, manifest)
        else:
            self._offsets = pack_offsets(store, manifest.count)
        self._file = self._path.open("rb", buffering=0)

    def _fetch(self, indices: Indices) -> list[bytes]:
        payloads = []
        for number in self._checked(indices):
            start, end = self._offsets[number : number + 2].tolist()
            payloads.append(os.pread(self._file.fileno(), end - start, start))
            if len(payloads[-1]) != end - start:
                raise wrong_length(number, len(payloads[-1]), end - start, self._path)
        return payloads

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        out.reshape(-1).data[:] = b"".join(self._fetch(indices))
        return Fetched(out.nbytes)

    def _close(self) -> None:
        self._file.close()


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
            _refuse_if_too_large(manifest.payload_bytes)
            self.pixels = np.empty((0, *self.image_shape), np.uint8)
            offsets, path = pack_offsets(store, manifest.count), store / PAYLOADS_FILE
            self._offsets, self._files = offsets.tolist(), path.read_bytes()
            if len(self._files) != offsets[-1]:
                raise damaged("the pack and its offsets do not belong together", path)
            return
        _refuse_if_too_large(manifest.count * manifest.dataset.image_bytes)
        self.payload_codec = "raw"
        if manifest.codec == "raw":
            checked_header(store / DATA_FILE, manifest)
            self.pixels = cast("Pixels", load_array(store / DATA_FILE))
        else:
            self.pixels = np.empty((manifest.count, *self.image_shape), np.uint8)
            decode_pack(store, manifest.codec, self.pixels)

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


class MemorySharedReader(SharedPixelsReader):
    """Gather from pixels in shared memory, decoded there by the first process that opened them."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / LABELS_FILE, manifest.count)
        if any_size(manifest.codec):
            self._share_files(
                store_tag(store, manifest), pack_offsets(store, manifest.count), self._fill_files
            )
        else:
            self._share(store_tag(store, manifest), self._fill)

    def _fill(self, pixels: Pixels) -> None:
        if self.manifest.codec == "raw":
            path = self.store / DATA_FILE
            self._read_into(path, checked_header(path, self.manifest), pixels, "the array is cut short")
        else:
            decode_pack(self.store, self.manifest.codec, pixels)

    def _fill_files(self, content: Pixels) -> None:
        self._read_into(self.store / PAYLOADS_FILE, 0, content, "the pack is cut short")

    @staticmethod
    def _read_into(path: Path, start: int, memory: Pixels, cut_short: str) -> None:
        flat, step = memory.reshape(-1), 8 << 20
        with path.open("rb") as file:
            file.seek(start)
            for at in range(0, len(flat), step):
                part = flat[at : at + step]
                if file.readinto(part.data) != len(part):
                    raise damaged(cut_short, path)


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
        return MemoryWriter(folder, spec)

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
