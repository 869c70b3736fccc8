"""Parquet through pyarrow: row groups of a hundred samples, each read whole for any of its samples."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.formats.base import Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.peers.arrow import record_batch, schema
from storebench.formats.peers.rows import IMAGE, LABEL, BlocksWriter, Row, RowsReader, required
from storebench.manifest import StoreSpec

DATA_FILE = "data.parquet"


class ParquetWriter(BlocksWriter):
    """Write one row group per block."""

    block_rows = 100  # as Hugging Face's datasets writes images

    def _start(self) -> None:
        import pyarrow.parquet as pq

        self._file = (self.folder / DATA_FILE).open("xb")
        # Images are compressed already, and none is equal to another.
        self._writer = pq.ParquetWriter(self._file, schema(), compression="none", use_dictionary=False)

    def _write(self, payloads: list[bytes], labels: list[int]) -> None:
        self._writer.write_batch(record_batch(payloads, labels))

    def _finish(self) -> None:
        try:
            self._writer.close()
        finally:
            self._file.close()


class ParquetReader(RowsReader):
    """Read the row groups of a batch's samples in one call, and take the samples out of them."""

    library = "Parquet"

    def _open(self) -> npt.ArrayLike:
        import pyarrow.parquet as pq

        path = required(self.store / DATA_FILE)
        self._file = self.opened.enter_context(pq.ParquetFile(path))
        about = self._file.metadata
        sizes = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        labels: npt.ArrayLike = self._file.read([LABEL], use_threads=False)[LABEL].to_numpy()
        return labels

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        wanted = np.asarray(numbers)
        groups = np.searchsorted(self._starts, wanted, side="right") - 1
        needed, where = np.unique(groups, return_inverse=True)
        read = self._file.read_row_groups(needed.tolist(), columns=[IMAGE], use_threads=False)[IMAGE]
        ends = np.cumsum(self._starts[needed + 1] - self._starts[needed])
        places = ends[where] - (self._starts[groups + 1] - wanted)
        return [memoryview(read[place].as_buffer()).cast("B") for place in places.tolist()]


class ParquetFormat(Format):
    """Row groups of columns in one file."""

    info = FormatInfo(
        name="parquet",
        summary="columns image and label in row groups of up to 100 rows, uncompressed, one file",
        default_codec="raw",
        default_reader="groups",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "groups": ReaderInfo(
                reader=ParquetReader,
                summary="read the row groups of a batch, then take its samples",
                note="a shuffled sample costs a whole row group: 100 times its bytes",
            )
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return ParquetWriter(folder, spec)
