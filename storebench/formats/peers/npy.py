"""One packed .npy file, memory-mapped by numpy: an array of images, or the payloads end to end with their offsets."""

from collections.abc import Mapping, Sequence

import numpy as np

from storebench.arrays import Indices, Integers, Pixels
from storebench.formats.base import Fetched, FormatInfo, ReaderInfo
from storebench.formats.common import NPY_ERRORS, damaged, load_integers, save_array
from storebench.formats.options import Options
from storebench.formats.peers.rows import PeerFormat, Row, RowsReader, required, whole_offsets
from storebench.formats.peers.writers import PackedWriter
from storebench.formats.remote import Piece, RemoteReader, ranges_of
from storebench.formats.windows import Batch, Windows

OFFSETS_FILE = "offsets.npy"


class NpyWriter(PackedWriter):
    """Append to one array; the header of encoded payloads is written again when their length is known."""

    file_name = "data.npy"
    labels_beside = True

    def _start(self) -> None:
        super()._start()
        self._write_header()

    def _finish(self) -> None:
        self.file.seek(0)
        self._write_header()
        super()._finish()
        if self.shape is None:
            save_array(self.folder / OFFSETS_FILE, np.asarray(self.offsets, np.int64))

    def _write_header(self) -> None:
        # numpy leaves room in a header for a first axis that grows, so its length stays the same.
        header = {"descr": "|u1", "fortran_order": False, "shape": self.shape or (self.offsets[-1],)}
        np.lib.format.write_array_header_1_0(self.file, header)


class NpyReader(RowsReader):
    """``numpy.take`` from the mapped array, or one slice of it per payload."""

    library = "numpy"
    library_errors = NPY_ERRORS

    def _open(self) -> Integers:
        path = required(self.store / NpyWriter.file_name)
        data = np.lib.format.open_memmap(path, mode="r")  # refuses a file that is too short
        self.start = data.offset
        self._data: Pixels = data.view(np.ndarray)
        self.hold("_data")
        count = self.manifest.count
        if self.payload_codec == "raw":
            shape: tuple[int, ...] = (count, *self.image_shape)
            size = self.manifest.dataset.image_bytes
            self.bounds: Sequence[int] = range(0, (count + 1) * size, size)
        else:
            offsets = load_integers(self.store / OFFSETS_FILE)
            shape = data.shape[:1]
            self.bounds = whole_offsets(offsets, count, data.size, path)
        if data.shape != shape or data.dtype != np.uint8 or not data.flags.c_contiguous:
            raise damaged(f"{data.dtype}{data.shape} where uint8{shape} was expected", path)
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
        return Piece(NpyWriter.file_name, self._start + start, end - start)


class NpyFormat(PeerFormat):
    info = FormatInfo(
        name="npy",
        summary="one packed .npy file, memory-mapped: data [N,H,W,C]; or data and offsets",
        default_codec="raw",
        default_reader="mapped",
    )
    writes = NpyWriter
    reads = ReaderInfo(reader=NpyReader, summary="numpy.take per batch, or a slice per payload")

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {**super().readers(), "ranges": ranges_of(NpyRangesReader)}
