"""Lance: a columnar data set of versions and fragments, whose take reads scattered rows."""

from collections.abc import Sequence
from typing import IO, Any

from storebench.formats.base import FormatInfo, ReaderInfo, Traits
from storebench.formats.peers.arrow import ArrowWriter
from storebench.formats.peers.rows import IMAGE, LABEL, PeerFormat, Row, RowsReader
from storebench.places.objects import S3Address

FOLDER = "data.lance"


class LanceWriter(ArrowWriter):
    """Write an Arrow stream first, because the library writes a whole data set in one call."""

    file_name = "unfinished.arrow"

    def _open(self, file: IO[bytes], schema: Any) -> Any:
        import pyarrow as pa

        return pa.ipc.new_stream(file, schema)

    def _finish(self) -> None:
        import lance
        import pyarrow as pa

        super()._finish()
        spool = self.folder / self.file_name
        with pa.OSFile(str(spool)) as file:
            lance.write_dataset(pa.ipc.open_stream(file), self.folder / FOLDER)
        spool.unlink()


class LanceReader(RowsReader):
    """One ``take`` per batch."""

    library = "Lance"
    releases_late = True

    def _open(self) -> Any:
        import lance

        folder, options = str(self.store / FOLDER), None
        if self.url:
            at = S3Address.of(self.there(FOLDER))
            folder = f"s3://{at.bucket}/{at.key}"
            options = {"aws_endpoint": at.endpoint, "aws_region": at.region, "allow_http": str(at.plain)}
            options |= {"aws_skip_signature": str(at.anonymous)}
        self._dataset = lance.dataset(folder, storage_options=options)
        self.hold("_dataset")
        return self._dataset.to_table(columns=[LABEL])[LABEL].to_numpy()

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        rows: list[bytes] = self._dataset.take(numbers, columns=[IMAGE])[IMAGE].to_pylist()
        return rows


class LanceFormat(PeerFormat):
    info = FormatInfo(
        name="lance",
        summary="a Lance data set: columns image and label, as write_dataset makes it by default",
        default_codec="jpeg",
        default_reader="take",
    )
    writes = LanceWriter
    reads = ReaderInfo(
        reader=LanceReader,
        summary="dataset.take(indices), one call per batch",
        traits=Traits(forks=False, served=True),
        note="one call per sample is ten times slower",
    )
