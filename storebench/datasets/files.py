"""Image files and their labels: what a scan finds out about them, and the datasets that serve them."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.arrays import ImageShape, ImageSize
from storebench.datasets import images
from storebench.datasets.base import Dataset, DatasetInfo, Image, Provenance
from storebench.datasets.images import (
    change_note,
    checked,
    common_small_shape,
    decode_rgb,
    probed_headers,
    sizes_of,
    square,
)
from storebench.datasets.sources import (
    Refusal,
    Statuses,
    check_index,
    ends_looked_at,
    fingerprint,
    names_digest,
    paths_of,
    read_file,
    statuses,
)
from storebench.errors import UsageError
from storebench.fileio.reading import open_regular
from storebench.settings.words import Split


@dataclass(frozen=True, kw_only=True)
class FoundFiles:
    """Image files as a scan found them, and what it read of them."""

    root: Path  # the folder that the paths are relative to
    paths: Sequence[str]
    labels: npt.NDArray[np.int64]  # each file, relative to `root` or absolute, and its class index, int64 [n]
    class_names: tuple[str, ...]  # the classes that labels index
    provenance: Provenance  # where the files come from
    own_shape: ImageShape  # shape of the samples where no size is asked for
    sizes: tuple[ImageSize, ...]  # width and height of at most 64 of the files
    digest: str  # identifies the files: names, sizes, and content or times
    unreadable: Mapping[int, Refusal]  # why files cannot be read, by index, as far as no file was decoded


def look_at(
    root: Path,
    files: Sequence[tuple[str, int]],
    class_names: tuple[str, ...],
    provenance: Provenance,
    own_side: int | None = None,
) -> tuple[FoundFiles, Statuses]:
    """Look at image files: their statuses, and the headers of those whose size matters."""
    paths = [path for path, _ in files]
    rows = statuses(paths_of(root, paths))

    def start(index: int, most: int) -> bytes:
        with open_regular(root / paths[index]) as stream:
            return stream.read(most)

    digest, unreadable = names_digest(root, paths, rows)
    headers = probed_headers(start, len(paths))
    if any(header.deep for header in headers):
        note = "; ".join(filter(None, (provenance.note, images.DEPTH_RULE)))
        provenance = dataclasses.replace(provenance, note=note)
    if len(ends_looked_at(len(paths))) < len(paths):
        note = f"beyond 64 MiB, changes are noticed by name, size, time, and the ends of {len(ends_looked_at(len(paths))):,} files"
        provenance = dataclasses.replace(provenance, note="; ".join(filter(None, (provenance.note, note))))
    own = square(own_side) if own_side is not None else common_small_shape(start, len(paths))
    dataset_files = FoundFiles(
        root=root,
        paths=paths,
        labels=np.array([label for _, label in files], dtype=np.int64),
        class_names=class_names,
        provenance=provenance,
        own_shape=own or square(None),
        sizes=sizes_of(headers),
        digest=digest,
        unreadable=unreadable,
    )
    return dataset_files, rows


class FileDataset(Dataset):
    """Serve image files, in the order in which they were found."""

    def __init__(self, name: str, split: Split, files: FoundFiles, image_size: int | None = None) -> None:
        self._found = files
        shape = files.own_shape if image_size is None else square(image_size)
        self.resize_note = change_note(files.sizes, shape)
        self.layout_note = files.provenance.note
        self.known_unreadable = files.unreadable
        self.thread_safe = True
        note = "; ".join(filter(None, (files.provenance.note, self.resize_note)))
        self._info = DatasetInfo(
            name=name,
            split=split,
            count=len(files.paths),
            image_shape=shape,
            class_names=files.class_names,
            provenance=dataclasses.replace(files.provenance, note=note),
            fingerprint=fingerprint("folder", shape, files.labels.tolist(), files.digest),
        )
        self.original_info = dataclasses.replace(
            self._info,
            image_shape=files.own_shape,
            provenance=files.provenance,
            fingerprint=fingerprint("originals", files.own_shape, files.labels.tolist(), files.digest),
        )

    @property
    def info(self) -> DatasetInfo:
        """The geometry and identity of the dataset."""
        return self._info

    def sample(self, index: int) -> tuple[Image, int]:
        """Return sample `index` as (uint8 [H, W, 3], label)."""
        content = self._read(index)
        pixels = decode_rgb(content, self.locate(index), self._info.image_shape[:2])
        return pixels, int(self._found.labels[index])

    def original(self, index: int, *, decode: bool = True) -> tuple[bytes, int]:
        """Return the bytes of file `index`, which decodes if that was to be checked, and its label."""
        content = checked(self._read(index), self.locate(index), decode=decode)
        return content, int(self._found.labels[index])

    def locate(self, index: int) -> str:
        """Return the path of file `index`."""
        return str(self._path(index))

    def _read(self, index: int) -> bytes:
        check_index(index, self._info.count)
        known = self._found.unreadable.get(index)
        if known is not None:
            raise type(known)(known.what, where=known.where, hint=known.hint)
        return read_file(self._path(index), most_bytes=images.MOST_FILE_BYTES)

    def _path(self, index: int) -> Path:
        return self._found.root / self._found.paths[index]


class Originals(Dataset):
    """The samples of a dataset as the bytes of their image files."""

    def __init__(self, source: Dataset, *, decode: bool = True) -> None:
        info = source.original_info
        if info is None:
            raise UsageError(
                "the codec 'original' stores image files as they are, and these samples "
                f"({source.info.provenance.source}) are no image files",
                where=source.info.name,
                hint="Use it with folder:PATH or with ImageNet's own files, or choose png or jpeg.",
            )
        self._source = source
        self._decode = decode
        self._info = info
        self.layout_note, self.skip_note = source.layout_note, source.skip_note
        self.thread_safe, self.decoded_before = source.thread_safe, source.decoded_before

    @property
    def info(self) -> DatasetInfo:
        """The geometry and identity of the image files."""
        return self._info

    def sample(self, index: int) -> tuple[Image, int]:
        """Refuse: the files are copied, not decoded."""
        raise NotImplementedError("image files are copied as they are")

    def original(self, index: int, *, decode: bool = True) -> tuple[bytes, int]:
        """Return the bytes of the image file of sample `index`, and its label."""
        return self._source.original(index, decode=decode and self._decode)

    def locate(self, index: int) -> str:
        """Return the file of sample `index`."""
        return self._source.locate(index)
