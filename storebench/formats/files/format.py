"""The format: image files in class folders, as other tools read them; their writer and readers."""

import array
import contextlib
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storebench.arrays import Indices
from storebench.codecs import Payload, any_size, get_codec
from storebench.datasets.images import SUFFIXES, suffix_of
from storebench.formats.base import Fetched, Format, FormatInfo, Reader, ReaderInfo, Writer
from storebench.formats.common import (
    damaged,
    decode_sample,
    load_integers,
    load_labels,
    save_array,
    sync_folder,
)
from storebench.formats.options import AUTO, Options, integer
from storebench.formats.reader import Traits
from storebench.formats.remote import Piece, RemoteReader
from storebench.formats.windows import Batch
from storebench.places.objects import Boto3Store
from storebench.probes.machine import usable_cores
from storebench.record.manifest import Manifest, StoreSpec

IMAGES = "images"
LABELS_FILE = "labels.npy"
SUFFIXES_FILE = "suffixes.npy"  # number of each sample's extension in `SUFFIXES`, for image files as they are


def class_folders(class_names: Sequence[str]) -> list[str]:
    """Return a folder name for each class: its name with safe characters only, and unique."""
    folders: list[str] = []
    for label, name in enumerate(class_names):
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".") or "_"
        while safe in folders:
            safe += f"-{label}"
        folders.append(safe)
    return folders


class FilesWriter(Writer):
    """Write each payload to a separate file."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels = array.array("q")
        self._suffix = None if any_size(spec.codec) else get_codec(spec.codec).suffix
        self._suffixes = bytearray()
        folders = [folder / IMAGES / name for name in class_folders(spec.dataset.class_names)]
        for path in folders:
            path.mkdir(parents=True)
        self._prefixes = [f"{path}/" for path in folders]

    def append(self, payload: Payload, label: int) -> None:
        suffix = self._suffix or suffix_of(bytes(payload[:12]))
        path = f"{self._prefixes[label]}{len(self._labels):08d}{suffix}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            written = os.write(handle, payload)
            while written < len(payload):
                # A disk that fills up first causes a short write; the next write reports the reason.
                written += os.write(handle, memoryview(payload)[written:])
        finally:
            os.close(handle)
        self._labels.append(label)
        if self._suffix is None:
            self._suffixes.append(SUFFIXES.index(suffix))

    def close(self) -> None:
        save_array(self.folder / LABELS_FILE, np.asarray(self._labels, dtype=np.int64))
        if self._suffix is None:
            save_array(self.folder / SUFFIXES_FILE, np.frombuffer(self._suffixes, np.uint8))
        sync_folder(self.folder)


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
        self._prefixes = [f"{store.absolute() / IMAGES / name}/" for name in folders]
        self._suffix = get_codec(manifest.codec).suffix
        self._suffixes: list[int] | None = None
        if any_size(manifest.codec):
            numbers = load_integers(store / SUFFIXES_FILE)
            if numbers.shape != (manifest.count,) or not np.isin(numbers, range(len(SUFFIXES))).all():
                raise damaged("the file extensions are not those of the samples", store / SUFFIXES_FILE)
            self._suffixes = numbers.tolist()
        self._spare = bytearray(1)

    def _fetch(self, indices: Indices) -> list[bytes]:
        return [self._read(number) for number in self._checked(indices)]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        for number, row in zip(self._checked(indices), out.reshape(len(out), -1), strict=True):
            path, handle = self._open(number)
            try:
                # The extra byte reveals a file that is too long, without asking for its size.
                got = os.readv(handle, (row.data, self._spare))
            finally:
                os.close(handle)
            if got != len(row):
                raise damaged(f"{got} bytes where {len(row)} were expected", Path(path))
        return Fetched(out.nbytes)

    def path(self, number: int) -> str:
        suffix = self._suffix if self._suffixes is None else SUFFIXES[self._suffixes[number]]
        return f"{self._prefixes[self.labels.item(number)]}{number:08d}{suffix}"

    def _open(self, number: int) -> tuple[str, int]:
        path = self.path(number)
        try:
            return path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise damaged(f"the file does not open ({error.strerror})", Path(path)) from error

    def _read(self, number: int) -> bytes:
        path, handle = self._open(number)
        try:
            size = os.fstat(handle).st_size
            payload = os.read(handle, size)
        finally:
            os.close(handle)
        if len(payload) != size or not size:
            raise damaged(f"{len(payload)} bytes could be read of {size}", Path(path))
        return payload


@dataclass(frozen=True, kw_only=True)
class FilesThreadsOptions(Options):
    """Options of ``files:threads``."""

    threads: int | None = integer(
        default=None,
        least=1,
        most=1024,
        none=AUTO,
        meaning="files that are read and decoded at the same time; auto is the cell's threads, else the usable cores",
    )
    ahead: int = integer(
        default=512, least=0, most=1 << 20, meaning="files ahead of the loop that the kernel is asked to read"
    )


class FilesThreadsReader(FilesReader):
    """Decode in threads, straight into the batch: Pillow releases the GIL while it decodes."""

    options_type = FilesThreadsOptions
    options: FilesThreadsOptions

    def __init__(self, store: Path, manifest: Manifest, options: FilesThreadsOptions) -> None:
        super().__init__(store, manifest, options)
        self._threads = options.threads or usable_cores()
        self._codec = get_codec(manifest.codec)
        if not any_size(manifest.codec):
            self.payload_codec = "raw"
        self._pool = ThreadPoolExecutor(self._threads, "storebench-files")
        self._asking = ThreadPoolExecutor(1, "storebench-files-ahead")
        self._planned: Iterator[int] = iter(())

    @classmethod
    def ahead_bytes(cls, options: Options, manifest: Manifest) -> int:
        assert isinstance(options, FilesThreadsOptions)
        return options.ahead * manifest.payload_bytes // max(1, manifest.count)

    def _fetch(self, indices: Indices) -> list[bytes]:
        if self.payload_codec == "raw":
            return self._raw_payloads(indices)
        numbers = self._checked(indices)
        payloads = [b""] * len(numbers)

        def read(row: int) -> None:
            payloads[row] = self._read(numbers[row])

        self.spread(read, len(numbers))
        self._ask_ahead(len(numbers))
        return payloads

    def spread(self, work: Callable[[int], None], count: int) -> None:
        parts = min(self._threads, count)

        def some(part: int) -> None:
            for row in range(part, count, parts):
                work(row)

        jobs = [self._pool.submit(some, part) for part in range(parts)]
        wait(jobs)  # every one: after an error, none may still write into a batch
        for job in jobs:
            job.result()

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        numbers = self._checked(indices)
        spent = [0] * len(numbers)

        def make(row: int) -> None:
            payload = self._read(numbers[row])
            start = time.perf_counter_ns()
            decode_sample(self._codec, payload, out[row], numbers[row], self.path(numbers[row]))
            spent[row] = time.perf_counter_ns() - start

        self.spread(make, len(numbers))
        self._ask_ahead(len(numbers))
        # The threads decode at the same time: the mean of their times is the share of this call's wall time.
        return Fetched(payload_bytes=out.nbytes, decode_ns=sum(spent) // min(self._threads, len(numbers)))

    def _plan(self, batches: Sequence[Indices]) -> None:
        numbers = np.concatenate(list(batches)) if batches and self.options.ahead else np.empty(0, np.int64)
        self._planned = iter(self._checked(numbers))
        self._ask_ahead(self.options.ahead)

    def _ask_ahead(self, count: int) -> None:
        """Let a thread ask the kernel for the next files of the plan."""
        if numbers := list(itertools.islice(self._planned, count)):
            self._asking.submit(self._advise, numbers)

    def _advise(self, numbers: list[int]) -> None:
        for number in numbers:
            with contextlib.suppress(OSError):  # left to the read that follows
                handle = os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(handle)

    def notes(self) -> dict[str, str]:
        return {"threads": str(self._threads), "asked ahead": f"{self.options.ahead} files"}

    def _close(self) -> None:
        self._asking.shutdown(cancel_futures=True)
        self._pool.shutdown()


class ObjectsReader(RemoteReader):
    """One object per image file, requested by its name."""

    def _open_index(self) -> None:
        with FilesReader(self.store, self.manifest, Options()) as files:
            self._files, self.labels = files, files.labels

    def _piece(self, number: int) -> Piece:
        size = self.manifest.dataset.image_bytes if self.payload_codec == "raw" else 0
        return Piece(os.path.relpath(self._files.path(number), self.store.absolute()), length=size)


class Boto3Reader(ObjectsReader):
    """The same requests by boto3, from as many threads."""

    def _client(self, url: str) -> Boto3Store:
        return Boto3Store(url, self.options.inflight)


class FilesFormat(Format):
    """One file per image."""

    info = FormatInfo(
        name="files",
        summary="one file per image in class folders, labels beside them",
        default_codec="png",
        default_reader="get",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {
            "get": ReaderInfo(
                reader=FilesReader,
                summary="open, read, close; one sample at a time",
                note="most of PNG's time is decoding, not reading",
            ),
            "threads": ReaderInfo(
                reader=FilesThreadsReader,
                summary="open, read and decode in threads",
                note="decoding is done by the reader's own threads",
            ),
            "objects": ReaderInfo(
                reader=ObjectsReader,
                summary="one request per image to an object store, several in flight",
                traits=Traits(remote=True, served=True, forks=False),
                note="needs --place s3:URL",
            ),
            "boto3": ReaderInfo(
                reader=Boto3Reader,
                summary="the same by boto3, in one thread per request in flight",
                traits=Traits(remote=True, served=True, forks=False),
                note="needs --place s3:URL; one process is the limit long before most servers are",
            ),
        }

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return FilesWriter(folder, spec)

    def locate(self, store: Path, manifest: Manifest, index: int) -> Path:
        with FilesReader(store, manifest, Options()) as reader:
            return Path(reader.path(index))
