"""The same scenario against itself: how many ratios are called different? ``python -m tests.benchmarks.bench_aa``.

Whoever calls a difference where there is none more often than one time in
twenty cannot be believed about real ones. Each backend's ratio to the first
backend of its run is taken round by round, as every figure of a report is; the
ratios of two runs are then compared by Welch's test.

    python -m tests.benchmarks.bench_aa [--scenario FILE] [--replicates N]
    python -m tests.benchmarks.bench_aa --runs FOLDER FOLDER
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from storebench.records import read_records
from storebench.results import Cell, Record, Status
from storebench.stats import Comparison, Verdict, compare, corrected
from storebench.units import Better
from tests.benchmarks.runs import bench

METRICS = {"samples_per_s": Better.HIGHER, "data_wait_s": Better.LOWER, "epoch_s": Better.LOWER}
MOST_FRAC = 0.05

SCENARIO = """
name = "aa"
question = "Is a difference seen where there is none?"
replicates = 5
test_limit = 0
check_pixels = false

[[matrix]]
dataset = "mnist"
synthetic = true
limit = 6400
backends = ["memory:native", "png", "hdf5", "leveldb", "lmdb", "memory:python"]
cache = "warm"
model = "tiny"
threads = 1
"""

Values = dict[Cell, dict[int, float]]


def values(records: Iterable[Record], metric: str) -> Values:
    """Return one value a round of each cell."""
    found: Values = {}
    for record in records:
        if record.status is Status.OK and record.epoch == 0:
            found.setdefault(record.cell, {})[record.replicate] = float(getattr(record, metric))
    return found


def ratios(found: Values, cell: Cell, reference: Cell) -> list[float]:
    """Return the cell's value over the reference's, round by round."""
    rounds = sorted(found[cell].keys() & found[reference].keys())
    return [found[cell][one] / found[reference][one] for one in rounds]


def comparisons(first: Sequence[Record], second: Sequence[Record]) -> dict[tuple[str, str], Comparison]:
    """Return each metric's comparison of each cell's ratio in two runs, uncorrected, by (metric, backend)."""
    found = {}
    for metric, better in METRICS.items():
        one, two = values(first, metric), values(second, metric)
        reference, *cells = [cell for cell in one if cell in two]
        for cell in cells:
            found[metric, cell.backend] = compare(
                ratios(one, cell, reference), ratios(two, cell, reference), better=better, paired=False
            )
    return found


def called_different(found: Iterable[Comparison]) -> int:
    """Return how many comparisons see a difference."""
    return sum(one.verdict in (Verdict.FASTER, Verdict.SLOWER) for one in found)


def both(arguments: argparse.Namespace, scratch: Path) -> list[list[Record]]:
    """Return the records of the two runs that are compared."""
    if arguments.runs:
        return [read_records(run) for run in arguments.runs]
    scenario = arguments.scenario or scratch / "aa.toml"
    if not arguments.scenario:
        scenario.write_text(SCENARIO)
    return [bench(scenario, scratch / name, scratch / "stores", arguments.replicates) for name in ("A", "B")]


def main() -> int:
    """Compare, print every ratio and how many were called different."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--scenario", type=Path, help="the scenario to run twice; a small one by default")
    parser.add_argument("--replicates", type=int, help="fresh processes a cell, instead of the scenario's")
    parser.add_argument("--runs", type=Path, nargs=2, help="compare two runs that are there already")
    with tempfile.TemporaryDirectory() as scratch:
        first, second = both(parser.parse_args(), Path(scratch))
    found = comparisons(first, second)
    for (metric, backend), one in found.items():
        print(f"{metric:15} {backend:20} {one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}] {one.verdict}")
    alone, together = called_different(found.values()), called_different(corrected(list(found.values())))
    print(f"{len(found)} ratios: {alone} called different each alone, {together} with Holm's correction")
    return int(together > MOST_FRAC * len(found))


if __name__ == "__main__":
    sys.exit(main())
