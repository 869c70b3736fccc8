"""LitData's chunks of samples with an index.json, read one at a time."""

from collections.abc import Sequence
from typing import Any

from storebench.formats.base import FormatInfo, ReaderInfo
from storebench.formats.peers.rows import IMAGE, LABEL, PeerFormat, Row, RowsReader, required
from storebench.formats.peers.writers import LibraryWriter

FOLDER = "data"


class LitDataWriter(LibraryWriter):
    """Write chunks of 64 MB, as ``optimize`` does in its workers."""

    labels_beside = True

    def _start(self) -> None:
        from litdata.streaming.cache import Cache

        (self.folder / FOLDER).mkdir()
        self._writer = Cache(str(self.folder / FOLDER), chunk_bytes="64MB")

    def _put(self, payload: bytes, label: int) -> None:
        self._writer[len(self.labels)] = {IMAGE: payload, LABEL: label}

    def _finish(self) -> None:
        self._writer.done()
        self._writer.merge()

    def _release(self) -> None:
        """Drop the library's writer, which is never closed."""
        self.__dict__.pop("_writer", None)


class LitDataReader(RowsReader):
    """LitData's StreamingDataset by index: there is no call for several samples."""

    library = "LitData"

    def _open(self) -> Any:
        from litdata import StreamingDataset

        folder = self.store / FOLDER
        required(folder / "index.json")
        # Decoding ahead pays in a stream; for scattered samples it takes 1 to 2 ms each.
        self._dataset = StreamingDataset(str(folder), batch_decode=0)
        self.hold("_dataset")
        self._require_all(self._dataset, range(self.manifest.count))
        return self._labels_beside()

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        return [self._dataset[number][IMAGE] for number in numbers]


class LitDataFormat(PeerFormat):
    info = FormatInfo(
        name="litdata",
        summary="LitData: samples {image, label} in chunks of 64 MB with index.json, labels beside",
        default_codec="jpeg",
        default_reader="index",
    )
    writes = LitDataWriter
    reads = ReaderInfo(
        reader=LitDataReader,
        summary="StreamingDataset by index, one call per sample",
        note="batch_decode=0: the default, auto, decodes ahead and is slow for scattered samples",
    )
