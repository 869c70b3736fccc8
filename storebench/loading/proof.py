"""Evidence that an epoch served the right samples: a random selection of the timed ones, and counts of all of them."""

import dataclasses
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storebench.codecs import any_size, decoding_of, get_codec
from storebench.digests import DigestTable, payload_digest, sample_digest
from storebench.errors import CorruptDataError
from storebench.formats.base import Batch, Indices, Reader
from storebench.formats.registry import get_format, traits_of
from storebench.loading.augment import Augment, prepare_files
from storebench.loading.batch import LoadedBatch
from storebench.loading.order import joined
from storebench.record.manifest import Manifest
from storebench.record.schema import KEPT_AT_LEAST, KEPT_BYTES, Coverage
from storebench.settings.backend import Backend

# Samples that are drawn of an epoch: a fault in 5% of its samples is missed in one epoch of 700.
KEPT_SAMPLES = 128

# Beyond `KEPT_AT_LEAST` samples, pauses take at most this share of the epoch so far: workers continue meanwhile.
PAUSED_FRAC = 0.005

_RANDOM = random.SystemRandom()  # which no seed repeats


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Samples as the loop received them, and the number of drawn samples that no batch contained."""

    pixels: Batch
    labels: Indices
    indices: Indices
    absent: int


class SampleKeeper:
    """Copy a few randomly chosen samples of an epoch's batches, each when the loop has finished with its batch."""

    def __init__(self, sizes: Sequence[int], shape: tuple[int, int, int], *, first_step: int = 0) -> None:
        self._sizes, self._first_step = sizes, first_step
        timed = sum(sizes[first_step:])
        most = min(KEPT_SAMPLES, max(1, KEPT_BYTES // int(np.prod(shape))), timed)
        # Places among the timed samples, the last first.
        self._drawn = sorted(_RANDOM.sample(range(timed), most), reverse=True)
        self._pixels = np.zeros((most, *shape), np.uint8)
        self._pixels.fill(1)  # zeros() alone would leave the page faults to the epoch
        self._labels = np.zeros(most, np.int64)
        self._indices = np.zeros(most, np.int64)
        self._step = self._served = self._kept = self._absent = 0
        self._began_ns = self._paused_ns = 0

    def __call__(self, batch: LoadedBatch) -> bool:
        """Keep the drawn rows of the next step's batch; return True if there were any."""
        step = self._step
        self._step += 1
        if not self._first_step <= step < len(self._sizes):
            return False
        first, self._served = self._served, self._served + self._sizes[step]
        rows = []
        while self._drawn and self._drawn[-1] < self._served:
            rows.append(self._drawn.pop() - first)
        if not rows:
            return False
        start = time.perf_counter_ns()
        if self._kept >= KEPT_AT_LEAST and self._paused_ns > PAUSED_FRAC * (start - self._began_ns):
            # If some step were certain not to be checked, a reader could cheat in it: one in 20 is, even if it is late.
            if _RANDOM.random() >= 0.05:
                return False
            del rows[1:]
        self._began_ns = self._began_ns or start
        self.copy(batch, rows)
        self._paused_ns += time.perf_counter_ns() - start
        return True

    def copy(self, batch: LoadedBatch, rows: Sequence[int]) -> None:
        """Copy rows of a batch; rows that it does not have are counted as absent."""
        pixels = batch.pixels.numpy()
        fits = pixels.shape[1:] == self._pixels.shape[1:]
        whole = min(len(pixels), len(batch.labels), len(batch.indices)) if fits else 0
        for row in rows:
            if row >= whole:
                self._absent += 1
                continue
            self._pixels[self._kept] = pixels[row]
            self._labels[self._kept] = batch.labels[row]
            self._indices[self._kept] = batch.indices[row]
            self._kept += 1

    @property
    def paused_s(self) -> float:
        return self._paused_ns / 1e9

    @property
    def kept(self) -> Kept:
        part = slice(self._kept)
        return Kept(
            pixels=self._pixels[part],
            labels=self._labels[part],
            indices=self._indices[part],
            absent=self._absent,
        )


@dataclass(frozen=True, kw_only=True)
class TimedCheck:
    """Result of comparing the kept samples with the store."""

    checked: int = 0
    wrong: int = 0
    first_wrong: int | None = None


def opened_again(store: Path, backend: Backend) -> Reader:
    """Open a backend's reader again; if it holds all pixels or reads elsewhere, the reader for verification."""
    manifest, traits = decoded_by(Manifest.read(store), backend), traits_of(backend)
    if traits.holds_pixels or traits.remote:
        return get_format(manifest.format).auditor(store, manifest)
    # Pass the same options: LMDB cannot be open twice in one process with different ones.
    return get_format(manifest.format).reader(store, manifest, backend.reader, dict(backend.options))


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The source of the right samples: the store, proven by its table of digests."""

    store: Path
    backend: Backend
    table: DigestTable
    augment: Augment
    seed: int

    def check(self, kept: Kept, epoch: int) -> TimedCheck:
        """Compare kept samples, byte for byte, with those of the store, augmented for `epoch`."""
        with opened_again(self.store, self.backend) as reader:
            right = [
                self._is_right(reader, epoch, pixels, int(label), int(index))
                for pixels, label, index in zip(kept.pixels, kept.labels, kept.indices, strict=True)
            ]
            # Few, as one batch, because their memory counts in a limited cell.
            late = self._late(reader, kept, np.flatnonzero(right)[:16], epoch)
        wrong = sorted({*np.flatnonzero(np.logical_not(right)).tolist(), *late})
        return TimedCheck(
            checked=len(kept.indices) + kept.absent,
            wrong=len(wrong) + kept.absent,
            first_wrong=int(kept.indices[wrong[0]]) if wrong else None,
        )

    def _late(self, reader: Reader, kept: Kept, rows: Indices, epoch: int) -> list[int]:
        """Return the `rows`, all right, whose windows are not yet right when fetching them returns."""
        no_windows = self.augment.identity or self.augment.resized is not None
        if no_windows or not len(rows) or not reader.serves_windows:
            return []
        indices, out = kept.indices[rows], ~kept.pixels[rows]  # no byte is right before
        windows = self.augment.windows(indices, reader.image_shape, seed=self.seed, epoch=epoch)
        reader.fetch_windows(indices, windows, out)
        # The last row first: a thread that copies meanwhile begins with the first.
        again = zip(rows[::-1].tolist(), out[::-1], strict=True)
        return [row for row, pixels in again if not np.array_equal(pixels, kept.pixels[row])]

    def _is_right(self, reader: Reader, epoch: int, pixels: Batch, label: int, index: int) -> bool:
        if not 0 <= index < len(self.table):
            return False
        indices = np.array([index], dtype=np.int64)
        try:
            right = self._right(reader, epoch, indices)
        except CorruptDataError:
            return False
        return right is not None and label == int(reader.labels[index]) and np.array_equal(pixels, right[0])

    def _right(self, reader: Reader, epoch: int, indices: Indices) -> Batch | None:
        """Return one sample as it should be served, uint8 [1, h, w, C]; None if the store's is not as written."""
        right = np.empty((1, *self.augment.output_shape(reader.image_shape)), np.uint8)
        if any_size(reader.payload_codec):
            payloads = reader.fetch(indices)
            if (
                payload_digest(payloads[0], int(reader.labels[indices[0]]))
                != self.table[indices[0]].tobytes()
            ):
                return None
            views = self.augment.views(indices, seed=self.seed, epoch=epoch)
            prepare_files(reader, payloads, indices, right, views)
            return right
        images = np.empty((1, *reader.image_shape), np.uint8)
        reader.read_into(indices, images)
        if not self._as_written(reader, indices, images):
            return None
        # By other code than the loader's, so that a kernel that was compiled wrong is found.
        self.augment.apply_without_kernel(images, indices, right, seed=self.seed, epoch=epoch)
        return right

    def _as_written(self, reader: Reader, indices: Indices, images: Batch) -> bool:
        """Compare one image with the store's; a decoder of choice must give its own pixels of the right payload."""
        written = images[0]
        if self.backend.codec_options:
            manifest, written = reader.manifest, np.empty(reader.image_shape, np.uint8)
            again = np.empty(reader.image_shape, np.uint8)
            if reader.payload_codec != "raw":
                payload = reader.fetch(indices)[0]
            else:  # it decodes by itself
                with get_format(manifest.format).auditor(reader.store, manifest) as auditor:
                    payload = auditor.fetch(indices)[0]
            get_codec(self.backend.codec).decode_into(payload, written)
            get_codec(_codec_of(self.backend)).decode_into(payload, again)
            if not np.array_equal(images[0], again):
                return False
        label, index = int(reader.labels[indices[0]]), int(indices[0])
        return sample_digest(written, label) == bytes(self.table[index])


def decoded_by(manifest: Manifest, backend: Backend) -> Manifest:
    """Return a store's manifest for readers that decode as a backend asks: its codec names the decoder, too."""
    return dataclasses.replace(manifest, codec=_codec_of(backend)) if backend.codec_options else manifest


def _codec_of(backend: Backend) -> str:
    return str(decoding_of(backend.codec, backend.codec_options))


def coverage(planned: Sequence[Indices], served: Sequence[Indices], timed: TimedCheck) -> Coverage:
    wanted, got = joined(planned), joined(served)
    counts = {
        "expected": len(wanted),
        "served": len(got),
        "timed_checked": timed.checked,
        "timed_wrong": timed.wrong,
    }
    wanted.sort()
    got.sort()
    if np.array_equal(wanted, got):  # in a third of the memory
        unique = int(np.count_nonzero(got[1:] != got[:-1])) + min(1, len(got))
        return Coverage(unique=unique, duplicates=0, missing=0, **counts)
    every = np.union1d(wanted, got)
    wanted_counts, got_counts = (
        np.bincount(np.searchsorted(every, indices), minlength=len(every)) for indices in (wanted, got)
    )
    return Coverage(
        unique=int(np.count_nonzero(got_counts)),
        duplicates=int(np.maximum(got_counts - np.maximum(wanted_counts, 1), 0).sum()),
        missing=int(np.maximum(wanted_counts - got_counts, 0).sum()),
        **counts,
    )


def same_order(planned: Sequence[Indices], served: Sequence[Indices]) -> bool:
    """Whether the planned samples were served in the planned order."""
    return bool(np.array_equal(joined(planned), joined(served)))
