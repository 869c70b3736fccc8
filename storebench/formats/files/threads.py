"""Image files read by a pool of threads, which open, read and decode several at a time, and read ahead."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from storebench.arrays import Indices
from storebench.codecs import any_size, get_codec
from storebench.errors import CorruptDataError
from storebench.formats.arrays import Batch
from storebench.formats.base import Fetched
from storebench.formats.common import damaged
from storebench.formats.files.get import FilesReader
from storebench.formats.options import AUTO, Options, integer
from storebench.manifest import Manifest

MOST_THREADS = 1024
MOST_AHEAD_FILES = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FilesThreadsOptions(Options):
    """Options of ``files:threads``."""

    threads: int | None = integer(
        default=None,
        least=1,
        most=MOST_THREADS,
        none=AUTO,
        meaning="files that are read and decoded at the same time; auto is the cell's threads, else the cores that we may use",
    )
    ahead: int = integer(
        default=512,
        least=0,
        most=MOST_AHEAD_FILES,
        meaning="files ahead of the loop that the kernel is asked to read",
    )


class FilesThreadsReader(FilesReader):
    """Decode in threads, straight into the batch: Pillow releases the GIL while it decodes."""

    options_type = FilesThreadsOptions
    options: FilesThreadsOptions

    def __init__(self, store: Path, manifest: Manifest, options: FilesThreadsOptions) -> None:
        super().__init__(store, manifest, options)
        self._threads = options.threads or len(os.sched_getaffinity(0))
        self._codec = get_codec(manifest.codec)
        if not any_size(manifest.codec):
            self.payload_codec = "raw"
        self._pool = ThreadPoolExecutor(self._threads, "storebench-files")
        self._ahead: _Ahead | None = None

    @classmethod
    def ahead_bytes(cls, options: Options, manifest: Manifest) -> int:
        """Return the payload bytes of the files that are read ahead of the loop."""
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
        if self._ahead is not None:
            self._ahead.served(len(numbers))
        return payloads

    def spread(self, work: Callable[[int], None], count: int) -> None:
        """Share the calls out among the threads."""
        parts = min(self._threads, count)

        def some(part: int) -> None:
            for row in range(part, count, parts):
                work(row)

        _results([self._pool.submit(some, part) for part in range(parts)])

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        numbers = self._checked(indices)
        parts = min(self._threads, len(numbers))
        jobs = [
            self._pool.submit(self._some, numbers[part::parts], out[part::parts]) for part in range(parts)
        ]
        spans = _results(jobs)
        if self._ahead is not None:
            self._ahead.served(len(numbers))
        # The threads decode at the same time: the mean of their times is the share of this call's wall time.
        return Fetched(payload_bytes=out.nbytes, decode_ns=sum(spans) // parts)

    def _plan(self, batches: Sequence[Indices]) -> None:
        self._stop()
        if batches and self.options.ahead:
            numbers = np.concatenate(list(batches))
            self._ahead = _Ahead(self, self._checked(numbers), self.options.ahead)

    def notes(self) -> dict[str, str]:
        """Return the number of threads, as a note."""
        return {"threads": str(self._threads), "asked ahead": f"{self.options.ahead} files"}

    def _close(self) -> None:
        self._stop()
        self._pool.shutdown()

    def ask_for(self, sample: int) -> None:
        """Start reading one file into the page cache; an error is left to the read that follows."""
        with contextlib.suppress(OSError):
            handle = os.open(self.path(sample), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(handle)

    def _some(self, numbers: list[int], images: Batch) -> int:
        """Read and decode files sequentially; return the nanoseconds of decoding."""
        decoding = 0
        for sample, image in zip(numbers, images, strict=True):
            payload = self._read(sample)
            start = time.perf_counter_ns()
            try:
                self._codec.decode_into(payload, image)
            except CorruptDataError as error:
                raise damaged(f"sample {sample}: {error.what}", Path(self.path(sample))) from error
            decoding += time.perf_counter_ns() - start
        return decoding

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None


def _results(jobs: Sequence[Future[T]]) -> list[T]:
    """Return the results of all jobs once every one has ended: after an error, none may still write into a batch."""
    wait(jobs)
    return [job.result() for job in jobs]


class _Ahead:
    """A thread that reads files ahead in the order of the plan, a bounded number beyond the served ones."""

    def __init__(self, reader: FilesThreadsReader, numbers: list[int], most: int) -> None:
        self._reader = reader
        self._numbers = numbers
        self._room = threading.Semaphore(most)
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="storebench-files-ahead", daemon=True)
        self._thread.start()

    def served(self, count: int) -> None:
        """Allow `count` more files."""
        self._room.release(max(1, count))

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stopped = True
        self._room.release()
        self._thread.join()

    def _work(self) -> None:
        for sample in self._numbers:
            self._room.acquire()
            if self._stopped:
                return
            self._reader.ask_for(sample)
