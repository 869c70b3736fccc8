"""Tar shards as WebDataset names them: consecutive members KEY.EXTENSION are the fields of one sample."""

import itertools
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from storebench.datasets.containers.base import LABEL_FIELDS, Labels, Ranges, Spans, listed, read_at
from storebench.datasets.folder import is_left_out
from storebench.datasets.images import EXTENSIONS
from storebench.datasets.sources import Member, members, open_source
from storebench.errors import CorruptDataError
from storebench.fileio.json_text import parse_json
from storebench.units import number_of

JSON = "json"
MOST_LABEL_BYTES = 1 << 20
T = TypeVar("T")


class TarShards(Ranges):
    def scan(self) -> None:
        self.spans = Spans(self.files)
        labels, without, extensions = Labels(self.files[0], self.asked), 0, set[str]()
        for shard, stream, where, fields in self._samples():
            extensions |= fields.keys()
            image = self.image_of(fields, where)
            if image is None:
                without += 1
                continue
            labels.add(self._label(stream, where, fields), where)
            self.spans.append(shard, image.offset, image.size)
            if time.perf_counter() > self.deadline:
                break
        if not len(self.spans):
            raise CorruptDataError(
                f"no sample has an image; its fields are {listed(sorted(extensions))}",
                where=self.files[0],
                hint="Name the field of the images: write #IMAGE,LABEL behind the path.",
            )
        self.ignored = [name for name in sorted(extensions) if not f".{name.lower()}".endswith(EXTENSIONS)]
        self.notes = [f"{number_of(without, 'sample')} without an image left out"] if without else []
        self.classes = labels.classes()

    def _samples(self) -> Iterator[tuple[int, BinaryIO, str, dict[str, Member]]]:
        """Yield the samples of all shards: the number of the shard and its stream, the place, the members by extension."""
        for shard, path in enumerate(self.files):
            with open_source(path) as stream:
                visible = (member for member in members(stream, str(path)) if not is_left_out(member.name))
                for key, group in itertools.groupby(visible, key=lambda member: _split(member.name)[0]):
                    several = list(group)
                    fields = {_split(member.name)[1]: member for member in several}
                    if len(fields) < len(several):
                        what = f"several members of one name in the sample {key}"
                        raise CorruptDataError(what, where=path, hint="Give each sample its own key.")
                    yield shard, stream, f"{path}:{key}", fields

    def read(self, index: int) -> bytes:
        return self.spans.read(index)

    def locate(self, index: int) -> str:
        path, offset, _ = self.spans.place(index)
        return f"{path}:{name_before(path, offset)} at byte {offset:,}"

    def image_of(self, fields: Mapping[str, T], where: str) -> T | None:
        """Return the field of a sample that is its image; None if it has none."""
        if self.asked.image:
            return fields.get(self.asked.image)
        images = [name for name in fields if f".{name.lower()}" in EXTENSIONS]
        images = images or [name for name in fields if name.lower().endswith(EXTENSIONS)]  # 0.left.jpg
        if len(images) > 1:
            raise CorruptDataError(
                f"several images in one sample: {listed(images)}",
                where=where,
                hint=f"Name one: write #{images[0]} behind the path.",
            )
        return fields[images[0]] if images else None

    def _label(self, stream: BinaryIO, where: str, fields: dict[str, Member]) -> Any:
        """Return a label: the content of its own field, or a value in the JSON of the sample; None without one."""
        names = [self.asked.label] if self.asked.label else LABEL_FIELDS
        alike = {name.lower(): name for name in fields} | {name: name for name in fields}
        if (own := next((alike[name] for name in names if name in alike), None)) is not None:
            return _content(stream, fields[own])
        if JSON not in fields:
            return None
        about = parse_json(_content(stream, fields[JSON]), f"{where}.{JSON}")
        return (
            next((about[name] for name in names if name in about), None) if isinstance(about, dict) else None
        )


def _split(name: str) -> tuple[str, str]:
    """Return key and extension: all of a path up to, and all behind, the first dot of its last part."""
    path = PurePosixPath(name)
    stem, _, extension = path.name.partition(".")
    return str(path.parent / stem), extension


def name_before(path: Path, offset: int) -> str:
    """Return the name of the member whose content begins at `offset`; a longer one is cut after 100 bytes."""
    header = read_at(path, offset - tarfile.BLOCKSIZE, tarfile.BLOCKSIZE)
    return header[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _content(stream: BinaryIO, member: Member) -> bytes:
    return os.pread(stream.fileno(), min(member.size, MOST_LABEL_BYTES), member.offset)
