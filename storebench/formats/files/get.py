"""Read image files sequentially: open, read, close."""

import os
from pathlib import Path

from storebench.arrays import Indices
from storebench.codecs import any_size, get_codec
from storebench.datasets.images import SUFFIXES
from storebench.errors import CorruptStoreError
from storebench.formats.arrays import Batch
from storebench.formats.base import Fetched, Reader
from storebench.formats.common import damaged, load_integers, load_labels
from storebench.formats.files.write import IMAGES, LABELS_FILE, SUFFIXES_FILE, class_folders
from storebench.formats.options import Options
from storebench.manifest import Manifest


class FilesReader(Reader):
    """Open, read and close one file per sample, in Python, sequentially. No file stays open in between."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.labels = load_labels(store / LABELS_FILE, manifest.count)
        folders = class_folders(manifest.dataset.class_names)
        if manifest.count and not 0 <= self.labels.min() <= self.labels.max() < len(folders):
            raise damaged("a label has no class", store / LABELS_FILE)
        if not (store / IMAGES).is_dir():
            raise damaged("the folder of images is missing", store / IMAGES)
        # The path is in pieces that are joined in the loop: a list of all paths would be 100 MB for ImageNet.
        self._prefixes = [os.path.join(store.absolute(), IMAGES, name, "") for name in folders]  # noqa: PTH118 - keeps the final slash
        self._label_list: list[int] = self.labels.tolist()
        self._suffix = get_codec(manifest.codec).suffix
        self._suffixes = _load_suffixes(store, manifest.count) if any_size(manifest.codec) else None
        self._spare = bytearray(1)

    def _fetch(self, indices: Indices) -> list[bytes]:
        return [self._read(number) for number in self._checked(indices)]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        numbers = self._checked(indices)
        batch = out.reshape(-1).data
        size = self.manifest.dataset.image_bytes
        for row, number in enumerate(numbers):
            self._read_into(number, batch[row * size : (row + 1) * size])
        return Fetched(len(batch))

    def path(self, number: int) -> str:
        """Return the file of sample `number`."""
        suffix = self._suffix if self._suffixes is None else SUFFIXES[self._suffixes[number]]
        return f"{self._prefixes[self._label_list[number]]}{number:08d}{suffix}"

    def _read(self, number: int) -> bytes:
        path = self.path(number)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._missing(path, error) from error
        try:
            size = os.fstat(handle).st_size
            payload = os.read(handle, size)
        finally:
            os.close(handle)
        if len(payload) != size or not size:
            raise damaged(f"{len(payload)} bytes could be read of {size}", Path(path))
        return payload

    def _read_into(self, number: int, row: memoryview) -> None:
        path = self.path(number)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._missing(path, error) from error
        try:
            # The extra byte reveals a file that is too long, without asking for its size.
            got = os.readv(handle, (row, self._spare))
        finally:
            os.close(handle)
        if got != len(row):
            raise damaged(f"{got} bytes where {len(row)} were expected", Path(path))

    def _missing(self, path: str, error: OSError) -> CorruptStoreError:
        return damaged(f"the file does not open ({error.strerror})", Path(path))


def _load_suffixes(store: Path, count: int) -> list[int]:
    """Return the number of each sample's file extension, where samples are image files as they are."""
    path = store / SUFFIXES_FILE
    numbers = load_integers(path)
    if numbers.shape != (count,) or (count and not 0 <= numbers.min() <= numbers.max() < len(SUFFIXES)):
        raise damaged("the file extensions are not those of the samples", path)
    suffixes: list[int] = numbers.tolist()
    return suffixes
