"""A dataset that Hugging Face's datasets saved to disk: Arrow streams, mapped, read by its batch call."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

from storebench.formats.base import FormatInfo, ReaderInfo
from storebench.formats.peers.rows import IMAGE, LABEL, PeerFormat, Row, RowsReader, required
from storebench.formats.peers.writers import BlocksWriter

FOLDER, SPOOL = "dataset", "unfinished.arrow"


class HfWriter(BlocksWriter):
    """Write the library's Arrow stream, then save it as ``save_to_disk`` does."""

    block_rows = 100

    def _start(self) -> None:
        from datasets import ClassLabel, Features, Image, Value
        from datasets.arrow_writer import ArrowWriter

        image = Value("binary") if self.spec.codec == "raw" else Image(decode=False)
        features = Features({IMAGE: image, LABEL: ClassLabel(names=list(self.spec.dataset.class_names))})
        self._writer = ArrowWriter(features=features, path=str(self.folder / SPOOL), writer_batch_size=100)
        self._raw = self.spec.codec == "raw"

    def _write(self, payloads: list[bytes], labels: list[int]) -> None:
        images = payloads if self._raw else [{"bytes": payload, "path": None} for payload in payloads]
        self._writer.write_batch({IMAGE: images, LABEL: labels})

    def _finish(self) -> None:
        from datasets import Dataset

        self._flush()
        self._writer.finalize()
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars
            Dataset.from_file(str(self.folder / SPOOL)).save_to_disk(self.folder / FOLDER)
        (self.folder / SPOOL).unlink()


class HfReader(RowsReader):
    """``dataset[indices]``, the call that a DataLoader makes for a batch."""

    library = "datasets"
    releases_late = True

    def _open(self) -> Any:
        from datasets import load_from_disk

        folder = self.store / FOLDER
        required(folder / "state.json")
        required(folder / "dataset_info.json")
        self._dataset = load_from_disk(folder)
        self.hold("_dataset")
        self._raw = self.payload_codec == "raw"
        return self._dataset.data.column(LABEL).to_numpy()

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        images = self._dataset[numbers][IMAGE]
        return images if self._raw else [image["bytes"] for image in images]


class HfFormat(PeerFormat):
    info = FormatInfo(
        name="hf",
        summary="Hugging Face's save_to_disk: columns image (Image; raw: binary) and label in mapped Arrow streams",
        default_codec="jpeg",
        default_reader="batch",
    )
    writes = HfWriter
    reads = ReaderInfo(
        reader=HfReader,
        summary="dataset[indices], one call per batch",
        note="one call per sample is three times slower",
    )
