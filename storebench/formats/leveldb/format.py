"""The format: sorted tables of records, written once and never changed."""

from collections.abc import Mapping
from pathlib import Path

from storebench.formats.base import Format, FormatInfo, ReaderInfo, Writer
from storebench.formats.leveldb.get import LevelDbGetReader
from storebench.formats.leveldb.sorted import LevelDbSortedReader
from storebench.formats.leveldb.write import LevelDbWriter
from storebench.manifest import StoreSpec

_SNAPSHOT = "each reader opens a private snapshot: hard links to the tables, copies of the rest"
"""LevelDB lets one process at a time open a database."""


class LevelDbFormat(Format):
    """Sorted tables, written once and never changed."""

    info = FormatInfo(
        name="leveldb",
        summary="LevelDB tables without compression, one %08d record per image",
        default_codec="raw",
        default_reader="get",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the readers: one ``get`` per sample, and sorted windows."""
        return {
            "get": ReaderInfo(
                reader=LevelDbGetReader,
                summary="plyvel's get, one call per sample",
                note=_SNAPSHOT,
            ),
            "sorted": ReaderInfo(
                reader=LevelDbSortedReader,
                summary="windows of the order, by key, one iterator",
                note=_SNAPSHOT,
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return the writer of a LevelDB."""
        return LevelDbWriter(folder, spec)
