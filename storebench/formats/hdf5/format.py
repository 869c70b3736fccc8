"""The format: one HDF5 file that describes itself, and its reader that goes past the library."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storebench.arrays import Indices
from storebench.formats.base import Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.common import damaged
from storebench.formats.hdf5.get import DATA_FILE, H5_ERRORS, Hdf5GetReader, Hdf5Writer, read_whole
from storebench.formats.reads.direct_file import Offsets
from storebench.formats.reads.extents import ExtentReader, locator
from storebench.formats.reads.planned import ReadPolicy
from storebench.record.manifest import Manifest, StoreSpec


class Hdf5DirectReader(ExtentReader):
    """Explicit, planned reads of ``data.h5`` as the writer lays it out; the library only opens it."""

    def __init__(self, store: Path, manifest: Manifest, options: ReadPolicy) -> None:
        super().__init__(store, manifest, options)
        self._path = store / DATA_FILE
        # Sample -> (offset, length) of its parts beyond the first, if a sample is on chunks that are not adjacent.
        self._later_parts: dict[int, list[tuple[int, int]]] = {}
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _fetch(self, indices: Indices) -> list[bytes]:
        payloads = super()._fetch(indices)
        if self._later_parts:
            for row, number in enumerate(indices.tolist()):
                for offset, length in self._later_parts.get(number, ()):
                    part = np.empty(length, np.uint8)
                    self.reads.file.read_fully(offset, part)
                    payloads[row] += part.tobytes()
        return payloads

    def _open(self) -> None:
        if not self._path.is_file():
            raise damaged("the file is missing", self._path)
        try:
            with h5py.File(self._path, "r", locking=False) as file:
                self.labels = read_whole(file["label"].id, "label", self.manifest.count, self._path)
                offsets, lengths = self._places(file)
        except H5_ERRORS as error:
            raise damaged(f"HDF5 cannot open it ({error})", self._path) from error
        mean = int(lengths.mean()) if len(lengths) else 0
        if (offsets < 0).any() or (len(offsets) and (offsets + lengths).max() > self._path.stat().st_size):
            raise damaged("a sample lies outside the file", self._path)
        self._serve(self._path, locator(offsets, lengths), mean_bytes=mean)

    def _places(self, file: h5py.File) -> tuple[Offsets, Offsets]:
        count = self.manifest.count
        if self.payload_codec == "raw":
            data = file["data"]
            if data.shape != (count, *self.image_shape) or data.dtype != np.uint8:
                raise damaged(f"an array {data.dtype}{data.shape} of other images", self._path)
            start, size = data.id.get_offset(), self.manifest.dataset.image_bytes
            if start is None:
                raise damaged("the images are not in one piece", self._path)
            return start + np.arange(count) * size, np.full(count, size, np.int64)
        bounds = read_whole(file["offset"].id, "offset", count + 1, self._path)
        blob = file["payload"]
        if bounds[0] != 0 or (np.diff(bounds) <= 0).any():
            raise damaged("the offsets do not ascend from 0", self._path)
        if blob.shape != (int(bounds[-1]),) or blob.dtype != np.uint8 or not blob.chunks or blob.compression:
            raise damaged(
                f"a blob {blob.dtype}{blob.shape} where {int(bounds[-1])} bytes in chunks were expected",
                self._path,
            )
        return self._blob_places(blob, bounds)

    def _blob_places(self, blob: Any, bounds: Offsets) -> tuple[Offsets, Offsets]:
        """Return each payload's place; that of its first part if it is on chunks that are not adjacent."""
        (chunk,) = blob.chunks
        addresses = np.full(-(-blob.size // chunk), -1, np.int64)
        blob.id.chunk_iter(lambda info: addresses.put(info.chunk_offset[0] // chunk, info.byte_offset))
        if (addresses < 0).any():
            raise damaged("a chunk was never written", self._path)
        starts, stops = bounds[:-1], bounds[1:]
        numbers = starts // chunk
        offsets = addresses[numbers] + starts - numbers * chunk
        lengths = stops - starts
        apart = np.append(np.diff(addresses) != chunk, False)
        ends = (stops - 1) // chunk
        gaps = np.concatenate([np.zeros(1, np.int64), np.cumsum(apart)])
        for sample in np.flatnonzero(gaps[ends] > gaps[numbers]).tolist():
            edge = (int(numbers[sample]) + 1) * chunk
            lengths[sample] = edge - starts[sample]
            self._later_parts[sample] = [
                (int(addresses[at // chunk]), min(chunk, int(stops[sample]) - at))
                for at in range(edge, int(stops[sample]), chunk)
            ]
        return offsets, lengths


class Hdf5Format(Format):
    """One file that describes itself."""

    info = FormatInfo(
        name="hdf5",
        summary="one file: data [N,H,W,C] and label; or payload, offset and label",
        default_codec="raw",
        default_reader="get",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "get": ReaderInfo(
                reader=Hdf5GetReader,
                summary="one hyperslab per sample (h5py, low level)",
                note="h5py lets one thread of a process in at a time",
            ),
            "direct": ReaderInfo(
                reader=Hdf5DirectReader, summary="explicit planned reads at the data's offset"
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return Hdf5Writer(folder, spec)
