"""The format: a memory-mapped B+-tree in one file, and its reader that shares memory."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from storebench.arrays import Pixels
from storebench.codecs import any_size
from storebench.errors import CorruptStoreError, UsageError
from storebench.formats.base import Format, FormatInfo, ReaderInfo, Traits, Writer
from storebench.formats.common import damaged
from storebench.formats.lmdb.direct import LmdbDirectOptions, LmdbDirectReader
from storebench.formats.lmdb.get import LmdbGetReader, LmdbWriter
from storebench.formats.lmdb.index import build_index, kept_index
from storebench.formats.lmdb.pages import DATA_FILE
from storebench.formats.reads.direct_file import Offsets
from storebench.formats.reads.planned import ReadPolicy
from storebench.formats.reads.shared_pixels import SharedPixelsReader, store_tag
from storebench.record.manifest import Manifest, StoreSpec


class LmdbSharedReader(SharedPixelsReader):
    """Gather from shared memory, which the first reader of the machine fills by explicit, planned reads."""

    options_type = ReadPolicy

    def __init__(self, store: Path, manifest: Manifest, options: ReadPolicy) -> None:
        super().__init__(store, manifest, options)
        direct = LmdbDirectOptions(**dataclasses.asdict(options))
        # The mapping is closed again, because the pages that it maps could not be evicted.
        with LmdbDirectReader(store, manifest, direct) as source:
            self.labels = source.labels
            identity = f"lmm-{store_tag(store, manifest)}"
            offsets = np.append(0, np.cumsum(source.lengths, dtype=np.int64))
            fill = functools.partial(_fill, source, offsets)
            self._share(identity, fill, offsets if any_size(manifest.codec) else None)

    @classmethod
    def index_files(cls, store: Path) -> list[Path]:
        return [path] if (path := kept_index(store)).is_file() else []


def _fill(source: LmdbDirectReader, offsets: Offsets, content: Pixels) -> None:
    """Read the whole store into memory: decoded pixels, uint8 [N, H, W, C], or image files, uint8 [bytes]."""
    count = source.manifest.count
    rows = max(1, (32 << 20) // source.manifest.dataset.image_bytes)
    batches = [np.arange(at, min(at + rows, count)) for at in range(0, count, rows)]
    source.plan(batches)
    for batch in batches:
        if content.ndim > 1:
            source.read_into(batch, content[batch[0] : batch[-1] + 1])
            continue
        for number, payload in zip(batch.tolist(), source.fetch(batch), strict=True):
            content[offsets[number] : offsets[number + 1]] = np.frombuffer(payload, np.uint8)


class LmdbFormat(Format):
    """A memory-mapped B+-tree in one file."""

    info = FormatInfo(
        name="lmdb",
        summary="one memory-mapped B+-tree (data.mdb), one %08d record per image",
        default_codec="raw",
        default_reader="get",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
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
        return LmdbWriter(folder, spec)

    def check_structure(self, store: Path) -> None:
        """Walk the whole tree, without its values: LMDB follows a damaged page number or pointer out of the file."""
        try:
            build_index(store)
        except (CorruptStoreError, UsageError) as error:
            # A kind of tree that storebench does not write is damage, too.
            raise damaged(error.what, store / DATA_FILE) from error

    def data_files(self, store: Path) -> list[Path]:
        return [store / DATA_FILE]
