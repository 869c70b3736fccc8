"""Find samples by walking LMDB's tree for each key, as reading without the page index has to do."""

import os
import struct
from pathlib import Path

import numpy as np

from storebench.arrays import Indices
from storebench.errors import CorruptStoreError
from storebench.formats.arrays import check_range
from storebench.formats.keyvalue import make_key
from storebench.formats.lmdb.pages import BIG_DATA, HEADER_BYTES, LEAF, MAX_DEPTH, PageFile, damaged_page
from storebench.formats.reads.direct_file import Offsets

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
        """Close the file. Calling it twice is harmless."""
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
        if self._keep_leaf and self._leaf[0] >= 0:
            slot = _search(self._leaf[1], key)
            if slot >= 0 and _key(self._leaf[1], slot) == key:
                return self._value(slot)
        self._descend(key)
        slot = _search(self._leaf[1], key)
        if slot < 0 or _key(self._leaf[1], slot) != key:
            raise CorruptStoreError(f"the record {key!r} is missing", where=self._file.path)
        return self._value(slot)

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

    def _value(self, slot: int) -> tuple[int, int]:
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
