"""Parse an LMDB file's pages in bulk: find the place of each value, without the library and without a mapping.

The layout is that of LMDB 0.9 on a 64-bit little-endian machine (mdb.c, data
version 1). A page begins with its number (8 bytes), a pad (2), flags (2), and
two offsets, lower and upper (2 each): node pointers of 2 bytes are stored from byte 16
to lower, the nodes themselves from upper to the page's end. A
node is size-low (2), size-high (2), flags (2), key size (2), key, data; in a
branch the first three are the child's page number. Leaf flag 1 means that the
data is 8 bytes: the number of the first of the value's own pages, in which the
value begins at byte 16.

Nothing read from the file is used as an offset before it is checked, so that neither this parser nor LMDB is led out of
the file. LMDB has no checksums against other damage.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from storebench.arrays import Bytes, Integers
from storebench.errors import CorruptStoreError, UsageError
from storebench.record.manifest import CONVERT_AGAIN

DATA_FILE = "data.mdb"

HEADER_BYTES = 16
META_PAGES = 2
NO_PAGE = (1 << 64) - 1
MAX_DEPTH = 32  # CURSOR_STACK in mdb.c

_MAGIC = 0xBEEFC0DE
# Bytes of a meta page that hold its header and LMDB's MDB_meta.
_META_BYTES = 152

# Places of fields in a meta page.
_MAGIC_AT, _PAGE_SIZE_AT, _MAIN_AT, _LAST_PAGE_AT, _TRANSACTION_AT = 16, 40, 88, 136, 144

_DATA_VERSION = 1
BRANCH, LEAF, _META = 0x01, 0x02, 0x08
_KIND_FLAGS = 0x6F  # branch, leaf, overflow, meta, leaf2, subpage; other flags have no meaning on disk
BIG_DATA, SUB_DATABASE, DUPLICATES = 0x01, 0x02, 0x04
_NODE_HEADER = 8


def damaged_page(path: Path, page: int, what: str) -> CorruptStoreError:
    """Return the error for a page that breaks the layout."""
    return CorruptStoreError(f"page {page} is damaged: {what}", where=path, hint="Write the database again.")


class Tree(NamedTuple):
    """One database in the file: the record of 48 bytes that LMDB keeps for it."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    value_pages: int
    entries: int
    root: int


@dataclass(frozen=True, kw_only=True)
class Meta:
    """The current meta page: the last committed state."""

    page_bytes: int
    last_page: int
    transaction: int
    main: Tree


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Nodes of some pages, in the order of their keys; positions count from the start of `data`."""

    data: Bytes  # the pages, uint8 [pages x page size], and room behind them for reading a key's window
    page_numbers: Integers  # int64 [n], the page that each node is in
    keys: Integers
    key_lengths: Integers
    sizes: Integers
    flags: Integers  # int64 [n]: where the key begins, its length, the node's 32-bit size field, its flags

    def __len__(self) -> int:
        return len(self.keys)


class PageFile:
    """The pages of an LMDB file, read with ``pread``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CorruptStoreError("the file is missing", where=path, hint=CONVERT_AGAIN) from None
        try:
            # A leaf is between the pages of its values: the kernel's readahead would read those too.
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
            self.size = os.fstat(self.fd).st_size
            self.meta = current_meta(self.fd, path)
        except BaseException:
            os.close(self.fd)
            raise
        self.pages = min(self.size // self.meta.page_bytes, self.meta.last_page + 1)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def check_numbers(self, numbers: npt.NDArray[np.uint64], where: str) -> Integers:
        """Return page numbers as int64 after checking that they are in the file, and not its meta pages."""
        wrong = (numbers < META_PAGES) | (numbers >= self.pages)
        if wrong.any():
            raise CorruptStoreError(
                f"{where} points to page {int(numbers[wrong][0])}, outside the file's {self.pages}",
                where=self.path,
                hint="Write the database again.",
            )
        return numbers.astype(np.int64)

    def children(self, nodes: Nodes) -> Integers:
        """Return the page numbers that a branch's nodes point to, checked."""
        numbers = nodes.sizes.astype(np.uint64) | (nodes.flags.astype(np.uint64) << np.uint64(32))
        return self.check_numbers(numbers, "a branch page")

    def values(self, nodes: Nodes) -> Integers:
        """Return the offsets of the values of leaf nodes in the file, int64 [n]."""
        page_bytes = self.meta.page_bytes
        starts = nodes.keys + nodes.key_lengths
        # Rows of the chunk are whole pages, so the remainder is the offset within the page.
        offsets = nodes.page_numbers * page_bytes + starts % page_bytes
        big = np.flatnonzero(nodes.flags & BIG_DATA)
        number_bytes = nodes.data[starts[big, None] + np.arange(8)]
        numbers = self.check_numbers(np.ascontiguousarray(number_bytes).view("<u8")[:, 0], "a leaf page")
        offsets[big] = numbers * page_bytes + HEADER_BYTES
        counts = -(-(HEADER_BYTES + nodes.sizes[big]) // page_bytes)
        if (numbers + counts > self.pages).any():
            raise CorruptStoreError("a value ends beyond the file", where=self.path)
        return offsets

    def parse(self, numbers: Integers, kind: int) -> Nodes:
        """Parse pages. In a `BRANCH`, `sizes` and `flags` hold the child's number as LMDB packs it."""
        page_bytes = self.meta.page_bytes
        data = self._read(numbers)
        words = data.view("<u2").astype(np.int64).reshape(-1, page_bytes // 2)[: len(numbers)]
        lower, upper = words[:, 6], words[:, 7]
        self._check_headers(numbers, data, kind, lower, upper)
        counts = (lower - HEADER_BYTES) // 2
        rows = np.repeat(np.arange(len(numbers)), counts)
        slots = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        pointers = words[rows, HEADER_BYTES // 2 + slots]
        wrong = (pointers < upper[rows]) | (pointers > page_bytes - _NODE_HEADER) | (pointers & 1 != 0)
        self._refuse(numbers[rows], wrong, "a node pointer lies outside the page's nodes")
        starts = rows * page_bytes + pointers
        low, high, flags, key_lengths = (words.reshape(-1)[starts // 2 + field] for field in range(4))
        nodes = Nodes(
            data=data,
            page_numbers=numbers[rows],
            keys=starts + _NODE_HEADER,
            key_lengths=key_lengths,
            sizes=low | (high << 16),
            flags=flags,
        )
        data_bytes = np.where(flags & BIG_DATA, 8, nodes.sizes) if kind == LEAF else 0
        ends = pointers + _NODE_HEADER + key_lengths + data_bytes
        self._refuse(numbers[rows], ends > page_bytes, "a node ends beyond it")
        return nodes

    def _read(self, numbers: Integers) -> Bytes:
        """Read pages into one array, followed by a page of zeros."""
        page_bytes = self.meta.page_bytes
        data = np.zeros((len(numbers) + 1) * page_bytes, np.uint8)
        runs = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
        ends = np.append(runs[1:], len(numbers))
        spans = [
            (start * page_bytes, int(numbers[start]) * page_bytes, (end - start) * page_bytes)
            for start, end in zip(runs.tolist(), ends.tolist(), strict=True)
        ]
        for _, offset, length in spans:  # request all of them before waiting for the first
            os.posix_fadvise(self.fd, offset, length, os.POSIX_FADV_WILLNEED)
        for place, offset, length in spans:
            if os.preadv(self.fd, [data[place : place + length].data], offset) != length:
                raise damaged_page(self.path, offset // page_bytes, "the file ends before it")
        return data

    def _check_headers(
        self, numbers: Integers, data: Bytes, kind: int, lower: Integers, upper: Integers
    ) -> None:
        page_bytes = self.meta.page_bytes
        headers = data.reshape(-1, page_bytes)[: len(numbers), :HEADER_BYTES]
        carried = np.ascontiguousarray(headers[:, :8]).view("<i8")[:, 0]
        flags = np.ascontiguousarray(headers[:, 10:12]).view("<u2")[:, 0]
        self._refuse(numbers, carried != numbers, "it carries another page's number")
        self._refuse(
            numbers, (flags & _KIND_FLAGS) != kind, "it is of another kind than its place in the tree"
        )
        # LMDB relies on a branch having at least two children.
        least = HEADER_BYTES + (4 if kind == BRANCH else 2)
        wrong = (lower < least) | (lower & 1 != 0) | (lower > upper) | (upper > page_bytes)
        self._refuse(numbers, wrong, "its bounds are impossible")

    def _refuse(self, numbers: Integers, wrong: npt.NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            raise damaged_page(self.path, int(numbers[wrong][0]), what)


def current_meta(fd: int, path: Path) -> Meta:
    """Return the meta page with the larger transaction number. Both must be valid, as LMDB demands."""
    first = _parse_meta(os.pread(fd, _META_BYTES, 0), 0, path)
    second = first and _parse_meta(os.pread(fd, _META_BYTES, first.page_bytes), 1, path)
    if first is None or second is None or first.page_bytes != second.page_bytes:
        raise CorruptStoreError(
            "this is no LMDB file, or one of its meta pages is damaged",
            where=path,
            hint="Write the database again.",
        )
    return max(first, second, key=lambda meta: meta.transaction)


def transactions(fd: int, page_bytes: int) -> bytes:
    """Return the current transaction numbers of both meta pages; a commit changes them."""
    raw = os.pread(fd, page_bytes + _META_BYTES, 0)
    return raw[_TRANSACTION_AT:_META_BYTES] + raw[page_bytes + _TRANSACTION_AT :]


def mapped_transactions(mapped: Bytes, page_bytes: int) -> Bytes:
    """Return a view, uint8 [2, 8], of what `transactions` reads, in a mapping of the file."""
    return mapped[: META_PAGES * page_bytes].reshape(META_PAGES, page_bytes)[:, _TRANSACTION_AT:_META_BYTES]


def _parse_meta(raw: bytes, number: int, path: Path) -> Meta | None:
    if len(raw) < _META_BYTES:
        return None
    carried, _, flags = struct.unpack_from("<QHH", raw)
    magic, version = struct.unpack_from("<II", raw, _MAGIC_AT)
    if carried != number or not flags & _META or magic != _MAGIC:
        return None
    if version != _DATA_VERSION:
        raise UsageError(
            f"an LMDB file of data version {version} is not read here",
            where=path,
            hint="Use the reader lmdb:get.",
        )
    (size,) = struct.unpack_from("<I", raw, _PAGE_SIZE_AT)
    if size not in [1 << power for power in range(8, 17)]:
        return None
    last_page, transaction = struct.unpack_from("<QQ", raw, _LAST_PAGE_AT)
    return Meta(
        page_bytes=size,
        last_page=last_page,
        transaction=transaction,
        main=Tree(*struct.unpack_from("<IHHQQQQQ", raw, _MAIN_AT)),
    )


def leaves(file: PageFile, tree: Tree) -> Iterator[Nodes]:
    """Walk a tree level by level and yield its leaf nodes in the order of their keys, some MiB at a time."""
    if not tree.entries and tree.root == NO_PAGE:
        return
    if not 1 <= tree.depth <= MAX_DEPTH:
        raise CorruptStoreError(f"a tree of {tree.depth} levels", where=file.path)
    level = file.check_numbers(np.array([tree.root], np.uint64), "the meta page")
    pages = 0
    for depth in range(1, tree.depth + 1):
        pages += len(level)
        # If a page pointed back up, or two to one page, each level could be many times longer than the last.
        if pages > file.pages or (depth == tree.depth and len(level) != tree.leaf_pages):
            raise CorruptStoreError("the tree has more or fewer pages than its record says", where=file.path)
        if depth < tree.depth:
            parts = [file.children(file.parse(some, BRANCH)) for some in _chunks(level, file.meta.page_bytes)]
            level = np.concatenate(parts)
    for some in _chunks(level, file.meta.page_bytes):
        yield file.parse(some, LEAF)


def _chunks(numbers: Integers, page_bytes: int) -> Iterator[Integers]:
    step = max(1, (2 << 20) // page_bytes)
    for at in range(0, len(numbers), step):
        yield numbers[at : at + step]
