"""Find the steps of an epoch that had the requested cache state: pure functions of step times and sampled residency.

A cold epoch is cold only while the page cache holds no more than the loop has requested. Read-ahead can fill the cache
long before the epoch ends, and the rest of the epoch measures memory. Likewise, a limited page cache must fill before
an epoch shows the cost of every later one.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.arrays import Floats
from storebench.probes.page_count import PAGE_BYTES
from storebench.probes.residency import ResidencyCurve
from storebench.results import COLD_DRIFT_MOST, Portion, PortionKind, ResidencyPoint
from storebench.training.step_table import Column, StepTable, handoff_ns, step_ends, timed_rows, wall_ns
from storebench.units import number_of
from storebench.worker.store_pages import StorePages

KEPT_POINTS = 60
STEADY_FRAC = 0.95
FILLED_FRAC = 0.5
GROWTH_MOST_FRAC = 1 / 8
"""Most by which the resident part of a store may grow during steady steps, as a share of the limit on the page cache.

A full cache gives pages to the processes and gets them back, so it varies by some percent, too.
"""

STEADY_AFTER_FRAC = 0.10
EDGES_MOST_FRAC = 0.25
"""Most of a steady portion that is left out of its drift at either end; half of it remains."""

_FEWEST_FOR_DRIFT = 4


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A portion, or the reason for its absence."""

    portion: Portion | None = None
    reason: str = ""


def asked_frac(table: StepTable, at_ns: Column, count: int, *, ahead_frac: float = 0.0) -> Floats:
    """Return the share of the store that had been requested at each of some moments, float64 [n].

    All of a batch counts from the moment at which a producer begins it.

    Parameters
    ----------
    table
        The epoch's steps, warm-up steps included.
    at_ns
        Moments, int64 [n], nanoseconds of ``time.perf_counter_ns``.
    count
        Samples in the store.
    ahead_frac
        Share of the store that a reader that is told the order requests beyond the batch in progress. It never
        requests more than the epoch has.
    """
    order = np.argsort(table["fetch_start_ns"], kind="stable")
    total = np.concatenate([[0], np.cumsum(table["samples"][order])])
    begun = np.searchsorted(table["fetch_start_ns"][order], at_ns, side="right")
    asked = total[begun] / max(1, count)
    whole = total[-1] / max(1, count)
    requested: Floats = np.where(begun > 0, np.minimum(asked + ahead_frac, whole), 0.0)
    return requested


def expected_frac(asked: npt.ArrayLike, samples_per_page: float) -> Floats:
    """Return the share of pages that become resident because randomly chosen samples were requested, float64 as `asked`.

    A page is touched if any of the samples that overlap it was requested.

    Parameters
    ----------
    asked
        Shares of the samples that were requested, 0 to 1.
    """
    expected: Floats = 1.0 - (1.0 - np.clip(np.asarray(asked, np.float64), 0.0, 1.0)) ** samples_per_page
    return expected


def residency_points(
    table: StepTable, curve: ResidencyCurve, count: int, *, kept: int = KEPT_POINTS
) -> tuple[ResidencyPoint, ...]:
    """Return residency as a function of the requested share, thinned evenly along that share.

    At most `kept` points remain, including the last one before the first request and the last of all.
    """
    at_ns = np.asarray(curve.at_ns, np.int64)
    if not len(at_ns) or not len(table["step"]):
        return ()
    start_ns = int(table["start_ns"][0])
    skipped = max(0, int(np.searchsorted(at_ns, start_ns, side="right")) - 1)
    at_ns = at_ns[skipped:]
    asked = asked_frac(table, at_ns, count)
    chosen = np.arange(len(asked))
    if len(asked) > kept:
        goals = np.linspace(asked[0], asked[-1], kept)
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


def cold_portion(
    table: StepTable,
    curve: ResidencyCurve,
    store: StorePages,
    *,
    ahead_frac: float = 0.0,
    planned: bool = False,
) -> Judgement:
    """Return the longest prefix of the timed steps in which no more was resident than was requested.

    A step counts if a sampling point at or after its end, and every earlier one, shows an excess of at most
    `StorePages.tolerated_frac`. If not even the first timed step qualifies, the portion is that step with
    ``upper_bound=True``: part of it was served from pages that were not requested, so its rate can only be too high.
    This does not hold for a reader that is told the order of the epoch, because its first step also pays for data
    that later steps need; such a reader then has no portion.

    Workers begin several batches at once and deliver the first as late as the others. A prefix that ends before the epoch
    does has no rate then if it has fewer steps than twice the batches that they were ahead.

    The portion is also an upper bound if its second half was served more than `COLD_DRIFT_MOST` times as fast as its
    first: a private copy of the store, paid for in the first steps, would occupy no page that is counted. Where samples
    share pages, the second half needs fewer new pages, so it may be faster by that factor (`shared_drift`).

    Parameters
    ----------
    table
        The epoch's steps.
    curve
        Residency sampled during the epoch, or counted before and after it for a store with one file per sample.
    ahead_frac, planned
        Read-ahead of a reader that is told the order, as a share of the store, and whether it is told.
    """
    timed = timed_rows(table)
    if not len(timed["step"]):
        return Judgement(reason="no step was timed: use more samples, or fewer warm-up steps")
    if not curve.at_ns:
        return Judgement(reason=curve.reason or "residency was not sampled")
    at_ns = np.asarray(curve.at_ns, np.int64)
    asked = asked_frac(table, at_ns, store.count, ahead_frac=ahead_frac)
    resident = store.of_used(curve.resident_frac)
    excess = np.maximum(resident - expected_frac(asked, store.samples_per_page), 0.0)
    over = np.flatnonzero(excess > store.tolerated_frac)
    good = int(over[0]) if len(over) else len(at_ns)
    ends = step_ends(timed)
    steps = int(np.searchsorted(ends, at_ns[good - 1], side="right")) if good else 0
    if not steps and not len(over):
        return Judgement(
            reason="residency was not sampled after the end of the first timed step: the epoch is too short, so use "
            "more samples or smaller batches"
        )
    why = _why_cold(asked, excess, store.tolerated_frac, good) if len(over) else ""
    if not steps and planned:
        return Judgement(
            reason=f"{why} before the end of the first timed step: the reader is told the order and reads far ahead "
            "of this small store, so neither one step nor the whole epoch shows its cold rate: use more samples"
        )
    if not steps:
        why = f"{why} before the end of the first timed step"
    elif not why:
        why = "to the last sample point no more was resident than was asked for"
    ahead = _begun_ahead(timed)
    if len(over) and steps < 2 * ahead:
        return Judgement(
            reason=f"{why}: that is after {number_of(steps, 'step')}, and workers were up to {number_of(ahead, 'step')} "
            "ahead of the loop, so neither these steps nor the whole epoch show the cold rate: use more samples, less "
            "read-ahead or fewer workers"
        )
    last = max(steps, 1) - 1
    point = min(int(np.searchsorted(at_ns, ends[last])), len(at_ns) - 1)
    part = _rows(timed, slice(max(steps, 1)))
    portion = _portion(
        part,
        kind=PortionKind.COLD,
        upper_bound=not steps,
        asked=float(asked_frac(table, ends[last : last + 1], store.count)[0]),
        excess=float(excess[point]),
        reason=why,
    )
    points = residency_points(table, curve, store.count)
    return Judgement(portion=_bounded_by_drift(portion, shared_drift(table, part, points, store)))


def shared_drift(
    table: StepTable, part: StepTable, points: Sequence[ResidencyPoint], store: StorePages
) -> float:
    """Return by how much the rate of a cold portion rises because samples share pages; see `Portion.shared_drift`.

    The sampled residency has to show the new pages, and no more is explained than random sharing brings about. Pages
    that late samples lie on and that were not resident half way are new in the second half, whether or not they become
    resident: a reader with a copy of its own may make a few pages resident early, and no more later.

    Parameters
    ----------
    table
        All steps of the epoch.
    part
        The steps of the portion.
    points
        The recorded curve.
    """
    steps = len(part["samples"])
    if steps < _FEWEST_FOR_DRIFT or store.samples_per_page == 1.0 or not points:
        return 1.0
    half = steps // 2
    moments = np.array([part["start_ns"][0], *step_ends(part)[[half - 1, steps - 1]]], np.int64)
    resident = np.interp(
        (moments - int(table["start_ns"][0])) / 1e9,
        [point.elapsed_s for point in points],
        store.of_used([point.resident_frac for point in points]),
    )
    likely = expected_frac(asked_frac(table, moments - 1, store.count), store.samples_per_page)
    samples = np.array([part["samples"][:half].sum(), part["samples"][half:].sum()])
    if not samples.all():
        return 1.0
    (before, after), (likely_before, likely_after) = (
        np.diff(share) / samples for share in (resident, likely)
    )
    after = max(after, (likely[2] - resident[1]) / samples[1])
    if before <= 0 or likely_after <= 0:
        return 1.0
    drift = before / after if after > 0 else np.inf
    return float(max(1.0, min(drift, likely_before / likely_after)))


def _bounded_by_drift(portion: Portion, shared: float) -> Portion:
    """Return the portion with the drift that shared pages explain, as an upper bound if the rate rose by more."""
    portion = dataclasses.replace(portion, shared_drift=shared)
    if portion.drift is None or portion.drift <= COLD_DRIFT_MOST * shared:
        return portion
    why = (
        f"its rate rose {portion.drift:.1f}-fold within the portion: something other than the device may have served "
        "the later steps"
    )
    return dataclasses.replace(portion, upper_bound=True, reason=f"{portion.reason}; {why}")


def _why_cold(asked: Floats, excess: Floats, tolerated: float, point: int) -> str:
    return (
        f"with {asked[point]:.1%} of the samples asked for, {excess[point]:.1%} of the store was resident without "
        f"having been asked for ({tolerated:.1%} is tolerated)"
    )


def steady_portion(
    table: StepTable,
    curve: ResidencyCurve,
    store: StorePages,
    *,
    epoch: int,
    memory_bytes: int,
    ahead_frac: float = 0.0,
) -> Judgement:
    """Return the timed steps after a limited page cache had filled.

    In the first epoch these are the steps that begin after residency first reached `STEADY_FRAC` of its maximum or,
    for a reader that does not fill the cache (direct I/O), all but the first `STEADY_AFTER_FRAC` of the steps. If they are
    no more than twice the batches that producers begin ahead of the loop, there is no portion: up to half of them were
    read earlier, and the loop only took them over. In later epochs of the same process, all steps count. If the cache still
    fills during these steps (`still_filling`), there is no portion.

    Parameters
    ----------
    epoch
        Number of the epoch in its process, from 0.
    memory_bytes
        Limit on the page cache. A reader whose store always takes less than `FILLED_FRAC` of it does not fill the
        cache.
    ahead_frac
        Read-ahead of a reader that is told the order, as a share of the store. The steps in which it fills, or no
        longer refills, are no part of the drift; if they are too many, the drift is unknown.
    """
    timed = timed_rows(table)
    steps, store_bytes = len(timed["step"]), store.pages * PAGE_BYTES
    if not steps:
        return Judgement(reason="no step was timed: use more samples, or fewer warm-up steps")
    if not curve.at_ns or store_bytes <= memory_bytes:
        fits = "the store fits into the limit: nothing has to be read twice"
        return Judgement(reason=fits if curve.at_ns else curve.reason or "residency was not sampled")
    fills = max(curve.resident_frac) * store_bytes >= FILLED_FRAC * memory_bytes
    first, why = (
        (0, "the cache had filled in an earlier epoch") if epoch else _first_full(timed, curve, fills=fills)
    )
    if first >= steps:
        return Judgement(
            reason="the cache had not filled before the last step began: use more steps or epochs"
        )
    points = residency_points(table, curve, store.count)
    if filling := still_filling(table, points, int(timed["step"][first]), store_bytes, memory_bytes):
        return Judgement(reason=f"{filling}: use more steps or epochs")
    begun = _begun_ahead(timed)
    if first and steps - first <= 2 * begun:
        return Judgement(
            reason=f"the cache had filled when {steps - first} of {steps} steps were left, and producers had begun {begun} "
            "batches ahead of the loop: use more steps or epochs"
        )
    end = step_ends(timed)[-1:]
    return Judgement(
        portion=_portion(
            _rows(timed, slice(first, steps)),
            kind=PortionKind.STEADY,
            edge_steps=_edge_steps(timed, ahead_frac * store.count),
            asked=float(asked_frac(table, end, store.count)[0]),
            reason=why,
        )
    )


def _first_full(timed: StepTable, curve: ResidencyCurve, *, fills: bool) -> tuple[int, str]:
    """Return the number of timed steps of a first epoch that precede a full cache, and the words for what ends them."""
    if not fills:
        first = int(np.ceil(STEADY_AFTER_FRAC * len(timed["step"])))
        return (
            first,
            f"this reader does not fill the cache: all but the first {STEADY_AFTER_FRAC:.0%} of the steps",
        )
    resident = np.asarray(curve.resident_frac, np.float64)
    filled = int(np.argmax(resident >= STEADY_FRAC * resident.max()))
    first = int(np.searchsorted(timed["start_ns"], curve.at_ns[filled]))
    return first, f"from the moment at which {resident[filled]:.1%} of the store was resident"


def still_filling(
    table: StepTable,
    points: Sequence[ResidencyPoint],
    first_step: int,
    store_bytes: int,
    memory_bytes: int,
) -> str:
    """Return words for a page cache that grew by more than `GROWTH_MOST_FRAC` of its limit after a step began; "" otherwise.

    Parameters
    ----------
    table
        The epoch's steps, warm-up steps included.
    points
        The recorded curve, at least one point.
    first_step
        Number of the step.
    store_bytes, memory_bytes
        Size of the store, and the limit on the page cache.
    """
    elapsed_s = np.array([point.elapsed_s for point in points])
    resident = np.array([point.resident_frac for point in points])
    begin_s = (int(table["start_ns"][first_step]) - int(table["start_ns"][0])) / 1e9
    begun = float(np.interp(begin_s, elapsed_s, resident))
    most = float(resident[elapsed_s >= begin_s].max(initial=begun))
    if (most - begun) * store_bytes <= GROWTH_MOST_FRAC * memory_bytes:
        return ""
    return f"the cache was still filling, from {begun:.1%} of the store when step {first_step} began to {most:.1%}"


def _begun_ahead(timed: StepTable) -> int:
    """Return the most batches that producers had begun beyond the one that the loop was asking for."""
    begun = np.searchsorted(np.sort(timed["fetch_start_ns"]), timed["start_ns"], side="left")
    return int(max(0, (begun - np.arange(len(begun)) - 1).max()))


def _edge_steps(timed: StepTable, ahead_samples: float) -> int:
    """Return the number of batches that a reader is ahead of the loop."""
    return int(np.ceil(ahead_samples / max(1.0, float(timed["samples"].mean()))))


def _rows(table: StepTable, cut: slice) -> StepTable:
    return {name: column[cut] for name, column in table.items()}


def _portion(
    part: StepTable,
    *,
    kind: PortionKind,
    upper_bound: bool = False,
    asked: float,
    excess: float = 0.0,
    edge_steps: int = 0,
    reason: str,
) -> Portion:
    return Portion(
        kind=kind,
        first_step=int(part["step"][0]),
        steps=len(part["step"]),
        upper_bound=upper_bound,
        asked_frac=asked,
        excess_frac=excess,
        edge_steps=edge_steps,
        reason=reason,
        **portion_sums(part, edge_steps),
    )


def portion_sums(part: StepTable, edge_steps: int = 0) -> dict[str, Any]:
    """Return the figures of a `Portion` that follow from its steps alone, by field name.

    Parameters
    ----------
    part
        The rows of the portion's steps, at least one.
    edge_steps
        Steps at either end that are no part of the drift.
    """
    steps = len(part["samples"])
    samples, seconds = _rate(part)
    drift, middle = None, steps - 2 * edge_steps
    if middle >= _FEWEST_FOR_DRIFT and edge_steps <= EDGES_MOST_FRAC * steps:
        half = edge_steps + middle // 2
        halves = (slice(edge_steps, half), slice(half, steps - edge_steps))
        (before, before_s), (after, after_s) = (_rate(_rows(part, cut)) for cut in halves)
        drift = (after / after_s) / (before / before_s)
    sums = {
        f"{name}_s": int(part[f"{name}_ns"].sum()) / 1e9
        for name in ("data_wait", "h2d", "compute", "fetch", "decode", "prep")
    }
    return {
        "samples": samples,
        "seconds": seconds,
        "samples_per_s": samples / seconds,
        "payload_bytes": int(part["payload_bytes"].sum()),
        "handover_s": int(handoff_ns(part).sum()) / 1e9,
        "drift": drift,
        **sums,
    }


def _rate(part: StepTable) -> tuple[int, float]:
    return int(part["samples"].sum()), wall_ns(part) / 1e9
