"""TFRecord without TensorFlow: length, checksum, an Example and its checksum, one record after the other."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from storebench.datasets.containers.protobuf import BYTES, messages
from storebench.datasets.containers.tfrecord import masked, records
from storebench.errors import CorruptDataError
from storebench.formats.base import FormatInfo, ReaderInfo, Traits
from storebench.formats.common import damaged
from storebench.formats.peers.rows import IMAGE, LABEL, PeerFormat, Row
from storebench.formats.peers.stream import SHARD_BYTES, Numbered, ShardsWriter, StreamReader, T
from storebench.formats.reader import Seed

READ_BYTES = 8 << 20


def pack_example(payload: bytes, label: int) -> bytes:
    """Return an Example with the features ``image`` (one byte string) and ``label`` (one integer)."""
    image = _field(1, _field(1, payload))
    number = _field(3, _field(1, _varint(label)))
    entries = [(IMAGE, image), (LABEL, number)]
    features = b"".join(_field(1, _field(1, name.encode()) + _field(2, value)) for name, value in entries)
    return _field(1, features)


def image_of(record: bytes | memoryview) -> memoryview:
    """Return the bytes of the feature ``image`` of an Example; raise `ValueError` if it has none."""
    for features in messages(memoryview(record), 1):
        for entry in messages(features, 1):
            if any(name == IMAGE.encode() for name in messages(entry, 1)):
                for feature in messages(entry, 2):
                    for values in messages(feature, 1):
                        return next(messages(values, 1))
    raise ValueError("a record has no image")


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_record(file: IO[bytes], record: bytes) -> None:
    """Append one record with its length and checksums."""
    length = len(record).to_bytes(8, "little")
    file.write(length + masked(length) + record)
    file.write(masked(record))


class TfRecordWriter(ShardsWriter):
    """Write each sample as a ``tf.train.Example`` with image and label."""

    _file: IO[bytes] | None = None

    def _put(self, payload: bytes, label: int) -> None:
        if self._file is None or self.sizes[-1] == self.most or self._file.tell() >= SHARD_BYTES:
            self._release()
            self._file = (self.folder / TfRecordReader.shard_name(len(self.sizes))).open("xb")
            self.sizes.append(0)
        write_record(self._file, pack_example(payload, label))
        self.sizes[-1] += 1

    def _release(self) -> None:
        if self._file is not None:
            self._file.close()


class TfRecordReader(StreamReader):
    """Shuffled files and a shuffle buffer, as tf.data's tutorials have them."""

    library = "TFRecord"

    @staticmethod
    def shard_name(number: int) -> str:
        return f"data-{number:05d}.tfrecord"

    @staticmethod
    def shuffled_shards(shards: list[T], seed: Seed) -> list[T]:
        return random.Random(str(seed)).sample(shards, len(shards))

    @staticmethod
    def shuffled(samples: Iterator[T], buffer: int, seed: Seed) -> Iterator[T]:
        """Fill a buffer, then yield one of its samples at random for each that comes in."""
        draw, kept = random.Random(f"{seed} samples").random, list[T]()
        for sample in samples:
            if len(kept) < buffer:
                kept.append(sample)
                continue
            place = int(draw() * buffer)
            yield kept[place]
            kept[place] = sample
        while kept:
            place = int(draw() * len(kept))
            kept[place], kept[-1] = kept[-1], kept[place]
            yield kept.pop()

    def _serve(self, seed: Seed | None) -> Iterator[Numbered]:
        order = list(self.shards) if seed is None else self.shuffled_shards(list(self.shards), seed)
        numbered = (
            sample
            for path, file in self._files(order, READ_BYTES)
            for sample in zip(self.shards[path], self._images(path, file), strict=False)
        )
        return numbered if seed is None else self.shuffled(numbered, self.options.buffer, seed)

    def _images(self, path: Path, file: IO[bytes]) -> Iterator[Row]:
        try:
            yield from (image_of(record) for _, record in records(file, path))
        except CorruptDataError as error:
            raise damaged(error.what, path) from error


class TfRecordFormat(PeerFormat):
    info = FormatInfo(
        name="tfrecord",
        summary="TFRecord shards of at most 100 MB and an eighth of the samples, of tf.train.Example (image, label)",
        default_codec="jpeg",
        default_reader="stream",
    )
    writes = TfRecordWriter
    reads = ReaderInfo(
        reader=TfRecordReader,
        summary="shuffled files, then a shuffle buffer: its own order; every checksum is checked",
        traits=Traits(native_order=True, served=True),
        note="read without TensorFlow; scattered reads go through the shards from the beginning",
    )
