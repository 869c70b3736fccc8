"""Measure how wrong the planner is: predict cells of runs from the other cells, and compare with what was measured.

    python -m benchmarks.plan_error [RUN...]

A hash of its id puts each cell into one of two halves. What is fitted comes from the first half, the table from the second. A
cell is predicted without itself and without the cells of its store that its kind is about, such as all cells with workers.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storebench.planner.errors import ERRORS_FILE, Kind, KindError, half_width
from storebench.planner.measured import Lacking, Measurements, Wanted, disturbed, pooled, resident_share
from storebench.planner.model import SHARPNESS, Limit, Node, delivered, limits
from storebench.report.analysis import find_runs, load_results
from storebench.report.bottleneck import Bound, bottlenecks
from storebench.report.cells import MEMORY_FORMAT, CellSummary, summarise
from storebench.report.labels import percent
from storebench.report.roofline import ingestion_rate
from storebench.report.tables import Table
from storebench.settings.words import BOUNDED_STATES, CacheState, ComputeKind, Share

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
GOOD_FRAC = 0.20
SMALL_GRADIENTS = 1 << 20
"""Ranks that exchange more bytes per step spend time on it, which the planner leaves out."""

RIVALS = ("min of two rates", "DS-Analyzer")
HEAD = ("kind of cell", "cells", "median error", "within 20%", "limit right", "90% interval covers", *RIVALS)

_RESOURCES: tuple[frozenset[Limit | Bound], ...] = (
    frozenset({Limit.ACCELERATORS, Bound.COMPUTE, Bound.COPY, Bound.CONTENTION}),
    frozenset({Limit.CORES, Limit.WORKERS, Limit.LOOP, Bound.READER, Bound.DECODE, Bound.PREP}),
    frozenset({Limit.HANDOFF, Bound.HANDOFF}),
    frozenset({Limit.LATENCY, Limit.BANDWIDTH, Limit.REQUESTS, Bound.STORAGE, Bound.LATENCY, Bound.FETCH}),
)
"""The limits of a plan and of a report that are the same resource."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell that is predicted: the limits of the planner, the rates of its rivals, and the limit in a report."""

    kind: Kind
    cell: CellSummary
    limits: dict[Limit, float]
    rivals: dict[str, float]
    bound: Bound | None

    @property
    def measured(self) -> float:
        """The measured samples per second."""
        return self.cell.median("samples_per_s") or math.nan

    @property
    def fits(self) -> bool:
        """Whether it belongs to the half that is fitted."""
        return hashlib.blake2b(self.cell.cell.cell_id.encode(), digest_size=1).digest()[0] < 128

    def error(self, sharpness: float = SHARPNESS) -> float:
        """Return the logarithm of predicted over measured."""
        return math.log(delivered(self.limits, sharpness) / self.measured)


def main() -> None:
    """Print the table, and write the file that `storebench plan` reads."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_error", description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="default: results/reference")
    parser.add_argument("--write", action="store_true", help="write the file that 'storebench plan' reads")
    asked = parser.parse_args()
    cases = list(all_cases(asked.runs or [REFERENCE]))
    seen = [case for case in cases if case.fits]
    fitted = min(
        (p / 2 for p in range(4, 33)), key=lambda p: statistics.median(abs(case.error(p)) for case in seen)
    )
    by_kind = {kind: [case for case in cases if case.kind is kind] for kind in Kind}
    rows = (*(_row(kind, own) for kind, own in by_kind.items()), _row("all", cases))
    caption = f"sharpness fitted to {len(seen)} cells: {fitted:g} (in use: {SHARPNESS:g})"
    print(Table(caption=caption, head=HEAD, rows=rows).to_markdown())
    if asked.write:
        errors = {
            kind: dataclasses.asdict(_kind_error(own))
            for kind, own in by_kind.items()
            if not all(case.fits for case in own)
        }
        ERRORS_FILE.write_text(json.dumps(errors, indent=1) + "\n", encoding="utf-8")


def all_cases(runs: Iterable[Path]) -> Iterable[Case]:
    """Yield the cells that can be predicted, of all runs together."""
    cells: list[CellSummary] = []
    bounds: dict[int, Bound] = {}
    for file in find_runs(list(runs)):
        found = summarise(load_results(file))
        kept = bottlenecks(found)
        bounds |= {id(cell): kept[cell.key].bound for cell in found if cell.key in kept}
        cells += found
    for group in pooled(cells):
        for cell in group:
            known = cell.median("samples_per_s") and not disturbed(cell)
            for kind in _kinds(cell, group) if known else ():
                with suppress(Lacking):
                    yield _case(kind, cell, group, bounds.get(id(cell)))


def _kinds(cell: CellSummary, group: Sequence[CellSummary]) -> tuple[Kind, ...]:
    """Return the kinds of prediction that a cell tests."""
    own = cell.cell
    real = own.compute.kind is ComputeKind.REAL
    # A network on the CPU takes the producers' cores: it is no accelerator.
    if own.share is not Share.NONE or cell.is_null or (real and own.device == "cpu"):
        return ()
    if own.ranks > 1:
        exchanged = cell.median("job_gradient_bytes") or 0
        return () if real or exchanged > SMALL_GRADIENTS else (Kind.RANKS,)
    if own.compute.kind is not ComputeKind.NONE:
        alike = [other.cell for other in group if other.backend == cell.backend]
        loading = {other.batch_size for other in alike if other.compute.kind is ComputeKind.NONE}
        if loading and own.batch_size not in loading:
            return ()
        return (Kind.ACCELERATOR_WORKERS,) if own.workers else (Kind.ACCELERATOR_LOOP,)
    if own.workers and own.cache is CacheState.WARM:
        return (Kind.WORKERS,)
    if own.cache is CacheState.LIMITED:
        return (Kind.MEMORY, Kind.MEMORY_OF_DEVICE)
    return (Kind.COLD,) if own.cache is CacheState.COLD and own.backend.format != MEMORY_FORMAT else ()


def _hidden(kind: Kind, cell: CellSummary, other: CellSummary) -> bool:
    """Return whether the prediction of a cell may not use another cell of its store."""
    own, kinds = other.cell, other.cell.compute.kind
    match kind:
        case Kind.RANKS:
            return own.ranks >= cell.cell.ranks
        case Kind.WORKERS:
            return own.workers > 0
        case Kind.MEMORY:
            return (own.memory_bytes, own.workers) == (cell.cell.memory_bytes, cell.cell.workers)
        case Kind.MEMORY_OF_DEVICE:
            return own.cache is CacheState.LIMITED
        case Kind.COLD:
            return own.cache in BOUNDED_STATES
        case _:
            return kinds is not ComputeKind.NONE


def _case(kind: Kind, cell: CellSummary, group: Sequence[CellSummary], bound: Bound | None) -> Case:
    own = cell.cell
    seen = Measurements(
        other for other in group if not (other.backend == cell.backend and _hidden(kind, cell, other))
    )
    node = Node(
        cores=cell.fact("conditions_cores") or 1,
        accelerators=own.ranks,
        samples_per_s=_ingestion(cell, group),
        workers=own.workers,
        bytes_per_s=seen.device_rate(cell.backend, "best"),
    )
    wanted = Wanted(
        backend=cell.backend,
        workers=own.workers,
        resident=resident_share(cell),
        readahead_kib=own.readahead_kib,
        ranks=own.ranks,
        model=own.model if own.compute.kind is ComputeKind.REAL else "",
        served=min(1.0, (cell.median("samples") or 0) / (cell.fact("store_count") or math.inf)) or 1.0,
    )
    alike = (other for other in seen.cells if other.backend == cell.backend)
    if kind is Kind.MEMORY and not any(
        (other.cell.cache, other.cell.readahead_kib) == (own.cache, own.readahead_kib) for other in alike
    ):
        raise Lacking("another limited cell")
    return Case(
        kind=kind,
        cell=cell,
        limits=limits(seen.demand(wanted), node),
        rivals=_rivals(cell, seen, node),
        bound=bound,
    )


def _ingestion(cell: CellSummary, group: Sequence[CellSummary]) -> float:
    """Return the samples per second of one accelerator: as emulated, or as the null cell of the network computed."""
    own = cell.cell
    if own.compute.kind is ComputeKind.NONE:
        return math.inf
    if own.compute.kind is ComputeKind.EMULATED:
        return own.batch_size / own.compute.milliseconds * 1e3
    work = (own.model, own.device, own.batch_size)
    nulls = (n for n in group if n.is_null and (n.cell.model, n.cell.device, n.cell.batch_size) == work)
    rate = next((rate.mid for null in nulls if (rate := ingestion_rate(null))), None)
    if rate is None:
        raise Lacking("add a null cell")
    return rate


def _rivals(cell: CellSummary, seen: Measurements, node: Node) -> dict[str, float]:
    """Return the rates that simpler formulas predict."""
    alike = [other for other in seen.cells if other.backend == cell.backend]
    own = [other for other in alike if other.cell.compute.kind is ComputeKind.NONE]
    if not own:
        return {}
    near = min(
        own, key=lambda c: (c.cell.cache is not cell.cell.cache, abs(c.cell.workers - cell.cell.workers))
    )
    needed = node.accelerators * node.samples_per_s
    found = {"min of two rates": min(near.median("samples_per_s") or math.nan, needed)}
    held = next((other for other in own if other.cell.cache is CacheState.WARM), None)
    payload, samples = near.median("payload_bytes"), near.median("samples")
    if held and payload and samples:
        prep = node.cores / (held.median("whole_cpu_s_per_sample") or math.nan)
        missed = 1 - resident_share(cell)
        fetch = node.bytes_per_s / (payload / samples) / missed if missed else math.inf
        found["DS-Analyzer"] = min(prep, fetch, needed)
    return {name: value for name, value in found.items() if math.isfinite(value) and value > 0}


def _kind_error(cases: Sequence[Case]) -> KindError:
    """Return the error on the half that was not fitted."""
    width = half_width(abs(case.error()) for case in cases if case.fits)
    errors = [abs(math.expm1(case.error())) for case in cases if not case.fits]
    return KindError(
        median_error=round(statistics.median(errors), 3),
        half_width=None if width is None else round(width, 3),
    )


def _row(kind: str, cases: Sequence[Case]) -> tuple[str, ...]:
    unseen = [case for case in cases if not case.fits]
    if not unseen:
        return kind, "0", "no data", *[""] * (len(HEAD) - 3)
    known, errors = _kind_error(cases), [case.error() for case in unseen]
    width = known.half_width if kind in set(Kind) else None  # each kind has an interval of its own
    judged = [
        (next(iter(case.limits)), case.bound) for case in unseen if case.bound not in (None, Bound.BALANCED)
    ]
    shares = (
        [abs(math.expm1(error)) <= GOOD_FRAC for error in errors],
        [any({*pair} <= resource for resource in _RESOURCES) for pair in judged],
        [] if width is None else [abs(error) <= width for error in errors],
    )
    rivals = [
        [abs(case.rivals[name] / case.measured - 1) for case in unseen if name in case.rivals]
        for name in RIVALS
    ]
    figures = (
        known.median_error,
        *(statistics.mean(right) if right else None for right in shares),
        *(statistics.median(own) if own else None for own in rivals),
    )
    return kind, str(len(unseen)), *map(percent, figures)


if __name__ == "__main__":
    main()
