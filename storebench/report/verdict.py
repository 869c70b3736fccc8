"""The limit of a cell: one verdict, the figures that it rests on, and the gain if the limit were removed.

With siblings (the null cell and the warm cell of the same backend) the stalls
are differences of measured rates, as DS-Analyzer takes them: fetch stall =
cold minus warm, prep stall = warm minus null. Without, the spans that the
producers measured must do.
"""

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from storebench import stats
from storebench.report.cells import (
    MEMORY_FORMAT,
    STATE_COLUMNS,
    CellSummary,
    ceiling_key,
    key_without,
    may_look_ahead,
)
from storebench.report.decisions import Decision, Decisions
from storebench.settings.words import BOUNDED_STATES, CacheState, ComputeKind

LEAST_GAIN = 1.05
"""A part is a cell's limit only if without it the cell would be this many times as fast."""
DEVICE_LIMIT_FRAC = 0.70
"""Bytes that arrive at this share of the device's best rate mean that the device is the limit."""

DEVICE_EXCEEDED = 1.5
"""Bytes that arrive at this many times the device's best rate mean that the rate was measured too low, and is no limit."""

_FED_BY_DEVICE_FRAC = 0.10
"""If the cache state is unknown, device reads of this share of the payload mean that the device served the cell."""

PLANNED = {"lmdb": "direct", "hdf5": "direct", "files": "threads"}
"""Format -> its reader that keeps several requests in flight."""

_DEVICE_RATES = tuple(
    f"device_{name}_bytes_per_s"
    for name in ("random_1", "random_4", "random_16", "random_32", "sequential", "best")
)


class Bound(enum.StrEnum):
    """The limit of a cell."""

    COMPUTE = "compute-bound"
    COPY = "copy-bound"
    CONTENTION = "contention"
    STORAGE = "storage-bound"
    LATENCY = "latency-bound"
    FETCH = "fetch-bound"
    READER = "reader-bound"
    DECODE = "decode-bound"
    PREP = "prep-bound"
    HANDOFF = "handoff-bound"
    BALANCED = "balanced"


_IN_LOOP = (Bound.COMPUTE, Bound.COPY, Bound.CONTENTION)
"""Parts of the loop; contention is a part of compute."""


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """DS-Analyzer's stalls, as shares of the cell's own time per sample; None without the siblings."""

    fetch_frac: float | None = None
    prep_frac: float | None = None

    @property
    def known(self) -> bool:
        """Whether there is one of them."""
        return self.fetch_frac is not None or self.prep_frac is not None


@dataclass(frozen=True, kw_only=True)
class CellVerdict:
    """The limit of a cell, with the figures that the verdict rests on.

    Attributes
    ----------
    wait_frac, loop_frac
        Shares of the loop's time in which it waits for data, and which the limit takes if it is in the loop.
    feeding_frac
        Share of the producers' work that is the limit's, the median over replicates (`CellSummary.work_share`). Of a handoff,
        its share of what feeding the loop costs; 0 if the limit is not in feeding it.
    batch_s
        Seconds per batch that the limit costs.
    arriving_frac
        Rate at which bytes arrive, as a share of the device's best; None if the device is not in question.
    gain
        Upper bound on the speed-up if that part, or if the cell is balanced any one part, cost nothing and all else
        stayed the same.
    feed_gain
        Upper bound on the speed-up if loading cost nothing: no more than the loop's waiting
        would give back, nor than the rate of the null cell over this one.
    inflation
        The network's computing time beside this backend, as a multiple of that with nothing to load;
        None without a null cell or without real training.
    """

    bound: Bound
    wait_frac: float
    loop_frac: float
    feeding_frac: float
    batch_s: float
    arriving_frac: float | None
    gain: float
    feed_gain: float
    stalls: Stalls
    inflation: Decision | None = None


@dataclass(frozen=True, kw_only=True)
class _SampleTime:
    """Seconds per sample of each part, the median over replicates; the producers' parts are summed over all producers."""

    total: float
    wait: float
    compute: float
    copy: float
    fetch: float
    decode: float
    prep: float
    handoff: float

    @classmethod
    def of(cls, cell: CellSummary) -> "_SampleTime":
        names = {"total": "timed_s", "wait": "data_wait_s", "copy": "h2d_s", "handoff": "handover_s"}
        parts = ("total", "wait", "compute", "copy", "fetch", "decode", "prep", "handoff")
        return cls(**{part: cell.per_sample(names.get(part, f"{part}_s")) for part in parts})


def _verdict(
    cell: CellSummary,
    *,
    null: CellSummary | None = None,
    warm: CellSummary | None = None,
    device_bytes_per_s: float | None = None,
    inflation: Decision | None = None,
    inflated: bool = False,
) -> CellVerdict | None:
    """Return the verdict on a cell, or None if it was not measured.

    Parameters
    ----------
    null
        The compute ceiling of the same model, if there is one.
    warm
        The warm cell of the same backend and setting, for a cell that reads from the device.
    device_bytes_per_s
        The device's best measured rate; None if it was not measured.
    inflation, inflated
        The network's computing time beside this cell over that with nothing to load, and whether the excess is
        proven and notable.
    """
    if not cell.usable or not cell.per_sample("timed_s"):
        return None
    seconds = _SampleTime.of(cell)
    idle_compute = null.per_sample("compute_s") if inflated and null is not None else None
    costs = _costs(cell, seconds, warm, _device_bound(cell, device_bytes_per_s), idle_compute)
    gains = {part: _gain(part, cell, seconds, costs) for part in costs}
    bound = _bound(gains, costs)
    cost = costs.get(bound, 0.0)
    return CellVerdict(
        bound=bound,
        wait_frac=seconds.wait / seconds.total,
        loop_frac=cost / seconds.total,
        feeding_frac=_feeding_frac(bound, costs, cell),
        batch_s=cost * cell.cell.batch_size,
        arriving_frac=_arriving_frac(bound, cell, device_bytes_per_s),
        gain=gains.get(bound, max(gains.values())),
        feed_gain=_feed_gain(seconds, null),
        stalls=_stalls(seconds, null, warm),
        inflation=inflation,
    )


def _costs(
    cell: CellSummary,
    seconds: _SampleTime,
    warm: CellSummary | None,
    device: Bound,
    idle_compute: float | None,
) -> dict[Bound, float]:
    """Return seconds per sample for each limit; the producers' parts are divided by how many work at once."""
    side_by_side = _side_by_side(cell, seconds)
    storage = _storage_part(cell, seconds, warm)
    taken = 0.0 if idle_compute is None else max(0.0, seconds.compute - idle_compute)
    return {
        Bound.COMPUTE: seconds.compute,
        Bound.COPY: seconds.copy,
        Bound.CONTENTION: taken,
        device: storage / side_by_side,
        Bound.READER: (seconds.fetch - storage) / side_by_side,
        Bound.DECODE: seconds.decode / side_by_side,
        Bound.PREP: seconds.prep / side_by_side,
        # A handoff costs the producer and the loop, and the one loop receives all batches.
        Bound.HANDOFF: seconds.handoff,
    }


def _side_by_side(cell: CellSummary, seconds: _SampleTime) -> float:
    """Return how many producers work at once: all of them, or fewer if their CPU time fills the cores that others leave."""
    workers, spans = max(cell.cell.workers, 1), seconds.fetch + seconds.decode + seconds.prep
    cores, wall_s = cell.fact("conditions_cores"), cell.median("conditions_wall_s")
    if workers == 1 or not spans or not cores or not wall_s:
        return workers
    others = (cell.median("conditions_others_cpu_s") or 0.0) / wall_s
    free = max(int(cores) - others, cell.median("whole_cores_used") or 0.0)
    looping = seconds.compute if cell.cell.compute.kind is ComputeKind.REAL else 0.0
    busy = min(spans, (cell.median("whole_cpu_s_per_sample") or 0.0) - looping)
    return min(float(workers), spans / max(min(busy / free, seconds.total), 1e-12))


def _storage_part(cell: CellSummary, seconds: _SampleTime, warm: CellSummary | None) -> float:
    """Return the device's part of the fetch: the time that the same backend saves when it is warm."""
    if cell.fact("cache_applies_to") == "open" or cell.cell.cache == CacheState.WARM:
        return 0.0
    if warm is not None and warm.usable:
        return max(0.0, seconds.fetch - warm.per_sample("fetch_s"))
    if cell.cell.cache in BOUNDED_STATES:
        return seconds.fetch
    read, requested = cell.median("device_read_bytes"), cell.median("payload_bytes")
    return seconds.fetch if read and requested and read >= _FED_BY_DEVICE_FRAC * requested else 0.0


def _device_bound(cell: CellSummary, best: float | None) -> Bound:
    """Return the limit behind a slow fetch from the device."""
    arriving = arriving_bytes_per_s(cell)
    if best is None or not arriving or arriving > DEVICE_EXCEEDED * best:
        return Bound.FETCH
    return Bound.STORAGE if arriving >= DEVICE_LIMIT_FRAC * best else Bound.LATENCY


def arriving_bytes_per_s(cell: CellSummary) -> float | None:
    """Return the rate at which the device serves a cell while it reads, in bytes per second.

    The larger of useful bytes (payload) and delivered bytes (read-ahead included), over the time
    that the producers fetch; None if nothing was fetched. A reader that is told the order also reads while
    the loop and its producers do something else, so for it all of the time counts.
    """
    side_by_side = max(cell.cell.workers, 1)
    fetching = cell.per_sample("fetch_s") / side_by_side
    if not fetching:
        return None
    if may_look_ahead(cell.cell):
        fetching = max(fetching, cell.per_sample("timed_s"))
    useful = (cell.median("payload_bytes_per_s") or 0.0) * cell.per_sample("timed_s")
    return max(useful, _delivered(cell)) / fetching


def _delivered(cell: CellSummary) -> float:
    """Return bytes per sample that the device delivered during the epoch."""
    read, samples = cell.median("device_read_bytes"), cell.median("samples")
    return read / samples if read and samples else 0.0


def planned_reader(cell: CellSummary) -> str:
    """Return the name of the backend that reads the same store with several requests in flight; "" without one."""
    planned = PLANNED.get(cell.cell.backend.format)
    if planned is None or cell.cell.backend.reader == planned:
        return ""
    body = cell.backend.partition("?")[0].partition(":")[0]
    return f"{body}:{planned}"


def _bound(gains: Mapping[Bound, float], costs: Mapping[Bound, float]) -> Bound:
    """Return the part whose removal gains most; `Bound.BALANCED` if none gains much."""
    parts = [part for part in costs if part is not Bound.CONTENTION]
    largest = max(parts, key=lambda part: (gains[part], costs[part]))
    if gains[largest] < LEAST_GAIN:
        return Bound.BALANCED
    return Bound.CONTENTION if largest is Bound.COMPUTE and costs[Bound.CONTENTION] else largest


def _gain(bound: Bound, cell: CellSummary, seconds: _SampleTime, costs: Mapping[Bound, float]) -> float:
    """Return an upper bound on the cell's speed-up if a part cost nothing: it saves its cost, and the others still take theirs."""
    left = [seconds.total - costs[bound]]
    if cell.cell.workers:
        left += _left(bound, cell, costs)
    return max(1.0, seconds.total / max(*left, 1e-12))


def _left(bound: Bound, cell: CellSummary, costs: Mapping[Bound, float]) -> tuple[float, float, float]:
    """Return seconds per sample of producing, computing and the handoff, which overlap, if a part cost nothing.

    With no core left for the loop, most of a handoff is a wait for one, and would be shorter with less to produce.
    """
    crowded = cell.cell.workers >= (cell.fact("conditions_cores") or math.inf)
    stages = (*_IN_LOOP, Bound.HANDOFF)
    producing = sum(cost for part, cost in costs.items() if part not in stages)
    computing = costs[Bound.COMPUTE] + costs[Bound.COPY]
    return (
        producing - (0.0 if bound in stages else costs[bound]),
        computing - (costs[bound] if bound in _IN_LOOP else 0.0),
        0.0 if bound is Bound.HANDOFF or crowded else costs[Bound.HANDOFF],
    )


def _feed_gain(seconds: _SampleTime, null: CellSummary | None) -> float:
    """Return the largest possible gain of free loading; a loop cannot gain more than the time that it waits."""
    left = max(seconds.total - seconds.wait, 1e-12)
    alone = null.per_sample("timed_s") if null is not None else 0.0
    return max(1.0, seconds.total / max(left, alone))


def _feeding_frac(bound: Bound, costs: Mapping[Bound, float], cell: CellSummary) -> float:
    """Return the share of the limit in the producers' work or, of a handoff, in feeding the loop; 0 if it is in neither."""
    if bound in (*_IN_LOOP, Bound.BALANCED):
        return 0.0
    if bound is Bound.HANDOFF:
        feeding = sum(cost for part, cost in costs.items() if part not in _IN_LOOP)
        return costs[bound] / feeding if feeding else 0.0
    others = (*_IN_LOOP, Bound.HANDOFF, Bound.DECODE, Bound.PREP)
    fetching = sum(cost for part, cost in costs.items() if part not in others)
    metric = {Bound.DECODE: "decode_s", Bound.PREP: "prep_s"}.get(bound, "fetch_s")
    part = costs[bound] / fetching if metric == "fetch_s" and fetching else 1.0
    shares = list(cell.work_share(metric).values())
    return part * stats.median(shares) if shares else 0.0


def _arriving_frac(bound: Bound, cell: CellSummary, best: float | None) -> float | None:
    arriving = arriving_bytes_per_s(cell) if bound in (Bound.STORAGE, Bound.LATENCY) else None
    return arriving / best if arriving and best else None


def _stalls(seconds: _SampleTime, null: CellSummary | None, warm: CellSummary | None) -> Stalls:
    """Return the stalls; neither can exceed the loop's wait."""
    warm_s = warm.per_sample("timed_s") if warm is not None and warm.usable else None
    null_s = null.per_sample("timed_s") if null is not None and null.usable else None
    base = warm_s if warm_s is not None else seconds.total
    most = seconds.wait / seconds.total
    return Stalls(
        fetch_frac=None if warm_s is None else min(most, max(0.0, seconds.total - warm_s) / seconds.total),
        prep_frac=None if null_s is None else min(most, max(0.0, base - null_s) / seconds.total),
    )


def cell_verdicts(cells: Iterable[CellSummary], decisions: Decisions) -> dict[tuple[str, str], CellVerdict]:
    """Return the verdict of every measured cell but the null ones, by (environment_key, cell_id)."""
    listed = list(cells)
    nulls = {ceiling_key(cell): cell for cell in listed if cell.is_null and cell.usable}
    warm = {
        key_without(cell, *STATE_COLUMNS): cell
        for cell in listed
        if cell.cell.cache == CacheState.WARM and cell.usable
    }
    device = _device_rates(listed)
    verdicts = {}
    for cell in listed:
        if cell.is_null:
            continue
        reads = cell.cell.cache in BOUNDED_STATES
        verdict = _verdict(
            cell,
            null=nulls.get(ceiling_key(cell)),
            warm=warm.get(key_without(cell, *STATE_COLUMNS)) if reads else None,
            device_bytes_per_s=device.get(_device_key(cell)),
            inflation=decisions.inflation(cell),
            inflated=decisions.inflated(cell),
        )
        if verdict is not None:
            verdicts[cell.key] = verdict
    return verdicts


def _device_rates(cells: Iterable[CellSummary]) -> dict[tuple[Any, ...], float]:
    """Return the best rate of the device, by machine, samples and codec: requests of one payload's size."""
    best: dict[tuple[Any, ...], float] = {}
    for cell in cells:
        if cell.cell.backend.format == MEMORY_FORMAT:
            continue
        rates = [rate for name in _DEVICE_RATES if (rate := cell.median(name))]
        if rates:
            best[_device_key(cell)] = max(*rates, best.get(_device_key(cell), 0.0))
    return best


def _device_key(cell: CellSummary) -> tuple[Any, ...]:
    return (cell.dataset_key, cell.cell.backend.codec)
