"""Why a cell is as fast as it is: one verdict, the figure that it rests on, and what fixing it could gain.

With siblings (the null cell and the warm cell of the same backend) the stalls
are differences of measured rates, as DS-Analyzer takes them: fetch stall =
cold minus warm, prep stall = warm minus null. Without, the spans that the
producers measured must do.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from storebench.report.cells import CellSummary, ceiling_key
from storebench.report.labels import duration, number, percent

BOUND_FRAC = 0.10
"""A loop with producers beside it that waits less than this share of its time is bound by its compute."""

_FED_BY_DEVICE_FRAC = 0.10
"""Where the cache state is not known: reads from the device of this share of the payload mean storage."""


class Bound(enum.StrEnum):
    """What limits a cell."""

    COMPUTE = "compute-bound"
    STORAGE = "storage-bound"
    READER = "reader-bound"
    DECODE = "decode-bound"
    PREP = "prep-bound"
    HANDOVER = "hand-over-bound"


MEANING = {
    Bound.COMPUTE: "the network is the limit: another storage format changes little",
    Bound.STORAGE: "the device is the limit: bytes arrive too slowly from it",
    Bound.READER: "the bytes are in memory, and getting them out of the format is the limit",
    Bound.DECODE: "turning encoded bytes into pixels is the limit",
    Bound.PREP: "augmentation and collation are the limit",
    Bound.HANDOVER: "moving finished batches from the producers to the loop is the limit",
}


@dataclass(frozen=True, kw_only=True)
class Stalls:
    """DS-Analyzer's stalls, as shares of the cell's own time per sample; null without the siblings."""

    fetch_frac: float | None = None
    prep_frac: float | None = None


@dataclass(frozen=True, kw_only=True)
class CellVerdict:
    """What limits a cell.

    Attributes
    ----------
    figure
        The figure that the verdict rests on, in words.
    gain
        At most so many times as fast if that part cost nothing and all else stayed.
    feed_gain
        At most so many times as fast if loading cost nothing: the rate of the null cell over
        this one; without a null cell, from the time that the loop waited.
    costs_s
        Seconds a sample of each limit on the loop's critical path.
    """

    bound: Bound
    figure: str
    gain: float
    feed_gain: float
    costs_s: Mapping[Bound, float]
    stalls: Stalls

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        if self.bound is Bound.COMPUTE:
            return f"{self.bound}: {self.figure}; loading that cost nothing would make it at most {number(self.feed_gain)} times as fast"
        return (
            f"{self.bound}: {self.figure}; without that it would be at most {number(self.gain)} times as fast"
        )


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Seconds a sample of each part, the median over replicates; producers' parts are summed over them."""

    total: float
    wait: float
    compute: float
    fetch: float
    decode: float
    prep: float
    handover: float

    @classmethod
    def of(cls, cell: CellSummary) -> "_Sample":
        per = [
            cell.per_sample(name)
            for name in ("timed_s", "data_wait_s", "fetch_s", "decode_s", "prep_s", "handover_s")
        ]
        total, wait, fetch, decode, prep, handover = per
        compute = cell.per_sample("compute_s") + cell.per_sample("h2d_s")
        return cls(
            total=total, wait=wait, compute=compute, fetch=fetch, decode=decode, prep=prep, handover=handover
        )


def judge(
    cell: CellSummary, *, null: CellSummary | None = None, warm: CellSummary | None = None
) -> CellVerdict | None:
    """Say what limits a cell.

    Parameters
    ----------
    cell
        The cell; None comes back where it was not measured.
    null
        The compute ceiling of the same model, if there is one.
    warm
        The warm cell of the same backend and setting, for a cold cell.
    """
    if not cell.usable or not cell.per_sample("timed_s"):
        return None
    seconds = _Sample.of(cell)
    costs = _costs(cell, seconds, warm)
    bound = _bound(cell, seconds, costs)
    return CellVerdict(
        bound=bound,
        figure=_figure(bound, cell, seconds, costs),
        gain=_gain(bound, cell, seconds, costs),
        feed_gain=_feed_gain(seconds, null),
        costs_s=costs,
        stalls=_stalls(seconds, null, warm),
    )


def _costs(cell: CellSummary, seconds: _Sample, warm: CellSummary | None) -> dict[Bound, float]:
    """Return seconds a sample for each limit; what producers do side by side is divided among them."""
    side_by_side = max(cell.cell.workers, 1)
    storage = _storage_part(cell, seconds, warm)
    return {
        Bound.COMPUTE: seconds.compute,
        Bound.STORAGE: storage / side_by_side,
        Bound.READER: (seconds.fetch - storage) / side_by_side,
        Bound.DECODE: seconds.decode / side_by_side,
        Bound.PREP: seconds.prep / side_by_side,
        # Handing over costs the producer and the loop; one loop takes all of it.
        Bound.HANDOVER: seconds.handover,
    }


def _storage_part(cell: CellSummary, seconds: _Sample, warm: CellSummary | None) -> float:
    """Return the part of the fetch that is the device's: what the same backend saves when it is warm."""
    if cell.fact("cache_applies_to") == "open" or cell.cell.cache == "warm":
        return 0.0
    if warm is not None and warm.usable:
        return max(0.0, seconds.fetch - warm.per_sample("fetch_s"))
    if cell.cell.cache == "cold":
        return seconds.fetch
    read, asked = cell.median("device_read_bytes"), cell.median("payload_bytes")
    return seconds.fetch if read and asked and read >= _FED_BY_DEVICE_FRAC * asked else 0.0


def _bound(cell: CellSummary, seconds: _Sample, costs: Mapping[Bound, float]) -> Bound:
    feeding = {bound: cost for bound, cost in costs.items() if bound is not Bound.COMPUTE}
    if cell.cell.workers:
        # Producers run beside the loop: it waits only where they are the slower side.
        waits = seconds.wait >= BOUND_FRAC * seconds.total
    else:
        waits = seconds.wait > seconds.compute
    return max(feeding, key=lambda bound: feeding[bound]) if waits else Bound.COMPUTE


def _gain(bound: Bound, cell: CellSummary, seconds: _Sample, costs: Mapping[Bound, float]) -> float:
    """Return how many times as fast the cell could be at most if the bound part cost nothing."""
    if not cell.cell.workers:
        saved = seconds.compute if bound is Bound.COMPUTE else costs[bound]
        return seconds.total / max(seconds.total - saved, 1e-12)
    producing = sum(costs[part] for part in (Bound.STORAGE, Bound.READER, Bound.DECODE, Bound.PREP))
    stages = {Bound.COMPUTE: seconds.compute, Bound.HANDOVER: costs[Bound.HANDOVER]}
    left = [cost for stage, cost in stages.items() if stage is not bound]
    slowest = max([producing - costs[bound] if bound not in stages else producing, *left])
    return max(1.0, seconds.total / max(slowest, 1e-12))


def _feed_gain(seconds: _Sample, null: CellSummary | None) -> float:
    alone = null.per_sample("timed_s") if null is not None else 0.0
    return max(1.0, seconds.total / (alone or max(seconds.total - seconds.wait, 1e-12)))


def _figure(bound: Bound, cell: CellSummary, seconds: _Sample, costs: Mapping[Bound, float]) -> str:
    if bound is Bound.COMPUTE:
        return (
            f"compute is {percent(seconds.compute / seconds.total)} of the loop's time"
            f" and waiting {percent(seconds.wait / seconds.total)}"
        )
    feeding = sum(cost for part, cost in costs.items() if part is not Bound.COMPUTE)
    share = costs[bound] / feeding if feeding else 0.0
    name = (
        str(bound)
        .removesuffix("-bound")
        .replace("reader", "fetch (warm)")
        .replace("storage", "fetch from the device")
    )
    step = duration(costs[bound] * cell.cell.batch_size)
    return (
        f"the loop waits {percent(seconds.wait / seconds.total)} of its time,"
        f" and {name} is {percent(share)} of feeding it ({step} a batch)"
    )


def _stalls(seconds: _Sample, null: CellSummary | None, warm: CellSummary | None) -> Stalls:
    warm_s = warm.per_sample("timed_s") if warm is not None and warm.usable else None
    null_s = null.per_sample("timed_s") if null is not None and null.usable else None
    base = warm_s if warm_s is not None else seconds.total
    return Stalls(
        fetch_frac=None if warm_s is None else max(0.0, seconds.total - warm_s) / seconds.total,
        prep_frac=None if null_s is None else max(0.0, base - null_s) / seconds.total,
    )


def judge_all(cells: Iterable[CellSummary]) -> dict[tuple[str, str], CellVerdict]:
    """Return the verdict of every measured cell but the null ones, by (environment_key, cell_id)."""
    listed = list(cells)
    nulls = {ceiling_key(cell): cell for cell in listed if cell.is_null and cell.usable}
    warm = {_sibling_key(cell): cell for cell in listed if cell.cell.cache == "warm" and cell.usable}
    verdicts = {}
    for cell in listed:
        sibling = warm.get(_sibling_key(cell)) if cell.cell.cache == "cold" else None
        verdict = None if cell.is_null else judge(cell, null=nulls.get(ceiling_key(cell)), warm=sibling)
        if verdict is not None:
            verdicts[cell.key] = verdict
    return verdicts


def _sibling_key(cell: CellSummary) -> tuple[Any, ...]:
    return (cell.backend, *ceiling_key(cell))
