"""Samples in shards with an index.json, read one at a time: LitData's chunks, and the MDS of MosaicML Streaming."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from storebench.formats.base import FormatInfo, ReaderInfo
from storebench.formats.peers.rows import IMAGE, LABEL, PeerFormat, Row, RowsReader, required
from storebench.formats.peers.writers import LibraryWriter

FOLDER = "data"


class IndexedReader(RowsReader):
    """``dataset[index]``: there is no call for several samples."""

    def _open(self) -> Any:
        folder = self.store / FOLDER
        required(folder / "index.json")
        self._dataset = self._open_dataset(str(folder))
        self.hold("_dataset")
        self._require_all(self._dataset, range(self.manifest.count))
        return self._labels_beside()

    @abstractmethod
    def _open_dataset(self, folder: str) -> Any:
        """Open the library's dataset."""

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        dataset = self._dataset
        return [dataset[number][IMAGE] for number in numbers]


class IndexedWriter(LibraryWriter):
    """Write samples {image, label} through a writer that is finished, and never closed."""

    labels_beside = True

    def _release(self) -> None:
        self.__dict__.pop("_writer", None)


class LitDataWriter(IndexedWriter):
    """Write chunks of 64 MB, as ``optimize`` does in its workers."""

    def _start(self) -> None:
        from litdata.streaming.cache import Cache

        (self.folder / FOLDER).mkdir()
        self._writer = Cache(str(self.folder / FOLDER), chunk_bytes="64MB")

    def _put(self, payload: bytes, label: int) -> None:
        self._writer[len(self.labels)] = {IMAGE: payload, LABEL: label}

    def _finish(self) -> None:
        self._writer.done()
        self._writer.merge()


class LitDataReader(IndexedReader):
    """LitData's StreamingDataset."""

    library = "LitData"

    def _open_dataset(self, folder: str) -> Any:
        from litdata import StreamingDataset

        # Decoding ahead pays in a stream; for scattered samples it takes 1 to 2 ms each.
        return StreamingDataset(folder, batch_decode=0)


class LitDataFormat(PeerFormat):
    info = FormatInfo(
        name="litdata",
        unserved="its client of object stores refuses plain HTTP",
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


class MdsWriter(IndexedWriter):
    """Write shards of 64 MiB, the library's default."""

    def _start(self) -> None:
        from streaming import MDSWriter

        self._writer = MDSWriter(out=str(self.folder / FOLDER), columns={IMAGE: "bytes", LABEL: "int"})

    def _put(self, payload: bytes, label: int) -> None:
        self._writer.write({IMAGE: payload, LABEL: label})

    def _finish(self) -> None:
        self._writer.finish()


class MdsReader(IndexedReader):
    """LocalDataset, without the shared memory of StreamingDataset."""

    library = "MosaicML Streaming"

    def _open_dataset(self, folder: str) -> Any:
        from streaming import LocalDataset

        return LocalDataset(local=folder)


class MdsFormat(PeerFormat):
    info = FormatInfo(
        name="mds",
        unserved="its client copies every shard to a disk before it reads one",
        summary="MosaicML's MDS: samples {image, label} in shards of 64 MiB with index.json, labels beside",
        default_codec="jpeg",
        default_reader="index",
    )
    writes = MdsWriter
    reads = ReaderInfo(
        reader=MdsReader,
        summary="LocalDataset by index, one call per sample",
        note="without StreamingDataset's named shared memory, which killed processes leave behind",
    )
