"""Audit any loader: `storebench.audit`."""

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from storebench.arrays import Integers
from storebench.auditing.audit_report import AuditReport, report_of
from storebench.auditing.checks import Fault, FaultKind, Served, samples
from storebench.auditing.epochs import LoaderFacts, LoaderLog
from storebench.auditing.fetching import made_of
from storebench.auditing.samples import Key, content_digest, rows_of, without_label
from storebench.auditing.watching import watch


def audit(
    loader: Iterable[Any],
    *,
    epochs: int = 2,
    key: Key = None,
    resume: Callable[[Any], Iterable[Any]] | None = None,
    against: Iterable[Any] | None = None,
    set_epoch: Callable[[int], object] | None = None,
) -> AuditReport:
    """Drain a loader, and report whether it serves each sample once, well shuffled, and the right ones after a resume.

    Samples of a map-style dataset are known by index, those of a stream by their ``__key__`` or a digest of their
    content before they are collated. Of a loader that is no torch ``DataLoader``, the rows of its batches are the
    samples.

    Parameters
    ----------
    loader
        A torch ``DataLoader``, or any iterable of batches.
    epochs
        Epochs to drain; with fewer than two, it is not known whether they differ.
    key
        What tells who a sample is: the name or place of a field, or a function of the sample before it is collated.
    resume
        Makes a loader that goes on from a state, of the state that ``loader.state_dict()`` returned in the middle of
        an epoch; by default, ``loader.load_state_dict(state)`` is called.
    against
        A loader that should have no sample in common with this one, as that of the validation data. Samples are
        compared by `key`, else by their content.
    set_epoch
        Called with its number before each epoch, as your loop does.

    Examples
    --------
    >>> import torch
    >>> import storebench
    >>> dataset = torch.utils.data.TensorDataset(torch.arange(100))
    >>> report = storebench.audit(torch.utils.data.DataLoader(dataset, batch_size=10, shuffle=True))
    >>> report.faults
    ()
    """
    log = LoaderLog(LoaderFacts())
    for epoch in range(epochs):
        if set_epoch is not None:
            set_epoch(epoch)
        log = _drain(loader, key, log)
    faults, rows = list[Fault](), list[tuple[str, str]]()
    if resume is not None or hasattr(loader, "load_state_dict"):
        found = _resumed(loader, resume, key, log)
        faults += found
        rows.append(("resume", found[0].text if found else "goes on with the right samples, in their order"))
    else:
        rows.append(("resume", "not tried (no state_dict)"))
    if against is not None:
        faults += _overlap(loader, against, key)
    return report_of(Served([log]), faults, rows)


def _drain(loader: Iterable[Any], key: Key, log: LoaderLog, most: int | None = None) -> LoaderLog:
    """Drain a loader for one epoch, or for some batches; return the log, with this epoch."""
    if not _is_torchs(loader):
        _drain_rows(loader, key, log, most)
        return log
    importlib.import_module("storebench.auditing.torch_hooks")
    with watch.watching(key, log if log.epochs else None) as logs:
        for _ in itertools.islice(iter(loader), most):
            pass
    return logs[-1]


def _is_torchs(loader: Any) -> bool:
    """Whether torch's own iterators serve a loader: subclasses of other libraries have their own."""
    from torch.utils.data import DataLoader

    return isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__


def _drain_rows(loader: Iterable[Any], key: Key, log: LoaderLog, most: int | None) -> None:
    log.begin()
    taken = iter(loader)
    for place in itertools.count():
        if place == most:
            return
        before = log.asked()
        try:
            batch = next(taken)
        except StopIteration:
            log.end()
            return
        log.arrived(before)
        rows = rows_of(batch)
        log.note(batch, made_of(rows, None, key) if rows else None)


def _resumed(
    loader: Any, resume: Callable[[Any], Iterable[Any]] | None, key: Key, log: LoaderLog
) -> list[Fault]:
    """Stop in the middle of an epoch, and compare the samples after a resume with those of the epoch that goes on."""
    half = len(log.seen[-1].sizes) // 2
    whole = LoaderLog(log.facts)
    states: list[Any] = []

    def stopping() -> Iterator[Any]:
        for place, batch in enumerate(loader, start=1):
            yield batch
            if place == half:
                states.append(loader.state_dict())

    _drain_rows(stopping(), key, whole, None)
    if resume is None:
        loader.load_state_dict(states[0])
    resumed = LoaderLog(log.facts)
    _drain_rows(loader if resume is None else resume(states[0]), key, resumed, None)
    expected, got = whole.seen[-1], resumed.seen[-1]
    served = sum(expected.sizes[:half])
    return list(_compared(expected.order[:served], expected.order[served:], got.order))


def _compared(before: Integers, rest: Integers, got: Integers) -> Iterator[Fault]:
    repeats = len(np.intersect1d(before, np.setdiff1d(got, rest)))  # not those that were drawn twice
    skips = len(np.setdiff1d(rest, got))
    if repeats or skips:
        text = f"a resume in the middle of an epoch repeats {samples(repeats)} and skips {samples(skips)}"
    elif not np.array_equal(rest, got):
        text = "a resume in the middle of an epoch goes on in another order"
    else:
        return
    yield Fault(
        FaultKind.RESUME, text, "save the place in the epoch and the state of its shuffle, of each worker"
    )


def _overlap(loader: Iterable[Any], against: Iterable[Any], key: Key) -> Iterator[Fault]:
    by = key if key is not None else lambda value: content_digest(without_label(value))
    ours, theirs = (_drain(one, by, LoaderLog(LoaderFacts())).seen[-1].order for one in (loader, against))
    shared = np.intersect1d(ours, theirs)
    if len(shared):
        yield Fault(
            FaultKind.OVERLAP,
            f"{samples(len(shared))} are in both loaders",
            "split the dataset before it is copied, augmented or cut",
        )
