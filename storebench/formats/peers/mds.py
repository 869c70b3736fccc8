"""MDS, the shards of MosaicML Streaming; its library needs an older numpy, and so an environment of its own."""

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


class MdsWriter(Writer):
    """Write samples {image, label} in shards of 64 MiB, the library's default; labels also beside."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        from streaming import MDSWriter

        super().__init__(folder, spec)
        self._labels: list[int] = []
        with write_errors(folder, *ERRORS):
            self._writer = MDSWriter(out=str(folder / FOLDER), columns={IMAGE: "bytes", LABEL: "int"})

    def append(self, payload: Payload, label: int) -> None:
        with write_errors(self.folder, *ERRORS):
            self._writer.write({IMAGE: bytes(payload), LABEL: label})
        self._labels.append(label)

    def close(self) -> None:
        with write_errors(self.folder, *ERRORS):
            self._writer.finish()
        save_array(self.folder / LABELS_FILE, np.asarray(self._labels, np.int64))
        sync_folder(self.folder)

    def abort(self) -> None:
        del self._writer


class MdsReader(RowsReader):
    """``LocalDataset[index]``, without the shared memory of StreamingDataset: there is no call for several samples."""

    library = "MosaicML Streaming"

    def _open(self) -> npt.ArrayLike:
        from streaming import LocalDataset

        required(self.store / FOLDER / "index.json")
        self._dataset = LocalDataset(local=str(self.store / FOLDER))
        self.hold("_dataset")
        self._require_all(self._dataset, range(self.manifest.count))
        return load_labels(self.store / LABELS_FILE, self.manifest.count)

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        dataset = self._dataset
        return [dataset[number][IMAGE] for number in numbers]


class MdsFormat(Format):
    """Shards with an index."""

    info = FormatInfo(
        name="mds",
        summary="MosaicML's MDS: samples {image, label} in shards of 64 MiB with index.json, labels beside",
        default_codec="jpeg",
        default_reader="index",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "index": ReaderInfo(
                reader=MdsReader,
                summary="LocalDataset by index, one call per sample",
                note="without StreamingDataset's named shared memory, which killed processes leave behind",
            )
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return MdsWriter(folder, spec)
