"""Index a tar archive by reading its headers only: name, offset and size of every file in it."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from storebench.errors import CorruptDataError

BLOCK = 512
_NAME_BYTES_MAX = 1 << 16

MOST_MEMBERS = 50_000_000
"""Most headers in one archive; ImageNet-21k has 14 million images."""

_FILE_TYPES = frozenset((b"0", b"\0", b"7"))
_LONG_NAME, _PAX, _PAX_GLOBAL = b"L", b"x", b"g"
_NO_FILES = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
    b"S": "a sparse file",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One file in an archive: `size` bytes at `offset` of the stream."""

    name: str
    offset: int
    size: int


def members(
    stream: BinaryIO,
    where: str,
    start: int = 0,
    end: int | None = None,
    *,
    suffixes: tuple[str, ...] = (),
) -> Iterator[Member]:
    """Yield the regular files of the archive in ``stream[start:end]``, in order."""
    limit = stream.seek(0, io.SEEK_END) if end is None else end
    position, long_name, headers = start, None, 0
    while position + BLOCK <= limit:
        header = _read_at(stream, position, BLOCK, where)
        if not header.strip(b"\0"):
            return
        headers += 1
        if headers > MOST_MEMBERS:
            raise _corrupt(where, f"more than {MOST_MEMBERS:,} members")
        size, kind = _checked_size(header, where, position), header[156:157]
        data, position = position + BLOCK, position + BLOCK + -(-size // BLOCK) * BLOCK
        if data + size > limit:
            raise _corrupt(where, f"truncated: a member of {size:,} bytes does not fit")
        if kind in (_LONG_NAME, _PAX):
            long_name = _extended_name(_read_at(stream, data, size, where), kind, where) or long_name
        elif kind != _PAX_GLOBAL:
            name, long_name = long_name or _short_name(header), None
            _refuse_climbing(name, where)
            if kind in _FILE_TYPES and not name.endswith("/"):
                yield Member(name, data, size)
            elif kind in _NO_FILES and name.lower().endswith(suffixes):
                raise _corrupt(where, f"its member {name!r} is {_NO_FILES[kind]}, not a regular file")
    # An archive ends with empty blocks; without one, its end is missing.
    raise _corrupt(where, "not a tar archive, or a truncated one")


def _read_at(stream: BinaryIO, offset: int, size: int, where: str) -> bytes:
    stream.seek(offset)
    if size > _NAME_BYTES_MAX:
        raise _corrupt(where, f"a name of {size:,} bytes")
    data = stream.read(size)
    if len(data) != size:
        raise _corrupt(where, "truncated")
    return data


def _checked_size(header: bytes, where: str, position: int) -> int:
    """Return the size field of a header after verifying the checksum."""
    stored = _number(header[148:156])
    actual = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
    size = _number(header[124:136])
    if stored != actual or size is None:
        raise _corrupt(where, f"damaged: no valid header at byte {position:,}")
    return size


def _number(field: bytes) -> int | None:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not all(byte in b"01234567" for byte in digits):
        return None
    return int(digits or b"0", 8)


def _short_name(header: bytes) -> str:
    name, prefix = (field.split(b"\0", 1)[0] for field in (header[:100], header[345:500]))
    posix = header[257:263] == b"ustar\0"
    return (prefix + b"/" + name if posix and prefix else name).decode("utf-8", "surrogateescape")


def _extended_name(data: bytes, kind: bytes, where: str) -> str | None:
    if kind == _LONG_NAME:
        return data.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
    name, position = None, 0
    # pax records: "LENGTH KEY=VALUE\n", where the length counts the whole record.
    while position < len(data):
        digits, _, _ = data[position : position + 20].partition(b" ")
        if not digits.isdigit() or int(digits) <= len(digits):
            raise _corrupt(where, "a damaged pax header")
        record = data[position + len(digits) + 1 : position + int(digits)].removesuffix(b"\n")
        key, _, value = record.partition(b"=")
        if key == b"size":
            raise _corrupt(where, "a pax size record, which this reader does not support")
        name = value.decode("utf-8", "surrogateescape") if key == b"path" else name
        position += int(digits)
    return name


def _refuse_climbing(name: str, where: str) -> None:
    if name.startswith("/") or ".." in name.split("/"):
        raise _corrupt(where, f"hostile: its member {name!r} climbs out of the archive")


def _corrupt(where: str, what: str) -> CorruptDataError:
    return CorruptDataError(what, where=where, hint="Replace it by the original archive.")
