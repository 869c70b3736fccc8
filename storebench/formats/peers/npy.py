"""One packed .npy file, memory-mapped by numpy: an array of images, or the payloads end to end with their offsets."""

from collections.abc import Mapping, Sequence

import numpy as np

from storebench.arrays import Indices, Integers
from storebench.formats.base import Fetched, FormatInfo, ReaderInfo
from storebench.formats.options import Options
from storebench.formats.packed import DATA_FILE, ArrayWriter, map_packed
from storebench.formats.peers.rows import PeerFormat, Row, RowsReader
from storebench.formats.remote import Piece, RemoteReader, ranges_of
from storebench.formats.windows import Batch, Windows


class NpyReader(RowsReader):
    """``numpy.take`` from the mapped array, or one slice of it per payload."""

    library = "numpy"

    def _open(self) -> Integers:
        self._data, self.start, self.bounds = map_packed(self.store, self.manifest)
        self.hold("_data")
        return self._labels_beside()

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        content, bounds = self._data.reshape(-1).data, self.bounds
        return [content[bounds[number] : bounds[number + 1]] for number in numbers]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        self._checked(indices)
        # The default mode copies twice when it is given an output.
        np.take(self._data, indices, axis=0, out=out, mode="clip")
        return Fetched(out.nbytes)

    def _fetch_windows(self, indices: Indices, windows: Windows, out: Batch) -> Fetched:
        self._checked(indices)
        windows.cut(self._data, out, indices)
        return Fetched(len(indices) * self.manifest.dataset.image_bytes)


class NpyRangesReader(RemoteReader):
    """A range of the one packed object per sample; the offsets are read from this disk."""

    def _open_index(self) -> None:
        with NpyReader(self.store, self.manifest, Options()) as mapped:
            self.labels, self._bounds, self._start = mapped.labels, mapped.bounds, mapped.start

    def _piece(self, number: int) -> Piece:
        start, end = self._bounds[number], self._bounds[number + 1]
        return Piece(DATA_FILE, self._start + start, end - start)


class NpyFormat(PeerFormat):
    info = FormatInfo(
        name="npy",
        summary="one packed .npy file, memory-mapped: data [N,H,W,C]; or data and offsets",
        default_codec="raw",
        default_reader="mapped",
    )
    writes = ArrayWriter
    reads = ReaderInfo(reader=NpyReader, summary="numpy.take per batch, or a slice per payload")

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {**super().readers(), "ranges": ranges_of(NpyRangesReader)}
