"""Compute the figures of a record from a step table: sums, rates and percentiles."""

import dataclasses

import numpy as np

from storebench.results import Loss, Record
from storebench.settings.words import ComputeKind
from storebench.stats import percentiles
from storebench.training.step_table import StepTable, handover_ns, wall_ns


def epoch_record(record: Record, table: StepTable) -> Record:
    """Return `record` with every figure that follows from the epoch's steps.

    Warm-up steps count only in `samples`, `steps` and `epoch_s`: rates leave out
    their samples and their time. Pauses to keep samples for the proof count only
    in the coverage.
    """
    if not len(table["step"]):
        return record
    record = dataclasses.replace(
        record,
        samples=int(table["samples"].sum()),
        steps=len(table["step"]),
        epoch_s=_seconds(wall_ns(table)),
        payload_bytes=int(table["payload_bytes"].sum()),
        time_to_first_batch_s=_seconds(table["data_wait_ns"][0]),
        loss=_loss(table),
    )
    timed = {name: column[~table["warmup"]] for name, column in table.items()}
    return record if not len(timed["step"]) else _timed(record, timed, _seconds(wall_ns(timed)))


def _timed(record: Record, timed: StepTable, timed_s: float) -> Record:
    wait, h2d, compute = (_seconds(timed[name].sum()) for name in ("data_wait_ns", "h2d_ns", "compute_ns"))
    samples = int(timed["samples"].sum())
    return dataclasses.replace(
        record,
        timed_samples=samples,
        prefetched_samples=int(timed["samples"][timed["fetch_start_ns"] < timed["start_ns"][0]].sum()),
        timed_steps=len(timed["step"]),
        timed_s=timed_s,
        samples_per_s=samples / timed_s,
        payload_bytes_per_s=float(timed["payload_bytes"].sum()) / timed_s,
        data_wait_s=wait,
        h2d_s=h2d,
        compute_s=compute,
        overhead_s=timed_s - wait - h2d - compute,
        data_wait_frac=wait / max(wait + h2d + compute, 1e-12),
        accelerator_util_frac=None if record.au_kind == ComputeKind.NONE else compute / timed_s,
        fetch_s=_seconds(timed["fetch_ns"].sum()),
        decode_s=_seconds(timed["decode_ns"].sum()),
        prep_s=_seconds(timed["prep_ns"].sum()),
        handover_s=_seconds(handover_ns(timed).sum()),
        data_wait_ns=percentiles(timed["data_wait_ns"]),
    )


def _loss(table: StepTable) -> Loss | None:
    losses = table["loss"]
    return None if np.isnan(losses[0]) else Loss(first=float(losses[0]), last=float(losses[-1]))


def _seconds(nanoseconds: np.int64 | int) -> float:
    return int(nanoseconds) / 1e9
