"""Make the table of an epoch's steps from the times that the loop took."""

from collections.abc import Sequence

import numpy as np

from storebench.record.steps import IO_COLUMNS, PREFETCHED_MOST_FRAC, Column, StepTable, queue_depth
from storebench.training.loop import StepTimes


def step_table(times: Sequence[StepTimes], losses: Sequence[float], *, warmup_steps: int) -> StepTable:
    """Return the columns of an epoch's steps, int64 nanoseconds unless the name says otherwise."""
    table: StepTable = {
        "step": np.arange(len(times), dtype=np.int64),
        "warmup": _warm_up_flags(times, warmup_steps),
        "samples": _column([len(step.indices) for step in times]),
        "payload_bytes": _column([step.payload_bytes for step in times]),
        "start_ns": _column([step.asked_ns for step in times]),
        "data_wait_ns": _column([step.got_ns - step.asked_ns for step in times]),
        "h2d_ns": _column([step.copied_ns - step.got_ns for step in times]),
        "compute_ns": _column([step.done_ns - step.copied_ns for step in times]),
        "paused_ns": _column([step.paused_ns for step in times]),
        "worker": _column([step.worker for step in times]),
        "fetch_start_ns": _column([step.spans.start_ns for step in times]),
        "fetch_ns": _column([step.spans.fetch_ns for step in times]),
        "decode_ns": _column([step.spans.decode_ns for step in times]),
        "prep_ns": _column([step.spans.prep_ns for step in times]),
        "ready_ns": _column([step.spans.ready_ns for step in times]),
    }
    counted = [step.io for step in times if step.io is not None]
    if len(counted) == len(times):
        table |= {name: _column([getattr(io, name) for io in counted]) for name in IO_COLUMNS}
    table["queue_depth"] = queue_depth(table)
    table["loss"] = np.asarray(losses if len(losses) else [np.nan] * len(times), dtype=np.float32)
    return table


def _warm_up_flags(times: Sequence[StepTimes], warmup_steps: int) -> Column:
    """Return a flag per step: True for the warm-up steps, and for steps whose batch was begun during them."""
    steps = np.arange(len(times))
    if not 0 < warmup_steps < len(times):
        return steps < warmup_steps
    asked_ns = _column([step.asked_ns for step in times])
    begun_ns = _column([step.spans.start_ns for step in times])
    samples = _column([len(step.indices) for step in times])
    begun = np.flatnonzero(begun_ns < asked_ns[warmup_steps])
    first = int(begun.max(initial=warmup_steps - 1)) + 1
    ahead = begun_ns < asked_ns[min(first, len(times) - 1)]
    prefetched, timed = samples[first:][ahead[first:]].sum(), samples[first:].sum()
    return steps < (first if timed > 0 and prefetched <= PREFETCHED_MOST_FRAC * timed else 0)


def _column(values: list[int]) -> Column:
    return np.asarray(values, dtype=np.int64)
