"""What a loader served: its epochs, as they were seen."""

import os
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.arrays import Integers
from storebench.auditing.fetching import Made
from storebench.auditing.samples import arrays_digest

# Keys that are kept as text, for examples.
_MOST_KEYS = 10_000


@dataclass(kw_only=True)
class Epoch:
    """One epoch of a loader: 12 bytes per sample, in the order in which the loop got them."""

    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    labels: "array[int]" = field(default_factory=lambda: array("i"))
    sizes: "array[int]" = field(default_factory=lambda: array("i"))  # of batches
    workers: "array[int]" = field(default_factory=lambda: array("i"))  # of batches
    dropped: list[int] = field(default_factory=list)
    states: dict[int, dict[str, int]] = field(
        default_factory=dict
    )  # of generators after the first batch, by worker
    used: dict[int, set[str]] = field(default_factory=dict)  # generators by worker
    overwritten: int = 0  # batches
    evaluates: bool = True  # every batch was asked for without gradients
    is_whole: bool = False  # the loop took all that the loader had

    def add(self, made: Made) -> None:
        self.numbers.frombytes(made.numbers)
        self.labels.frombytes(made.labels)
        self.sizes.append(len(made.numbers) // self.numbers.itemsize)
        self.workers.append(made.worker)
        self.dropped.extend(made.dropped)
        if made.states is not None:
            self.states.setdefault(made.worker, made.states)
        self.used.setdefault(made.worker, set()).update(made.used)

    @property
    def order(self) -> Integers:
        return np.frombuffer(self.numbers, np.int64)

    @property
    def classes(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.labels, np.int32)

    def workers_of_samples(self) -> Integers:
        return np.repeat(np.frombuffer(self.workers, np.int32), np.frombuffer(self.sizes, np.int32)).astype(
            np.int64
        )


@dataclass(frozen=True, kw_only=True)
class LoaderFacts:
    """What a loader's own attributes say of it."""

    name: str = ""
    workers: int = 0
    is_map: bool = False  # the dataset is read by index
    has_key: bool = False  # samples are known by the user's key
    count: int | None = None  # samples of the dataset, None if nothing tells
    chosen: list[int] | None = None  # indices that the sampler was given
    sampler: str = ""
    is_shuffled: bool | None = None  # None if nothing tells
    replaces: bool = False  # draws with replacement
    drops_last: bool = False
    rank: int = 0
    ranks: int = 1


class LoaderLog:
    """The epochs of one loader, and its facts."""

    def __init__(self, facts: LoaderFacts) -> None:
        self.facts, self.pid = facts, os.getpid()
        self.epochs: list[Epoch] = []
        self.keys: dict[int, str] = {}
        self.is_blind = False
        self._last: Any = None  # the batch that was given, until the next has come

    def begin(self) -> None:
        if self.epochs and not self.epochs[-1].sizes:
            self.epochs.pop()
        self._last = None
        self.epochs.append(Epoch())

    def note(self, batch: Any, made: Made | None, *, evaluates: bool = False) -> None:
        """Note a batch that the loop gets now; its samples are not known if noting them has failed."""
        if made is None:
            self.is_blind = True
            return
        epoch = self.epochs[-1]
        epoch.add(made)
        epoch.evaluates = epoch.evaluates and evaluates
        if made.keys and len(self.keys) < _MOST_KEYS:
            self.keys.update(zip(np.frombuffer(made.numbers, np.int64).tolist(), made.keys, strict=True))
        self._last = batch

    def asked(self) -> int | None:
        """Return the digest of the last batch, as the next is asked for."""
        return None if self._last is None else arrays_digest(self._last)

    def arrived(self, before: int | None) -> None:
        """Note whether the last batch is still the same now that the next has come."""
        if before is not None and arrays_digest(self._last) != before:
            self.epochs[-1].overwritten += 1
        self._last = None

    def end(self) -> None:
        self.epochs[-1].is_whole = True
        self._last = None

    @property
    def seen(self) -> list[Epoch]:
        """The epochs that have batches."""
        return [epoch for epoch in self.epochs if epoch.sizes]
