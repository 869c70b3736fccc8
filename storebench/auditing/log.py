"""What a loader served, epoch by epoch, and what its own attributes say of it."""

import contextlib
import functools
import os
import sys
import weakref
import zlib
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from storebench.arrays import Integers
from storebench.auditing.samples import Key, Made, glance, made_of, note_batches, objects_below, rows_of
from storebench.profiling.guard import guarded
from storebench.profiling.loops import name_of, user_lines
from storebench.profiling.watch import Watch

# Keys that are kept as text, for examples.
_MOST_KEYS = 10_000
# So many batches of an epoch are looked at again after the next has come, and one of so many after them.
_ALL_LOOKED_AT, _THEN_ONE_OF = 100, 16


class Epoch:
    """One epoch of a loader: 12 bytes per sample, in the order in which the loop got them."""

    def __init__(self) -> None:
        self.numbers, self.labels = array("q"), array("i")
        self.sizes, self.workers = array("i"), array("i")  # of batches
        self.drawn = dict[tuple[str, int, int], int]()  # states of generators, by name, batch and worker
        self.content = 0  # a checksum of values of batches
        self.overwritten = 0  # batches
        self.evaluates = True  # every batch was asked for without gradients
        self.differentiates = False  # the loop made a graph of gradients
        self.is_whole = False  # the loop took all that the loader had

    def add(self, made: Made) -> None:
        self.numbers.frombytes(made.numbers)
        self.labels.frombytes(made.labels)
        self.sizes.append(len(made.labels) // self.labels.itemsize)
        self.workers.append(made.worker)
        self.drawn.update({(name, made.number, made.worker): state for name, state in made.drawn})

    @property
    def order(self) -> Integers:
        return np.frombuffer(self.numbers, np.int64)


def is_torchs(loader: Any) -> bool:
    """Whether torch's own iterators serve a loader: subclasses of other libraries have their own."""
    from torch.utils.data import DataLoader

    methods = "__iter__", "_get_iterator"
    return all(getattr(type(loader), name, None) is getattr(DataLoader, name) for name in methods)


class LoaderFacts:
    """What the attributes of a loader of torch say of it; little is known of any other.

    Nothing of the user's is called but the length that its sampler reads.
    """

    def __init__(self, loader: Any) -> None:
        self.name, self.lines, self.pid = "", user_lines(), os.getpid()
        self.is_map = False  # the dataset is read by index
        self.members: range | array[int] | None = None  # indices that it may serve
        self.is_shuffled: bool | None = None  # None if nothing tells
        self.replaces = self.drops_last = False  # draws with replacement
        if is_torchs(loader):
            self._read(loader)

    def _read(self, loader: Any) -> None:
        from torch.utils import data

        self.name = name_of(type(loader.dataset))
        self.is_map = not isinstance(loader.dataset, data.IterableDataset)
        sampler = loader.sampler
        if not self.is_map:
            length = loader._IterableDataset_len_called  # noqa: SLF001
            self.members = None if length is None else range(length)
            self.is_shuffled = _shuffles(loader.dataset)
        elif type(loader.batch_sampler) not in (data.BatchSampler, type(None)):
            sampler = loader.batch_sampler
        elif isinstance(sampler, data.SubsetRandomSampler):
            self.members, self.is_shuffled = array("q", sampler.indices), True
        elif type(sampler) in (data.SequentialSampler, data.RandomSampler, data.DistributedSampler):
            self.members = range(len(loader.dataset))  # these read the length themselves
            self.is_shuffled = type(sampler) is data.RandomSampler or bool(getattr(sampler, "shuffle", False))
        elif isinstance(sampler, data.WeightedRandomSampler):
            self.is_shuffled = True
        stages = getattr(loader.dataset, "pipeline", None) or ()  # webdataset's
        resamples = "ResampledShards" in [type(stage).__name__ for stage in stages]
        self.replaces = resamples or bool(getattr(sampler, "replacement", False))
        self.drops_last = loader.drop_last or bool(getattr(loader.batch_sampler, "drop_last", False))


def _shuffles(stream: Any) -> bool | None:
    """Whether a stream says that it shuffles, by an attribute `shuffle` or a stage's type; None if nothing tells."""
    for _, value in objects_below(stream):
        told = getattr(value, "__dict__", {}).get("shuffle")
        if isinstance(told, bool) or "shuffle" in type(value).__name__.lower():
            return told is not False
    return None


def _nodes() -> int:
    """Return the number of nodes that this thread has put into graphs of gradients."""
    torch = sys.modules.get("torch")
    count = getattr(torch._C._autograd, "_get_sequence_nr", None) if torch else None  # noqa: SLF001 - it may go
    return count() if count else 0


class LoaderLog(Watch):
    """The first epochs of one loader, and its facts."""

    def __init__(self, key: Key, loader: Any, most_epochs: int = 2) -> None:
        self.key, self.facts, self.most_epochs = key, LoaderFacts(loader), most_epochs
        self.is_wrapped = not is_torchs(loader)
        self.fetching = functools.partial(note_batches, key)
        self.epochs = list[Epoch]()
        self.keys = dict[int, str]()
        self.is_blind = False  # some batches came without their samples
        self._loader: Callable[[], Any] = lambda: None
        self._dataset: Callable[[], Any] = lambda: self
        self._epoch: Epoch | None = None  # that is noted
        self._made: Made | None = None  # the samples of the next batch
        self._last: Any = None  # the batch that was given, until the next has come
        self._before = b""  # of it, as the next was asked for
        self._nodes = 0  # of graphs of gradients, when it was given
        if not self.is_wrapped:
            self.attach(loader)

    def attach(self, loader: Any) -> None:
        """Note that a loader of torch makes the batches."""
        self._loader = weakref.ref(loader)
        with contextlib.suppress(TypeError):  # a list has no references: none is the same
            self._dataset = weakref.ref(loader.dataset)

    def serves(self, loader: Any) -> bool:
        return self._loader() is loader

    def is_continued(self, loader: Any) -> bool:
        """Whether a loader is the next of those that are made anew for each epoch."""
        dataset = self._dataset()  # None if it is gone, as one that is made for each epoch
        return (dataset is None or dataset is loader.dataset) and vars(self.facts) == vars(
            LoaderFacts(loader)
        )

    def around(self, fetcher: Any) -> Any:
        return note_batches(self.key, self.deliver)(fetcher)

    def made(self, made: Made) -> None:
        self._made = made

    @guarded
    def note_start(self) -> None:
        if self.epochs and len(self.epochs[-1].sizes) < 2 and not self.epochs[-1].is_whole:
            self.epochs.pop()  # a look at the data
        self._made = self._last = self._epoch = None
        if len(self.epochs) < self.most_epochs:
            self._epoch = Epoch()
            self.epochs.append(self._epoch)

    @guarded
    def note_request(self, ready: Callable[[], int] | None) -> None:  # noqa: ARG002
        self._before = glance(self._last)
        if self._epoch is not None and (torch := sys.modules.get("torch")):
            self._epoch.evaluates &= not torch.is_grad_enabled()
            self._epoch.differentiates |= bool(self._epoch.sizes) and _nodes() > self._nodes

    @guarded
    def note_batch(self, batch: Any) -> None:
        epoch, made, self._made = self._epoch, self._made, None
        if epoch is None:
            return
        if made is None and self.is_wrapped and (rows := rows_of(batch)):
            made = made_of(rows, None, self.key)
        epoch.overwritten += glance(self._last) != self._before
        number = len(epoch.sizes)
        self._last = batch if number < _ALL_LOOKED_AT or number % _THEN_ONE_OF == 0 else None
        epoch.content = zlib.crc32(glance(self._last), epoch.content)
        self.is_blind |= made is None
        if made is not None:
            epoch.add(made)
            if made.keys and len(self.keys) < _MOST_KEYS:
                self.keys.update(zip(np.frombuffer(made.numbers, np.int64).tolist(), made.keys, strict=True))
        self._nodes = _nodes()

    @guarded
    def note_end(self, *, is_whole: bool) -> None:
        self._last = None
        if self._epoch is not None:
            self._epoch.is_whole = is_whole

    @property
    def seen(self) -> list[Epoch]:
        """The epochs that have batches."""
        return [epoch for epoch in self.epochs if epoch.sizes]

    def told(self) -> list[list[int]]:
        """Return checksums of the order and the content of each epoch."""
        return [[zlib.crc32(epoch.numbers), epoch.content] for epoch in self.seen]

    def __getstate__(self) -> dict[str, Any]:
        """Return what another rank has to know."""
        return {name: getattr(self, name) for name in ("key", "facts", "epochs", "keys", "is_blind")}


class Logs(list[LoaderLog]):
    """The logs of the loaders of torch that this process iterates."""

    def __init__(self, key: str | None = None) -> None:
        super().__init__()
        self.key = key

    def here(self) -> list[LoaderLog]:
        """Return the logs of this process: the script may have forked it."""
        return [log for log in self if log.facts.pid == os.getpid() and log.seen]

    def log_of(self, loader: Any) -> LoaderLog:
        """Return the log of a loader; one that is made anew for each epoch continues the log of the one before."""
        for log in self:
            if log.serves(loader):
                return log
        for log in self:
            if log.is_continued(loader):
                log.attach(loader)
                return log
        self.append(LoaderLog(self.key, loader))
        return self[-1]
