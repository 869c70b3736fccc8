"""Image files and their labels: what a scan finds out about them, and the datasets that serve them."""

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storebench.arrays import ImageShape, ImageSize
from storebench.datasets import images
from storebench.datasets.base import Dataset, DatasetInfo, Image, Provenance
from storebench.datasets.sources import (
    SIZE,
    Statuses,
    check_index,
    fingerprint,
    names_digest,
    paths_of,
    read_file,
    statuses,
)
from storebench.errors import UsageError
from storebench.settings.words import Split
from storebench.system.reading import open_regular


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
    rows: Statuses  # of the files, before they were read


def look_at(
    root: Path, files: Sequence[tuple[str, int]], class_names: tuple[str, ...], provenance: Provenance
) -> FoundFiles:
    """Look at image files: their statuses, and the headers of those whose size matters."""
    paths = [path for path, _ in files]
    rows = statuses(paths_of(root, paths))

    def start(index: int, most: int) -> bytes:
        with open_regular(root / paths[index]) as stream:
            return stream.read(most)

    digest = names_digest(root, paths, rows)
    headers = images.probed_headers(start, len(paths))
    if any(header.deep for header in headers):
        provenance = provenance.noted(images.DEPTH_RULE)
    return FoundFiles(
        root=root,
        paths=paths,
        labels=np.array([label for _, label in files], dtype=np.int64),
        class_names=class_names,
        provenance=provenance,
        own_shape=images.common_small_shape(start, len(paths)) or images.square(None),
        sizes=images.sizes_of(headers),
        digest=digest,
        rows=rows,
    )


class ImageFiles(Dataset):
    """Serve image files; a subclass says where each is, and reads it."""

    thread_safe = True
    labels: npt.NDArray[np.int64]

    def describe(
        self, kind: str, files: DatasetInfo, sizes: Sequence[ImageSize], side: int | None, *identity: object
    ) -> None:
        """Set the geometry and identity of the samples, from those of the files as they are."""
        shape = files.image_shape if side is None else images.square(side)
        self.resize_note = images.change_note(sizes, shape)
        self._info = dataclasses.replace(
            files,
            image_shape=shape,
            provenance=files.provenance.noted(self.resize_note),
            fingerprint=fingerprint(kind, shape, *identity),
        )
        digest = fingerprint("originals", files.image_shape, *identity)
        self.original_info = dataclasses.replace(files, fingerprint=digest)

    def sample(self, index: int) -> tuple[Image, int]:
        check_index(index, self._info.count)
        pixels = images.decode_rgb(self._read(index), self.locate(index), self._info.image_shape[:2])
        return pixels, int(self.labels[index])

    def original(self, index: int) -> tuple[bytes, int]:
        check_index(index, self._info.count)
        content = images.checked(self._read(index), self.locate(index))
        return content, int(self.labels[index])

    @abstractmethod
    def _read(self, index: int) -> bytes: ...


class FileDataset(ImageFiles):
    """Serve files of a folder, in the order in which they were found."""

    def __init__(self, name: str, split: Split, files: FoundFiles, image_size: int | None = None) -> None:
        self._found = files
        self.labels = files.labels
        self.layout_note = files.provenance.note
        info = DatasetInfo(
            name=name,
            split=split,
            count=len(files.paths),
            image_shape=files.own_shape,
            class_names=files.class_names,
            provenance=files.provenance,
            fingerprint="",
        )
        self.describe("folder", info, files.sizes, image_size, files.labels.tolist(), files.digest)

    def name(self, index: int) -> str:
        return self._found.paths[index]

    def locate(self, index: int) -> str:
        return str(self._found.root / self._found.paths[index])

    def file_sizes(self) -> npt.NDArray[np.int64]:
        return self._found.rows[:, SIZE].astype(np.int64)

    def _read(self, index: int) -> bytes:
        return read_file(Path(self.locate(index)), most_bytes=images.MOST_FILE_BYTES)


class Originals(Dataset):
    """The samples of a dataset as the bytes of their image files."""

    def __init__(self, source: Dataset) -> None:
        info = source.original_info
        if info is None:
            raise UsageError(
                "the codec 'original' stores image files as they are, and these samples "
                f"({source.info.provenance.source}) are no image files",
                where=source.info.name,
                hint="Use it with folder:PATH or with ImageNet's own files, or choose png or jpeg.",
            )
        self.source = source
        self._info = info
        self.layout_note, self.skip_note = source.layout_note, source.skip_note
        self.thread_safe = source.thread_safe

    def sample(self, index: int) -> tuple[Image, int]:
        raise NotImplementedError("image files are copied as they are")

    def original(self, index: int) -> tuple[bytes, int]:
        return self.source.original(index)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def locate(self, index: int) -> str:
        return self.source.locate(index)

    def file_sizes(self) -> npt.NDArray[np.int64] | None:
        return self.source.file_sizes()
