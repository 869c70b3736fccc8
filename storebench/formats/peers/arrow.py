"""Arrow IPC: record batches in one file, memory-mapped; a sample is a slice of a column."""

from collections.abc import Sequence
from typing import IO, Any, ClassVar

from storebench.formats.base import FormatInfo, ReaderInfo
from storebench.formats.peers.rows import IMAGE, LABEL, PeerFormat, Row, RowsReader, required
from storebench.formats.peers.writers import BlocksWriter


class ArrowWriter(BlocksWriter):
    """Write one record batch per block, uncompressed, so that the file can be mapped."""

    file_name: ClassVar[str] = "data.arrow"

    def _start(self) -> None:
        import pyarrow as pa

        self._file = (self.folder / self.file_name).open("xb")
        self._schema = pa.schema({IMAGE: pa.binary(), LABEL: pa.int64()})
        self._writer = self._open(self._file, self._schema)

    def _open(self, file: IO[bytes], schema: Any) -> Any:
        import pyarrow as pa

        return pa.ipc.new_file(file, schema)

    def _write(self, payloads: list[bytes], labels: list[int]) -> None:
        import pyarrow as pa

        columns = [pa.array(payloads, pa.binary()), pa.array(labels, pa.int64())]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def _release(self) -> None:
        try:
            self._writer.close()
        finally:
            self._file.close()


def views(images: Any, places: list[int]) -> Sequence[Row]:
    """Return some values of a column without copying them."""
    return [memoryview(images[place].as_buffer()).cast("B") for place in places]


class ArrowReader(RowsReader):
    """One slice of the mapped column per sample: the batch call, ``take``, copies a column of several batches whole."""

    library = "Arrow"
    releases_late = True

    def _open(self) -> Any:
        import pyarrow as pa

        mapped = pa.memory_map(str(required(self.store / ArrowWriter.file_name)))
        self.opened.callback(mapped.close)
        table = pa.ipc.open_file(mapped).read_all()
        self._images = table[IMAGE]
        self.hold("_images")
        if self._images.type != pa.binary():
            raise TypeError(f"images are {self._images.type}")
        return table[LABEL].to_numpy()

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        return views(self._images, numbers)


class ArrowFormat(PeerFormat):
    info = FormatInfo(
        name="arrow",
        summary="Arrow IPC: columns image and label in record batches of up to 1,000 rows or 16 MiB, one file",
        default_codec="raw",
        default_reader="mapped",
    )
    writes = ArrowWriter
    reads = ReaderInfo(
        reader=ArrowReader,
        summary="one slice of the mapped column per sample",
        note="Table.take would gather the same batch several times more slowly",
    )
