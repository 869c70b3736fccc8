"""LMDB without the library: reads at offsets of the page index or of a tree walk, and the ladder of options."""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from storebench.arrays import Indices
from storebench.errors import CorruptStoreError
from storebench.formats.common import damaged, wrong_length
from storebench.formats.keyvalue import LABEL_KEY, make_key
from storebench.formats.lmdb.index import PageIndex, kept_index, open_index
from storebench.formats.lmdb.pages import (
    BIG_DATA,
    DATA_FILE,
    HEADER_BYTES,
    LEAF,
    MAX_DEPTH,
    PageFile,
    damaged_page,
    mapped_transactions,
    transactions,
)
from storebench.formats.options import flag
from storebench.formats.reads.direct_file import Offsets
from storebench.formats.reads.extents import ExtentReader, locator
from storebench.formats.reads.planned import ReadPolicy
from storebench.formats.windows import check_range
from storebench.record.manifest import Manifest
from storebench.settings.words import Share


@dataclass(frozen=True, kw_only=True)
class LmdbDirectOptions(ReadPolicy):
    """Options of ``lmdb:direct``: those of explicit reads, and how samples are located."""

    index: bool = flag(
        default=True, meaning="take offsets from the page index; off walks the tree for each sample"
    )
    keep_leaf: bool = flag(
        default=False,
        meaning="with index=off: start each walk in the leaf where the last one ended, not at the root",
    )


@dataclass(frozen=True)
class Rung:
    """One way to read the file."""

    key: str
    label: str  # the rung's name in plots
    below: str | None  # the rung that it is compared with; None for the lowest
    trouble: str = ""  # the problem solved by the optimisation, in words; "" if the rung is no optimisation
    reader: str = "direct"
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    share: Share = Share.NONE  # how the ranks of a job share reading

    @property
    def backend(self) -> str:
        """The backend's name, in its canonical spelling."""
        reader = "" if self.reader == "get" else f":{self.reader}"
        options = ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"lmdb{reader}" + (f"?{options}" if options else "")


_FAULTS, _SINGLE = {"explicit": "off", "merged": "off"}, {"merged": "off"}
_WALKED = {**_FAULTS, "index": "off"}
_DM, _DIO = "a cursor must walk past other readers' records", "data comes in by page faults"
_STAG, _LMM = "all readers hit the storage at one moment", "every reader of a machine reads for itself"
_BY_MAP, _PLANNED = (
    f"every rank of a node reads for itself with {how}" for how in ("LMDB's map", "planned reads")
)

# From the lowest rung to the highest.
RUNGS = (
    Rung("plain", "LMDB", None, reader="get"),
    Rung("page", "LMDB, readahead=off", "plain", reader="get", options={"readahead": "off"}),
    Rung("map", "its map, walked by us", "plain", options=_WALKED),
    Rung("dm", "map + DM", "map", _DM, options={**_WALKED, "keep_leaf": "on"}),
    Rung("prov", "map + PROV", "map", "finding the offsets is serial", options=_FAULTS),
    Rung("dio", "PROV + DIO", "prov", _DIO, options=_SINGLE),
    Rung("coal", "PROV + DIO + COAL", "dio", "requests are small and late"),
    Rung("stag", "… + STAG", "coal", _STAG, options={"readers_at_a_time": "1"}),
    Rung("lmm", "… + LMM, loading included", "coal", _LMM, reader="shared"),
    Rung("batches", "LMDB + LMM of batches", "plain", _BY_MAP, reader="get", share=Share.NODE),
    Rung("together", "… + LMM of batches", "coal", _PLANNED, share=Share.NODE),
)

_NODE = struct.Struct("<HHHH")  # size low, size high, flags, key size
_LOWER = struct.Struct("<H")
_NUMBER = struct.Struct("<Q")
_FLAGS_AT, _LOWER_AT = 10, 12  # bytes of a page


class TreeWalk:
    """Locate samples by walking the tree each time. Only one thread at a time may call `locate`."""

    def __init__(self, path: Path, count: int, *, keep_leaf: bool) -> None:
        self._file = PageFile(path)
        self._count = count
        self._keep_leaf = keep_leaf
        self._leaf = (-1, b"")

    def close(self) -> None:
        self._file.close()

    def locate(self, indices: Indices) -> tuple[Offsets, Offsets]:
        """Return offsets and lengths of samples, int64 [n], in bytes."""
        check_range(indices, self._count)
        places = np.empty((len(indices), 2), np.int64)
        order = np.argsort(indices, kind="stable") if self._keep_leaf else np.arange(len(indices))
        for place, number in zip(order.tolist(), indices[order].tolist(), strict=True):
            try:
                places[place] = self._find(make_key(number))
            except (struct.error, OverflowError) as error:
                raise damaged_page(self._file.path, self._leaf[0], str(error)) from error
        return places[:, 0].copy(), places[:, 1].copy()

    def _find(self, key: bytes) -> tuple[int, int]:
        slot = -1
        if self._keep_leaf and self._leaf[0] >= 0:
            slot = _slot_of(self._leaf[1], key)
        if slot < 0:
            self._descend(key)
            slot = _slot_of(self._leaf[1], key)
        if slot < 0:
            raise CorruptStoreError(f"the record {key!r} is missing", where=self._file.path)
        number, page = self._leaf
        pointer = _pointer(page, slot)
        low, high, flags, key_bytes = _NODE.unpack_from(page, pointer)
        start = pointer + _NODE.size + key_bytes
        page_bytes = self._file.meta.page_bytes
        if flags & BIG_DATA:
            offset = _NUMBER.unpack_from(page, start)[0] * page_bytes + HEADER_BYTES
        else:
            offset = number * page_bytes + start
        return offset, low | high << 16

    def _descend(self, key: bytes) -> None:
        number, page_bytes = self._file.meta.main.root, self._file.meta.page_bytes
        for _ in range(MAX_DEPTH):
            page = os.pread(self._file.fd, page_bytes, number * page_bytes)
            if len(page) < page_bytes:
                raise damaged_page(self._file.path, number, "the file ends before it")
            if page[_FLAGS_AT] & LEAF:
                self._leaf = (number, page)
                return
            low, high, top, _ = _NODE.unpack_from(page, _pointer(page, max(0, _search(page, key, first=1))))
            number = low | high << 16 | top << 32
        raise damaged_page(self._file.path, number, "the tree has no leaves")


def _pointer(page: bytes, slot: int) -> int:
    return int(_LOWER.unpack_from(page, HEADER_BYTES + 2 * slot)[0])


def _key(page: bytes, slot: int) -> bytes:
    pointer = _pointer(page, slot)
    start = pointer + _NODE.size
    return page[start : start + _NODE.unpack_from(page, pointer)[3]]


def _search(page: bytes, key: bytes, first: int = 0) -> int:
    """Return the last slot whose key is not above `key`, ``first - 1`` if all are."""
    low, high = first, (_LOWER.unpack_from(page, _LOWER_AT)[0] - HEADER_BYTES) // 2
    while low < high:
        middle = (low + high) // 2
        if _key(page, middle) <= key:
            low = middle + 1
        else:
            high = middle
    return low - 1


def _slot_of(page: bytes, key: bytes) -> int:
    """Return the slot of a key, -1 if the page does not have it."""
    slot = _search(page, key)
    return slot if slot >= 0 and _key(page, slot) == key else -1


class LmdbDirectReader(ExtentReader):
    """Read a plain ``data.mdb`` at the speed of the machine. The file may not be written to meanwhile."""

    options_type = LmdbDirectOptions
    options: LmdbDirectOptions

    def __init__(self, store: Path, manifest: Manifest, options: LmdbDirectOptions) -> None:
        super().__init__(store, manifest, options)
        self._path = store / DATA_FILE
        self._walk: TreeWalk | None = None
        try:
            self._open(open_index(store))
        except BaseException:
            self.close()
            raise

    @classmethod
    def index_files(cls, store: Path) -> list[Path]:
        return [path] if (path := kept_index(store)).is_file() else []

    def notes(self) -> dict[str, str]:
        return {**super().notes(), "positions": "page index" if self._walk is None else "tree walk"}

    def _close(self) -> None:
        # The file cannot be unmapped as long as there is a view of it.
        self._mapped_transactions = np.empty(0, np.uint8)
        super()._close()
        # Only after the look-ahead has stopped, because it walks the tree in its own thread.
        if self._walk is not None:
            self._walk.close()

    def _open(self, index: PageIndex) -> None:
        count = self.manifest.count
        if index.numbered != count or len(index) != count + 1:
            raise damaged(
                f"{index.numbered} numbered records of {len(index)} where {count} and "
                f"{LABEL_KEY.decode()!r} were expected",
                self._path,
            )
        offsets, lengths = index.offsets[:count], index.lengths[:count]
        size = self.manifest.dataset.image_bytes
        if self.payload_codec == "raw" and (lengths != size).any():
            sample = int(np.argmax(lengths != size))
            raise wrong_length(sample, int(lengths[sample]), size, self._path)
        locate = locator(offsets, lengths)
        if not self.options.index:
            self._walk = TreeWalk(self._path, count, keep_leaf=self.options.keep_leaf)
            locate = self._walk.locate
        self.lengths = lengths
        mean = int(lengths.mean()) if count else 0
        self._page_bytes = index.identity.page_bytes
        self._serve(self._path, locate, mean_bytes=mean, check=self._check)
        self._mapped_transactions = mapped_transactions(self.reads.file.bytes, index.identity.page_bytes)
        self._seen = transactions(self.reads.file.fd, index.identity.page_bytes)
        if index.identity.transaction.to_bytes(8, "little") not in (self._seen[:8], self._seen[8:]):
            raise self._changed()
        if index.lengths[count] != 8 * count:
            raise damaged(
                f"{index.lengths[count]} bytes of labels where {8 * count} were expected", self._path
            )
        labels = np.empty(8 * count, np.uint8)
        self.reads.file.read_fully(int(index.offsets[count]), labels)
        self.labels = labels.view("<i8").astype(np.int64)

    def _check(self) -> None:
        """Refuse to serve pages that a writer may have reused, because this reader is not in LMDB's reader table."""
        # The length first: touching a mapping beyond the end of its file kills the process.
        if self.reads.file.shrank():
            raise self._changed()
        # A call reads a page for 16 bytes. The mapping has them at once, but a page that is mapped cannot be evicted.
        mapped = self.reads.maps_pages
        fd, page_bytes = self.reads.file.fd, self._page_bytes
        if (self._mapped_transactions.tobytes() if mapped else transactions(fd, page_bytes)) != self._seen:
            raise self._changed()

    def _changed(self) -> CorruptStoreError:
        return CorruptStoreError(
            "the database was written to while it was read", where=self._path, hint="Open it again."
        )
