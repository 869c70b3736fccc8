"""Compute the figures of a record from a step table: sums, rates and percentiles."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from storebench.ranks.merging import RANK, job_steps, rank_tables
from storebench.results import Loss, Record
from storebench.settings.words import ComputeKind
from storebench.stats import percentiles
from storebench.training.step_table import StepTable, handoff_ns, timed_rows, wall_ns

_SUMMED = ("samples", "timed_samples", "payload_bytes", "prefetched_samples")
_AVERAGED = ("data_wait_s", "h2d_s", "compute_s", "fetch_s", "decode_s", "prep_s", "handover_s")


def epoch_record(record: Record, table: StepTable) -> Record:
    """Return `record` with every figure that follows from the epoch's steps."""
    if not len(table["step"]):
        return record
    if RANK in table:
        return _job_record([epoch_record(record, part) for part in rank_tables(table)], table)
    record = dataclasses.replace(
        record,
        samples=int(table["samples"].sum()),
        steps=len(table["step"]),
        epoch_s=_seconds(wall_ns(table)),
        payload_bytes=int(table["payload_bytes"].sum()),
        time_to_first_batch_s=_seconds(table["data_wait_ns"][0]),
        loss=_loss(table),
    )
    timed = timed_rows(table)
    return record if not len(timed["step"]) else _timed(record, timed, _seconds(wall_ns(timed)))


def _timed(record: Record, timed: StepTable, timed_s: float) -> Record:
    return _with_rates(
        dataclasses.replace(
            record,
            timed_samples=int(timed["samples"].sum()),
            prefetched_samples=int(timed["samples"][timed["fetch_start_ns"] < timed["start_ns"][0]].sum()),
            timed_steps=len(timed["step"]),
            data_wait_s=_seconds(timed["data_wait_ns"].sum()),
            h2d_s=_seconds(timed["h2d_ns"].sum()),
            compute_s=_seconds(timed["compute_ns"].sum()),
            fetch_s=_seconds(timed["fetch_ns"].sum()),
            decode_s=_seconds(timed["decode_ns"].sum()),
            prep_s=_seconds(timed["prep_ns"].sum()),
            handover_s=_seconds(handoff_ns(timed).sum()),
        ),
        timed,
        timed_s,
    )


def _with_rates(record: Record, timed: StepTable, timed_s: float) -> Record:
    """Return a record with its rates and shares, from its sums and the wall time of its timed steps."""
    busy_s = record.data_wait_s + record.h2d_s + record.compute_s
    return dataclasses.replace(
        record,
        timed_s=timed_s,
        samples_per_s=record.timed_samples / timed_s,
        payload_bytes_per_s=float(timed["payload_bytes"].sum()) / timed_s,
        overhead_s=timed_s - record.data_wait_s - record.h2d_s - record.compute_s,
        data_wait_frac=record.data_wait_s / max(busy_s, 1e-12),
        accelerator_util_frac=None if record.au_kind == ComputeKind.NONE else record.compute_s / timed_s,
        data_wait_ns=percentiles(timed["data_wait_ns"]),
    )


def _job_record(parts: Sequence[Record], table: StepTable) -> Record:
    """Return the record of a job from those of its ranks and its step table."""
    figures: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in _SUMMED}
    figures |= {name: statistics.fmean(getattr(part, name) for part in parts) for name in _AVERAGED}
    record = dataclasses.replace(
        parts[0],
        epoch_s=_seconds(wall_ns(job_steps(table))),
        time_to_first_batch_s=max(part.time_to_first_batch_s for part in parts),
        **figures,
    )
    timed = timed_rows(table)
    return (
        record if not record.timed_steps else _with_rates(record, timed, _seconds(wall_ns(job_steps(timed))))
    )


def _loss(table: StepTable) -> Loss | None:
    losses = table["loss"]
    return None if np.isnan(losses[0]) else Loss(first=float(losses[0]), last=float(losses[-1]))


def _seconds(nanoseconds: np.int64 | int) -> float:
    return int(nanoseconds) / 1e9
