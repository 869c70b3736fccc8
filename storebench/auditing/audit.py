"""Audit any loader: `storebench.audit`."""

import contextlib
import copy
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from storebench.arrays import Integers
from storebench.auditing.audit_report import AuditReport, report_of
from storebench.auditing.checks import Fault, FaultKind, Served, samples
from storebench.auditing.epochs import LoaderFacts, LoaderLog
from storebench.auditing.fetching import made_of
from storebench.auditing.samples import Key, by_content, rows_of
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
    loader = _fresh(loader)
    log = LoaderLog(LoaderFacts(has_key=key is not None))
    for epoch in range(epochs):
        if set_epoch is not None:
            set_epoch(epoch)
        log = _drain(loader, key, log)
    found = _Trials()
    if resume is not None or hasattr(loader, "load_state_dict"):
        _try_resume(loader, resume, key, log, found)
    else:
        found.rows.append(("resume", "not tried (no state_dict)"))
    if against is not None:
        _try_overlap(loader, against, key, log, found)
    return report_of(Served([log]), found.faults, found.rows, found.doubts)


@dataclass
class _Trials:
    """What trials beyond the epochs have found."""

    faults: list[Fault] = field(default_factory=list)
    rows: list[tuple[str, str]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def _is_torchs(loader: Any) -> bool:
    """Whether torch's own iterators serve a loader: subclasses of other libraries have their own."""
    from torch.utils.data import DataLoader

    kind, own = type(loader), ("__iter__", "_get_iterator")
    return isinstance(loader, DataLoader) and all(
        getattr(kind, name) is getattr(DataLoader, name) for name in own
    )


def _fresh(loader: Any) -> Any:
    """Return a loader without the persistent workers of earlier epochs, which no audit can look into."""
    importlib.import_module("storebench.auditing.torch_hooks")
    if not _is_torchs(loader):
        return loader
    loader = copy.copy(loader)
    loader._iterator = None  # noqa: SLF001
    with contextlib.suppress(TypeError, NotImplementedError):  # a stream without a length
        len(loader)
    return loader


def _drain(loader: Iterable[Any], key: Key, log: LoaderLog) -> LoaderLog:
    """Drain a loader for one epoch; return the log, with this epoch."""
    if not _is_torchs(loader):
        _drain_rows(loader, key, log)
        return log
    with watch.watching(key, log if log.epochs else None) as logs:
        for _ in loader:
            pass
    return logs[0]


def _drain_rows(loader: Iterable[Any], key: Key, log: LoaderLog) -> None:
    log.begin()
    taken = iter(loader)
    while True:
        before = log.asked()
        try:
            batch = next(taken)
        except StopIteration:
            log.end()
            return
        log.arrived(before)
        rows = rows_of(batch)
        log.note(batch, made_of(rows, None, key) if rows else None)


def _try_resume(
    loader: Any, resume: Callable[[Any], Iterable[Any]] | None, key: Key, log: LoaderLog, found: _Trials
) -> None:
    """Stop in the middle of an epoch, and compare the samples after a resume with those of the epoch that goes on."""
    half = len(log.seen[-1].sizes) // 2 if log.seen else 0
    if not half:
        found.rows.append(("resume", "not tried: an epoch has fewer than two batches"))
        return
    whole, resumed = LoaderLog(log.facts), LoaderLog(log.facts)
    states: list[Any] = []

    def stopping() -> Iterator[Any]:
        for place, batch in enumerate(loader, start=1):
            yield batch
            if place == half:
                states.append(loader.state_dict())

    _drain_rows(stopping(), key, whole)
    if resume is None:
        loader.load_state_dict(states[0])
    _drain_rows(loader if resume is None else resume(states[0]), key, resumed)
    if not whole.seen or not resumed.seen:
        found.doubts.append("the resume cannot be told: its batches have no rows")
        return
    expected, got = whole.seen[-1], resumed.seen[-1].order
    served = sum(expected.sizes[:half])
    before, rest = expected.order[:served], expected.order[served:]
    if not len(np.intersect1d(got, expected.order)) and not whole.keys and key is None:
        found.doubts.append(
            "the resume cannot be told: random augmentation hides which sample is which (key=)"
        )
        return
    faults = list(_compared(before, rest, got))
    found.faults += faults
    found.rows.append(
        ("resume", faults[0].text if faults else "goes on with the right samples, in their order")
    )


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


def _try_overlap(loader: Any, against: Any, key: Key, log: LoaderLog, found: _Trials) -> None:
    """Compare the samples of two loaders: by their index in the one dataset that both read, by key, or by content."""
    bases = [_base_of(side) for side in (loader, against)]
    if key is None and log.seen and bases[0] is not None and bases[0] is bases[1]:
        ours = _in_base(loader, log.seen[-1].order)
        theirs, again = _in_base(against, _numbers(against, None)), ours
    else:
        by = by_content if key is None else key
        ours, theirs, again = (_numbers(side, by) for side in (loader, against, loader))
    shared = np.intersect1d(ours, theirs)
    if len(shared):
        found.faults.append(
            Fault(
                FaultKind.OVERLAP,
                f"{samples(len(shared))} are in both loaders",
                "split the dataset before it is copied, augmented or cut",
            )
        )
    elif len(ours) and not len(np.intersect1d(ours, again)):
        found.doubts.append("random augmentation hides whether both loaders share samples (key=)")
    else:
        found.rows.append(("overlap", "none" if key is not None else "none of equal content or index"))


def _numbers(loader: Any, by: Key) -> Integers:
    log = _drain(_fresh(loader), by, LoaderLog(LoaderFacts()))
    return log.seen[-1].order if log.seen else np.empty(0, np.int64)


def _base_of(loader: Any) -> Any:
    """Return the dataset below all `Subset` of a map-style loader of torch; None of others."""
    from torch.utils.data import IterableDataset, Subset

    dataset = loader.dataset if _is_torchs(loader) else None
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return None if isinstance(dataset, IterableDataset) else dataset


def _in_base(loader: Any, indices: Integers) -> Integers:
    from torch.utils.data import Subset

    dataset: Any = loader.dataset
    while isinstance(dataset, Subset):
        dataset, indices = dataset.dataset, np.asarray(dataset.indices)[indices]
    return indices
