"""ArrayRecord, the container of Grain: records of any bytes in one file with an index at its end."""

from collections.abc import Sequence
from typing import Any

from storebench.formats.base import FormatInfo, ReaderInfo, Traits
from storebench.formats.peers.rows import PeerFormat, Row, RowsReader, required
from storebench.formats.peers.tfrecord import image_of, pack_example
from storebench.formats.peers.writers import LibraryWriter

DATA_FILE = "data.array_record"


class ArrayRecordWriter(LibraryWriter):
    """Write each sample as an Example."""

    labels_beside = True

    def _start(self) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter as LibrarysWriter

        self._writer = LibrarysWriter(str(self.folder / DATA_FILE), "group_size:1,uncompressed")

    def _put(self, payload: bytes, label: int) -> None:
        self._writer.write(pack_example(payload, label))


class ArrayRecordReader(RowsReader):
    """One call of the library per batch, and the image out of each record."""

    library = "ArrayRecord"

    def _open(self) -> Any:
        from array_record.python.array_record_module import ArrayRecordReader as LibrarysReader

        # Grain's advice for random access: a record is read alone, without read-ahead.
        options = "readahead_buffer_size:0,max_parallelism:0"
        self._reader = LibrarysReader(str(required(self.store / DATA_FILE)), options)
        self.hold("_reader")  # closing one that is damaged raises
        self._require_all(range(self._reader.num_records()), range(self.manifest.count))
        return self._labels_beside()

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        return [image_of(record) for record in self._reader.read(numbers)]


class ArrayRecordFormat(PeerFormat):
    info = FormatInfo(
        name="array_record",
        summary="Grain's ArrayRecord: one tf.train.Example (image, label) per record, group_size:1, labels beside",
        default_codec="jpeg",
        default_reader="batch",
    )
    writes = ArrayRecordWriter
    reads = ReaderInfo(
        reader=ArrayRecordReader,
        summary="the library's read of several records, one call per batch",
        traits=Traits(forks=False),
        note="larger groups than 1, the library's default, are read whole for each shuffled sample",
    )
