"""The figures of an epoch from its steps and its sampled residency: sums, rates, cold rates, the steady steps."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.arrays import Floats
from storebench.record.merging import RANK, job_steps, rank_tables
from storebench.record.schema import COLD_SHARES, ColdRate, Loss, Percentiles, Portion, Record, ResidencyPoint
from storebench.record.steps import Column, StepTable, handoff_ns, step_ends, timed_rows, wall_ns
from storebench.settings.words import CacheState, ComputeKind

KEPT_POINTS = 60

STEADY_FRAC = 0.95
FILLED_FRAC = 0.5

# Most by which the resident part of a store may grow during steady steps, as a share of the limit on the page cache.
GROWTH_MOST_FRAC = 1 / 8

STEADY_AFTER_FRAC = 0.10

# Most of a steady portion that is left out of its drift at either end; half of it remains.
EDGES_MOST_FRAC = 0.25

_FEWEST_FOR_DRIFT = 4


@dataclass(frozen=True, kw_only=True)
class ResidencyCurve:
    """Residency over time."""

    at_ns: tuple[int, ...] = ()
    resident_frac: tuple[float, ...] = ()
    cpu_s: float | None = None
    reason: str = ""
    recounts: int = 0
    error_frac: float = 0.0


def asked_frac(table: StepTable, at_ns: Column, count: int) -> Floats:
    """Return the share of the store that had been requested at each of some moments, float64 [n]."""
    order = np.argsort(table["fetch_start_ns"], kind="stable")
    total = np.concatenate([[0], np.cumsum(table["samples"][order])])
    begun = np.searchsorted(table["fetch_start_ns"][order], at_ns, side="right")
    requested: Floats = total[begun] / max(1, count)
    return requested


def residency_points(table: StepTable, curve: ResidencyCurve, count: int) -> tuple[ResidencyPoint, ...]:
    """Return residency as a function of the requested share, thinned evenly along that share."""
    at_ns = np.asarray(curve.at_ns, np.int64)
    if not len(at_ns) or not len(table["step"]):
        return ()
    start_ns = int(table["start_ns"][0])
    skipped = max(0, int(np.searchsorted(at_ns, start_ns, side="right")) - 1)
    at_ns = at_ns[skipped:]
    asked = asked_frac(table, at_ns, count)
    chosen = np.arange(len(asked))
    if len(asked) > KEPT_POINTS:
        goals = np.linspace(asked[0], asked[-1], KEPT_POINTS)
        chosen = np.unique(np.minimum(np.searchsorted(asked, goals), len(asked) - 1))
        chosen = np.unique([0, *chosen[1:-1], len(asked) - 1])
    return tuple(
        ResidencyPoint(
            elapsed_s=max(0, int(at_ns[point]) - start_ns) / 1e9,
            asked_frac=float(asked[point]),
            resident_frac=curve.resident_frac[skipped + point],
        )
        for point in chosen.tolist()
    )


def with_cold_rates(record: Record, steps: StepTable) -> Record:
    """Return the record of a cold epoch with its `Record.cold_rates`; any other record unchanged."""
    cell, cache, store = record.cell, record.cache, record.store
    if cell.cache != CacheState.COLD or cell.backend.is_null or cache is None or store is None:
        return record
    if cache.applies_to == "open" or not store.count or not len(steps["samples"]):
        return record
    read = np.cumsum(steps["samples"]) / store.count
    asked = asked_frac(steps, step_ends(steps), store.count)
    # The last step that a share is reached in, so that a batch is not told as the smaller shares that it passes over.
    reached = {int(np.searchsorted(read, share)): share for share in COLD_SHARES if share <= read[-1]}
    rates = []
    for step, share in reached.items():
        resident, excess = _residency_at(cache.curve, float(asked[step]))
        samples, seconds = _rate(_rows(steps, slice(step + 1)))
        rates.append(
            ColdRate(
                read_frac=share, samples_per_s=samples / seconds, resident_frac=resident, excess_frac=excess
            )
        )
    return dataclasses.replace(record, cold_rates=tuple(rates))


def _residency_at(points: Sequence[ResidencyPoint], asked: float) -> tuple[float | None, float | None]:
    """Return the resident share when a share had been requested, and its largest excess over that until then."""
    if not points:
        return None, None
    resident = float(
        np.interp(asked, [point.asked_frac for point in points], [point.resident_frac for point in points])
    )
    before = (point.resident_frac - point.asked_frac for point in points if point.asked_frac <= asked)
    return resident, max(0.0, resident - asked, *before)


def steady_portion(
    table: StepTable,
    curve: ResidencyCurve,
    count: int,
    store_bytes: int,
    *,
    epoch: int,
    memory_bytes: int,
    ahead_frac: float = 0.0,
) -> Portion | str:
    """Return the timed steps after a limited page cache had filled, or the reason for their absence."""
    timed = timed_rows(table)
    steps = len(timed["step"])
    if not steps:
        return "no step was timed: use more samples, or fewer warm-up steps"
    if not curve.at_ns or store_bytes <= memory_bytes:
        fits = "the store fits into the limit: nothing has to be read twice"
        return fits if curve.at_ns else curve.reason or "residency was not sampled"
    fills = max(curve.resident_frac) * store_bytes >= FILLED_FRAC * memory_bytes
    # Later epochs begin with the cache that an earlier one filled.
    first = 0 if epoch else _first_full(timed, curve, fills=fills)
    if first >= steps:
        return "the cache had not filled before the last step began: use more steps or epochs"
    points = residency_points(table, curve, count)
    if filling := _still_filling(table, points, int(timed["step"][first]), store_bytes, memory_bytes):
        return f"{filling}: use more steps or epochs"
    # The most batches that producers had begun beyond the one that the loop was asking for.
    fetched = np.searchsorted(np.sort(timed["fetch_start_ns"]), timed["start_ns"], side="left")
    begun = int(max(0, (fetched - np.arange(steps) - 1).max()))
    if first and steps - first <= 2 * begun:
        return (
            f"the cache had filled when {steps - first} of {steps} steps were left, and producers had "
            f"begun {begun} batches ahead of the loop: use more steps or epochs"
        )
    edge_steps = int(np.ceil(ahead_frac * count / max(1.0, float(timed["samples"].mean()))))
    part = _rows(timed, slice(first, steps))
    return Portion(
        first_step=int(part["step"][0]),
        steps=len(part["step"]),
        edge_steps=edge_steps,
        **portion_sums(part, edge_steps),
    )


def _first_full(timed: StepTable, curve: ResidencyCurve, *, fills: bool) -> int:
    """Return the number of timed steps of a first epoch that precede a full cache, or a tenth if it does not fill."""
    if not fills:
        return int(np.ceil(STEADY_AFTER_FRAC * len(timed["step"])))
    resident = np.asarray(curve.resident_frac, np.float64)
    filled = int(np.argmax(resident >= STEADY_FRAC * resident.max()))
    return int(np.searchsorted(timed["start_ns"], curve.at_ns[filled]))


def _still_filling(
    table: StepTable, points: Sequence[ResidencyPoint], first_step: int, store_bytes: int, memory_bytes: int
) -> str:
    """Return words for a page cache that grew too much after a step began (`GROWTH_MOST_FRAC`), or ""."""
    elapsed_s = np.array([point.elapsed_s for point in points])
    resident = np.array([point.resident_frac for point in points])
    begin_s = (int(table["start_ns"][first_step]) - int(table["start_ns"][0])) / 1e9
    begun = float(np.interp(begin_s, elapsed_s, resident))
    most = float(resident[elapsed_s >= begin_s].max(initial=begun))
    if (most - begun) * store_bytes <= GROWTH_MOST_FRAC * memory_bytes:
        return ""
    return f"the cache was still filling, from {begun:.1%} of the store when step {first_step} began to {most:.1%}"


def _rows(table: StepTable, cut: slice) -> StepTable:
    return {name: column[cut] for name, column in table.items()}


def portion_sums(part: StepTable, edge_steps: int = 0) -> dict[str, Any]:
    """Return the figures of a `Portion` that follow from its steps alone, by field name."""
    steps = len(part["samples"])
    samples, seconds = _rate(part)
    drift, middle = None, steps - 2 * edge_steps
    if middle >= _FEWEST_FOR_DRIFT and edge_steps <= EDGES_MOST_FRAC * steps:
        half = edge_steps + middle // 2
        halves = (slice(edge_steps, half), slice(half, steps - edge_steps))
        (before, before_s), (after, after_s) = (_rate(_rows(part, cut)) for cut in halves)
        drift = (after / after_s) / (before / before_s)
    return {
        "samples": samples,
        "seconds": seconds,
        "samples_per_s": samples / seconds,
        "payload_bytes": int(part["payload_bytes"].sum()),
        "drift": drift,
        **_time_sums(part),
    }


def _time_sums(part: StepTable) -> dict[str, Any]:
    """Return the seconds that some steps spent in each stage, by field name."""
    stages = ("data_wait", "h2d", "compute", "fetch", "decode", "prep")
    seconds = {f"{stage}_s": _seconds(part[f"{stage}_ns"].sum()) for stage in stages}
    return seconds | {"handover_s": _seconds(handoff_ns(part).sum())}


def _rate(part: StepTable) -> tuple[int, float]:
    return int(part["samples"].sum()), _seconds(wall_ns(part))


def epoch_record(record: Record, table: StepTable) -> Record:
    """Return `record` with every figure that follows from the epoch's steps."""
    if not len(table["step"]):
        return record
    if RANK in table:
        return _job_record([epoch_record(record, part) for part in rank_tables(table)], table)
    losses = table["loss"]
    record = dataclasses.replace(
        record,
        samples=int(table["samples"].sum()),
        steps=len(table["step"]),
        epoch_s=_seconds(wall_ns(table)),
        payload_bytes=int(table["payload_bytes"].sum()),
        time_to_first_batch_s=_seconds(table["data_wait_ns"][0]),
        loss=None if np.isnan(losses[0]) else Loss(first=float(losses[0]), last=float(losses[-1])),
    )
    timed = timed_rows(table)
    if not len(timed["step"]):
        return record
    record = dataclasses.replace(
        record,
        timed_samples=int(timed["samples"].sum()),
        prefetched_samples=int(timed["samples"][timed["fetch_start_ns"] < timed["start_ns"][0]].sum()),
        timed_steps=len(timed["step"]),
        **_time_sums(timed),
    )
    return _with_rates(record, timed, _seconds(wall_ns(timed)))


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
    counts = ("samples", "timed_samples", "payload_bytes", "prefetched_samples")
    figures: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in counts}
    times = ("data_wait_s", "h2d_s", "compute_s", "fetch_s", "decode_s", "prep_s", "handover_s")
    figures |= {name: statistics.fmean(getattr(part, name) for part in parts) for name in times}
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


def _seconds(nanoseconds: np.int64 | int) -> float:
    return int(nanoseconds) / 1e9


def percentiles(durations_ns: npt.ArrayLike) -> Percentiles:
    """Return p50, p95, p99 and the longest of some durations; each is a duration that occurred."""
    array = np.asarray(durations_ns)
    p50, p95, p99 = np.percentile(array, [50, 95, 99], method="inverted_cdf")
    return Percentiles(p50=int(p50), p95=int(p95), p99=int(p99), max=int(array.max()))
