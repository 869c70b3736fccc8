"""Tar shards as WebDataset names them: consecutive members KEY.EXTENSION are the fields of one sample."""

import itertools
import os
import tarfile
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from storebench.datasets.containers.base import LABEL_FIELDS, ByteSpans, Labels, Ranges, listed, read_at
from storebench.datasets.image_folder import is_left_out, mixes_splits, split_of
from storebench.datasets.images import EXTENSIONS
from storebench.datasets.names import SampleNames
from storebench.datasets.sources import Member, members, open_source
from storebench.errors import CorruptDataError, UsageError
from storebench.system.json_text import parse_json
from storebench.units import number_of

JSON = "json"
MOST_LABEL_BYTES = 1 << 20
T = TypeVar("T")
Fields = dict[str, Member]


class TarShards(Ranges):
    keys: SampleNames
    streams = True  # whether WebDataset serves the same samples

    def scan(self) -> None:
        self.spans, self.keys = ByteSpans(self.files), SampleNames()
        labels, others = Labels(self.files[0], self.asked), list[str]()
        extensions, lone = set[str](), set[str]()  # of samples with an image, and of those without one
        without, other_images, is_labelled, are_apart = 0, Counter[str](), False, False
        folders, places = dict[str, int](), array("i")  # numbers of the folders, and that of each sample
        for shard, path in enumerate(self.files):
            with open_source(path) as stream:
                for key, fields in self._samples(stream, path, others):
                    where = f"{path}:{key}"
                    label, image = self._label(stream, where, fields), self.image_of(fields, where)
                    if image is None:
                        without += 1
                        lone |= fields.keys()
                        are_apart |= label is not None
                        continue
                    extensions |= fields.keys()
                    is_labelled |= label is not None
                    labels.add(label, where)
                    places.append(folders.setdefault(key.rpartition("/")[0], len(folders)))
                    self.spans.append(shard, image.offset, image.size)
                    self.keys.append(key)
                    self.streams &= image.plain
                    other_images.update(
                        name for name in fields if _is_image(name) and fields[name] is not image
                    )
                    if self.is_late():
                        break
        if not len(self.spans):
            raise UsageError(
                f"no sample has an image; its fields are {listed(sorted(lone))}",
                where=self.files[0],
                hint="Name the field of the images: write #IMAGE,LABEL behind the path.",
            )
        if are_apart and not is_labelled:
            hint = "Write the members of each sample one after another: tar --sort=name."
            raise CorruptDataError("its labels are apart from their images", where=self.files[0], hint=hint)
        classes = self._classes(list(folders))
        if by_folder := bool(classes) and not is_labelled:
            labels = Labels(self.files[0], self.asked)
            for place in places:
                labels.add(classes[place])  # "" for an image beside the folders, which has no label
        self.ignored = [name for name in sorted(extensions) if not _is_image(name)]
        left_out = (
            (without, "sample", "without an image left out"),
            (other_images.total(), "image", f"of other fields left out: {listed(sorted(other_images))}"),
            (len(others), "member", f"with no content in it left out: {listed(others)}"),
        )
        self.notes = [f"{number_of(count, noun)} {which}" for count, noun, which in left_out if count]
        if by_folder:
            self.notes.append("the folders in it are the classes")
        self.classes = labels.classes()

    def _samples(self, stream: BinaryIO, path: Path, others: list[str]) -> Iterator[tuple[str, Fields]]:
        """Yield the key of each sample of a shard, and its members by extension."""
        needed = (*LABEL_FIELDS, JSON, *filter(None, (self.asked.image, self.asked.label)))
        suffixes = (*EXTENSIONS, *(f".{name}".lower() for name in needed))
        of_shard = members(stream, str(path), suffixes=suffixes, others=others)
        visible = (member for member in of_shard if not is_left_out(member.name))
        for key, group in itertools.groupby(visible, key=lambda member: _split(member.name)[0]):
            several = list(group)
            fields = {_split(member.name)[1]: member for member in several}
            if len(fields) < len(several):
                what = f"several members of one name in the sample {key}"
                raise CorruptDataError(what, where=path, hint="Give each sample its own key.")
            yield key, fields

    def _classes(self, folders: Sequence[str]) -> list[str]:
        """Return the class of each folder: the first part in which they differ; none if they do not, or hold splits."""
        parts = [PurePosixPath(folder.lstrip("/")).parts for folder in folders]
        depth = len(PurePosixPath(os.path.commonpath(["/".join(part) for part in parts])).parts)
        names = ["".join(part[depth : depth + 1]) for part in parts]
        below = {name for part in parts for name in part[depth:]}
        within = {name for name, part in zip(names, parts, strict=True) if len(part) > depth + 1}
        if mixes_splits(below) or (len(set(names)) > 1 and any(map(split_of, within))):
            raise CorruptDataError(
                f"it holds folders of a train and of another split: {listed(sorted(below))}",
                where=self.files[0],
                hint="Pack one archive per split, train-0.tar and val-0.tar, or unpack it.",
            )
        return names if len(set(filter(None, names))) > 1 else []

    def read(self, index: int) -> bytes:
        return self.spans.read(index)

    def name(self, index: int) -> str:
        return self.keys[index]

    def locate(self, index: int) -> str:
        path, offset, _ = self.spans.place(index)
        return f"{path}:{name_before(path, offset)} at byte {offset:,}"

    def image_of(self, fields: Mapping[str, T], where: str) -> T | None:
        """Return the field of a sample that is its image; None if it has none."""
        if self.asked.image:
            return fields.get(self.asked.image)
        images = [name for name in fields if f".{name.lower()}" in EXTENSIONS]
        images = images or list(filter(_is_image, fields))  # 0.left.jpg
        if len(images) > 1:
            raise CorruptDataError(
                f"several images in one sample: {listed(images)}",
                where=where,
                hint=f"Name one: write #{images[0]} behind the path. "
                "A key ends at its first dot: rename other samples.",
            )
        return fields[images[0]] if images else None

    def _label(self, stream: BinaryIO, where: str, fields: Fields) -> Any:
        """Return a label: the content of its own field, or a value in the JSON of the sample; None without one."""
        names = [self.asked.label] if self.asked.label else LABEL_FIELDS
        alike = {name.lower(): name for name in fields} | {name: name for name in fields}
        if (field := next((alike[name] for name in names if name in alike), None)) is not None:
            return _content(stream, fields[field])
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


def _is_image(field: str) -> bool:
    return f".{field.lower()}".endswith(EXTENSIONS)


def name_before(path: Path, offset: int) -> str:
    """Return the name of the member whose content begins at `offset`; a longer one is cut after 100 bytes."""
    header = read_at(path, offset - tarfile.BLOCKSIZE, tarfile.BLOCKSIZE)
    return header[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _content(stream: BinaryIO, member: Member) -> bytes:
    return os.pread(stream.fileno(), min(member.size, MOST_LABEL_BYTES), member.offset)
