"""Audit any loader: `storebench.audit`."""

import contextlib
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from storebench.auditing.audit_report import AuditReport, Fault, FaultKind, Finding, Row
from storebench.auditing.checks import compared, report_of
from storebench.auditing.log import LoaderLog, is_torchs
from storebench.auditing.samples import Key, content_digest
from storebench.units import number_of


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

    Parameters
    ----------
    loader
        A torch ``DataLoader``, or any iterable of batches, whose rows are then the samples.
    epochs
        Epochs to drain; with fewer than two, it is not known whether they differ.
    key
        The name or place of the field that tells who a sample is, or a function of the sample before it is collated;
        by default its index, its ``__key__``, or a digest of its content.
    resume
        Makes a loader that goes on from what ``loader.state_dict()`` returned in the middle of an epoch; by default,
        ``loader.load_state_dict(state)`` is called.
    against
        A loader that should have no sample in common with this one, by `key`, else by content.
    repeat
        Seeds, and makes the loader, as a program does at its start: two epochs from two starts should be the same.
    set_epoch
        Called with its number before each epoch, as your loop does.

    Examples
    --------
    >>> import storebench
    >>> storebench.audit([[1, 2], [3, 4]]).faults
    ()
    """
    log = _drain(loader, key, epochs=epochs, before=set_epoch)
    trials = [_resumed(loader, resume, key, log)]
    if against is not None:
        trials.append(_overlap(loader, against, key))
    if repeat is not None:
        trials.append(compared(*(_drain(repeat(), key).told() for _ in range(2))))
    return report_of([log], *trials)


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
    if is_torchs(loader):
        loader._iterator = None  # noqa: SLF001 - no persistent workers of earlier epochs, which no audit can look into
        with contextlib.suppress(Exception):  # a stream without a length
            len(loader)
    log = LoaderLog(key, loader, epochs)
    for epoch in range(epochs):
        if before is not None:
            before(epoch)
        with log.beginning():
            batches = iter(loader)
        for number, _ in enumerate(log.batches(batches), start=1):
            if after is not None:
                after(number)
    if not log.is_wrapped:
        loader._iterator = None  # noqa: SLF001
    return log


def _resumed(loader: Any, resume: Callable[[Any], Iterable[Any]] | None, key: Key, log: LoaderLog) -> Finding:
    """Stop in the middle of an epoch, and compare the samples after a resume with those of the epoch that goes on."""
    half = len(log.seen[-1].sizes) // 2 if log.seen else 0
    if resume is None and not hasattr(loader, "load_state_dict"):
        return Row("resume", "not tried (no state_dict)")
    if not half:
        return Row("resume", "not tried: an epoch has fewer than two batches")
    states = dict[int, Any]()
    whole = _drain(
        loader, key, after=lambda number: number == half and states.update({0: loader.state_dict()})
    )
    if resume is None:
        loader.load_state_dict(states[0])
    resumed = _drain(loader if resume is None else resume(states[0]), key)
    (expected,), (got,) = whole.epochs, resumed.epochs
    before, rest = np.split(expected.order, [sum(expected.sizes[:half])])
    repeats = len(np.intersect1d(before, np.setdiff1d(got.order, rest)))  # not those that were drawn twice
    skips = len(np.setdiff1d(rest, got.order))
    if np.array_equal(rest, got.order):
        return Row("resume", "goes on with the right samples, in their order")
    if not len(np.intersect1d(got.order, expected.order)) and not whole.keys and key is None:
        return "the resume cannot be told: random augmentation hides which sample is which (key=)"
    text = "goes on in another order"
    if repeats or skips:
        text = f"repeats {number_of(repeats, 'sample')} and skips {number_of(skips, 'sample')}"
    return Fault(FaultKind.RESUME, f"a resume in the middle of an epoch {text}")


def _overlap(loader: Any, against: Any, key: Key) -> Finding:
    """Compare the samples of two loaders, by key or by content."""
    by = content_digest if key is None else key
    ours, theirs, again = (_drain(side, by).epochs[0].order for side in (loader, against, loader))
    if count := len(np.intersect1d(ours, theirs)):
        return Fault(FaultKind.OVERLAP, f"{number_of(count, 'sample')} in both loaders")
    if not len(np.intersect1d(ours, again)):
        return "random augmentation hides whether both loaders share samples (key=)"
    return Row("overlap", "none" if key is not None else "none of equal content")
