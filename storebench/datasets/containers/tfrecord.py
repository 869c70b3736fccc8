"""TFRecord files of tf.train.Example: records with checksums around messages of named features."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from storebench.datasets.base import Image
from storebench.datasets.containers.base import Classes, Container, Labels, Spans, cut_short
from storebench.datasets.containers.crc32c import crc32c, masked
from storebench.datasets.containers.pixels import image_or_pixels
from storebench.datasets.containers.protobuf import read_varint, signed, wire_fields
from storebench.datasets.sources import open_source
from storebench.errors import CorruptDataError

_HEADER, _CHECKSUM = struct.Struct("<QI"), struct.Struct("<I")
MOST_RECORD_BYTES = 1 << 30
COPY_AGAIN = "Copy the file again, or write it again."
_SIDES = (("image/height", "height"), ("image/width", "width"), ("image/channels", "channels", "depth"))
"""The usual names of the sides of raw pixels."""

Feature = list[Any]


class TfRecords(Container):
    def scan(self) -> None:
        self.spans = Spans(self.files)
        labels = Labels(self.files[0])
        self.image, self.label = "", ""
        for shard, path in enumerate(self.files):
            with open_source(path) as stream:
                for offset, record in _records(stream, path):
                    where = f"{path}: record at byte {offset:,}"
                    example = _parsed(record, where)
                    if not self.image:
                        self.image = self.image_field(example, path)
                        self.label = self.label_field(example, path)
                    if self.label:
                        labels.add(_only(example, self.label), where)
                    self.spans.append(shard, offset, len(record))
        self.classes = labels.classes() if self.label else Classes.none(len(self.spans))

    def read(self, index: int) -> bytes | Image:
        content, where = self.spans.read(index, behind=_CHECKSUM.size), self.locate(index)
        record = memoryview(content)[: -_CHECKSUM.size]
        if masked(crc32c(record)) != _CHECKSUM.unpack(content[-_CHECKSUM.size :])[0]:
            raise CorruptDataError("its checksum is wrong", where=where, hint=COPY_AGAIN)
        example = _parsed(record, where)
        image = _only(example, self.image)
        if not isinstance(image, memoryview):
            raise CorruptDataError(f"no bytes in its feature {self.image}", where=where, hint=COPY_AGAIN)
        sides = [next((_only(example, name) for name in names if name in example), 0) for names in _SIDES]
        return image_or_pixels(image, sides, where)

    def locate(self, index: int) -> str:
        path, offset, _ = self.spans.place(index)
        return f"{path}: record at byte {offset:,}"


def _records(stream: BinaryIO, path: Path) -> Iterator[tuple[int, memoryview]]:
    """Yield the offset and content of each record; the length is checked here, the content when a sample is read."""
    at = 0
    while header := stream.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise cut_short(path, at)
        size, checksum = _HEADER.unpack(header)
        if masked(crc32c(header[:8])) != checksum or size > MOST_RECORD_BYTES:
            raise CorruptDataError(f"no record begins at byte {at:,}", where=path, hint=COPY_AGAIN)
        content = stream.read(size + _CHECKSUM.size)
        if len(content) < size + _CHECKSUM.size:
            raise cut_short(path, at)
        yield at + _HEADER.size, memoryview(content)[:size]
        at += _HEADER.size + size + _CHECKSUM.size


def _parsed(record: memoryview, where: str) -> dict[str, Feature]:
    try:
        return dict(_features(record))
    except (ValueError, UnicodeDecodeError) as error:
        raise CorruptDataError(f"no tf.train.Example ({error})", where=where, hint=COPY_AGAIN) from error


def _features(record: memoryview) -> Iterator[tuple[str, Feature]]:
    """Yield the name and the values of each feature of an Example."""
    for features in _messages(record, 1):
        for entry in _messages(features, 1):
            name, values = "", []
            for number, value in wire_fields(entry):
                if number == 1 and isinstance(value, memoryview):
                    name = bytes(value).decode()
                elif number == 2 and isinstance(value, memoryview):
                    values = _values(value)
            yield name, values


def _messages(message: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, value in wire_fields(message):
        if number == wanted:
            if not isinstance(value, memoryview):
                raise ValueError(f"field {wanted} is a number, not a message")
            yield value


def _values(feature: memoryview) -> Feature:
    """Return the values of a feature: bytes, fractions or whole numbers."""
    values: Feature = []
    for kind, several in wire_fields(feature):
        if not isinstance(several, memoryview) or kind not in _PACKED:
            raise ValueError(f"field {kind} is no list of values")
        for number, value in wire_fields(several):
            if number != 1:
                raise ValueError(f"field {number} in a list of values")
            values += _PACKED[kind](value)
    return values


def _numbers(value: int | memoryview) -> list[int]:
    if isinstance(value, int):
        return [signed(value)]
    found, at = [], 0
    while at < len(value):
        number, at = read_varint(value, at)
        found.append(signed(number))
    return found


def _fractions(value: int | memoryview) -> list[float]:
    if isinstance(value, int) or len(value) % 4:
        raise ValueError("a list of fractions is cut short")
    fractions: list[float] = np.frombuffer(value, "<f4").tolist()
    return fractions


_PACKED: dict[int, Callable[[int | memoryview], list[Any]]] = {
    1: lambda value: [value],
    2: _fractions,
    3: _numbers,
}
"""Field of a Feature -> what makes values of one entry of its list."""


def _only(example: dict[str, Feature], name: str) -> Any:
    """Return the value of a feature; None without exactly one."""
    values = example.get(name, ())
    return values[0] if len(values) == 1 else None
