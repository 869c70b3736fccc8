"""Audit any loader: `storebench.audit`."""

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from storebench.auditing.audit_report import AuditReport, Fault, FaultKind, Finding, Row
from storebench.auditing.checks import report_of, samples, starts_differ
from storebench.auditing.log import LoaderFacts, LoaderLog
from storebench.auditing.samples import Key, content_digest


def audit(
    loader: Iterable[Any],
    *,
    epochs: int = 2,
    key: Key = None,
    resume: Callable[[Any], Iterable[Any]] | None = None,
    against: Iterable[Any] | None = None,
    repeat: Callable[[], Iterable[Any]] | None = None,
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
    repeat
        Seeds, and makes the loader, as a program does at its start: two epochs from two starts should be the same.
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
    log = _drain(loader, key, epochs=epochs, before=set_epoch)
    trials = list(_resume(loader, resume, key, log))
    if against is not None:
        trials += _overlap(loader, against, key)
    if repeat is not None:
        trials += starts_differ(*(_drain(repeat(), key).told() for _ in range(2)))
    return report_of([log], *trials)


def _is_torchs(loader: Any) -> bool:
    """Whether torch's own iterators serve a loader: subclasses of other libraries have their own."""
    from torch.utils.data import DataLoader

    kind, own = type(loader), ("__iter__", "_get_iterator")
    return isinstance(loader, DataLoader) and all(
        getattr(kind, name) is getattr(DataLoader, name) for name in own
    )


def _drain(
    loader: Any,
    key: Key,
    *,
    epochs: int = 1,
    before: Callable[[int], object] | None = None,
    after: Callable[[int], object] | None = None,
) -> LoaderLog:
    """Drain epochs of a loader; `before` is called before each, and `after` after each batch, with its number."""
    importlib.import_module("storebench.profiling.torch_loaders")
    is_torchs = _is_torchs(loader)
    if is_torchs:
        loader._iterator = None  # noqa: SLF001 - no persistent workers of earlier epochs, which no audit can look into
        with contextlib.suppress(Exception):  # a stream without a length
            len(loader)
    facts = LoaderFacts(loader if is_torchs else None)
    log = LoaderLog(key, facts, epochs)
    if is_torchs:
        log.attach(loader)
    for epoch in range(epochs):
        if before is not None:
            before(epoch)
        for number, _ in enumerate(log.batches(loader), start=1):
            if after is not None:
                after(number)
    if is_torchs:
        loader._iterator = None  # noqa: SLF001
    return log


def _resume(
    loader: Any, resume: Callable[[Any], Iterable[Any]] | None, key: Key, log: LoaderLog
) -> Iterator[Finding]:
    """Stop in the middle of an epoch, and compare the samples after a resume with those of the epoch that goes on."""
    half = len(log.seen[-1].sizes) // 2 if log.seen else 0
    if resume is None and not hasattr(loader, "load_state_dict"):
        yield Row("resume", "not tried (no state_dict)")
        return
    if not half:
        yield Row("resume", "not tried: an epoch has fewer than two batches")
        return
    states = dict[int, Any]()
    whole = _drain(
        loader, key, after=lambda number: number == half and states.update({0: loader.state_dict()})
    )
    if resume is None:
        loader.load_state_dict(states[0])
    resumed = _drain(loader if resume is None else resume(states[0]), key)
    (expected,), (got,) = whole.epochs, resumed.epochs
    served = sum(expected.sizes[:half])
    before, rest = expected.order[:served], expected.order[served:]
    if not len(np.intersect1d(got.order, expected.order)) and not whole.keys and key is None:
        yield "the resume cannot be told: random augmentation hides which sample is which (key=)"
        return
    repeats = len(np.intersect1d(before, np.setdiff1d(got.order, rest)))  # not those that were drawn twice
    skips = len(np.setdiff1d(rest, got.order))
    if repeats or skips:
        text = f"repeats {samples(repeats)} and skips {samples(skips)}"
    elif np.array_equal(rest, got.order):
        yield Row("resume", "goes on with the right samples, in their order")
        return
    else:
        text = "goes on in another order"
    yield Fault(FaultKind.RESUME, f"a resume in the middle of an epoch {text}")


def _overlap(loader: Any, against: Any, key: Key) -> Iterator[Finding]:
    """Compare the samples of two loaders, by key or by content."""
    by = content_digest if key is None else key
    ours, theirs = (_drain(side, by).epochs[0].order for side in (loader, against))
    if count := len(np.intersect1d(ours, theirs)):
        yield Fault(FaultKind.OVERLAP, f"{samples(count)} are in both loaders")
    elif not len(np.intersect1d(ours, _drain(loader, by).epochs[0].order)):
        yield "random augmentation hides whether both loaders share samples (key=)"
    else:
        yield Row("overlap", "none" if key is not None else "none of equal content")
