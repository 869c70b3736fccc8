"""A third party's storage format with a planted fault in each of its readers.

The fixture `plugin` installs it as a package of its own with an entry point,
so storebench finds it as it would find anybody's.
"""

import errno
import mmap
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from storebench.codecs import Payload
from storebench.formats.base import (
    Batch,
    Fetched,
    Format,
    FormatInfo,
    Indices,
    Reader,
    ReaderInfo,
    Writer,
)
from storebench.formats.options import Options
from storebench.loading.order import epoch_order
from storebench.record.manifest import Manifest, StoreSpec
from storebench.testing.doubles import slow, wrong_pixels

DEATH_S = 0.5
SLEEP_S = 0.05
BURN_S = 0.02


class FlatWriter(Writer):
    """One file of pixels, one of labels."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._file = (folder / "pixels.bin").open("wb")
        self._labels: list[int] = []

    def append(self, payload: Payload, label: int) -> None:
        self._file.write(payload)
        self._labels.append(label)

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
        np.save(self.folder / "labels.npy", np.asarray(self._labels, dtype=np.int64))

    def abort(self) -> None:
        self._file.close()


class FlatReader(Reader):
    """Read sample by sample, rightly."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.labels = np.load(store / "labels.npy")
        self._file = (store / "pixels.bin").open("rb", buffering=0)
        self._size = manifest.dataset.image_bytes

    def _fetch(self, indices: Indices) -> list[bytes]:
        handle = self._file.fileno()
        return [os.pread(handle, self._size, int(index) * self._size) for index in indices]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        for row, payload in enumerate(self._fetch(indices)):
            out[row] = np.frombuffer(payload, np.uint8).reshape(self.image_shape)
        return Fetched(out.nbytes)

    def _close(self) -> None:
        self._file.close()


SlowReader = slow(seconds=SLEEP_S)(FlatReader)
WrongPixelReader = wrong_pixels(7)(FlatReader)


class SwappedReader(FlatReader):
    """Serve sample 3 in the place of sample 5, so 3 comes twice and 5 never."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        return super()._fetch_into(np.where(indices == 5, 3, indices), out)


class KilledReader(FlatReader):
    """Kill the process, as the kernel kills who takes too much memory."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        os.kill(os.getpid(), signal.SIGKILL)
        return super()._fetch_into(indices, out)


class BrokenReader(FlatReader):
    """Have a bug."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        raise ZeroDivisionError("a bug in somebody's reader")


class MoodyReader(FlatReader):
    """Have a bug for as long as the environment says so."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        if "PLANTED_MOOD" in os.environ:
            raise ZeroDivisionError("a bug that is mended later")
        return super()._fetch_into(indices, out)


class PatientReader(FlatReader):
    """Take a minute for each batch, and say by a file beside the store that it has begun."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        (self.store.parent / f"begun-{os.getpid()}").touch()
        time.sleep(60)
        return super()._fetch_into(indices, out)


class FaultyRankReader(FlatReader):
    """Have a fault on one rank of a job: PLANTED_RANK_FAULT is "RANK:FAULT"."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        rank, _, fault = os.environ.get("PLANTED_RANK_FAULT", "").partition(":")
        if fault and rank == os.environ.get("RANK"):
            (self.store.parent / f"begun-{os.getpid()}").touch()
            if fault == "bug":
                raise ZeroDivisionError("a bug in somebody's reader")
            if fault == "hang":
                time.sleep(60)
            os.kill(os.getpid(), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
        return super()._fetch_into(indices, out)


class FaultyGameReader(FaultyRankReader):
    """Have that fault only in the second reader of a process, with which a tournament scores networks."""

    opened = 0

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        type(self).opened += 1
        self._fetch_samples = (FlatReader if self.opened == 1 else FaultyRankReader)._fetch_into

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        return self._fetch_samples(self, indices, out)


class MortalReader(FlatReader):
    """Serve rightly, and kill the process while the loop is busy with what was served."""

    doomed = False

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        if not self.doomed:
            self.doomed = True
            threading.Timer(DEATH_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return super()._fetch_into(indices, out)


class HungryReader(FlatReader):
    """Take more memory than there is."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        self._eaten = [np.ones(64 << 20, np.uint8) for _ in range(64)]
        return super()._fetch_into(indices, out)


class FullReader(FlatReader):
    """Find the disk full, as whoever writes to one does."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.store))


class BurningReader(FlatReader):
    """Use 20 ms of processor time for each fetch, in a thread of its own."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        thread = threading.Thread(target=self._burn)
        thread.start()
        thread.join()
        return super()._fetch_into(indices, out)

    def _burn(self) -> None:
        while time.thread_time() < BURN_S:
            pass


class TimedFaultReader(FlatReader):
    """Tell the timed pass from the replay: each pass begins with a plan, and the timed one comes first."""

    _passes = 0

    def _plan(self, batches: Sequence[Indices]) -> None:
        self._passes += 1

    @property
    def timed(self) -> bool:
        return self._passes % 2 == 1


class UncopiedReader(TimedFaultReader):
    """Return without copying while it is timed: the buffer keeps its old content."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        return Fetched(out.nbytes) if self.timed else super()._fetch_into(indices, out)


class ConstantReader(TimedFaultReader):
    """Serve sample 0 throughout while it is timed."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        return super()._fetch_into(np.zeros_like(indices) if self.timed else indices, out)


class YesterdayReader(TimedFaultReader):
    """Give each batch the pixels of the one before while it is timed."""

    _before = np.zeros(1, np.int64)

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        wanted = np.resize(self._before, len(indices)) if self.timed else indices
        self._before = indices
        return super()._fetch_into(wanted, out)


class ColdReader(FlatReader):
    """Be wrong on the first read of each sample, and right afterwards."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self._seen: set[int] = set()

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        done = super()._fetch_into(indices, out)
        for row, index in enumerate(indices.tolist()):
            if index not in self._seen:
                out[row] = 255 - out[row]
        self._seen.update(indices.tolist())
        return done


class ShiftedReader(TimedFaultReader):
    """Shift the labels by one while it is timed; the pixels are right."""

    def _plan(self, batches: Sequence[Indices]) -> None:
        super()._plan(batches)
        right = np.load(self.store / "labels.npy")
        self.labels = np.roll(right, 1) if self.timed else right


class NeighbourReader(TimedFaultReader):
    """Serve the right pixels of the wrong samples while it is timed: each one's neighbour."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        return super()._fetch_into((indices + self.timed) % len(self.labels), out)


class SwappingReader(TimedFaultReader):
    """Swap the first two rows of each batch while it is timed."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        done = super()._fetch_into(indices, out)
        if self.timed and len(indices) > 1:
            out[[0, 1]] = out[[1, 0]]
        return done


class MutatingReader(FlatReader):
    """Serve sample 0 throughout, and change the indices that it was given so that they agree."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        indices[:] = 0
        return super()._fetch_into(indices, out)


class GreedyReader(FlatReader):
    """Have the kernel read the whole store ahead at the first fetch."""

    greedy = True

    def _fetch(self, indices: Indices) -> list[bytes]:
        handle, piece = self._file.fileno(), 128 << 10  # the kernel cuts longer requests short
        for at in range(0, os.fstat(handle).st_size if self.greedy else 0, piece):
            os.posix_fadvise(handle, at, piece, os.POSIX_FADV_WILLNEED)
        self.greedy = False
        return super()._fetch(indices)


class PastTheCacheReader(FlatReader):
    """Read past the page cache."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self._file.close()
        handle = os.open(store / "pixels.bin", os.O_RDONLY | os.O_DIRECT)
        self._file = os.fdopen(handle, "rb", buffering=0)
        self._room = mmap.mmap(-1, (self._size // 4096 + 2) * 4096)

    def _fetch(self, indices: Indices) -> list[bytes]:
        return [self._read(int(index) * self._size) for index in indices]

    def _read(self, at: int) -> bytes:
        start = at & -4096
        os.preadv(self._file.fileno(), [self._room], start)
        return self._room[at - start : at - start + self._size]


class PreloadReader(PastTheCacheReader):
    """Copy the whole store into memory of its own at the first fetch, past the page cache, and serve it from there."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self._copy: list[bytes] = []

    def _fetch(self, indices: Indices) -> list[bytes]:
        self._copy = self._copy or super()._fetch(np.arange(len(self.labels)))
        return [self._copy[int(index)] for index in indices]


class HoardReader(PreloadReader):
    """Copy the whole store into memory of its own when it is first opened, before any clock or limit applies."""

    copies: ClassVar[dict[Path, list[bytes]]] = {}

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        if store not in self.copies:
            self.copies[store] = PastTheCacheReader._fetch(self, np.arange(len(self.labels)))
        self._copy = self.copies[store]


class HeadStartReader(GreedyReader):
    """Copy the first quarter of epoch 0 when it is opened; have the rest read ahead once that is served."""

    HEAD_FRAC = 0.25

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        count = len(self.labels)
        first = epoch_order(count, seed=0, epoch=0)[: int(self.HEAD_FRAC * count)]
        source = PastTheCacheReader(store, manifest, options)
        self._head = dict(zip(first.tolist(), source._fetch(first), strict=True))
        source.close()

    def _fetch(self, indices: Indices) -> list[bytes]:
        if all(int(index) in self._head for index in indices):
            return [self._head[int(index)] for index in indices]
        return super()._fetch(indices)


class PlantedFormat(Format):
    """Raw pixels in one flat file; each reader but `flat` has one fault."""

    info = FormatInfo(
        name="planted", summary="a third party's format", default_codec="raw", default_reader="flat"
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        kinds: dict[str, type[Reader]] = {
            "flat": FlatReader,
            "slow": SlowReader,
            "wrong": WrongPixelReader,
            "swapped": SwappedReader,
            "killed": KilledReader,
            "broken": BrokenReader,
            "moody": MoodyReader,
            "patient": PatientReader,
            "burning": BurningReader,
            "faulty-rank": FaultyRankReader,
            "faulty-game": FaultyGameReader,
            "mortal": MortalReader,
            "hungry": HungryReader,
            "full": FullReader,
            "uncopied": UncopiedReader,
            "constant": ConstantReader,
            "yesterday": YesterdayReader,
            "cold": ColdReader,
            "shifted": ShiftedReader,
            "neighbour": NeighbourReader,
            "swapping": SwappingReader,
            "mutating": MutatingReader,
            "greedy": GreedyReader,
            "past-the-cache": PastTheCacheReader,
            "preload": PreloadReader,
            "hoard": HoardReader,
            "head-start": HeadStartReader,
        }
        return {name: ReaderInfo(reader=kind, summary=str(kind.__doc__)) for name, kind in kinds.items()}

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return FlatWriter(folder, spec)
