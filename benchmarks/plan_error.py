"""Measure the error of the planner: predict the cells of some runs from a run of planner.toml.

    python -m benchmarks.plan_error KNOWN RUN... [--write]

A prediction uses cells of KNOWN only. A hash of its id puts each predicted cell into one of two halves; the intervals
that judge one half come from the other.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storebench.analysis.bottleneck import bottlenecks
from storebench.analysis.checks.records import read_results
from storebench.analysis.labels import percent
from storebench.analysis.limits import Node, limits
from storebench.analysis.plan.measured import (
    Lacking,
    Measurements,
    Wanted,
    asked_place,
    disturbed,
    pooled,
    resident_share,
    why_not,
)
from storebench.analysis.plan.prediction_errors import ERRORS_FILE, KindError, PredictionKind, half_width
from storebench.analysis.summary import CellSummary
from storebench.analysis.table import Table
from storebench.settings.tiers import find_tier
from storebench.settings.words import CacheState, ComputeKind, Limit

RIVALS = ("min of two rates", "DS-Analyzer", "times workers")
HEAD = ("kind of cell", "cells", "median error", "within 20%", "limit right", "90% interval covers", *RIVALS)
SEVERAL = "several of these"
TIE = 1.1
"""Limits that are as close as this are one."""

_RESOURCES = (
    frozenset({Limit.COMPUTE, Limit.COPY, Limit.CONTENTION}),
    frozenset({Limit.CORES, Limit.WORKERS, Limit.LOOP, Limit.READER, Limit.DECODE, Limit.PREP}),
    frozenset({Limit.HANDOFF}),
    frozenset({Limit.LATENCY, Limit.STORAGE, Limit.REQUESTS, Limit.FETCH}),
)
"""The limits that are of the same resource."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell that is predicted: the limits of the planner, the rates of its rivals, and the limit in a report."""

    kinds: tuple[PredictionKind, ...]
    cell: CellSummary
    limits: dict[Limit, float]
    rivals: dict[str, float]
    reported: Limit | None

    @property
    def measured(self) -> float:
        """The measured samples per second."""
        return self.cell.median("samples_per_s") or math.nan

    @property
    def half(self) -> int:
        """The half to which it belongs, 0 or 1."""
        return hashlib.blake2b(self.cell.cell.cell_id.encode(), digest_size=1).digest()[0] % 2

    @property
    def error(self) -> float:
        """The logarithm of predicted over measured."""
        return math.log(min(self.limits.values()) / self.measured)

    def right(self) -> bool | None:
        """Return whether a report names the limit, or one that is as scarce within `TIE`; None if it names none."""
        if self.reported in (None, Limit.BALANCED):
            return None
        least = min(self.limits.values())
        scarce = {name for name, rate in self.limits.items() if rate <= TIE * least}
        return any(self.reported in resource and scarce & resource for resource in _RESOURCES)


def width(case: Case, widths: Mapping[PredictionKind, float | None]) -> float | None:
    """Return half of the interval of a cell; None if one of its kinds had too few cells."""
    own = [widths[kind] for kind in case.kinds]
    known = [width for width in own if width is not None]
    return math.hypot(*known) if len(known) == len(own) else None


def main() -> None:
    """Print the table, and write the file that `storebench plan` reads."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_error", description=__doc__)
    parser.add_argument("known", type=Path, metavar="KNOWN", help="a run of planner.toml")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="runs of the cells to predict")
    parser.add_argument("--write", action="store_true", help="write the file that 'storebench plan' reads")
    asked = parser.parse_args()
    cases = list(all_cases(asked.known, asked.runs))
    if not cases:
        parser.error("KNOWN tells about no cell of RUN that was measured without other work on the machine")
    fits = {half: widths_of([case for case in cases if case.half != half]) for half in (0, 1)}
    groups: dict[str, list[Case]] = {kind: [] for kind in (*PredictionKind, SEVERAL)}
    for case in cases:
        groups[case.kinds[0] if len(case.kinds) == 1 else SEVERAL].append(case)
    rows = tuple(_row(kind, own, fits) for kind, own in (groups | {"all": cases}).items())
    print(Table(caption="Cells that the planner did not see", head=HEAD, rows=rows).to_markdown())
    if asked.write:
        errors = {
            kind: dataclasses.asdict(_kind_error(groups[kind])) for kind in PredictionKind if groups[kind]
        }
        ERRORS_FILE.write_text(json.dumps(errors, indent=1) + "\n", encoding="utf-8")


def all_cases(known: Path, runs: Sequence[Path]) -> Iterable[Case]:
    """Yield the cells of some runs that a known run permits to predict, and does not have."""
    cells = read_results(known).cells_by_run
    given = [read_results(run).cells for run in runs]
    # A run at servers tells about them by its cells that emulate nothing.
    cells += [
        cell for found in given for cell in found if cell.cell.place.remote and not cell.cell.place.emulated
    ]
    have = {cell.cell.cell_id for cell in cells}
    for found in given:
        bounds = bottlenecks(found)
        for cell in found:
            group = next((group for group in pooled([cell, *cells]) if cell in group), [])
            seen = [other for other in group if other is not cell]
            kinds = _kinds(cell, seen)
            measured = cell.median("samples_per_s") and not disturbed(cell) and cell.cell.cell_id not in have
            if kinds and measured:
                with suppress(Lacking):
                    yield _case(kinds, cell, seen, bounds[cell.key].limit if cell.key in bounds else None)


def widths_of(cases: Sequence[Case]) -> dict[PredictionKind, float | None]:
    """Return half of the interval of each kind."""
    return {
        kind: half_width(abs(case.error) for case in cases if case.kinds == (kind,))
        for kind in PredictionKind
    }


def _kinds(cell: CellSummary, seen: Iterable[CellSummary]) -> tuple[PredictionKind, ...]:
    """Return in what a cell differs from those of its store that were seen."""
    own = cell.cell
    alike = [other.cell for other in seen if other.backend == cell.backend]
    if own.place.remote:
        told = not why_not(cell) and any(other.place.kind == own.place.kind for other in alike)
        return (PredictionKind.PLACE,) if told else ()
    here = [(other.cache, bool(other.workers)) for other in alike]
    limited = [other for other in alike if other.cache is CacheState.LIMITED]
    warm = [other for other in alike if other.cache is CacheState.WARM]
    cold = [other for other in alike if other.cache is CacheState.COLD]
    if not warm or own.compute.kind is ComputeKind.REAL:
        return ()
    differs = {
        PredictionKind.RANKS: own.ranks > 1,
        PredictionKind.ACCELERATOR_LOOP: own.ranks == 1
        and own.compute.kind is not ComputeKind.NONE
        and not own.workers,
        PredictionKind.ACCELERATOR_WORKERS: own.ranks == 1
        and own.compute.kind is not ComputeKind.NONE
        and bool(own.workers),
        PredictionKind.WORKERS: own.cache is CacheState.WARM
        and own.workers not in {other.workers for other in warm},
        PredictionKind.BATCH: own.batch_size not in {other.batch_size for other in warm},
        PredictionKind.COLD: own.cache is CacheState.COLD
        and bool(cold)
        and (own.cache, bool(own.workers)) not in here,
        PredictionKind.MEMORY: own.cache is CacheState.LIMITED
        and bool(limited)
        and own.memory_bytes not in {other.memory_bytes for other in limited},
        PredictionKind.MEMORY_OF_COLD: own.cache is CacheState.LIMITED and not limited,
        PredictionKind.DEVICE: own.tier is not None,
    }
    return tuple(kind for kind, is_so in differs.items() if is_so)


def _case(
    kinds: tuple[PredictionKind, ...], cell: CellSummary, cells: Sequence[CellSummary], reported: Limit | None
) -> Case:
    own, seen = cell.cell, Measurements(cells)
    tier = None if own.tier is None else find_tier(own.tier)
    emulated = own.compute.kind is ComputeKind.EMULATED
    best = seen.device_rate(cell.backend, "best")
    place, first_byte_ms = asked_place(cell), cell.fact("place_first_byte_ms")
    if own.place.remote:
        place = next(
            c.cell.place for c in cells if c.cell.place.kind == own.place.kind and c.backend == cell.backend
        )
        best = 1e6 * (cell.fact("place_emulated_mb_s") or math.inf)
    node = Node(
        cores=cell.fact("conditions_cores") or 1,
        accelerators=own.ranks,
        samples_per_s=own.batch_size / own.compute.milliseconds * 1e3 if emulated else math.inf,
        workers=own.workers,
        bytes_per_s=min(best, (tier and tier.bytes_per_s) or math.inf),
        requests_per_s=(tier and tier.requests_per_s) or math.inf,
    )
    wanted = Wanted(
        backend=cell.backend,
        workers=own.workers,
        place=place,
        first_byte_s=first_byte_ms and first_byte_ms / 1e3,
        resident=resident_share(cell),
        readahead_kib=own.readahead_kib,
        ranks=own.ranks,
        computes=emulated,
    )
    return Case(
        kinds=kinds,
        cell=cell,
        limits=limits(seen.demand(wanted), node, busy_frac=0.5),  # a report names the longer part
        rivals=_rivals(cell, seen, node),
        reported=reported,
    )


def _rivals(cell: CellSummary, seen: Measurements, node: Node) -> dict[str, float]:
    """Return the rates that simpler formulas predict."""
    alike = [other for other in seen.cells if other.backend == cell.backend]
    loading = [other for other in alike if other.cell.compute.kind is ComputeKind.NONE]
    near = min(
        loading, key=lambda c: (c.cell.cache is not cell.cell.cache, abs(c.cell.workers - cell.cell.workers))
    )
    alone = next((c for c in loading if c.cell.cache is near.cell.cache and not c.cell.workers), near)
    held = next((other for other in loading if other.cell.cache is CacheState.WARM), near)
    needed = node.accelerators * node.samples_per_s
    prep = node.cores / (held.median("whole_cpu_s_per_sample") or math.nan)
    payload = (near.median("payload_bytes") or math.nan) / (near.median("samples") or math.nan)
    missed = 1 - resident_share(cell)
    fetch = node.bytes_per_s / payload / missed if missed else math.inf
    rates = (
        near.median("samples_per_s") or math.nan,
        min(prep, fetch),
        max(1, cell.cell.workers) * node.accelerators * (alone.median("samples_per_s") or math.nan),
    )
    return {name: min(rate, needed) for name, rate in zip(RIVALS, rates, strict=True)}


def _kind_error(cases: Sequence[Case]) -> KindError:
    """Return what the table says of a kind, and half of the interval of its next prediction."""
    off = [abs(math.expm1(case.error)) for case in cases]
    width = half_width(abs(case.error) for case in cases)
    return KindError(
        median_error=round(statistics.median(off), 3),
        half_width=None if width is None else round(width, 3),
    )


def _row(
    kind: str, cases: Sequence[Case], fits: Mapping[int, Mapping[PredictionKind, float | None]]
) -> tuple[str, ...]:
    """Return the figures of some cells, each with the intervals of the other half."""
    if not cases:
        return kind, "0", "no data", *[""] * (len(HEAD) - 3)
    errors = [case.error for case in cases]
    widths = [width(case, fits[case.half]) for case in cases]
    shares: tuple[list[bool], ...] = (
        [abs(math.expm1(error)) <= 0.20 for error in errors],
        [right for case in cases if (right := case.right()) is not None],
        [abs(error) <= half for error, half in zip(errors, widths, strict=True) if half is not None],
    )
    rivals = ([abs(case.rivals[name] / case.measured - 1) for case in cases] for name in RIVALS)
    figures = (
        statistics.median(abs(math.expm1(error)) for error in errors),
        *(statistics.mean(share) if share else None for share in shares),
        *(statistics.median(own) for own in rivals),
    )
    return kind, str(len(cases)), *map(percent, figures)


if __name__ == "__main__":
    main()
