"""TFRecord files of tf.train.Example: records with checksums around messages of named features."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from storebench.datasets.base import Image
from storebench.datasets.containers.base import ByteSpans, Labels, Ranges, cut_short
from storebench.datasets.containers.pixels import image_or_pixels
from storebench.datasets.containers.protobuf import messages, read_varint, signed, wire_fields
from storebench.datasets.names import SampleNames
from storebench.datasets.sources import open_source
from storebench.errors import CorruptDataError

_POLYNOMIAL = 0x82F63B78  # of CRC-32C, reflected


@functools.cache
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (value & 1) * _POLYNOMIAL for value in table]
    return table


def crc32c(data: bytes | memoryview) -> int:
    """Return the checksum by a library where it is installed: without one, a megabyte takes 0.1 s."""
    try:
        from google_crc32c import value
    except ImportError:
        state, table = 0xFFFF_FFFF, _table()
        for byte in data:
            state = table[(state ^ byte) & 0xFF] ^ state >> 8
        return state ^ 0xFFFF_FFFF
    return int(value(bytes(data)))


def masked(data: bytes | memoryview) -> bytes:
    """Return the checksum of some bytes as TFRecord stores it."""
    crc = crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF).to_bytes(4, "little")


_HEADER_BYTES = 12  # the length of a record, and the checksum of the length
_CHECKSUM_BYTES = 4  # of a record, behind it
MOST_RECORD_BYTES = 1 << 30
COPY_AGAIN = "Copy the file again, or write it again."
_NAME = "image/filename"
# The usual names of the sides of raw pixels.
_SIDES = (("image/height", "height"), ("image/width", "width"), ("image/channels", "channels", "depth"))

# Fields of a Feature for its list of values; the third kind, field 1, is a list of bytes.
_FLOATS, _INTEGERS = 2, 3


class TfRecords(Ranges):
    streams = True

    def scan(self) -> None:
        self.spans, self.keys = ByteSpans(self.files), SampleNames()
        labels = Labels(self.files[0], self.asked)
        self.image, self.label = "", ""
        for shard, path in enumerate(self.files):
            with open_source(path) as stream:
                for offset, record in records(stream, path, checked=False):
                    where = f"{path}: sample at byte {offset:,}"
                    example = _parsed(record, where)
                    self.image = self.image or self.image_field(example, path)
                    self.label = self.label or self.label_field(example, path, self.image)
                    labels.add(_value(example, self.label), where)
                    self.spans.append(shard, offset, len(record))
                    if isinstance(name := _value(example, _NAME), memoryview):
                        self.keys.append(bytes(name).decode(errors="surrogateescape"))
                    if self.is_late():
                        break
        self.classes = labels.classes()

    def name(self, index: int) -> str:
        return self.keys[index] if len(self.keys) == len(self.spans) else super().name(index)

    def read(self, index: int) -> bytes | Image:
        content, where = self.spans.read(index, behind=_CHECKSUM_BYTES), self.locate(index)
        record = memoryview(content)[:-_CHECKSUM_BYTES]
        if masked(record) != content[-_CHECKSUM_BYTES:]:
            raise wrong_checksum(where)
        return self.image_of(record, where)

    def image_of(self, record: memoryview, where: str) -> bytes | Image:
        """Return the image that a record holds."""
        example = _parsed(record, where)
        image = _value(example, self.image)
        if not isinstance(image, memoryview):
            raise CorruptDataError(f"no bytes in its feature {self.image}", where=where, hint=COPY_AGAIN)
        sides = [next((_value(example, name) for name in names if name in example), 0) for names in _SIDES]
        return image_or_pixels(image, where, sides)


def records(stream: IO[bytes], path: Path, *, checked: bool = True) -> Iterator[tuple[int, memoryview]]:
    """Yield the offset and content of each record; the length is checked in any case."""
    at = 0
    while header := stream.read(_HEADER_BYTES):
        if len(header) < _HEADER_BYTES:
            raise cut_short(path, at)
        size = int.from_bytes(header[:8], "little")
        if masked(header[:8]) != header[8:] or size > MOST_RECORD_BYTES:
            raise CorruptDataError(f"no record begins at byte {at:,}", where=path, hint=COPY_AGAIN)
        content = stream.read(size + _CHECKSUM_BYTES)
        if len(content) < size + _CHECKSUM_BYTES:
            raise cut_short(path, at)
        record = memoryview(content)[:size]
        if checked and masked(record) != content[size:]:
            raise wrong_checksum(f"{path}: record at byte {at:,}")
        yield at + _HEADER_BYTES, record
        at += _HEADER_BYTES + size + _CHECKSUM_BYTES


def wrong_checksum(where: str) -> CorruptDataError:
    return CorruptDataError("its checksum is wrong", where=where, hint=COPY_AGAIN)


def _parsed(record: memoryview, where: str) -> dict[str, list[Any]]:
    """Return the values of each feature of an Example by its name."""
    try:
        entries = [entry for features in messages(record, 1) for entry in messages(features, 1)]
        return {
            b"".join(messages(entry, 1)).decode(): [
                value for feature in messages(entry, 2) for value in _values(feature)
            ]
            for entry in entries
        }
    except ValueError as error:
        raise CorruptDataError(f"no tf.train.Example ({error})", where=where, hint=COPY_AGAIN) from error


def _values(feature: memoryview) -> Iterator[Any]:
    """Yield the values of a feature: bytes, fractions or whole numbers."""
    for kind, several in wire_fields(feature):
        for _, value in wire_fields(several) if isinstance(several, memoryview) else ():
            if isinstance(value, int):
                yield signed(value)
            elif kind == _FLOATS:
                yield from np.frombuffer(value, "<f4").tolist()
            elif kind == _INTEGERS:
                at = 0
                while at < len(value):
                    number, at = read_varint(value, at)
                    yield signed(number)
            else:
                yield value


def _value(example: dict[str, list[Any]], name: str) -> Any:
    """Return the only value of a feature; None without any, and a list of several."""
    values = example.get(name) or [None]
    return values[0] if len(values) == 1 else values
