"""The format: one HDF5 file that describes itself, and its reader that goes past the library."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storebench.arrays import Indices
from storebench.formats.base import Fetched, Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.common import damaged
from storebench.formats.hdf5.chunks import NoPlaceError, chunk_addresses, diagnose_chunking, row_offsets
from storebench.formats.hdf5.get import DATA_FILE, H5_ERRORS, Hdf5GetReader, Hdf5Writer, read_whole
from storebench.formats.options import Options
from storebench.formats.reads.direct_file import Offsets
from storebench.formats.reads.extents import ExtentReader, locator
from storebench.formats.reads.planned import ReadPolicy
from storebench.formats.windows import Batch
from storebench.record.manifest import Manifest, StoreSpec


class Hdf5DirectReader(ExtentReader):
    """Explicit, planned reads of ``data.h5``; the library only opens it."""

    def __init__(self, store: Path, manifest: Manifest, options: ReadPolicy) -> None:
        super().__init__(store, manifest, options)
        self._path = store / DATA_FILE
        self._library: Hdf5GetReader | None = None
        self._why_library = ""
        # Sample -> (offset, length) of its parts beyond the first, if a sample is on chunks that are not adjacent.
        self._later_parts: dict[int, list[tuple[int, int]]] = {}
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _fetch(self, indices: Indices) -> list[bytes]:
        if self._library is not None:
            return self._library.fetch(indices)
        payloads = super()._fetch(indices)
        if self._later_parts:
            for row, number in enumerate(indices.tolist()):
                for offset, length in self._later_parts.get(number, ()):
                    part = np.empty(length, np.uint8)
                    self.reads.file.read_fully(offset, part)
                    payloads[row] += part.tobytes()
        return payloads

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        if self._library is not None:
            return self._library.fetch_into(indices, out)
        return super()._fetch_into(indices, out)

    @property
    def serves_windows(self) -> bool:
        """Whether the file has a place for each sample; the library copies whole images only."""
        return self._library is None and super().serves_windows

    # As its parent does; said again, because a class that overrides _fetch_into alone serves no windows.
    _fetch_windows = ExtentReader._fetch_windows  # noqa: SLF001

    def _plan(self, batches: Sequence[Indices]) -> None:
        if self._library is None:  # the library cannot read ahead
            super()._plan(batches)

    def notes(self) -> dict[str, str]:
        if self._library is None:
            return super().notes()
        diagnosis = diagnose_chunking(self._path)
        notes = {"through the library": self._why_library}
        return notes if diagnosis is None else {**notes, "chunking": diagnosis}

    def _close(self) -> None:
        if self._library is not None:
            self._library.close()
        super()._close()

    def _open(self) -> None:
        if not self._path.is_file():
            raise damaged("the file is missing", self._path)
        try:
            with h5py.File(self._path, "r", locking=False) as file:
                self.labels = read_whole(file["label"].id, "label", self.manifest.count, self._path)
                offsets, lengths = self._places(file)
        except NoPlaceError as error:
            self._why_library = str(error)
            # With a cache for the chunks of a window, so that each is decompressed once. The number of slots is a
            # prime, so that few chunks share one, as HDF5's manual advises.
            cache = 100_003, self.options.window()
            self._library = Hdf5GetReader(self.store, self.manifest, Options(), cache)
            return
        except H5_ERRORS as error:
            raise damaged(f"HDF5 cannot open it ({error})", self._path) from error
        self._check_lengths(lengths, self._path)
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
            size = self.manifest.dataset.image_bytes
            return row_offsets(data), np.full(count, size, np.int64)
        bounds = read_whole(file["offset"].id, "offset", count + 1, self._path)
        blob = file["payload"]
        if bounds[0] != 0 or (np.diff(bounds) < 0).any():
            raise damaged("the offsets do not ascend from 0", self._path)
        if blob.shape != (int(bounds[-1]),) or blob.dtype != np.uint8:
            raise damaged(
                f"a blob {blob.dtype}{blob.shape} where {int(bounds[-1])} bytes were expected", self._path
            )
        return self._blob_places(blob, bounds)

    def _blob_places(self, blob: Any, bounds: Offsets) -> tuple[Offsets, Offsets]:
        """Return each payload's place; that of its first part if it is on chunks that are not adjacent."""
        starts, stops = bounds[:-1], bounds[1:]
        chunk = blob.chunks[0] if blob.chunks else max(1, blob.shape[0])
        addresses = chunk_addresses(blob)
        if not len(addresses):
            return starts, stops - starts
        numbers = np.minimum(starts // chunk, len(addresses) - 1)
        offsets = addresses[numbers] + starts - numbers * chunk
        lengths = stops - starts
        apart = np.append(np.diff(addresses) != chunk, False)
        ends = (np.maximum(stops, starts + 1) - 1) // chunk
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
                reader=Hdf5DirectReader,
                summary="explicit planned reads at the data's offset",
                note="compressed data still goes through the library",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return Hdf5Writer(folder, spec)
