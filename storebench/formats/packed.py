"""Packed stores: one .npy file of an array of images, or of the payloads end to end with their offsets beside it."""

import array
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from storebench.arrays import Integers, Pixels
from storebench.codecs import Payload, any_size, get_codec
from storebench.formats.base import Writer
from storebench.formats.common import (
    NPY_ERRORS,
    damaged,
    decode_sample,
    load_integers,
    save_array,
    sync_folder,
)
from storebench.record.manifest import Manifest, StoreSpec

DATA_FILE, OFFSETS_FILE, LABELS_FILE = "data.npy", "offsets.npy", "labels.npy"
_STEP_BYTES = 8 << 20


class ArrayWriter(Writer):
    """Append to one array; the header of encoded payloads is written again when their length is known."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels, self._offsets = array.array("q"), array.array("q", [0])
        self._raw = spec.codec == "raw"
        self._file: IO[bytes] = (folder / DATA_FILE).open("xb")
        self._write_header()

    def append(self, payload: Payload, label: int) -> None:
        self._file.write(payload)
        self._labels.append(label)
        self._offsets.append(self._offsets[-1] + len(payload))

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.close()
        save_array(self.folder / LABELS_FILE, np.asarray(self._labels, dtype=np.int64))
        if not self._raw:
            save_array(self.folder / OFFSETS_FILE, np.asarray(self._offsets, dtype=np.int64))
        sync_folder(self.folder)

    def abort(self) -> None:
        """Close the file; buffered bytes may not fit on the disk."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _write_header(self) -> None:
        # numpy leaves room in a header for a first axis that grows, so its length stays the same.
        about = self.spec.dataset
        shape = (about.count, *about.image_shape) if self._raw else (self._offsets[-1],)
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)


def map_packed(store: Path, manifest: Manifest) -> tuple[Pixels, int, Sequence[int]]:
    """Return the mapped array of a store, the bytes before it in its file, and the bounds of the payloads in it."""
    path, count = store / DATA_FILE, manifest.count
    try:
        data = np.lib.format.open_memmap(path, mode="r")  # refuses a file that is too short
    except FileNotFoundError:
        raise damaged("the file is missing", path) from None
    except NPY_ERRORS as error:
        raise damaged(f"the file cannot be read ({error})", path) from error
    shape, size = (count, *manifest.dataset.image_shape), manifest.dataset.image_bytes
    bounds: Sequence[int] = range(0, (count + 1) * size, size)
    if manifest.codec != "raw":
        shape = data.shape[:1]
        bounds = whole_offsets(load_integers(store / OFFSETS_FILE), count, data.size, path)
    if data.shape != shape or data.dtype != np.uint8 or not data.flags.c_contiguous:
        raise damaged(f"{data.dtype}{data.shape} where uint8{shape} was expected", path)
    return data.view(np.ndarray), data.offset, bounds


def read_packed(store: Path, manifest: Manifest, content: Pixels) -> None:
    """Read a whole store into memory: decoded pixels, uint8 [N, H, W, C], or image files, uint8 [bytes]."""
    _, start, bounds = map_packed(store, manifest)
    path = store / DATA_FILE
    with path.open("rb") as file:
        file.seek(start)
        if manifest.codec == "raw" or any_size(manifest.codec):
            flat = content.reshape(-1)
            for at in range(0, len(flat), _STEP_BYTES):
                part = flat[at : at + _STEP_BYTES]
                if file.readinto(part.data) != len(part):
                    raise damaged("the array is cut short", path)
            return
        codec = get_codec(manifest.codec)
        for number, size in enumerate(np.diff(bounds).tolist()):
            decode_sample(codec, file.read(size), content[number], number, path)


def whole_offsets(offsets: Integers, count: int, end: int, path: Path) -> list[int]:
    """Return the bounds of `count` payloads that fill `end` bytes; raise `CorruptStoreError` if they do not."""
    if offsets.shape != (count + 1,) or offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        raise damaged("the payloads and their offsets do not belong together", path)
    bounds: list[int] = offsets.tolist()
    return bounds
