"""Parquet through pyarrow: row groups of a hundred samples, each read whole for any of its samples."""

from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from storebench.formats.base import FormatInfo, ReaderInfo, Traits
from storebench.formats.peers.arrow import ArrowWriter, views
from storebench.formats.peers.rows import IMAGE, LABEL, PeerFormat, Row, RowsReader, required
from storebench.places.objects import S3Address


class ParquetWriter(ArrowWriter):
    """Write one row group per block."""

    file_name = "data.parquet"
    block_rows = 100  # as Hugging Face's datasets writes images

    def _open(self, file: IO[bytes], schema: Any) -> Any:
        import pyarrow.parquet as pq

        # Images are compressed already, and none is equal to another.
        return pq.ParquetWriter(file, schema, compression="none", use_dictionary=False)


class ParquetReader(RowsReader):
    """Read the row groups of a batch's samples in one call, and take the samples out of them."""

    library = "Parquet"

    def _open(self) -> Any:
        import pyarrow.parquet as pq

        path, system = str(required(self.store / ParquetWriter.file_name)), None
        if self.url:
            from pyarrow.fs import S3FileSystem

            at = S3Address.of(self.there(ParquetWriter.file_name))
            path = f"{at.bucket}/{at.key}"
            system = S3FileSystem(endpoint_override=at.endpoint, region=at.region, anonymous=at.anonymous)
        self._file = self.opened.enter_context(pq.ParquetFile(path, filesystem=system))
        about = self._file.metadata
        sizes = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        return self._file.read([LABEL], use_threads=False)[LABEL].to_numpy()

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        wanted = np.asarray(numbers)
        groups = np.searchsorted(self._starts, wanted, side="right") - 1
        needed, where = np.unique(groups, return_inverse=True)
        read = self._file.read_row_groups(needed.tolist(), columns=[IMAGE], use_threads=False)[IMAGE]
        ends = np.cumsum(self._starts[needed + 1] - self._starts[needed])
        return views(read, (ends[where] - (self._starts[groups + 1] - wanted)).tolist())


class ParquetFormat(PeerFormat):
    info = FormatInfo(
        name="parquet",
        summary="columns image and label in row groups of up to 100 rows, uncompressed, one file",
        default_codec="raw",
        default_reader="groups",
    )
    writes = ParquetWriter
    reads = ReaderInfo(
        reader=ParquetReader,
        summary="read the row groups of a batch, then take its samples",
        traits=Traits(served=True),
        note="a shuffled sample costs a whole row group: 100 times its bytes",
    )
