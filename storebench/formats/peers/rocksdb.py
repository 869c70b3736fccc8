"""RocksDB through rocksdict: sorted tables of records, read by several keys per call."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from storebench.formats.base import FormatInfo, ReaderInfo, Traits
from storebench.formats.common import damaged
from storebench.formats.keyvalue import LABEL_KEY, make_key, pack_labels
from storebench.formats.peers.rows import PeerFormat, Row, RowsReader, forget_mapped, required
from storebench.formats.peers.writers import LibraryWriter
from storebench.formats.snapshot import Snapshot


def _options() -> Any:
    from rocksdict import DBCompressionType
    from rocksdict import Options as LibraryOptions

    options = LibraryOptions(raw_mode=True)  # keys and values are bytes
    options.set_compression_type(DBCompressionType.none())
    return options


class RocksDbWriter(LibraryWriter):
    """Put records in key order, then compact them into finished tables."""

    library_errors = (Exception,)  # rocksdict raises nothing more precise

    def _start(self) -> None:
        from rocksdict import Rdict, WriteOptions

        self._writer = Rdict(str(self.folder), _options())
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # the store is only used when it is finished
        self._writer.set_write_options(unlogged)

    def _put(self, payload: bytes, label: int) -> None:  # noqa: ARG002 - labels are one record
        self._writer[make_key(len(self.labels))] = payload

    def _finish(self) -> None:
        self._writer[LABEL_KEY] = pack_labels(self.labels)
        self._writer.flush()
        self._writer.compact_range(None, None)
        self._release()
        for path in [*self.folder.glob("LOG*"), self.folder / "LOCK"]:  # they hold no data
            path.unlink(missing_ok=True)


class RocksDbReader(RowsReader):
    """One call per batch for all its keys."""

    library = "RocksDB"
    library_errors = (Exception,)

    def _open(self) -> Any:
        from rocksdict import AccessType, Rdict

        required(self.store / "CURRENT")
        # Opening writes a log, even where it is only for reading.
        self._snapshot = Snapshot("rocksdb", self.store, linked=lambda path: path.suffix == ".sst")
        self.opened.callback(self._snapshot.remove)
        options = _options()
        options.create_if_missing(False)
        options.set_allow_mmap_reads(True)
        self._base = Rdict(str(self._snapshot.folder), options, access_type=AccessType.read_only())
        self.opened.callback(self._base.close)
        record = self._base.get(LABEL_KEY)
        forget_mapped(self._snapshot.folder)
        if record is None:
            raise damaged("the record of labels is missing", self.store)
        return np.frombuffer(record, "<i8")

    def notes(self) -> dict[str, str]:
        return {"snapshot": self._snapshot.links}

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        rows: Sequence[Row] = self._base[list(map(make_key, numbers))]
        return rows


class RocksDbFormat(PeerFormat):
    info = FormatInfo(
        name="rocksdb",
        summary="RocksDB tables without compression, one %08d record per image",
        default_codec="raw",
        default_reader="batch",
    )
    writes = RocksDbWriter
    reads = ReaderInfo(
        reader=RocksDbReader,
        summary="rocksdict's get of several keys, one call per batch, opened read-only",
        traits=Traits(forks=False),
        note="each reader opens a private snapshot: links to the tables, copies of the rest",
    )
