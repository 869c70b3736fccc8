"""MosaicML's MDS: an index of shards, each with a table of offsets."""

import itertools
import mmap
import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

import numpy as np
import pydantic

from storebench.datasets.base import Image
from storebench.datasets.containers.base import ByteSpans, Labels, NamedFields, Ranges
from storebench.datasets.containers.pixels import image_or_pixels
from storebench.datasets.sources import open_source, read_file
from storebench.errors import CorruptDataError, UsageError
from storebench.system.json_text import complaint, parse_json
from storebench.units import number_of

COPY_AGAIN = "Copy the file again."
_FILES, _PIL = ("jpeg", "png", "bytes"), "pil"  # encodings of images
_CHANNELS = {b"L": 1, b"RGB": 3}  # by Pillow's modes
_NUMBER = re.compile(r"u?int(8|16|32|64)?")


def _within(name: str) -> str:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
        raise ValueError("outside of its folder")
    return name


class Shard(pydantic.BaseModel):
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[pydantic.NonNegativeInt | None]  # bytes of each column; None if they vary
    samples: pydantic.NonNegativeInt
    name: Annotated[str, pydantic.AfterValidator(_within)] = pydantic.Field(
        validation_alias=pydantic.AliasPath("raw_data", "basename")
    )


class _Index(pydantic.BaseModel):
    shards: list[Shard]

    @pydantic.model_validator(mode="after")
    def _alike(self) -> "_Index":
        for shard in self.shards:
            if not len(shard.column_names) == len(shard.column_encodings) == len(shard.column_sizes):
                raise ValueError("columns without a name, an encoding or a size")
            first = self.shards[0]
            if (shard.column_names, shard.column_encodings) != (first.column_names, first.column_encodings):
                raise ValueError("shards with different columns")
        return self


class MdsShards(Ranges):
    def __init__(self, kind: str, files: Sequence[Path], asked: NamedFields) -> None:
        index = files[0]
        try:
            self._shards = _Index.model_validate(parse_json(read_file(index), index)).shards
        except pydantic.ValidationError as error:
            what = f"no index of MDS shards ({complaint(error)})"
            raise CorruptDataError(what, where=index, hint="Write the dataset again.") from None
        paths = [index.parent / shard.name for shard in self._shards]
        for path in paths:
            if not os.path.exists(path):  # noqa: PTH110 - Path raises for a long name
                what, hint = (
                    "no such shard; compressed ones are not read",
                    "Unpack the shards beside the index.",
                )
                raise CorruptDataError(what, where=path, hint=hint)
        super().__init__(kind, [index, *paths], asked)

    def scan(self) -> None:
        index, *paths = self.files
        self.spans = ByteSpans(paths)
        labels = Labels(index, self.asked)
        columns = {}
        for shard in self._shards[:1]:
            columns = dict(zip(shard.column_names, shard.column_encodings, strict=True))
        image = self.image_field(columns, index)
        label = self.label_field(columns, index, image)
        self._encoding = columns[image]
        if self._encoding not in (*_FILES, _PIL):
            raise UsageError(
                f"images encoded as {self._encoding!r}; read are {', '.join((*_FILES, _PIL))}",
                where=paths[0],
                hint="Write them as jpeg, png or bytes.",
            )
        for number, (path, shard) in enumerate(zip(paths, self._shards, strict=True)):
            with open_source(path) as stream:
                if not path.stat().st_size:
                    raise CorruptDataError("an empty file", where=path, hint=COPY_AGAIN)
                content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
            for parts in _samples(path, shard, content):
                self.spans.append(number, *parts[image])
                at, nbytes = parts.get(label, (0, 0))
                labels.add(_label(content[at : at + nbytes], columns[label], path) if label else None)
        self.classes = labels.classes()
        shards = {path.name for path in index.parent.iterdir() if ".mds" in path.suffixes}
        others = shards - {path.name for path in paths}
        if others:
            self.notes = [f"{number_of(len(others), 'shard')} that the index does not list left out"]

    def read(self, index: int) -> bytes | Image:
        value, where = self.spans.read(index), self.locate(index)
        if self._encoding != _PIL:
            return image_or_pixels(value, where)
        if len(value) < 12:
            raise CorruptDataError("pixels without a size", where=where, hint=COPY_AGAIN)
        width, height, mode_bytes = struct.unpack("<3I", value[:12])
        pixels = memoryview(value)[12 + mode_bytes :]
        channels = _CHANNELS.get(value[12 : 12 + mode_bytes], 0)
        return image_or_pixels(pixels, where, (height, width, channels))


def _samples(path: Path, shard: Shard, content: memoryview) -> Iterator[dict[str, tuple[int, int]]]:
    """Yield offset and size of each column of each sample."""
    damaged = CorruptDataError("cut short or damaged", where=path, hint=COPY_AGAIN)
    head = 4 * (shard.samples + 2)
    if len(content) < head or struct.unpack("<I", content[:4])[0] != shard.samples:
        raise damaged
    offsets = np.frombuffer(content[4:head], "<u4").tolist()
    varying = shard.column_sizes.count(None)
    for start, end in itertools.pairwise(offsets):
        at = start + 4 * varying
        if not head <= at <= end <= len(content):
            raise damaged
        given = iter(struct.unpack(f"<{varying}I", content[start:at]))
        parts = {}
        for name, size in zip(shard.column_names, shard.column_sizes, strict=True):
            parts[name] = at, (nbytes := next(given) if size is None else size)
            at += nbytes
        if at > end:
            raise damaged
        yield parts


def _label(value: memoryview, encoding: str, where: Path) -> int | memoryview:
    if _NUMBER.fullmatch(encoding) and len(value) == np.dtype(encoding).itemsize:
        return int(np.frombuffer(value, encoding)[0])
    if not encoding.startswith("str"):
        what = f"labels encoded as {encoding!r}, which are no numbers or texts"
        raise CorruptDataError(what, where=where, hint="Name another field with #IMAGE,LABEL.")
    return value
