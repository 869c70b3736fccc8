"""Arrow IPC: record batches in one file, memory-mapped; a sample is a slice of a column."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from storebench.formats.base import Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.peers.rows import IMAGE, LABEL, BlocksWriter, Row, RowsReader, required
from storebench.manifest import StoreSpec

DATA_FILE = "data.arrow"


def record_batch(payloads: list[bytes], labels: list[int]) -> Any:
    """Return samples as an Arrow record batch."""
    import pyarrow as pa

    return pa.record_batch([pa.array(payloads, pa.binary()), pa.array(labels, pa.int64())], schema=schema())


def schema() -> Any:
    """Return the columns of a store: image and label."""
    import pyarrow as pa

    return pa.schema({IMAGE: pa.binary(), LABEL: pa.int64()})


class ArrowWriter(BlocksWriter):
    """Write one record batch per block, uncompressed, so that the file can be mapped."""

    def _start(self) -> None:
        import pyarrow as pa

        self._file = (self.folder / DATA_FILE).open("xb")
        self._writer = pa.ipc.new_file(self._file, schema())

    def _write(self, payloads: list[bytes], labels: list[int]) -> None:
        self._writer.write_batch(record_batch(payloads, labels))

    def _finish(self) -> None:
        try:
            self._writer.close()
        finally:
            self._file.close()


class ArrowReader(RowsReader):
    """One slice of the mapped column per sample: the batch call, ``take``, copies a column of several batches whole."""

    library = "Arrow"

    def _open(self) -> npt.ArrayLike:
        import pyarrow as pa

        path = required(self.store / DATA_FILE)
        labels = _labels(path)
        mapped = pa.memory_map(str(path))
        self.opened.callback(mapped.close)
        self._images = pa.ipc.open_file(mapped).read_all()[IMAGE]
        self.hold("_images")
        if self._images.type != pa.binary():
            raise TypeError(f"images are {self._images.type}")
        return labels

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        images = self._images
        return [memoryview(images[number].as_buffer()).cast("B") for number in numbers]


def _labels(path: Path) -> npt.ArrayLike:
    """Read the labels without a mapping, because mapped pages could not be evicted."""
    import pyarrow as pa

    with pa.OSFile(str(path)) as file:
        options = pa.ipc.IpcReadOptions(included_fields=[1])
        labels: npt.ArrayLike = pa.ipc.open_file(file, options=options).read_all()[LABEL].to_numpy()
    return labels


class ArrowFormat(Format):
    """Record batches in one file."""

    info = FormatInfo(
        name="arrow",
        summary="Arrow IPC: columns image and label in record batches of up to 1,000 rows or 16 MiB, one file",
        default_codec="raw",
        default_reader="mapped",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "mapped": ReaderInfo(
                reader=ArrowReader,
                summary="one slice of the mapped column per sample",
                note="Table.take would gather the same batch several times more slowly",
            )
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return ArrowWriter(folder, spec)
