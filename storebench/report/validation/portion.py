"""Compare a steady portion and the rates from a cold start with their evidence: the step table and the residency curve."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from storebench.report.validation.findings import ROUNDING, Finding, Rule, finding
from storebench.results import Portion, Record
from storebench.worker.figures import portion_sums, still_filling, with_cold_rates

COLUMNS = ("start_ns", "payload_bytes", "ready_ns", "fetch_start_ns")
"""Columns of a step table that are needed besides those of `storebench.report.validation.validate`."""

LATER_COLUMNS = ("paused_ns",)
"""Columns that tables of earlier releases lack."""

_Steps = Mapping[str, Any]


def check_cold_rates(record: Record, steps: _Steps) -> Iterator[Finding]:
    """Yield a finding if the rates from a cold start are not those of a record's steps and curve."""
    own = with_cold_rates(dataclasses.replace(record, cold_rates=()), dict(steps)).cold_rates
    figures = [dataclasses.astuple(rate) for rate in (*record.cold_rates, *own)]
    half = len(record.cold_rates)
    if half != len(own) or not all(map(_agree, figures[:half], figures[half:])):
        message = f"{_words(record)}, but its steps and its curve give {_words(dataclasses.replace(record, cold_rates=own))}"
        yield finding(Rule.STEPS, record, "cold_rates", message)


def _agree(recorded: tuple[float | None, ...], right: tuple[float | None, ...]) -> bool:
    known = [(0.0 if a is None else a, 0.0 if b is None else b) for a, b in zip(recorded, right, strict=True)]
    same = [a is None for a in recorded] == [b is None for b in right]
    return same and all(abs(a - b) <= ROUNDING * max(1.0, abs(b)) for a, b in known)


def _words(record: Record) -> str:
    rates = (f"{rate.samples_per_s:.6g}/s at {rate.read_frac:.0%}" for rate in record.cold_rates)
    return ", ".join(rates) or "none"


def check_portion(record: Record, steps: _Steps) -> Iterator[Finding]:
    """Yield every figure of a record's portion that its steps and its curve do not support.

    Parameters
    ----------
    record
        A usable record.
    steps
        Columns of its step table, warm-up steps included.
    """
    part = record.portion
    if part is None:
        return
    timed = np.flatnonzero(~steps["warmup"].astype(bool))
    last = part.first_step + part.steps - 1
    if not len(timed) or not timed[0] <= part.first_step <= last <= timed[-1]:
        message = f"steps {part.first_step} to {last}, which are not all among the timed ones"
        yield finding(Rule.STEPS, record, "portion.steps", message)
        return
    yield from _whole(record, part, int(timed[0]), int(timed[-1]))
    yield from _full(record, part, steps)
    yield from _sums(record, part, steps)


def _whole(record: Record, part: Portion, first: int, last: int) -> Iterator[Finding]:
    """Find a steady portion that leaves out steps: its end, or the beginning of a later epoch."""
    if part.first_step + part.steps - 1 != last:
        message = (
            f"steady up to step {part.first_step + part.steps - 1}, but step {last} is the last timed one"
        )
        yield finding(Rule.STEPS, record, "portion.steps", message)
    if record.epoch and part.first_step != first:
        message = f"steady from step {part.first_step} on, but all timed steps of a later epoch count, from step {first} on"
        yield finding(Rule.STEPS, record, "portion.first_step", message)


def _full(record: Record, part: Portion, steps: _Steps) -> Iterator[Finding]:
    """Find a steady portion during which the cache still filled."""
    limit, cache = record.cell.memory_bytes, record.cache
    if limit is None or record.store is None or cache is None or not cache.curve:
        return  # `validation.run` reports it
    # The worker counts whole pages, which is never less.
    if filling := still_filling(dict(steps), cache.curve, part.first_step, record.store.file_bytes, limit):
        yield finding(Rule.CACHE, record, "portion.first_step", f"called steady, but {filling}")


def _sums(record: Record, part: Portion, steps: _Steps) -> Iterator[Finding]:
    cut = slice(part.first_step, part.first_step + part.steps)
    try:
        sums = portion_sums({key: column[cut] for key, column in steps.items()}, part.edge_steps)
    except ZeroDivisionError:
        yield finding(Rule.STEPS, record, "portion.seconds", "its steps took no time, or served no sample")
        return
    for name, right in sums.items():
        recorded = getattr(part, name)
        if recorded is None or right is None:
            agrees = recorded is right
        else:
            agrees = abs(recorded - right) <= ROUNDING * max(1.0, abs(right))
        if not agrees:
            yield finding(Rule.STEPS, record, f"portion.{name}", f"{recorded}, but its steps give {right}")
