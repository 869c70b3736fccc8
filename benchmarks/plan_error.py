"""Measure how wrong the planner is: predict cells of runs from the other cells, and compare with what was measured.

    python -m benchmarks.plan_error [RUN...]

A hash of its id puts each cell into one of two halves before anything is fitted. The sharpness of the smooth minimum and the
width of the intervals come from the first half; every figure in the table comes from the second. A cell is predicted without
itself and without the cells of its store that its kind is about, such as all cells with workers.
"""

import argparse
import dataclasses
import hashlib
import math
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storebench.planner.errors import ERRORS_FILE, KINDS, Kind, KindError, half_width, write_errors
from storebench.planner.measured import (
    SHARPNESS,
    Lacking,
    Measurements,
    Wanted,
    disturbed,
    pooled,
    resident_share,
)
from storebench.planner.model import Limit, Loop, Machine, delivered, limits
from storebench.report.analysis import find_runs, load_results
from storebench.report.bottleneck import Bound, bottlenecks
from storebench.report.cells import MEMORY_FORMAT, CellSummary, summarise
from storebench.settings.words import BOUNDED_STATES, CacheState, ComputeKind, Share

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
GOOD_FRAC = 0.20
SMALL_GRADIENTS = 1 << 20
"""Ranks that exchange more bytes per step spend time on it, which the planner leaves out."""

_RESOURCE = {
    Limit.ACCELERATORS: "accelerator",
    Limit.CORES: "processor",
    Limit.WORKERS: "processor",
    Limit.LOOP: "processor",
    Limit.HANDOFF: "handoff",
    Limit.LATENCY: "storage",
    Limit.BANDWIDTH: "storage",
    Limit.REQUESTS: "storage",
    Bound.COMPUTE: "accelerator",
    Bound.COPY: "accelerator",
    Bound.CONTENTION: "accelerator",
    Bound.READER: "processor",
    Bound.DECODE: "processor",
    Bound.PREP: "processor",
    Bound.HANDOFF: "handoff",
    Bound.STORAGE: "storage",
    Bound.LATENCY: "storage",
    Bound.FETCH: "storage",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell that is predicted: the limits of the planner, the rates of its rivals, and what was measured."""

    kind: Kind
    cell: CellSummary
    limits: dict[Limit, float]
    rivals: dict[str, float] = field(default_factory=dict)
    bound: Bound | None = None

    @property
    def measured(self) -> float:
        """The measured samples per second."""
        return self.cell.median("samples_per_s") or math.nan

    @property
    def fits(self) -> bool:
        """Whether it belongs to the half that is fitted."""
        return hashlib.blake2b(self.cell.cell.cell_id.encode(), digest_size=1).digest()[0] < 128

    def error(self, sharpness: float) -> float:
        """Return the logarithm of predicted over measured."""
        return math.log(delivered(self.limits, sharpness) / self.measured)


def main() -> None:
    """Print the table, and write the file that `storebench plan` reads."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_error", description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="default: results/reference")
    parser.add_argument("--write", action="store_true", help="write the file that 'storebench plan' reads")
    parser.add_argument("--cells", action="store_true", help="print every prediction")
    asked = parser.parse_args()
    cases = list(all_cases(asked.runs or [REFERENCE]))
    if asked.cells:
        for case in sorted(cases, key=lambda case: (case.kind, case.error(SHARPNESS))):
            print(_line(case))
    fitted = min(
        (p / 2 for p in range(4, 33)),
        key=lambda p: statistics.median(abs(case.error(p)) for case in cases if case.fits),
    )
    print(f"sharpness fitted to {sum(case.fits for case in cases)} cells: {fitted:g} (in use: {SHARPNESS:g})")
    errors = {kind: _kind_error([case for case in cases if case.kind is kind]) for kind in KINDS}
    for line in _table(cases, errors):
        print(line)
    if asked.write:
        write_errors({kind: error for kind, error in errors.items() if error is not None})
        print(ERRORS_FILE)


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
    real, read = own.compute.kind is ComputeKind.REAL, own.backend.format != MEMORY_FORMAT
    if own.share is not Share.NONE or cell.is_null:
        return ()
    if own.ranks > 1:
        exchanged = cell.median("job_gradient_bytes") or 0
        return () if real or exchanged > SMALL_GRADIENTS else (Kind.RANKS,)
    if real and own.device == "cpu":
        return (Kind.CPU_TRAINING,)
    if own.compute.kind is not ComputeKind.NONE:
        alike = [other.cell for other in group if other.backend == cell.backend]
        loading = {other.batch_size for other in alike if other.compute.kind is ComputeKind.NONE}
        if loading and own.batch_size not in loading:
            return (Kind.BATCH,)
        return (Kind.ACCELERATOR_WORKERS,) if own.workers else (Kind.ACCELERATOR_LOOP,)
    if own.workers and own.cache is CacheState.WARM:
        return (Kind.WORKERS,)
    if own.cache is CacheState.LIMITED:
        return (Kind.MEMORY, Kind.MEMORY_OF_DEVICE)
    return (Kind.COLD,) if own.cache is CacheState.COLD and read else ()


def _hidden(kind: Kind, cell: CellSummary, other: CellSummary) -> bool:
    """Return whether the prediction of a cell may not use another cell of its store."""
    own, kinds = other.cell, other.cell.compute.kind
    match kind:
        case Kind.RANKS:
            return own.ranks >= cell.cell.ranks
        case Kind.CPU_TRAINING:
            return kinds is ComputeKind.REAL
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
    seen = Measurements.of(
        other for other in group if not (other.backend == cell.backend and _hidden(kind, cell, other))
    )
    machine = Machine(
        cores=cell.fact("conditions_cores") or 1, bytes_per_s=seen.device_rate(cell.backend, "best")
    )
    loop = Loop(accelerators=own.ranks, samples_per_s=_ingestion(cell, group), workers=own.workers)
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
    demand = seen.demand(wanted)
    return Case(
        kind=kind,
        cell=cell,
        limits=limits(demand, loop, machine),
        rivals=_rivals(cell, seen, loop, machine),
        bound=bound,
    )


def _ingestion(cell: CellSummary, group: Sequence[CellSummary]) -> float:
    """Return the samples per second of one accelerator: as emulated, or as the null cell of the network computed."""
    own = cell.cell
    if own.compute.kind is ComputeKind.NONE:
        return math.inf
    if own.compute.kind is ComputeKind.EMULATED:
        return own.batch_size / own.compute.milliseconds * 1e3
    alike = [
        null
        for null in group
        if null.is_null and (null.cell.model, null.cell.device) == (own.model, own.device)
        if null.cell.batch_size == own.batch_size
    ]
    if not alike:
        raise Lacking("add a null cell")
    return 1 / statistics.median(null.per_sample("compute_s") + null.per_sample("h2d_s") for null in alike)


def _rivals(cell: CellSummary, seen: Measurements, loop: Loop, machine: Machine) -> dict[str, float]:
    own = [
        other
        for other in seen.cells
        if other.backend == cell.backend and other.cell.compute.kind is ComputeKind.NONE
    ]
    needed = loop.accelerators * loop.samples_per_s
    alike = [other for other in own if other.cell.cache is cell.cell.cache] or own
    if not alike:
        return {}
    near = min(alike, key=lambda other: abs(other.cell.workers - cell.cell.workers))
    rate = near.median("samples_per_s") or math.nan
    found = {
        "min of two rates": min(rate, needed),
        "scaling by workers": min(rate * loop.producers / max(1, near.cell.workers), needed),
    }
    held = [other for other in own if other.cell.cache is CacheState.WARM]
    payload, samples = near.median("payload_bytes"), near.median("samples")
    if held and payload and samples:
        prep = machine.cores / (held[0].median("whole_cpu_s_per_sample") or math.nan)
        missed = 1 - resident_share(cell)
        fetch = machine.bytes_per_s / (payload / samples) / missed if missed else math.inf
        found["DS-Analyzer"] = min(prep, fetch, needed)
    return {name: value for name, value in found.items() if math.isfinite(value) and value > 0}


def _kind_error(cases: Sequence[Case]) -> KindError | None:
    """Return the error of a kind on the half that was not fitted; None without cells there."""
    seen, unseen = [case for case in cases if case.fits], [case for case in cases if not case.fits]
    if not unseen:
        return None
    width = half_width([abs(case.error(SHARPNESS)) for case in seen])
    errors = [case.error(SHARPNESS) for case in unseen]
    judged = [case for case in unseen if case.bound in _RESOURCE]
    right = sum(_RESOURCE[next(iter(case.limits))] == _RESOURCE[case.bound] for case in judged if case.bound)
    return KindError(
        cells=len(unseen),
        median_error=statistics.median(abs(math.expm1(error)) for error in errors),
        within_20=sum(abs(math.expm1(error)) <= GOOD_FRAC for error in errors) / len(errors),
        limit_right=right / len(judged) if judged else None,
        covered=None if width is None else sum(abs(error) <= width for error in errors) / len(errors),
        half_width=width,
    )


def _table(cases: Sequence[Case], errors: dict[Kind, KindError | None]) -> Iterable[str]:
    rivals = ("min of two rates", "DS-Analyzer", "scaling by workers")
    yield f"| kind of cell | cells | median error | within 20% | limit right | 90% interval covers | {' | '.join(rivals)} |"
    yield "|---|" + " ---: |" * (5 + len(rivals))
    for kind, error in errors.items():
        unseen = [case for case in cases if case.kind is kind and not case.fits]
        yield _row(kind, error, [_rival_error(unseen, name) for name in rivals])
    together, unseen = _kind_error(cases), [case for case in cases if not case.fits]
    if together is not None:
        mixed = dataclasses.replace(together, covered=None)  # each kind has an interval of its own
        yield _row("all", mixed, [_rival_error(unseen, name) for name in rivals])


def _row(kind: str, error: KindError | None, theirs: Sequence[float | None]) -> str:
    if error is None:
        return f"| {kind} | 0 | no data |" + " |" * (3 + len(theirs))
    shares = (error.median_error, error.within_20, error.limit_right, error.covered, *theirs)
    return f"| {kind} | {error.cells} | {' | '.join(map(_percent, shares))} |"


def _rival_error(cases: Sequence[Case], name: str) -> float | None:
    errors = [abs(case.rivals[name] / case.measured - 1) for case in cases if name in case.rivals]
    return statistics.median(errors) if errors else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _line(case: Case) -> str:
    own: Any = case.cell.cell
    setting = f"{own.data.name} {own.model} {own.compute} {own.cache} w{own.workers} r{own.ranks} b{own.batch_size} ra{own.readahead_kib}"
    parts = " ".join(f"{name}={rate:.0f}" for name, rate in case.limits.items() if math.isfinite(rate))
    error = math.expm1(case.error(SHARPNESS))
    return f"{case.kind}: {case.cell.backend} {setting}: {case.measured:.0f}, {error:+.0%} [{case.bound}] {parts}"


if __name__ == "__main__":
    main()
