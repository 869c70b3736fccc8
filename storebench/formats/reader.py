"""The contract of a reader: samples by index, its methods and results, and the checks that the base class makes."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices
from storebench.codecs import get_codec
from storebench.errors import CorruptDataError
from storebench.formats.options import Options
from storebench.formats.windows import Batch, Windows, out_of_range, require_fit
from storebench.record.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of a reader for which the harness has to treat it differently."""

    holds_pixels: bool = False
    """Opening reads and decodes everything into memory, so that a fetch touches no disk: the state of the page
    cache is one of the opening, threads share one reader, and there is no cell with limited memory."""
    forks: bool = True
    """Whether a forked child may open it after its parent did; the threads of some libraries do not survive a fork."""
    native_order: bool = False
    """An epoch is served in the reader's own order (`Reader.native_order`), not in the harness's; such a reader is
    called "stream", so that the names of its backends say so."""
    served: bool = False
    """It can read from an object store without a mount; its constructor takes the address, too."""
    remote: bool = False  # It reads from object stores, and nowhere else.
    fixed_place: bool = False
    """The samples lie in files outside of the store, so copying the store does not move them."""
    ready_made: bool = False
    """The samples are a few real batches that are in memory already, not those of the plan (``null``)."""


BUFFER_NOTE, DISPLACEMENT_NOTE, NEIGHBOURS_NOTE = "shuffle buffer", "displacement", "neighbours kept"
"""Notes of a reader with the trait `native_order`: the samples of its buffer, the mean displacement of a sample over
that of a uniform shuffle, and the share of neighbours that stay neighbours."""

# Requests to an object store, int64 [n, 3]: begin and end in nanoseconds of ``time.perf_counter_ns``, and bytes.
RequestTable = npt.NDArray[np.int64]

# What decides the order of one epoch; each of its further passes has a last number of one more.
Seed = tuple[int, ...]


class Fetched(NamedTuple):
    """The work of one call of `Reader.fetch_into` or `Reader.fetch_windows`."""

    payload_bytes: int
    """Bytes of the requested payloads, whole even for windows; pixels where the reader decodes."""
    decode_ns: int = 0
    """Nanoseconds of the call's wall time that were decoding; 0 for a reader that only copies."""


class Reader(ABC):
    """Return samples by index. Opened in the process that uses it and never carried across a fork.

    Used by one thread at a time, which need not be the one that opened it.
    In one process, readers are opened and closed one after another.

    When a fetch returns, every byte is in memory that is private to the caller:
    with views of a mapped file, page faults would be counted as something else.

    A subclass opens the store in its constructor and sets `labels`, which are in memory from then on. It
    implements `_fetch_into`, and `_fetch` too where it serves encoded payloads; `_fetch_windows`
    where raw images are in memory that it can address; `_plan` and `_close` where it
    reads ahead or has something to close. These are only called
    while the reader is open, with at least one index and with a batch that fits,
    so they need not check any of it. Indices are not checked before: see
    `_checked`.

    In every call, `indices` are int64 [n], each in ``range(count)``, and may repeat; `out` is uint8, C-contiguous,
    and its rows beyond n are left as they are. Every call may raise

    - `IndexError`: no sample has one of the indices; none has a negative one;
    - `ValueError`: `out` has another shape or type, or is too small;
    - `CorruptStoreError`: the store is damaged;
    - `RuntimeError`: the reader is closed.
    """

    labels: npt.NDArray[np.int64]  # int64 [count]

    options_type: ClassVar[type[Options]] = Options
    """The reader's table of options (`storebench.formats.options`)."""

    closed: bool = False  # whether `close` was called
    asked_samples: int = 0  # by all calls since the opening, counting repetitions
    plan_seed: Seed | None = None  # of the current plan; None where the samples come in sequence

    payload_codec: str
    """The codec of the payloads that `fetch` returns, with its decoder: the store's, or "raw" for a reader that decodes
    by itself. Image files as they are, which have no size of their own, are always returned as payloads."""

    def __init__(self, store: Path, manifest: Manifest, options: Options) -> None:
        self.store = store
        self.manifest = manifest
        self.options = options  # an instance of `options_type`
        self.image_shape = manifest.dataset.image_shape
        self.payload_codec = manifest.codec

    @classmethod
    def index_files(cls, store: Path) -> list[Path]:  # noqa: ARG003 - for readers that keep such files
        """Return the existing files that this reader keeps outside `store`; they are evicted and counted, too."""
        return []

    @classmethod
    def ahead_bytes(cls, options: Options, manifest: Manifest) -> int:  # noqa: ARG003 - for readers that plan
        """Return the bytes of planned payload that a reader with `options` reads beyond the batch in progress."""
        return 0

    @classmethod
    def native_order(cls, store: Path, manifest: Manifest, options: Options, seed: Seed) -> Indices:
        """Return the order in which a reader with the trait `native_order` serves an epoch, int64 [count].

        It reads no samples: the reader's own shuffling is applied to indices.
        """
        raise NotImplementedError(f"{cls.__name__} has no order of its own")

    @classmethod
    def looks_ahead(cls) -> bool:
        """Whether this reader uses a plan."""
        return cls._plan is not Reader._plan

    @final
    def fetch(self, indices: Indices) -> list[bytes]:
        """Return the payloads of `indices`, in that order, as bytes that the caller owns."""
        self._require_open()
        self.asked_samples += len(indices)
        return self._fetch(indices) if len(indices) else []

    @final
    def fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        """Copy raw pixels of `indices` into `out`, uint8 [n or more, H, W, C], one copy from the store to the batch.

        Only where `payload_codec` is "raw" (else `ValueError`); `read_into` serves every store.
        """
        self._require_open()
        count = len(indices)
        require_fit(out, count, self.image_shape)
        if self.payload_codec != "raw":
            raise ValueError(
                f"payloads are {self.payload_codec}, so none can be copied into a batch: use read_into"
            )
        if not count:
            return Fetched(0)
        self.asked_samples += count
        return self._fetch_into(indices, out if len(out) == count else out[:count])

    @property
    def serves_windows(self) -> bool:
        """Whether `fetch_windows` may be called: the reader copies windows of raw images from where they are stored."""
        return self.payload_codec == "raw" and _overrides_windows(type(self))

    @final
    def fetch_windows(self, indices: Indices, windows: Windows, out: Batch) -> Fetched:
        """Copy a window of the raw pixels of each of `indices` into `out`, uint8 [n or more, h, w, C].

        Only where `serves_windows`, and with n windows inside of the images (else `ValueError`). A call counts as
        one batch of the plan, like one of `fetch_into`.
        """
        self._require_open()
        count = len(indices)
        require_fit(out, count, (windows.height, windows.width, self.image_shape[2]))
        if len(windows) != count:
            raise ValueError(f"{len(windows)} windows for {count} samples")
        if not self.serves_windows:
            raise ValueError("this reader serves no windows: fetch whole images and cut them")
        if not count:
            return Fetched(0)
        self.asked_samples += count
        return self._fetch_windows(indices, windows, out if len(out) == count else out[:count])

    @final
    def read_into(self, indices: Indices, out: Batch) -> None:
        """Write the decoded pixels of `indices` into `out`, uint8 [n or more, H, W, C], whatever the payloads are.

        A payload that does not decode raises a `CorruptDataError` that names the sample.
        """
        if self.payload_codec == "raw":
            self.fetch_into(indices, out)
            return
        require_fit(out, len(indices), self.image_shape, contiguous=False)
        codec, payloads = get_codec(self.payload_codec), self.fetch(indices)

        def decode(row: int) -> None:
            try:
                codec.decode_into(payloads[row], out[row])
            except CorruptDataError as error:
                raise CorruptDataError(f"sample {indices[row]}: {error.what}", where=self.store) from error

        self.spread(decode, len(indices))

    @final
    def plan(self, batches: Sequence[Indices], seed: Seed | None = None) -> None:
        """Announce the next batches, in order, until the next plan, so that the reader may read ahead.

        Calls follow the plan, one per batch; a call that departs from it must still be answered correctly. `seed` is
        the one by which `native_order` gave their order.
        """
        self._require_open()
        self.plan_seed = seed
        self._plan(batches)

    def spread(self, work: Callable[[int], None], count: int) -> None:
        """Call `work` with each number in ``range(count)``, in the reader's own threads if it decodes in some."""
        for row in range(count):
            work(row)

    def requests(self) -> RequestTable | None:
        """Return all requests so far, of a reader that reads from an object store."""
        return None

    def notes(self) -> dict[str, str]:
        """Return notes on this reader's work for a person who reads the results, by name."""
        return {}

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        """Return decoded samples in new arrays: ``reader[7]``, ``reader[-1]``, ``reader[:10]``, ``reader[[3, 1]]``."""
        if np.asarray(index).dtype == np.bool_:
            raise TypeError("sample indices are integers, not a mask")
        numbers, is_one = range(len(self)), not isinstance(index, slice) and np.ndim(index) == 0
        one_or_all = numbers[index] if is_one or isinstance(index, slice) else [numbers[at] for at in index]
        indices = np.array(one_or_all, np.int64, ndmin=1)
        pixels = np.empty((len(indices), *self.image_shape), np.uint8)
        self.read_into(indices, pixels)
        return (pixels[0], int(self.labels[indices[0]])) if is_one else (pixels, self.labels[indices])

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return (self[index] for index in range(len(self)))

    @final
    def close(self) -> None:
        """Release every handle, lock and temporary file. Calling it twice is harmless."""
        if not self.closed:
            self.closed = True
            self._close()

    def _require_open(self) -> None:
        if self.closed:
            raise RuntimeError("the reader is closed")

    def _fetch(self, indices: Indices) -> list[bytes]:
        """Return the payloads of `indices`; see `fetch`. The default serves raw pixels only."""
        if self.payload_codec != "raw":
            raise NotImplementedError(f"{type(self).__name__} does not fetch {self.payload_codec} payloads")
        return self._raw_payloads(indices)

    @abstractmethod
    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        """Copy raw pixels of `indices` into `out`, uint8 [n, H, W, C], C-contiguous; see `fetch_into`."""

    def _fetch_windows(self, indices: Indices, windows: Windows, out: Batch) -> Fetched:
        """Copy windows of raw pixels into `out`, uint8 [n, h, w, C], C-contiguous; see `fetch_windows`."""
        raise NotImplementedError(f"{type(self).__name__} serves no windows")

    def _plan(self, batches: Sequence[Indices]) -> None:  # noqa: B027 - most readers read nothing ahead
        """Replace the last plan by this one; see `plan`."""

    def _close(self) -> None:  # noqa: B027 - most have nothing to close
        """Release what the reader holds; called once, also by a constructor that fails half-way."""

    def _raw_payloads(self, indices: Indices) -> list[bytes]:
        """Return raw pixels of `indices` as one payload per image, by way of `_fetch_into`."""
        batch = np.empty((len(indices), *self.image_shape), np.uint8)
        self._fetch_into(indices, batch)
        return [image.tobytes() for image in batch]

    def _checked(self, indices: Indices) -> list[int]:
        """Return `indices` as Python integers, or raise `IndexError` if no sample has one of them.

        A reader that meets a wrong index anyway may leave it out.
        """
        count = self.manifest.count
        numbers: list[int] = indices.tolist()
        if numbers and (min(numbers) < 0 or max(numbers) >= count):
            raise out_of_range(count)
        return numbers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@functools.cache
def _overrides_windows(kind: type[Reader]) -> bool:
    """Whether `_fetch_windows` is overridden where `_fetch_into` is, or in a class derived from that.

    A subclass that overrides `_fetch_into` alone serves none, because its images may be others than its parent's.
    """
    hooks = ("_fetch_into", "_fetch_windows")
    nearest = next(base for base in kind.__mro__ if any(name in vars(base) for name in hooks))
    return nearest is not Reader and "_fetch_windows" in vars(nearest)
