"""The format: a memory-mapped B+-tree in one file."""

from collections.abc import Mapping
from pathlib import Path

from storebench.errors import CorruptStoreError, UsageError
from storebench.formats.base import Format, FormatInfo, ReaderInfo, Traits, Writer
from storebench.formats.common import damaged
from storebench.formats.lmdb.direct import LmdbDirectReader
from storebench.formats.lmdb.get import LmdbGetReader
from storebench.formats.lmdb.index import build_index
from storebench.formats.lmdb.pages import DATA_FILE
from storebench.formats.lmdb.shared import LmdbSharedReader
from storebench.formats.lmdb.write import LmdbWriter
from storebench.manifest import StoreSpec


class LmdbFormat(Format):
    """A memory-mapped B+-tree in one file."""

    info = FormatInfo(
        name="lmdb",
        summary="one memory-mapped B+-tree (data.mdb), one %08d record per image",
        default_codec="raw",
        default_reader="get",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the reader that uses the library, and two that do not."""
        return {
            "get": ReaderInfo(
                reader=LmdbGetReader,
                summary="py-lmdb's get, one call per sample",
                note="opened read-only and without locks, so any number of processes read at once",
            ),
            "direct": ReaderInfo(
                reader=LmdbDirectReader,
                summary="page index, explicit planned reads",
                note="reads the file without the library, and writes no lock",
            ),
            "shared": ReaderInfo(
                reader=LmdbSharedReader,
                summary="one copy of the pixels in shared memory, read as lmdb:direct reads",
                traits=Traits(holds_pixels=True),
                note="all processes of a machine share one copy; the first one reads the store",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return the writer of ``data.mdb``."""
        return LmdbWriter(folder, spec)

    def check_structure(self, store: Path) -> None:
        """Walk the whole tree, without its values: LMDB follows a damaged page number or pointer out of the file."""
        try:
            build_index(store)
        except (
            CorruptStoreError,
            UsageError,
        ) as error:  # a kind of tree that storebench does not write is damage, too
            raise damaged(error.what, store / DATA_FILE) from error

    def data_files(self, store: Path) -> list[Path]:
        """Return the one file."""
        return [store / DATA_FILE]
