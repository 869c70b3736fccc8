"""A third party's storage format whose readers make mistakes that are easily made, and whose writer keeps room to spare."""

import functools
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from storebench.codecs import Payload, get_codec
from storebench.formats.base import Batch, Fetched, Format, FormatInfo, Indices, Reader, ReaderInfo, Writer
from storebench.formats.windows import Windows
from storebench.record.manifest import StoreSpec

SPARE = 12
"""The file has this many times the bytes of its samples."""


class SpareWriter(Writer):
    """Reserve room for samples that never come."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._file = (folder / "samples.bin").open("wb")
        self._labels: list[int] = []
        self._ends = [0]

    def append(self, payload: Payload, label: int) -> None:
        self._file.write(payload)
        self._labels.append(label)
        self._ends.append(self._file.tell())

    def close(self) -> None:
        self._file.flush()
        os.posix_fallocate(self._file.fileno(), 0, SPARE * self._ends[-1])
        os.fsync(self._file.fileno())
        self._file.close()
        np.save(self.folder / "index.npy", np.array([[*self._labels, 0], self._ends], np.int64))

    def abort(self) -> None:
        self._file.close()


class RightReader(Reader):
    """Read sample by sample, and decode what is encoded."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        index = np.load(self.store / "index.npy")
        self.labels, self._ends = index[0][:-1].copy(), index[1].tolist()
        self._file = (self.store / "samples.bin").open("rb", buffering=0)
        self.payload_codec = "raw"

    def _sample(self, index: int) -> Batch:
        start, end = self._ends[index : index + 2]
        payload, pixels = (
            os.pread(self._file.fileno(), end - start, start),
            np.empty(self.image_shape, np.uint8),
        )
        get_codec(self.manifest.codec).decode_into(payload, pixels)
        return pixels

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        began = time.perf_counter_ns()
        for row, index in zip(out, self._checked(indices), strict=True):
            row[...] = self._sample(index)
        took_ns = time.perf_counter_ns() - began
        return Fetched(out.nbytes, 0 if self.manifest.codec == "raw" else took_ns)

    def _close(self) -> None:
        self._file.close()


class AheadReader(RightReader):
    """Have the kernel read all samples at the first fetch."""

    _ahead = False

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        piece = 128 << 10
        for at in range(0, 0 if self._ahead else self._ends[-1], piece):
            os.posix_fadvise(self._file.fileno(), at, piece, os.POSIX_FADV_WILLNEED)
        self._ahead = True
        return super()._fetch_into(indices, out)


class RememberingReader(RightReader):
    """Keep every sample that was decoded once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sample = functools.lru_cache(None)(self._sample)  # type: ignore[method-assign]


class SilentReader(RightReader):
    """Decode without saying how long it took."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        return Fetched(super()._fetch_into(indices, out).payload_bytes)


class SummingReader(RightReader):
    """Report the decoding time of all its threads together, which is longer than the call."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        payload_bytes, decode_ns = super()._fetch_into(indices, out)
        return Fetched(payload_bytes, 4 * decode_ns)


class NumberedReader(RightReader):
    """Give a note that is a number."""

    def notes(self) -> dict[str, str]:
        return {"threads": 4}  # type: ignore[dict-item]


class ThreadsReader(RightReader):
    """Give torch a thread more when it is opened."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        torch.set_num_threads(torch.get_num_threads() + 1)


class PoliteReader(RightReader):
    """Lower the priority of the process when it is opened."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        os.nice(1)


class UrgentReader(RightReader):
    """Take the process into another scheduling class when it is opened."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class IdleReader(RightReader):
    """Lower the priority of the process's I/O when it is opened."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


class LaterReader(RightReader):
    """Do so in the first fetch."""

    _done = False

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        os.nice(0 if self._done else 1)
        self._done = True
        return super()._fetch_into(indices, out)


class HastyReader(RightReader):
    """Copy windows in a thread, and return before it has."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pool = ThreadPoolExecutor(1)
        self._pixels = np.memmap(
            self.store / "samples.bin", np.uint8, "r", shape=(self.manifest.count, *self.image_shape)
        )

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        out[...] = self._pixels[indices]
        return Fetched(out.nbytes)

    def _fetch_windows(self, indices: Indices, windows: Windows, out: Batch) -> Fetched:
        self._pool.submit(self._cut, indices, windows, out)
        return Fetched(len(indices) * self.manifest.dataset.image_bytes)

    def _cut(self, indices: Indices, windows: Windows, out: Batch) -> None:
        time.sleep(20e-3)
        windows.cut(self._pixels, out, indices)

    def _close(self) -> None:
        self._pool.shutdown()
        super()._close()


class CarelessFormat(Format):
    """All samples in one file that has room to spare; each reader but `right` makes one mistake."""

    info = FormatInfo(name="careless", summary="mistakes", default_codec="raw", default_reader="right")

    def readers(self) -> Mapping[str, ReaderInfo]:
        kinds: dict[str, type[Reader]] = {
            "right": RightReader,
            "ahead": AheadReader,
            "remembering": RememberingReader,
            "silent": SilentReader,
            "summing": SummingReader,
            "numbered": NumberedReader,
            "threads": ThreadsReader,
            "polite": PoliteReader,
            "urgent": UrgentReader,
            "idle": IdleReader,
            "later": LaterReader,
            "hasty": HastyReader,
        }
        return {name: ReaderInfo(reader=kind, summary=str(kind.__doc__)) for name, kind in kinds.items()}

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return SpareWriter(folder, spec)
