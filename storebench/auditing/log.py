"""What a loader served, epoch by epoch, and what its own attributes say of it."""

import contextlib
import functools
import os
import sys
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from storebench.arrays import Integers
from storebench.auditing.fetching import Made, NotingFetcher, made_of, note_batches
from storebench.auditing.samples import Key, glance, rows_of
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
        self.dropped = list[int]()
        self.states = dict[int, dict[str, int]]()  # of generators after the first batch, by worker
        self.used = dict[int, set[str]]()  # generators, by worker
        self.content = 0  # a checksum of values of batches
        self.overwritten = 0  # batches
        self.evaluates = True  # every batch was asked for without gradients
        self.is_whole = False  # the loop took all that the loader had

    def add(self, made: Made) -> None:
        self.numbers.frombytes(made.numbers)
        self.labels.frombytes(made.labels)
        self.sizes.append(len(made.labels) // self.labels.itemsize)
        self.workers.append(made.worker)
        self.dropped += made.dropped
        if made.states is not None:
            self.states.setdefault(made.worker, made.states)
        self.used.setdefault(made.worker, set()).update(made.used)

    @property
    def order(self) -> Integers:
        return np.frombuffer(self.numbers, np.int64)

    def by_worker(self) -> list[Integers]:
        """Return the samples of each worker."""
        workers = np.repeat(np.array(self.workers), self.sizes)
        return [self.order[workers == worker] for worker in np.unique(workers)]


class LoaderFacts:
    """What the attributes of a loader of torch say of it; None: there is no such loader.

    Nothing of the user's is called but the length that its sampler reads.
    """

    def __init__(self, loader: Any = None) -> None:
        self.rank, self.ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.is_torchs, self.name, self.lines, self.workers = loader is not None, "", user_lines(), 0
        self.is_map = False  # the dataset is read by index
        self.count: int | None = None  # samples of the dataset, None if nothing tells
        self.chosen: bytes | None = None  # int64 indices that the sampler was given
        self.is_shuffled: bool | None = None  # None if nothing tells
        self.replaces = self.drops_last = False  # draws with replacement
        if loader is not None:
            self._read(loader)

    def _read(self, loader: Any) -> None:
        from torch.utils import data

        self.name, self.workers = name_of(type(loader.dataset)), loader.num_workers
        self.is_map = not isinstance(loader.dataset, data.IterableDataset)
        sampler = loader.sampler
        if not self.is_map:
            self.count = loader._IterableDataset_len_called  # noqa: SLF001
            self.is_shuffled = _shuffles(loader.dataset)
        elif type(loader.batch_sampler) not in (data.BatchSampler, type(None)):
            sampler = loader.batch_sampler
        elif isinstance(sampler, data.SubsetRandomSampler):
            self.chosen, self.is_shuffled = np.array(sampler.indices, np.int64).tobytes(), True
        elif type(sampler) in (data.SequentialSampler, data.RandomSampler, data.DistributedSampler):
            self.count = len(loader.dataset)  # these read the length themselves
            self.is_shuffled = type(sampler) is data.RandomSampler or bool(getattr(sampler, "shuffle", False))
        elif isinstance(sampler, data.WeightedRandomSampler):
            self.is_shuffled = True
        stages = [
            type(stage).__name__ for stage in getattr(loader.dataset, "pipeline", None) or ()
        ]  # webdataset's
        self.replaces = "ResampledShards" in stages or bool(getattr(sampler, "replacement", False))
        self.drops_last = loader.drop_last or bool(getattr(loader.batch_sampler, "drop_last", False))


def _shuffles(stream: Any) -> bool | None:
    """Whether a stream of Hugging Face shuffles; None of others, which do not tell."""
    stage = getattr(stream, "_ex_iterable", None)
    while stage is not None and "Shuffle" not in type(stage).__name__:
        stage = getattr(stage, "ex_iterable", None)
    return True if stage is not None else None


class LoaderLog(Watch):
    """The first epochs of one loader, and its facts."""

    def __init__(self, key: Key, facts: LoaderFacts, most_epochs: int = 2) -> None:
        self.key, self.facts, self.most_epochs, self.pid = key, facts, most_epochs, os.getpid()
        self.is_wrapped = not facts.is_torchs
        self.fetching = functools.partial(note_batches, key)
        self.epochs = list[Epoch]()
        self.keys = dict[int, str]()
        self.is_blind = False  # some batches came without their samples
        self._loader: Callable[[], Any] = lambda: None
        self._dataset: Callable[[], Any] = lambda: self
        self._begun = self._loaders = 0  # epochs, and loaders that were made for them
        self._epoch: Epoch | None = None  # that is noted
        self._made: Made | None = None  # the samples of the next batch
        self._last: Any = None  # the batch that was given, until the next has come
        self._before = b""  # of it, as the next was asked for

    def attach(self, loader: Any) -> None:
        """Note that a loader of torch makes the batches."""
        self._loader, self._loaders = weakref.ref(loader), self._loaders + 1
        with contextlib.suppress(TypeError):  # a list has no references: none is the same
            self._dataset = weakref.ref(loader.dataset)

    def serves(self, loader: Any) -> bool:
        return self._loader() is loader

    def is_continued(self, loader: Any, facts: LoaderFacts) -> bool:
        """Whether a loader is the next of those that are made anew for each epoch."""
        dataset = self._dataset()  # None if it is gone, as one that is made for each epoch
        is_alike = vars(self.facts) == vars(facts) and self.pid == os.getpid()
        is_alike &= dataset is None or dataset is loader.dataset
        return is_alike and self._begun == self._loaders

    def around(self, fetcher: Any) -> NotingFetcher:
        return NotingFetcher(fetcher, key=self.key, deliver=self.deliver)

    def made(self, made: Made) -> None:
        self._made = made

    @guarded
    def note_start(self) -> None:
        if self.epochs and len(self.epochs[-1].sizes) < 2 and not self.epochs[-1].is_whole:
            self.epochs.pop()  # a look at the data
        self._made = self._last = self._epoch = None
        self._begun += 1
        if len(self.epochs) < self.most_epochs:
            self._epoch = Epoch()
            self.epochs.append(self._epoch)

    @guarded
    def note_request(self, ready: Callable[[], int] | None) -> None:  # noqa: ARG002
        self._before = glance(self._last)
        if self._epoch is not None and (torch := sys.modules.get("torch")):
            self._epoch.evaluates &= not torch.is_grad_enabled()

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

    @guarded
    def note_end(self, *, is_whole: bool) -> None:
        self._last = None
        if self._epoch is not None:
            self._epoch.is_whole = is_whole

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield an epoch of a loader, watched."""
        with self.beginning():
            take = functools.partial(next, iter(loader))
        with contextlib.suppress(StopIteration):
            while True:
                batch = self.next(take)
                yield batch

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
        return [log for log in self if log.pid == os.getpid() and log.seen]

    def log_of(self, loader: Any) -> LoaderLog:
        """Return the log of a loader; one that is made anew for each epoch continues the log of the one before."""
        for log in self:
            if log.serves(loader):
                return log
        facts = LoaderFacts(loader)
        log = next((log for log in self if log.is_continued(loader, facts)), None) or LoaderLog(
            self.key, facts
        )
        log.attach(loader)
        if log not in self:
            self.append(log)
        return log
