"""The limit of a cell: the part whose removal would gain most, and by how much."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from storebench.analysis.comparison import Ratio, Verdict
from storebench.analysis.limits import REMEDIES
from storebench.analysis.panels import paired
from storebench.analysis.summary import MEMORY_FORMAT, STATE_COLUMNS, CellSummary, ceiling_key, key_without
from storebench.errors import StorebenchError
from storebench.formats.registry import get_format
from storebench.settings.words import BOUNDED_STATES, CacheState, ComputeKind, Limit

# A part is a cell's limit only if without it the cell would be this many times as fast.
LEAST_GAIN = 1.05

# Bytes that arrive at this share of the device's best rate mean that the device is the limit; beyond the second, that
# its best rate was measured too low.
_DEVICE_LIMIT_FRAC, _DEVICE_EXCEEDED = 0.70, 1.5

# If the cache state is unknown, device reads of this share of the payload mean that the device served the cell.
_FED_BY_DEVICE_FRAC = 0.10

# From this share of the cores on, most of a handoff is a wait for one.
_CORES_FULL_FRAC = 0.90

_IN_LOOP = (Limit.COMPUTE, Limit.COPY, Limit.CONTENTION)


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """The limit of a cell: its share of the time of a sample, and an upper bound on the speed-up without it."""

    limit: Limit
    share: float
    gain: float

    @property
    def remedy(self) -> str:
        return REMEDIES[self.limit]


def bottlenecks(cells: Iterable[CellSummary]) -> dict[tuple[str, str], Bottleneck]:
    """Return the limit of every measured cell but the null ones, by `CellSummary.key`."""
    listed = [cell for cell in cells if cell.usable and cell.per_sample("timed_s")]
    nulls = {ceiling_key(cell): cell for cell in listed if cell.is_null}
    warm = {key_without(cell, *STATE_COLUMNS): cell for cell in listed if cell.cell.cache == CacheState.WARM}
    device: dict[tuple[Any, ...], float] = {}
    for cell in listed:
        rate = cell.median("device_best_bytes_per_s")
        if rate and cell.cell.backend.format != MEMORY_FORMAT:
            device[_device_key(cell)] = max(rate, device.get(_device_key(cell), 0.0))
    return {
        cell.key: _bottleneck(
            cell,
            nulls.get(ceiling_key(cell)),
            warm.get(key_without(cell, *STATE_COLUMNS)) if cell.cell.cache in BOUNDED_STATES else None,
            device.get(_device_key(cell)),
        )
        for cell in listed
        if not cell.is_null
    }


def _device_key(cell: CellSummary) -> tuple[Any, ...]:
    return (cell.dataset_key, cell.cell.backend.codec)


def inflation(cell: CellSummary, null: CellSummary | None) -> Ratio | None:
    """Return the network's computing time beside a cell over that with nothing to load; None if not measured."""
    if null is None or cell.is_null or cell.cell.compute.kind is not ComputeKind.REAL:
        return None
    return paired(
        cell.rounds_per("compute_s", "timed_samples"), null.rounds_per("compute_s", "timed_samples")
    )


def _bottleneck(
    cell: CellSummary, null: CellSummary | None, warm: CellSummary | None, device_rate: float | None
) -> Bottleneck:
    parts = ("timed_s", "data_wait_s", "compute_s", "h2d_s", "fetch_s", "decode_s", "prep_s", "handover_s")
    spent = {name: cell.per_sample(name) for name in parts}
    total = spent["timed_s"]
    inflated = inflation(cell, null)
    taken = 0.0
    if null is not None and inflated is not None and inflated.verdict is Verdict.FASTER:  # more time
        taken = max(0.0, spent["compute_s"] - null.per_sample("compute_s"))
    storage, side_by_side = _storage_part(cell, spent, warm), _side_by_side(cell, spent)
    costs = {
        Limit.COMPUTE: spent["compute_s"],
        Limit.COPY: spent["h2d_s"],
        Limit.CONTENTION: taken,
        _device_limit(cell, device_rate): storage / side_by_side,
        Limit.READER: (spent["fetch_s"] - storage) / side_by_side,
        Limit.DECODE: spent["decode_s"] / side_by_side,
        Limit.PREP: spent["prep_s"] / side_by_side,
        # A handoff costs the producer and the loop, and the one loop receives all batches.
        Limit.HANDOFF: spent["handover_s"],
    }
    gains = {part: _gain(part, cell, total, costs) for part in costs}
    idle = cell.cell.compute.kind is ComputeKind.NONE  # what its steps take is an interruption
    ranked = (part for part in costs if part is not Limit.CONTENTION and not (idle and part is Limit.COMPUTE))
    limit: Limit = max(ranked, key=lambda part: (gains[part], costs[part]))
    if gains[limit] < LEAST_GAIN:
        limit = Limit.BALANCED
    elif limit is Limit.COMPUTE and taken:
        limit = Limit.CONTENTION
    return Bottleneck(
        limit=limit,
        share=min(1.0, costs.get(limit, 0.0) / total),
        gain=gains.get(limit, max(gains.values())),
    )


def _gain(part: Limit, cell: CellSummary, total: float, costs: Mapping[Limit, float]) -> float:
    """Return an upper bound on the speed-up if a part cost nothing.

    With workers, producing, computing and handoff overlap. Without a core for the loop, most of a handoff is a wait for
    one, and would be shorter with less to produce.
    """
    left = [total - costs[part]]
    if part not in (Limit.STORAGE, Limit.LATENCY, Limit.FETCH):
        left.append(total * _tier_share(cell))
    if cell.cell.workers:
        cores_used = cell.median("whole_cores_used") or 0.0
        crowded = cores_used >= _CORES_FULL_FRAC * (cell.fact("conditions_cores") or math.inf)
        producing = sum(cost for name, cost in costs.items() if name not in (*_IN_LOOP, Limit.HANDOFF))
        computing, handoff = (
            costs[Limit.COMPUTE] + costs[Limit.COPY],
            0.0 if crowded else costs[Limit.HANDOFF],
        )
        if part is Limit.HANDOFF:
            handoff = 0.0
        elif part in _IN_LOOP:
            computing -= costs[part]
        else:
            producing -= costs[part]
        left += [producing, computing, handoff]
    return max(1.0, total / max(*left, 1e-12))


def _tier_share(cell: CellSummary) -> float:
    """Return the share of an emulated device's limits that an epoch used: no other part can gain beyond it."""
    used = [0.0]
    for done, limit in (("read_bytes", "limit_bytes_per_s"), ("requests", "limit_requests_per_s")):
        allowed = (cell.median(f"tier_{limit}") or 0.0) * (cell.median("tier_seconds") or 0.0)
        used += [(cell.median(f"tier_{done}") or 0.0) / allowed] if allowed else []
    return min(1.0, max(used))


def _side_by_side(cell: CellSummary, spent: Mapping[str, float]) -> float:
    """Return the producers at work at once: fewer if their CPU time fills the cores that others leave."""
    workers, spans = max(cell.cell.workers, 1), spent["fetch_s"] + spent["decode_s"] + spent["prep_s"]
    cores, wall_s = cell.fact("conditions_cores"), cell.median("conditions_wall_s")
    if workers == 1 or not spans or not cores or not wall_s:
        return workers
    others = (cell.median("conditions_others_cpu_s") or 0.0) / wall_s
    free = max(int(cores) - others, cell.median("whole_cores_used") or 0.0)
    looping = spent["compute_s"] if cell.cell.compute.kind is ComputeKind.REAL else 0.0
    busy = min(spans, (cell.median("whole_cpu_s_per_sample") or 0.0) - looping)
    return min(float(workers), spans / max(min(busy / free, spent["timed_s"]), 1e-12))


def _storage_part(cell: CellSummary, spent: Mapping[str, float], warm: CellSummary | None) -> float:
    """Return the device's part of the fetch: the time that the same backend saves when it is warm."""
    if cell.cell.place.remote:
        return spent["fetch_s"]
    if cell.fact("cache_applies_to") == "open" or cell.cell.cache == CacheState.WARM:
        return 0.0
    if warm is not None:
        return max(0.0, spent["fetch_s"] - warm.per_sample("fetch_s"))
    if cell.cell.cache in BOUNDED_STATES:
        return spent["fetch_s"]
    read, requested = cell.median("device_read_bytes"), cell.median("payload_bytes")
    return spent["fetch_s"] if read and requested and read >= _FED_BY_DEVICE_FRAC * requested else 0.0


def _device_limit(cell: CellSummary, best: float | None) -> Limit:
    """Return the limit that a wait for the device is, by the useful or delivered bytes that arrive while it reads."""
    timed_s, fetching_s = cell.per_sample("timed_s"), cell.per_sample("fetch_s") / max(cell.cell.workers, 1)
    if fetching_s and looks_ahead(cell):  # it also reads while others work, so all of the time counts
        fetching_s = max(fetching_s, timed_s)
    useful = (cell.median("payload_bytes_per_s") or 0.0) * timed_s
    arriving = max(useful, per_image(cell, "device_read_bytes")) / fetching_s if fetching_s else 0.0
    if cell.cell.place.remote:
        arriving = per_image(cell, "remote_received_bytes") * (cell.median("samples_per_s") or 0)
        best = 1e6 * (cell.fact("place_emulated_mb_s") or math.inf)
    if best is None or not arriving or arriving > _DEVICE_EXCEEDED * best:
        return Limit.FETCH
    return Limit.STORAGE if arriving >= _DEVICE_LIMIT_FRAC * best else Limit.LATENCY


def per_image(cell: CellSummary, counter: str) -> float:
    total, images = cell.median(counter), cell.median("samples")
    return total / images if total and images else 0.0


def looks_ahead(cell: CellSummary) -> bool:
    """Whether a cell's reader is told the order of the epoch; True if its format is not installed here."""
    backend = cell.cell.backend
    try:
        return get_format(backend.format).readers()[backend.reader].reader.looks_ahead()
    except (StorebenchError, KeyError):
        return True
