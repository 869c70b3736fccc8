"""Compare a portion with its evidence: the step table, the residency curve and the facts of the store."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from storebench.probes.page_count import PAGE_BYTES
from storebench.report.cells import may_look_ahead
from storebench.report.texts.labels import size
from storebench.report.validation.findings import ROUNDING, Finding, Rule, finding
from storebench.report.validation.limits import DEVICE_LEAST_FRAC, rows_frac
from storebench.results import Portion, PortionKind, Record, ResidencyPoint, StoreFacts
from storebench.training.step_table import step_ends
from storebench.worker.portion import (
    KEPT_POINTS,
    asked_frac,
    expected_frac,
    portion_sums,
    shared_drift,
    still_filling,
)
from storebench.worker.store_pages import StorePages

COLUMNS = ("start_ns", "payload_bytes", "ready_ns", "fetch_start_ns")
"""Columns of a step table that are needed besides those of `storebench.report.validation.validate`."""

LATER_COLUMNS = ("paused_ns", "device_read_bytes")
"""Columns that tables of earlier releases lack."""

CURVE_START_FRAC = 0.1
"""Most by which the first point of a curve may differ from the count before the epoch, as a share of the store."""

_Steps = Mapping[str, Any]


def check_portion(record: Record, steps: _Steps) -> Iterator[Finding]:
    """Yield every figure of a record's portion that its steps, its curve and its store do not support.

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
    if part.kind is PortionKind.COLD and part.first_step != timed[0]:
        message = f"cold from step {part.first_step} on, but step {timed[0]} is the first timed one"
        yield finding(Rule.STEPS, record, "portion.first_step", message)
    if part.edge_steps and (part.kind is PortionKind.COLD or not may_look_ahead(record.cell)):
        why = (
            "a cold portion has none" if part.kind is PortionKind.COLD else "its reader is not told the order"
        )
        message = f"{part.edge_steps} steps at either end are left out of the drift, but {why}"
        yield finding(Rule.STEPS, record, "portion.edge_steps", message)
    if part.kind is PortionKind.STEADY:
        yield from _whole(record, part, int(timed[0]), int(timed[-1]))
        yield from _full(record, part, steps)
    yield from _sums(record, part, steps)
    if part.kind is PortionKind.COLD and not part.upper_bound and record.store is not None:
        yield from _curve(record, part, record.store, steps)
        yield from _device(record, part, steps)


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
    """Find a steady portion during which the cache still filled, or whose curve is not that of its epoch."""
    limit, cache = record.cell.memory_bytes, record.cache
    if limit is None or record.store is None or cache is None or not cache.curve:
        return  # `validation.run` reports it
    first, before = cache.curve[0], cache.resident_frac_before
    if first.elapsed_s > ROUNDING or (
        before is not None and abs(first.resident_frac - before) > CURVE_START_FRAC
    ):
        was = "unknown" if before is None else f"{before:.1%}"
        message = (
            f"the curve begins {first.elapsed_s:.4g} s after the epoch with {first.resident_frac:.1%} of the store, "
            f"but before the epoch it was {was}"
        )
        yield finding(Rule.CACHE, record, "cache.curve", message)
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


def _curve(record: Record, part: Portion, store: StoreFacts, steps: _Steps) -> Iterator[Finding]:
    """Find a cold portion that continues after more was resident than had been asked for."""
    curve = record.cache.curve if record.cache else ()
    if not curve:
        return  # `validation.run` reports it
    last = part.first_step + part.steps - 1
    end_s = int(step_ends(dict(steps))[last] - steps["start_ns"][0]) / 1e9
    if curve[-1].elapsed_s < end_s - ROUNDING:
        message = (
            f"residency was sampled for {curve[-1].elapsed_s:.4g} s, the portion ends after {end_s:.4g} s"
        )
        yield finding(Rule.CACHE, record, "portion.steps", message)
    pages = StorePages(
        count=store.count,
        # At most as many as were counted, so that the portion has to meet the same condition as when it was found.
        pages=-(-store.file_bytes // PAGE_BYTES),
        payload_bytes=store.payload_bytes,
    )
    origin = dict(steps)
    shared = shared_drift(
        origin, {key: column[part.first_step : last + 1] for key, column in origin.items()}, curve, pages
    )
    if part.shared_drift > shared * (1 + ROUNDING):
        message = f"{part.shared_drift:.4g}, but pages that samples share explain {shared:.4g} at most"
        yield finding(Rule.CACHE, record, "portion.shared_drift", message)
    asked = _asked(record, steps, store)
    resident = pages.of_used([point.resident_frac for point in curve])
    excess = resident - expected_frac(asked, pages.samples_per_page)
    within = _within(record, curve, end_s)
    over = within & (excess > pages.tolerated_frac + ROUNDING)
    if over.any():
        first = int(np.argmax(over))
        message = (
            f"called cold for {end_s:.4g} s, but after {curve[first].elapsed_s:.4g} s, with {asked[first]:.1%} of the "
            f"samples requested, {excess[first]:.1%} of the store was resident without having been requested "
            f"({pages.tolerated_frac:.1%} is tolerated)"
        )
        yield finding(Rule.CACHE, record, "portion.steps", message)


def _device(record: Record, part: Portion, steps: _Steps) -> Iterator[Finding]:
    """Find a cold portion whose samples did not all come from the device: something read them before the clock began."""
    cache = record.cache
    if "device_read_bytes" not in steps or cache is None or cache.resident_frac_before is None:
        return  # read by a job of ranks, or not counted
    last = part.first_step + part.steps - 1
    begun = steps["fetch_start_ns"] <= step_ends(dict(steps))[last]
    read = int(steps["device_read_bytes"][begun].sum())
    requested_bytes = int(steps["payload_bytes"][: last + 1].sum()) * rows_frac(record)
    if read < requested_bytes * (1 - cache.resident_frac_before) * DEVICE_LEAST_FRAC:
        message = (
            f"{size(read)} came from the device until the portion ended, but {size(requested_bytes)} were requested by then and only"
            f" {cache.resident_frac_before:.1%} of the store was resident: something else held the data"
        )
        yield finding(Rule.CEILING, record, "portion.samples_per_s", message)


def _within(record: Record, curve: tuple[ResidencyPoint, ...], end_s: float) -> Any:
    """Return the points that have to be good, bool [n]: those up to the portion's end, and one that proves its last step.

    A recorded curve is thinned. Where each step's batch is begun when the loop asks for it, and there are fewer steps
    than points, the next point that was kept is the proof. Elsewhere the proof may have been left out.
    """
    elapsed_s = np.array([point.elapsed_s for point in curve])
    within = elapsed_s < end_s
    proof = int(np.argmin(within)) if not within.all() else len(curve)
    if not record.cell.workers and record.steps < KEPT_POINTS and proof < len(curve) - 1:
        within[proof] = True
    return within


def _asked(record: Record, steps: _Steps, store: StoreFacts) -> Any:
    """Return the share of the store that had been asked for at each point of the curve, float64 [n], from the steps."""
    curve = record.cache.curve if record.cache else ()
    at_ns = np.array([round(point.elapsed_s * 1e9) for point in curve], np.int64) + int(steps["start_ns"][0])
    asked = asked_frac(dict(steps), at_ns, store.count)
    if may_look_ahead(record.cell):  # its read-ahead is not recorded, so it may have requested everything
        return np.where(asked > 0, record.samples / max(1, store.count), 0.0)
    return asked
