"""Keep a random sample of what was timed, and prove it afterwards: the timed pass itself is checked, not a replay."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storebench.codecs import get_codec
from storebench.digests import DigestTable, sample_digest
from storebench.errors import CorruptDataError
from storebench.formats.base import Batch as Pixels
from storebench.formats.base import Indices, Reader
from storebench.formats.registry import Backend, get_format
from storebench.loading.augment import Augment
from storebench.loading.batch import Batch
from storebench.manifest import Manifest

KEPT_SAMPLES = 128
"""Samples that are drawn of an epoch: a fault in 5% of its samples is missed in one epoch of 700."""

KEPT_AT_LEAST = 64
"""So many are kept whatever that takes; of the others, those for which there is time."""

PAUSED_FRAC = 0.005
"""Beyond `KEPT_AT_LEAST` samples, pauses take no more than this share of the epoch so far: workers go on meanwhile."""

KEPT_BYTES = 64 << 20
"""At most so many bytes of pixels are kept, so that fewer samples are kept of large images."""


def _tell_nobody(_nanoseconds: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Samples as the loop had them, and how many of the drawn ones no batch contained.

    Attributes
    ----------
    pixels
        uint8 [n, H, W, C], after augmentation.
    labels, indices
        int64 [n], as the batches carried them.
    absent
        Samples that were to be copied and that the batch of their step did not contain.
    """

    pixels: Pixels
    labels: Indices
    indices: Indices
    absent: int


class SampleKeeper:
    """Copy a few randomly chosen samples of an epoch's batches, each when the loop has done with its batch.

    Which samples is drawn from the operating system's source of randomness, so
    that neither the seed nor the plan of the epoch tells. Memory is taken and
    touched at once, so that keeping is a copy of a few rows and nothing else, and
    pauses are bounded to `PAUSED_FRAC` of the epoch.

    Parameters
    ----------
    sizes
        Samples of each batch of the epoch.
    shape
        (H, W, C) of a sample after augmentation.
    first_step
        The first step whose samples are drawn: warm-up steps are not timed.
    paused
        Is told the nanoseconds of each pause, for loaders that watch how long a step takes.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        shape: tuple[int, int, int],
        *,
        first_step: int = 0,
        paused: Callable[[int], None] = _tell_nobody,
    ) -> None:
        self._rows = _draw(sizes, first_step, max(1, min(KEPT_SAMPLES, KEPT_BYTES // int(np.prod(shape)))))
        count = sum(map(len, self._rows.values()))
        self._pixels = np.zeros((count, *shape), np.uint8)
        self._pixels.fill(1)  # zeros() alone would leave the page faults to the epoch
        self._labels = np.zeros(count, np.int64)
        self._indices = np.zeros(count, np.int64)
        self._told = paused
        self._step = self._kept = self._asked = 0
        self._began_ns = self._paused_ns = 0

    def __call__(self, batch: Batch) -> bool:
        """Keep what was drawn of the next step's batch; return whether there was anything to keep."""
        rows = self._rows.get(self._step)
        self._step += 1
        if rows is None:
            return False
        start = time.perf_counter_ns()
        self._began_ns = self._began_ns or start
        if self._kept >= KEPT_AT_LEAST and self._paused_ns > PAUSED_FRAC * (start - self._began_ns):
            return False
        self._asked += len(rows)
        self.copy(batch, rows)
        paused_ns = time.perf_counter_ns() - start
        self._paused_ns += paused_ns
        self._told(paused_ns)
        return True

    def copy(self, batch: Batch, rows: Sequence[int]) -> None:
        """Copy rows of a batch; rows that it does not have are left out."""
        pixels = batch.pixels.numpy()
        if pixels.shape[1:] != self._pixels.shape[1:]:
            return
        whole = min(len(pixels), len(batch.labels), len(batch.indices))
        for row in rows:
            if row < whole:
                self._pixels[self._kept] = pixels[row]
                self._labels[self._kept] = batch.labels[row]
                self._indices[self._kept] = batch.indices[row]
                self._kept += 1

    @property
    def kept(self) -> Kept:
        """What was kept of the steps so far."""
        part = slice(self._kept)
        return Kept(
            pixels=self._pixels[part],
            labels=self._labels[part],
            indices=self._indices[part],
            absent=self._asked - self._kept,
        )


def _draw(sizes: Sequence[int], first_step: int, most: int) -> dict[int, list[int]]:
    """Return rows by step: `most` samples of the batches from `first_step` on, or all where there are fewer."""
    ends = np.cumsum([0, *sizes])
    first = int(ends[min(first_step, len(sizes))])
    places = range(first, int(ends[-1]))
    drawn: dict[int, list[int]] = {}
    for place in sorted(random.SystemRandom().sample(places, min(most, len(places)))):
        step = int(np.searchsorted(ends, place, side="right")) - 1
        drawn.setdefault(step, []).append(place - int(ends[step]))
    return drawn


@dataclass(frozen=True, kw_only=True)
class TimedCheck:
    """What comparing the kept samples with the store gave.

    Attributes
    ----------
    checked, wrong
        Samples compared, and those of them with other pixels or another label than the store has under their index.
    first_wrong
        Index of the first of them in the order of the epoch, as its batch called it; None where all are right, or
        where the batch had no such row.
    """

    checked: int = 0
    wrong: int = 0
    first_wrong: int | None = None


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Where the right samples come from: the store, proven by its table of digests.

    Attributes
    ----------
    table
        Digests of the samples as they were written, uint8 [N, 16].
    augment, seed
        What the harness does to the images, and the cell's seed.
    """

    store: Path
    backend: Backend
    table: DigestTable
    augment: Augment
    seed: int

    def check(self, kept: Kept, epoch: int) -> TimedCheck:
        """Compare kept samples, byte for byte, with those of the store, augmented for `epoch`.

        The store is read once more, by a reader that is opened for it. What that reader returns is
        believed only where its digest is the one in the table.
        """
        with self._open() as reader:
            wrong = [
                int(index)
                for pixels, label, index in zip(kept.pixels, kept.labels, kept.indices, strict=True)
                if not self._is_right(reader, epoch, pixels, int(label), int(index))
            ]
        return TimedCheck(
            checked=len(kept.indices) + kept.absent,
            wrong=len(wrong) + kept.absent,
            first_wrong=wrong[0] if wrong else None,
        )

    def _open(self) -> Reader:
        """Open the cell's own way in once more; where that holds all pixels, the one for verification."""
        manifest, backend = Manifest.read(self.store), self.backend
        if backend.traits.holds_pixels:
            return get_format(manifest.format).auditor(self.store, manifest)
        # The options as well: LMDB refuses to be open twice in one process with different ones.
        return get_format(manifest.format).reader(self.store, manifest, backend.reader, dict(backend.options))

    def _is_right(self, reader: Reader, epoch: int, pixels: Pixels, label: int, index: int) -> bool:
        if not 0 <= index < len(self.table):
            return False
        indices = np.array([index], dtype=np.int64)
        images = np.empty((1, *reader.image_shape), np.uint8)
        try:
            _fetch(reader, indices, images)
        except CorruptDataError:
            return False  # the replay names the sample
        right_label = int(reader.labels[index])
        if sample_digest(images[0], right_label) != self.table[index].tobytes():
            return False
        right = np.empty((1, *self.augment.output_shape(reader.image_shape)), np.uint8)
        self.augment.apply(images, indices, right, seed=self.seed, epoch=epoch)
        return label == right_label and np.array_equal(pixels, right[0])


def _fetch(reader: Reader, indices: Indices, images: Pixels) -> None:
    if reader.payload_codec == "raw":
        reader.fetch_into(indices, images)
        return
    codec = get_codec(reader.payload_codec)
    for payload, image in zip(reader.fetch(indices), images, strict=True):
        codec.decode_into(payload, image)
