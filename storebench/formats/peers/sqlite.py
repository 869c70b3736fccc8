"""SQLite: one table of labels and images in one file, read by the primary key."""

import json
import os
import sqlite3
from collections.abc import Sequence
from typing import Any

from storebench.formats.base import FormatInfo, ReaderInfo
from storebench.formats.peers.rows import ERRORS, PeerFormat, Row, RowsReader, required
from storebench.formats.peers.writers import BlocksWriter

DATA_FILE = "data.sqlite"
MAPPED_BYTES = 1 << 40  # otherwise each page is copied into SQLite's own cache first, at half the rate

# Pages of 8 KiB are fastest for large values (sqlite.org/intern-v-extern-blob.html). The labels have an index of their
# own: reading them from the table would read every page.
_SCHEMA = """
PRAGMA page_size = 8192;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE samples (id INTEGER PRIMARY KEY, label INTEGER NOT NULL, image BLOB NOT NULL);
CREATE INDEX labels ON samples (id, label);
"""

# The order of a cross join is that of its left side.
_BATCH = "SELECT image FROM json_each(?) CROSS JOIN samples ON samples.id = value"


class SqliteWriter(BlocksWriter):
    """Insert a block of rows at a time."""

    library_errors = (sqlite3.Error,)

    def _start(self) -> None:
        self._writer = sqlite3.connect(self.folder / DATA_FILE)
        self._writer.executescript(_SCHEMA)

    def _write(self, payloads: list[bytes], labels: list[int]) -> None:
        rows = zip(range(self.written, self.written + len(labels)), labels, payloads, strict=True)
        self._writer.executemany("INSERT INTO samples VALUES (?, ?, ?)", rows)
        self._writer.commit()


class SqliteReader(RowsReader):
    """One SELECT per batch, by primary key."""

    library = "SQLite"
    library_errors = (sqlite3.Error, *ERRORS)

    def _open(self) -> Any:
        path = os.fsencode(required(self.store / DATA_FILE).absolute())
        name = os.fsdecode(path.replace(b"%", b"%25").replace(b"?", b"%3f").replace(b"#", b"%23"))
        # Immutable: no locks and no journal are looked for, so a read-only disk is enough.
        uri = f"file:{name}?mode=ro&immutable=1"
        self._base = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self.opened.callback(self._base.close)
        rows = self._base.execute("SELECT id, label FROM samples INDEXED BY labels ORDER BY id").fetchall()
        # Mapped only now: the kernel reads far around each page of a mapping, here the pages of the index.
        self._base.execute(f"PRAGMA mmap_size = {MAPPED_BYTES}")
        if [number for number, _ in rows] != list(range(self.manifest.count)):
            raise ValueError("the ids are not those of the samples")
        return [label for _, label in rows]

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        return [row for (row,) in self._base.execute(_BATCH, (json.dumps(numbers),))]


class SqliteFormat(PeerFormat):
    info = FormatInfo(
        name="sqlite",
        summary="one table (id, label, image) in one SQLite file with pages of 8 KiB",
        default_codec="raw",
        default_reader="select",
    )
    writes = SqliteWriter
    reads = ReaderInfo(reader=SqliteReader, summary="one SELECT per batch by primary key, from a mapped file")
