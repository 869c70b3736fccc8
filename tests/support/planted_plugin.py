"""A third party's storage format whose readers make mistakes, or note what was asked of them.

The fixture `plugin` installs it as a package of its own with an entry point, so storebench finds it as it would find
anybody's. The tests of loaders register `OddFormat` in their own process.
"""

import errno
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from storebench.codecs import Payload, get_codec
from storebench.formats.base import (
    Batch,
    Fetched,
    Format,
    FormatInfo,
    Indices,
    Reader,
    ReaderInfo,
    Traits,
    Writer,
)
from storebench.formats.options import Options
from storebench.formats.windows import Windows
from storebench.record.manifest import Manifest, StoreSpec
from storebench.testing.doubles import failing, slow, wrong_pixels

DEATH_S = 0.5
SLEEP_S = 0.05
BURN_S = 0.02

BAD = 40  # the sample at which something happens
LOOP = os.getpid()  # the process of the loop, where this module was imported before its workers were forked
FADING = "STOREBENCH_TEST_FADING"  # names the folder in which `fading` and its test leave each other word


class FlatWriter(Writer):
    """One file of payloads, one of their ends, one of labels."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._file = (folder / "pixels.bin").open("wb")
        self._labels: list[int] = []
        self._ends = [0]

    def append(self, payload: Payload, label: int) -> None:
        self._file.write(payload)
        self._labels.append(label)
        self._ends.append(self._file.tell())

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        np.save(self.folder / "labels.npy", np.asarray(self._labels, dtype=np.int64))
        np.save(self.folder / "ends.npy", np.asarray(self._ends, dtype=np.int64))

    def abort(self) -> None:
        self._file.close()


class FlatReader(Reader):
    """Read sample by sample, rightly."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        super().__init__(store, manifest, options)
        self.labels = np.load(store / "labels.npy")
        self._ends = np.load(store / "ends.npy").tolist()
        self._file = (store / "pixels.bin").open("rb", buffering=0)

    def _fetch(self, indices: Indices) -> list[bytes]:
        handle, ends = self._file.fileno(), self._ends
        return [os.pread(handle, ends[n + 1] - ends[n], ends[n]) for n in self._checked(indices)]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        for row, payload in enumerate(self._fetch(indices)):
            out[row] = np.frombuffer(payload, np.uint8).reshape(self.image_shape)
        return Fetched(out.nbytes)

    def _close(self) -> None:
        self._file.close()


SlowReader = slow(seconds=SLEEP_S)(FlatReader)
WrongPixelReader = wrong_pixels(7)(FlatReader)
FailingReader = failing(at=BAD, error=lambda: ValueError("nobody expected this"))(FlatReader)


def before(act: Callable[[Reader, Indices], object]) -> type[Reader]:
    """Return a reader that does something before it serves a batch."""

    class ActingReader(FlatReader):
        def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
            act(self, indices)
            return super()._fetch_into(indices, out)

    ActingReader.__doc__ = act.__doc__
    return ActingReader


def killed(_reader: Reader, _indices: Indices) -> None:
    """Kill the process, as the kernel kills who takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def broken(_reader: Reader, _indices: Indices) -> None:
    """Have a bug."""
    raise ZeroDivisionError("a bug in somebody's reader")


def moody(_reader: Reader, _indices: Indices) -> None:
    """Have a bug for as long as the environment says so."""
    if "PLANTED_MOOD" in os.environ:
        raise ZeroDivisionError("a bug that is mended later")


def patient(reader: Reader, _indices: Indices) -> None:
    """Take a minute for each batch, and say by a file beside the store that it has begun."""
    (reader.store.parent / f"begun-{os.getpid()}").touch()
    time.sleep(60)


def faulty_rank(reader: Reader, indices: Indices) -> None:
    """Have a fault on one rank of a job: PLANTED_RANK_FAULT is "RANK:FAULT"."""
    rank, _, fault = os.environ.get("PLANTED_RANK_FAULT", "").partition(":")
    if fault and rank == os.environ.get("RANK"):
        (reader.store.parent / f"begun-{os.getpid()}").touch()
        if fault == "bug":
            broken(reader, indices)
        if fault == "hang":
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)


def mortal(reader: Reader, indices: Indices) -> None:
    """Serve rightly, and kill the process while the loop is busy with what was served."""
    if reader.asked_samples == len(indices):
        threading.Timer(DEATH_S, os.kill, (os.getpid(), signal.SIGKILL)).start()


def hungry(reader: Reader, _indices: Indices) -> None:
    """Take more memory than there is."""
    vars(reader)["eaten"] = [np.ones(64 << 20, np.uint8) for _ in range(64)]


def full(reader: Reader, _indices: Indices) -> None:
    """Find the disk full, as whoever writes to one does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(reader.store))


def burning(_reader: Reader, _indices: Indices) -> None:
    """Use 20 ms of processor time for each fetch, in a thread of its own."""
    thread = threading.Thread(target=_burn)
    thread.start()
    thread.join()


def _burn() -> None:
    while time.thread_time() < BURN_S:
        pass


def mutating(_reader: Reader, indices: Indices) -> None:
    """Serve sample 0 throughout, and change the indices that it was given so that they agree."""
    indices[:] = 0


def warming(reader: Reader, _indices: Indices) -> None:
    """Take five seconds for the very first batch of a store, and leave word beside it."""
    word = reader.store.parent / f"{reader.store.name} is warm"
    if not word.exists():
        word.touch()
        time.sleep(5)


def later(reader: Reader, indices: Indices) -> None:
    """Lower the priority of the process in the first fetch."""
    os.nice(int(reader.asked_samples == len(indices)))


class UnpicklableError(Exception):
    """An error that does not survive a journey between processes as it is."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = open(os.devnull)  # noqa: PTH123, SIM115 - something that cannot be pickled


def unpicklable(_reader: Reader, indices: Indices) -> None:
    """Raise an error that cannot be sent anywhere."""
    if BAD in indices:
        raise UnpicklableError(1, 2)


def dying(_reader: Reader, indices: Indices) -> None:
    """Be killed in a worker, as the kernel kills who takes too much memory."""
    if BAD in indices and os.getpid() != LOOP:
        os.kill(os.getpid(), signal.SIGKILL)


def fading(_reader: Reader, indices: Indices) -> None:
    """Answer no more in a worker, a moment before dying: when others ask for what it has sent, it is still there.

    It stops answering when its batch has been sent, says so with a file, and dies when the loop asks for that.
    """
    if BAD in indices and os.getpid() != LOOP:
        threading.Thread(target=_fade, daemon=True).start()


def _fade() -> None:
    folder = Path(os.environ[FADING])
    time.sleep(0.5)
    resource_sharer.stop()
    (folder / "fading").touch()
    while not (folder / "die").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


ACTS = (
    *(killed, broken, moody, patient, faulty_rank, mortal, hungry, full, burning, mutating, warming, later),
    *(unpicklable, dying, fading),
)


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


class DecodingReader(FlatReader):
    """Decode what is encoded, rightly."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.payload_codec = "raw"

    def _sample(self, index: int) -> Batch:
        [payload] = self._fetch(np.array([index]))
        pixels = np.empty(self.image_shape, np.uint8)
        get_codec(self.manifest.codec).decode_into(payload, pixels)
        return pixels

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        began = time.perf_counter_ns()
        for row, index in zip(out, self._checked(indices), strict=True):
            row[...] = self._sample(index)
        return Fetched(out.nbytes, time.perf_counter_ns() - began)


class RememberingReader(DecodingReader):
    """Keep every sample that was decoded once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sample = functools.lru_cache(None)(self._sample)  # type: ignore[method-assign]


class SilentReader(DecodingReader):
    """Decode without saying how long it took."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        return Fetched(super()._fetch_into(indices, out).payload_bytes)


class SummingReader(DecodingReader):
    """Report the decoding time of all its threads together, which is longer than the call."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        payload_bytes, decode_ns = super()._fetch_into(indices, out)
        return Fetched(payload_bytes, 4 * decode_ns)


class NumberedReader(FlatReader):
    """Give a note that is a number."""

    def notes(self) -> dict[str, str]:
        return {"threads": 4}  # type: ignore[dict-item]


def changing(change: Callable[[], object]) -> type[Reader]:
    """Return a reader that changes its process when it is opened."""

    class ChangingReader(FlatReader):
        """Change the process when it is opened."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            change()

    return ChangingReader


CHANGES: dict[str, Callable[[], object]] = {
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "polite": lambda: os.nice(1),
    "urgent": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
    "idle": lambda: psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE),
}


class HastyReader(FlatReader):
    """Copy windows in a thread, and return before it has."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pool = ThreadPoolExecutor(1)
        shape = (self.manifest.count, *self.image_shape)
        self._pixels = np.memmap(self.store / "pixels.bin", np.uint8, "r", shape=shape)

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


class RecordingReader(FlatReader):
    """Say at the end what was planned and what was asked for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._planned: list[int] = []
        self._plans = 0
        self._asked: list[int] = []
        self._closed = 0

    def _plan(self, batches: Sequence[Indices]) -> None:
        self._plans += 1
        self._planned += [index for batch in batches for index in batch.tolist()]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        self._asked += indices.tolist()
        return super()._fetch_into(indices, out)

    def notes(self) -> dict[str, str]:
        return {
            "planned": repr(self._planned),
            "asked": repr(self._asked),
            "plans": str(self._plans),
            "closed": str(self._closed),
        }

    def _close(self) -> None:
        self._closed += 1
        super()._close()


class ComputingReader(FlatReader):
    """Say with how many threads torch would compute where batches are made."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._threads: set[int] = set()

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        self._threads.add(torch.get_num_threads())
        return super()._fetch_into(indices, out)

    def notes(self) -> dict[str, str]:
        return {"threads": repr(self._threads)}


class UnopenableReader(FlatReader):
    """Fail at the opening with what no reader should raise."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        raise ValueError("it does not open")


class ExclusiveReader(FlatReader):
    """Refuse to be opened or closed while another one is being opened or closed."""

    _lock = threading.Lock()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._alone()

    def _close(self) -> None:
        self._alone()
        super()._close()

    def _alone(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ValueError("two at a time")
        time.sleep(0.02)
        self._lock.release()


READERS: dict[str, type[Reader]] = {
    "flat": FlatReader,
    "slow": SlowReader,
    "wrong": WrongPixelReader,
    "failing": FailingReader,
    "uncopied": UncopiedReader,
    "cold": ColdReader,
    "shifted": ShiftedReader,
    "neighbour": NeighbourReader,
    "swapping": SwappingReader,
    "decoding": DecodingReader,
    "remembering": RememberingReader,
    "silent": SilentReader,
    "summing": SummingReader,
    "numbered": NumberedReader,
    "hasty": HastyReader,
    "recording": RecordingReader,
    "computing": ComputingReader,
    "unopenable": UnopenableReader,
    "exclusive": ExclusiveReader,
    **{name: changing(change) for name, change in CHANGES.items()},
    **{act.__name__.replace("_", "-"): before(act) for act in ACTS},
}


class PlantedFormat(Format):
    """Payloads in one flat file; each reader but `flat` and `decoding` has one fault, or one note."""

    info = FormatInfo(
        name="planted", summary="a third party's format", default_codec="raw", default_reader="flat"
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {name: ReaderInfo(reader=kind, summary=str(kind.__doc__)) for name, kind in READERS.items()}

    def writer(self, folder: Path, spec: StoreSpec) -> Writer:
        return FlatWriter(folder, spec)


class OddFormat(PlantedFormat):
    """The same for the tests of loaders, with a reader that threads share."""

    info = FormatInfo(name="odd", summary="for tests", default_codec="raw", default_reader="recording")

    def readers(self) -> Mapping[str, ReaderInfo]:
        shared = ReaderInfo(reader=RecordingReader, summary="shared", traits=Traits(holds_pixels=True))
        return {**super().readers(), "shared": shared}
