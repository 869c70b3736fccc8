"""Check that reading a MATLAB file cannot take excessive memory, before SciPy reads it.

SciPy allocates the arrays that a file declares before it looks for their content, so a few hundred bytes can request
gigabytes. The layout is that of "MAT-File Format", level 5: elements of (type, size, data). A matrix is an element
that contains elements: flags, dimensions, a name, and then the content.
"""

import math
import struct
import zlib
from collections.abc import Iterator

MOST_ITEMS = 1_000_000
"""Most items in one matrix; the devkit's list has 1,860."""

MOST_BYTES = 16 << 20
"""Most bytes that all compressed elements together may unpack to."""

_HEADER_BYTES = 128
_MAGIC = b"MATLAB 5.0 MAT-file"
_MATRIX, _COMPRESSED = 14, 15
_NAMES_AT = {2: 4, 3: 5}
"""Position of the element that holds the field names, in a structure (class 2) and in an object (class 3)."""

_MOST_DEPTH = 8
_MOST_DIMENSIONS = 32


def check_mat(raw: bytes) -> None:
    """Check the sizes that a MATLAB file declares.

    Raises
    ------
    ValueError
        It is not a MATLAB file, is damaged, or declares too much.
    """
    if not raw.startswith(_MAGIC) or len(raw) < _HEADER_BYTES:
        raise ValueError("not a MATLAB file of level 5")
    order = {b"IM": "<", b"MI": ">"}.get(raw[126:128])
    if order is None:
        raise ValueError("a damaged header")
    left = MOST_BYTES
    for kind, data in _elements(raw[_HEADER_BYTES:], order):
        if kind != _COMPRESSED:
            _check_element(kind, data, order, 0)
            continue
        inflated = zlib.decompressobj().decompress(data, left)
        left -= len(inflated)
        if left <= 0:
            raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
        for inner, content in _elements(inflated, order):
            _check_element(inner, content, order, 0)


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the data of each element."""
    position = 0
    while position + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, position)
        if kind >> 16:  # a small element: its data is in place of the size
            yield kind & 0xFFFF, data[position + 4 : position + 4 + min(kind >> 16, 4)]
            position += 8
            continue
        if size > len(data) - position - 8:
            raise ValueError(f"an element of {size:,} bytes does not fit")
        yield kind, data[position + 8 : position + 8 + size]
        padding = 0 if kind == _COMPRESSED else -size % 8
        position += 8 + size + padding


def _check_element(kind: int, data: bytes, order: str, depth: int) -> None:
    """Check a matrix and the matrices inside it: flags, dimensions, a name, and the field names of a structure."""
    if kind != _MATRIX:
        return
    if depth > _MOST_DEPTH:
        raise ValueError(f"matrices nested more than {_MOST_DEPTH} deep")
    items, names_at = 1, None
    for number, (inner, content) in enumerate(_elements(data, order)):
        if number == 0:
            (flags,) = struct.unpack_from(f"{order}I", content)
            names_at = _NAMES_AT.get(flags & 0xFF)
        elif number == 1:
            items = _product(content, order)
        # A field's name has at least one byte, so the bytes of the names bound the number of fields.
        fields = len(content) if number == names_at else 1
        if items * fields > MOST_ITEMS * (64 if fields > 1 else 1):
            raise ValueError(f"a matrix of {items:,} items")
        _check_element(inner, content, order, depth + 1)


def _product(content: bytes, order: str) -> int:
    """Return the product of a matrix's dimensions."""
    count = len(content) // 4
    if not 1 <= count <= _MOST_DIMENSIONS:
        raise ValueError(f"a matrix of {count:,} dimensions")
    return math.prod(struct.unpack_from(f"{order}{count}I", content))
