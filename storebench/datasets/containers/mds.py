"""MosaicML's MDS: an index of shards, each with a table of offsets; a compressed shard is unpacked as a whole."""

import itertools
import mmap
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from storebench.datasets.base import Image
from storebench.datasets.containers.base import Asked, Classes, Container, Labels, Spans
from storebench.datasets.containers.pixels import image_or_pixels
from storebench.datasets.sources import open_source, read_file
from storebench.errors import CorruptDataError, UsageError
from storebench.fileio.json_text import parse_json

COMPRESSIONS = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "bz2": "bz2"}  # as MDS and as pyarrow call them
MOST_SHARD_BYTES = 1 << 30  # of a compressed shard, which is held in memory
COPY_AGAIN = "Copy the file again."
_FILES, _PIL = ("jpeg", "png", "bytes"), "pil"  # encodings of images
_CHANNELS = {b"L": 1, b"RGB": 3}  # by Pillow's modes
_NUMBERS = {
    f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_NUMBERS["int"] = "<i8"


@dataclass(frozen=True, kw_only=True)
class Shard:
    path: Path
    compression: str  # as pyarrow calls it; "" for none
    samples: int
    names: Sequence[str]
    encodings: Sequence[str]
    sizes: Sequence[int | None]  # bytes of each column; None if they vary


class MdsShards(Container):
    def __init__(self, kind: str, files: Sequence[Path], asked: Asked) -> None:
        index = files[0]
        if len(files) > 1:
            raise UsageError("several indexes, and one is read", where=index, hint="Name one index.json.")
        self._shards = _shards(index)
        super().__init__(kind, [index, *(shard.path for shard in self._shards)], asked)
        self._unpacked = threading.local()

    @property
    def compressed(self) -> bool:
        return any(shard.compression for shard in self._shards)

    def scan(self) -> None:
        index, *paths = self.files
        self.spans = Spans(paths)
        labels = Labels(index)
        self._image = label = ""
        for number, shard in enumerate(self._shards):
            columns = {name: place for place, name in enumerate(shard.names)}
            if not number:
                self._image = self.image_field(columns, index)
                label = self.label_field(columns, index)
            self._encoding = shard.encodings[columns[self._image]]
            if self._encoding not in (*_FILES, _PIL):
                raise CorruptDataError(
                    f"images encoded as {self._encoding!r}; read are {', '.join((*_FILES, _PIL))}",
                    where=shard.path,
                    hint="Write them as jpeg, png or bytes.",
                )
            content = self._content(number)
            for parts in _samples(shard, content):
                offset, size = parts[columns[self._image]]
                self.spans.append(number, offset, size)
                if label:
                    at, nbytes = parts[columns[label]]
                    kind = shard.encodings[columns[label]]
                    labels.add(_label(content[at : at + nbytes], kind, shard.path))
        self.classes = labels.classes() if label and len(self.spans) else Classes.none(len(self.spans))

    def read(self, index: int) -> bytes | Image:
        number, (_, offset, size) = self.spans.shard(index), self.spans.place(index)
        if self._shards[number].compression:
            value = bytes(self._content(number)[offset : offset + size])
        else:
            value = self.spans.read(index)
        if self._encoding != _PIL:
            return image_or_pixels(value, (0,), self.locate(index))
        if len(value) < 12:
            raise CorruptDataError("pixels without a size", where=self.locate(index), hint=COPY_AGAIN)
        width, height, mode_bytes = struct.unpack("<3I", value[:12])
        pixels = memoryview(value)[12 + mode_bytes :]
        channels = _CHANNELS.get(value[12 : 12 + mode_bytes], 0)
        return image_or_pixels(pixels, (height, width, channels), self.locate(index))

    def locate(self, index: int) -> str:
        path, offset, _ = self.spans.place(index)
        return f"{path}: sample at byte {offset:,}"

    def _content(self, number: int) -> memoryview:
        """Return all bytes of a shard; each thread keeps the last one that it has unpacked."""
        shard = self._shards[number]
        if not shard.compression:
            with open_source(shard.path) as stream:
                if not shard.path.stat().st_size:
                    raise CorruptDataError("an empty file", where=shard.path, hint=COPY_AGAIN)
                return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        if getattr(self._unpacked, "number", None) != number:
            self._unpacked.number, self._unpacked.content = number, _unpacked(shard)
        return memoryview(self._unpacked.content)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_unpacked"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _unpacked=threading.local())


def _shards(index: Path) -> list[Shard]:
    about = parse_json(read_file(index), index)
    try:
        return [_shard(index.parent, entry) for entry in about["shards"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no index of MDS shards ({type(error).__name__}: {error})"
        raise CorruptDataError(what, where=index, hint="Write the dataset again.") from error


def _shard(folder: Path, entry: Any) -> Shard:
    if entry["format"] != "mds":
        raise ValueError(f"shards of the format {entry['format']!r}")
    names, encodings, sizes = (list(entry[f"column_{part}"]) for part in ("names", "encodings", "sizes"))
    if not len(names) == len(encodings) == len(sizes):
        raise ValueError("columns without a name, an encoding or a size")
    if not all(size is None or (isinstance(size, int) and size >= 0) for size in sizes):
        raise ValueError("a column of a negative size")
    raw, compression = _within(folder, entry["raw_data"]["basename"]), ""
    if not raw.exists() and entry["zip_data"] is not None:
        raw = _within(folder, entry["zip_data"]["basename"])
        asked = str(entry["compression"]).partition(":")[0]
        if asked not in COMPRESSIONS:
            what = f"compressed as {asked!r}; read are {', '.join(COMPRESSIONS)}"
            raise CorruptDataError(what, where=raw, hint="Unpack the shards beside the index.")
        compression = COMPRESSIONS[asked]
    return Shard(
        path=raw,
        compression=compression,
        samples=int(entry["samples"]),
        names=[str(name) for name in names],
        encodings=[str(encoding) for encoding in encodings],
        sizes=sizes,
    )


def _within(folder: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"a shard outside of its folder, {name}")
    return folder / path


def _unpacked(shard: Shard) -> bytes:
    try:
        with open_source(shard.path) as file, pa.CompressedInputStream(file, shard.compression) as stream:
            content = stream.read(MOST_SHARD_BYTES + 1)
    except (OSError, pa.ArrowException) as error:
        what = f"cannot be unpacked as {shard.compression} ({error})"
        raise CorruptDataError(what, where=shard.path, hint=COPY_AGAIN) from error
    if len(content) > MOST_SHARD_BYTES:
        what = f"more than {MOST_SHARD_BYTES >> 20:,} MiB when unpacked"
        raise CorruptDataError(what, where=shard.path, hint="Unpack the shards beside the index.")
    return bytes(content)


def _samples(shard: Shard, content: memoryview) -> Iterator[list[tuple[int, int]]]:
    """Yield offset and size of each column of each sample."""
    damaged = CorruptDataError("cut short or damaged", where=shard.path, hint=COPY_AGAIN)
    head = 4 * (shard.samples + 2)
    if len(content) < head or struct.unpack("<I", content[:4])[0] != shard.samples:
        raise damaged
    offsets = np.frombuffer(content[4:head], "<u4").tolist()
    varying = sum(size is None for size in shard.sizes)
    for start, end in itertools.pairwise(offsets):
        if not head <= start + 4 * varying <= end <= len(content):
            raise damaged
        given = iter(struct.unpack(f"<{varying}I", content[start : start + 4 * varying]))
        at, parts = start + 4 * varying, []
        for size in shard.sizes:
            nbytes = next(given) if size is None else size
            parts.append((at, nbytes))
            at += nbytes
        if at > end:
            raise damaged
        yield parts


def _label(value: memoryview, encoding: str, where: Path) -> int | str:
    if (kind := _NUMBERS.get(encoding)) is not None and len(value) == np.dtype(kind).itemsize:
        return int(np.frombuffer(value, kind)[0])
    if not encoding.startswith("str"):
        what = f"labels encoded as {encoding!r}, which are no numbers or texts"
        raise CorruptDataError(what, where=where, hint="Name another field with #IMAGE,LABEL.")
    return bytes(value).decode("utf-8", "replace")
