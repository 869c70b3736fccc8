"""Image files in class folders, as other tools read them: one file a sample."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from storebench.codecs import Payload, get_codec
from storebench.errors import CorruptStoreError
from storebench.formats.base import (
    Batch,
    Format,
    FormatInfo,
    Indices,
    Reader,
    ReaderInfo,
    Traits,
    Usage,
    Writer,
)
from storebench.formats.support import (
    batch_bytes,
    checked,
    damaged,
    load_labels,
    save_array,
    sync_folder,
)
from storebench.manifest import Manifest, StoreSpec

IMAGES = "images"
LABELS_FILE = "labels.npy"


def class_folders(class_names: Sequence[str]) -> list[str]:
    """Return a folder name for each class: its name with safe characters only, and unlike all others."""
    folders: list[str] = []
    for label, name in enumerate(class_names):
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".") or "_"
        while safe in folders:
            safe += f"-{label}"
        folders.append(safe)
    return folders


class FilesWriter(Writer):
    """Write each payload to a file of its own."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels: list[int] = []
        self._suffix = get_codec(spec.codec).suffix
        self._folders = [folder / IMAGES / name for name in class_folders(spec.dataset.class_names)]
        for path in self._folders:
            path.mkdir(parents=True)

    def append(self, payload: Payload, label: int) -> None:
        """Write one file."""
        path = self._folders[label] / f"{len(self._labels):08d}{self._suffix}"
        with path.open("xb", buffering=0) as file:
            written = file.write(payload)
            while written < len(payload):
                # A short write is how a disk that fills up shows first; the next one says why.
                written += file.write(memoryview(payload)[written:])
        self._labels.append(label)

    def close(self) -> None:
        """Write the labels and sync all files."""
        save_array(self.folder / LABELS_FILE, np.asarray(self._labels, dtype=np.int64))
        sync_folder(self.folder)


class FilesReader(Reader):
    """Open, read and close one file a sample, in Python, one after the other.

    Which class folder a sample lies in comes from ``labels.npy``, so that
    opening does not walk the folders of a million files; a store without it is
    refused as damaged.
    """

    def __init__(self, store: Path, manifest: Manifest, options: Mapping[str, str]) -> None:
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
        self._spare = bytearray(1)

    def fetch(self, indices: Indices) -> list[bytes]:
        """Return the files' bytes."""
        return [self._read(number) for number in checked(indices, self.manifest.count)]

    def fetch_into(self, indices: Indices, out: Batch) -> int:
        """Read each file straight into its image of the batch."""
        numbers = checked(indices, self.manifest.count)
        batch = batch_bytes(out, len(numbers))
        size = self.manifest.dataset.image_bytes
        for row, number in enumerate(numbers):
            self._read_into(number, batch[row * size : (row + 1) * size])
        return len(batch)

    def close(self) -> None:
        """Nothing stays open between samples."""

    def path(self, number: int) -> str:
        """Return the file of sample `number`."""
        return f"{self._prefixes[self._label_list[number]]}{number:08d}{self._suffix}"

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
            # The spare byte shows a file that is too long without asking for its size.
            got = os.readv(handle, (row, self._spare))
        finally:
            os.close(handle)
        if got != len(row):
            raise damaged(f"{got} bytes where {len(row)} were expected", Path(path))

    def _missing(self, path: str, error: OSError) -> CorruptStoreError:
        return damaged(f"the file does not open ({error.strerror})", Path(path))


class FilesFormat(Format):
    """One file an image."""

    info = FormatInfo(
        name="files",
        summary="one file an image in class folders, labels beside them",
        default_codec="png",
        default_reader="get",
        traits=Traits(fork_safe=True, releases_gil=True, note="most of PNG's time is decoding, not reading"),
        usage=Usage.NEWCOMER,
        expert_would="An expert would pack the images into a few large files, so that no file is opened per sample.",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        """Return the plain way in, and the one with threads."""
        from storebench.formats.files_threads import FilesThreadsReader

        threads = Traits(releases_gil=True, note="decoding is done by the reader's own threads")
        return {
            "get": ReaderInfo(
                reader=FilesReader,
                summary="open, read, close; one sample at a time",
                usage=Usage.NEWCOMER,
                expert_would="An expert would decode in several threads, with a faster decoder than Pillow "
                "and without Pillow's intermediate copies.",
            ),
            "threads": ReaderInfo(
                reader=FilesThreadsReader,
                summary="open, read and decode in threads",
                traits=threads,
                usage=Usage.EXPERT,
                expert_would="An expert would replace Pillow by a decoder that writes straight into the batch.",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        """Return the writer of image files."""
        return FilesWriter(folder, spec)

    def locate(self, store: Path, manifest: Manifest, index: int) -> Path:
        """Return the file of sample `index`."""
        with FilesReader(store, manifest, {}) as reader:
            return Path(reader.path(index))
