"""ArrayRecord, the container of Grain: records of any bytes in one file with an index at its end."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.codecs import Payload
from storebench.formats.base import Format, FormatInfo, ReaderInfo, Traits, Writer
from storebench.formats.common import load_labels, save_array, sync_folder, write_errors
from storebench.formats.peers.example import image_of, pack_example
from storebench.formats.peers.rows import ERRORS, Row, RowsReader, required
from storebench.manifest import StoreSpec

DATA_FILE, LABELS_FILE = "data.array_record", "labels.npy"

# Grain's advice for random access: a record is read alone, without read-ahead.
_WRITING = "group_size:1,uncompressed"
_READING = "readahead_buffer_size:0,max_parallelism:0"


class ArrayRecordWriter(Writer):
    """Write each sample as an Example; the labels are also written beside, because reading them would read everything."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter as LibraryWriter

        super().__init__(folder, spec)
        self._labels: list[int] = []
        with write_errors(folder, *ERRORS):
            self._writer = LibraryWriter(str(folder / DATA_FILE), _WRITING)

    def append(self, payload: Payload, label: int) -> None:
        with write_errors(self.folder, *ERRORS):
            self._writer.write(pack_example(bytes(payload), label))
        self._labels.append(label)

    def close(self) -> None:
        with write_errors(self.folder, *ERRORS):
            self._writer.close()
        save_array(self.folder / LABELS_FILE, np.asarray(self._labels, np.int64))
        sync_folder(self.folder)

    def abort(self) -> None:
        with contextlib.suppress(*ERRORS):
            self._writer.close()
        del self._writer  # it keeps the file open where closing failed


class ArrayRecordReader(RowsReader):
    """One call of the library per batch, and the image out of each record."""

    library = "ArrayRecord"

    def _open(self) -> npt.ArrayLike:
        from array_record.python.array_record_module import ArrayRecordReader as LibraryReader

        self._reader = LibraryReader(str(required(self.store / DATA_FILE)), _READING)
        self.hold("_reader")  # closing one that is damaged raises
        self._require_all(range(self._reader.num_records()), range(self.manifest.count))
        return load_labels(self.store / LABELS_FILE, self.manifest.count)

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        return [image_of(record) for record in self._reader.read(numbers)]


class ArrayRecordFormat(Format):
    """Records in one file with an index at its end."""

    info = FormatInfo(
        name="array_record",
        summary="Grain's ArrayRecord: one tf.train.Example (image, label) per record, group_size:1, labels beside",
        default_codec="jpeg",
        default_reader="batch",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "batch": ReaderInfo(
                reader=ArrayRecordReader,
                summary="the library's read of several records, one call per batch",
                traits=Traits(forks=False),
                note="larger groups than 1, the library's default, are read whole for each shuffled sample",
            )
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return ArrayRecordWriter(folder, spec)
