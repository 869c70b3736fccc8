"""The files of a store, checked and decoded; and a reader of them in bounded memory, for verification."""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices
from storebench.codecs import get_codec
from storebench.errors import CorruptDataError
from storebench.formats.arrays import Batch
from storebench.formats.base import Fetched, Reader
from storebench.formats.common import NPY_ERRORS, damaged, load_integers, load_labels, wrong_length
from storebench.formats.memory.write import DATA_FILE, LABELS_FILE, OFFSETS_FILE, PAYLOADS_FILE
from storebench.formats.options import Options
from storebench.manifest import Manifest


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
    decode_into, path = get_codec(codec).decode_into, store / PAYLOADS_FILE
    offsets = pack_offsets(store, len(pixels))
    with path.open("rb") as file:
        for number, size in enumerate(np.diff(offsets).tolist()):
            try:
                decode_into(file.read(size), pixels[number])
            except CorruptDataError as error:
                raise damaged(f"sample {number}: {error.what}", path) from error


class PackReader(Reader):
    """Read the files of the store sample by sample, for verification, which must not take all memory."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / LABELS_FILE, manifest.count)
        self._path = store / (DATA_FILE if manifest.codec == "raw" else PAYLOADS_FILE)
        if not self._path.is_file():
            raise damaged("the file is missing", self._path)
        self._offsets = self._find_offsets()
        self._file = self._path.open("rb", buffering=0)

    def _fetch(self, indices: Indices) -> list[bytes]:
        return [self._read(number) for number in self._checked(indices)]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        out.reshape(-1).data[:] = b"".join(self._fetch(indices))
        return Fetched(out.nbytes)

    def _close(self) -> None:
        self._file.close()

    def _find_offsets(self) -> npt.NDArray[np.int64]:
        count = self.manifest.count
        if self.manifest.codec == "raw":
            step = self.manifest.dataset.image_bytes
            return np.arange(count + 1) * step + checked_header(self._path, self.manifest)
        return pack_offsets(self._path.parent, count)

    def _read(self, number: int) -> bytes:
        start, end = self._offsets[number : number + 2].tolist()
        payload = os.pread(self._file.fileno(), end - start, start)
        if len(payload) != end - start:
            raise wrong_length(number, len(payload), end - start, self._path)
        return payload
