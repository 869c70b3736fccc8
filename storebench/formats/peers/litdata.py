"""LitData: chunks of serialized samples, which its StreamingDataset reads by index or as a stream."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.codecs import Payload
from storebench.formats.base import Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.common import load_labels, save_array, sync_folder, write_errors
from storebench.formats.peers.rows import ERRORS, IMAGE, LABEL, Row, RowsReader, required
from storebench.manifest import StoreSpec

FOLDER, LABELS_FILE = "data", "labels.npy"


class LitDataWriter(Writer):
    """Write samples {image, label} in chunks of 64 MB, as ``optimize`` does in its workers; labels also beside."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        from litdata.streaming.cache import Cache

        super().__init__(folder, spec)
        self._labels: list[int] = []
        (folder / FOLDER).mkdir()
        self._cache = Cache(str(folder / FOLDER), chunk_bytes="64MB")

    def append(self, payload: Payload, label: int) -> None:
        with write_errors(self.folder, *ERRORS):
            self._cache[len(self._labels)] = {IMAGE: bytes(payload), LABEL: label}
        self._labels.append(label)

    def close(self) -> None:
        with write_errors(self.folder, *ERRORS):
            self._cache.done()
            self._cache.merge()
        save_array(self.folder / LABELS_FILE, np.asarray(self._labels, np.int64))
        sync_folder(self.folder)

    def abort(self) -> None:
        self.__dict__.pop("_cache", None)


class LitDataReader(RowsReader):
    """``dataset[index]``: there is no call for several samples."""

    library = "LitData"

    def _open(self) -> npt.ArrayLike:
        from litdata import StreamingDataset

        folder = self.store / FOLDER
        required(folder / "index.json")
        # Decoding ahead pays in a stream; for scattered samples it takes 1 to 2 ms each.
        self._dataset = StreamingDataset(str(folder), batch_decode=0)
        self.hold("_dataset")
        self._require_all(self._dataset, range(self.manifest.count))
        return load_labels(self.store / LABELS_FILE, self.manifest.count)

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        dataset = self._dataset
        return [dataset[number][IMAGE] for number in numbers]


class LitDataFormat(Format):
    """Chunks of serialized samples."""

    info = FormatInfo(
        name="litdata",
        summary="LitData: samples {image, label} in chunks of 64 MB with index.json, labels beside",
        default_codec="jpeg",
        default_reader="index",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "index": ReaderInfo(
                reader=LitDataReader,
                summary="StreamingDataset by index, one call per sample",
                note="batch_decode=0: the default, auto, decodes ahead and is slow for scattered samples",
            )
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return LitDataWriter(folder, spec)
