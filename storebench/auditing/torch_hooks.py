"""Note the samples of torch's DataLoaders from inside, without a change of the loader, its dataset or its batches."""

# ruff: noqa: SLF001 - torch has no public names for what is extended here

import functools
import os
import weakref
from typing import Any

import torch
from torch.utils import data

from storebench.auditing.epochs import LoaderFacts, LoaderLog
from storebench.auditing.fetching import Carried, Made, NotingFetcher, init_worker
from storebench.auditing.watching import watch
from storebench.profiling.guard import Guard
from storebench.profiling.loops import name_of

_guard = Guard()


def facts_of(loader: "data.DataLoader[Any]") -> LoaderFacts:
    """Return what a loader's attributes tell; nothing of the user's is called but the length that its sampler reads."""
    is_map = loader._dataset_kind == data._DatasetKind.Map
    sampler: Any = loader.sampler
    if is_map and type(loader.batch_sampler) not in (data.BatchSampler, type(None)):
        sampler = loader.batch_sampler
    count = chosen = None
    is_shuffled: bool | None = None
    if not is_map:
        count = loader._IterableDataset_len_called
        is_shuffled = _shuffles(loader.dataset)
    elif isinstance(sampler, data.SubsetRandomSampler):
        chosen, is_shuffled = [int(index) for index in sampler.indices], True
    elif type(sampler) in (data.SequentialSampler, data.RandomSampler, data.DistributedSampler):
        # These read the length themselves.
        count = len(loader.dataset)  # type: ignore[arg-type]
        is_shuffled = type(sampler) is data.RandomSampler or bool(getattr(sampler, "shuffle", False))
    elif isinstance(sampler, data.WeightedRandomSampler):
        is_shuffled = True
    stages = getattr(loader.dataset, "pipeline", None)
    resamples = isinstance(stages, list) and any(
        type(stage).__name__ == "ResampledShards" for stage in stages
    )
    return LoaderFacts(
        name=name_of(type(loader.dataset)),
        workers=loader.num_workers,
        is_map=is_map,
        has_key=watch.key is not None,
        count=count,
        chosen=chosen,
        sampler=type(sampler).__name__ if is_map else "",
        is_shuffled=is_shuffled,
        replaces=resamples or bool(getattr(sampler, "replacement", False)),
        drops_last=loader.drop_last or bool(getattr(loader.batch_sampler, "drop_last", False)),
        rank=int(os.environ.get("RANK", "0")),
        ranks=int(os.environ.get("WORLD_SIZE", "1")),
    )


def _shuffles(stream: Any) -> bool | None:
    """Whether a stream of Hugging Face shuffles; None of others, which do not tell."""
    stage = getattr(stream, "_ex_iterable", None)
    while stage is not None and "Shuffle" not in type(stage).__name__:
        stage = getattr(stage, "ex_iterable", None)
    return True if stage is not None else None


class _Noted:
    """What an iterator of torch does in addition while it is watched."""

    _storebench_log: LoaderLog
    _storebench_made: Made | None

    def __next__(self) -> Any:
        log = self._storebench_log
        before, evaluates = _guard.attempt(log.asked), not torch.is_grad_enabled()
        try:
            batch = super().__next__()  # type: ignore[misc]
        except StopIteration:
            _guard.attempt(log.end)
            raise
        made, self._storebench_made = self._storebench_made, None
        _guard.attempt(functools.partial(log.arrived, before))
        _guard.attempt(functools.partial(log.note, batch, made, evaluates=evaluates))
        return batch

    def _process_data(self, received: Any, *rest: Any) -> Any:
        if isinstance(received, Carried):
            self._storebench_made = received.made
            received = received.batch
        return super()._process_data(received, *rest)  # type: ignore[misc]


def _log_of(loader: "data.DataLoader[Any]") -> LoaderLog:
    return watch.log_of(loader, functools.partial(facts_of, loader))


def _iterate_noted(loader: "data.DataLoader[Any]") -> Any:
    log = _guard.attempt(functools.partial(_log_of, loader)) if _is_watched() else None
    if log is None:
        return _iterate(loader)
    log.begin()
    watch.opening = log
    try:
        iterator = _iterate(loader)
    finally:
        watch.opening = None
    if isinstance(iterator, _Noted):
        iterator._storebench_log = log  # one of persistent workers is that of the epoch before
    else:
        log.is_blind = True
    return iterator


def _is_watched() -> bool:
    # Not of a loader that a dataset iterates in a worker, nor inside another's call of `iter()`.
    return watch.is_on and data.get_worker_info() is None and watch.opening is None


def _make_noted_iterator(loader: "data.DataLoader[Any]") -> Any:
    log, watch.opening = watch.opening, None
    if log is None:
        return _make_iterator(loader)
    init = loader.worker_init_fn
    if loader.num_workers:
        loader.worker_init_fn = functools.partial(init_worker, watch.key, init)
    try:
        iterator: Any = _make_iterator(loader)
    finally:
        loader.worker_init_fn = init
    kind = type(iterator)
    iterator._storebench_log, iterator._storebench_made = log, None
    iterator.__class__ = type(kind.__name__, (_Noted, kind), {})
    if not loader.num_workers:
        owner = weakref.ref(iterator)

        def deliver(batch: Any, made: Made) -> Any:
            if (iterator := owner()) is not None:
                iterator._storebench_made = made
            return batch

        iterator._dataset_fetcher = NotingFetcher(iterator._dataset_fetcher, 0, watch.key, deliver)
    return iterator


# This module is imported when the first loader is to be watched.
_iterate, _make_iterator = data.DataLoader.__iter__, data.DataLoader._get_iterator
data.DataLoader.__iter__ = _iterate_noted  # type: ignore[method-assign]
data.DataLoader._get_iterator = _make_noted_iterator  # type: ignore[method-assign, assignment]
