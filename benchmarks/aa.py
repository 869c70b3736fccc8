"""Twins that do the same work: how many of them are called different? ``python -m benchmarks.aa``.

A method that calls a difference where there is none more often than one time in
twenty cannot be believed about real ones. Each cell has a twin that does the same work
under another name: the number of steps that an epoch has is given as its limit. Both
run in the same rounds and are compared as a report compares any two cells, cold and
warm, loading only and training. No cell is in two pairs, so the comparisons are as many as the
pairs; the network's time is compared where something is trained, the loop's rate elsewhere.

    python -m benchmarks.aa [--replicates N] [--run FOLDER]
"""

import argparse
import dataclasses
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.runs import bench_text
from storebench.results import Cell, Record, Status
from storebench.runs.records import read_records
from storebench.stats import ALPHA, Comparison, Verdict, compare, corrected
from storebench.units import Better

SAMPLES, BATCH = 6400, 64
IMPROBABLE = 0.01
"""More false alarms than chance brings in one of a hundred runs: exit code 1."""

SCENARIO = """
name = "aa"
question = "Is a difference seen where there is none?"
replicates = 5
test_limit = 0
"""

MATRIX = """
[[matrix]]
dataset = "cifar10"
synthetic = true
limit = {samples}
batch_size = {batch}
threads = 1
backends = ["png", "hdf5", "leveldb", "lmdb", "lmdb:direct"]
cache = ["cold", "warm"]
{settings}
{steps}
"""

SETTINGS = ('compute = "none"\nmodel = "none"', 'compute = "real"\nmodel = "tiny"')

Twins = dict[Cell, tuple[list[float], list[float]]]


def scenario() -> str:
    """Return a scenario in which each cell has a twin."""
    steps = ("", f"max_steps = {SAMPLES // BATCH}")
    parts = [
        MATRIX.format(samples=SAMPLES, batch=BATCH, settings=setting, steps=two)
        for setting in SETTINGS
        for two in steps
    ]
    return SCENARIO + "".join(parts)


def twins(records: Iterable[Record]) -> Twins:
    """Return each pair's figures, round by round: of the cell without a limit, and of its twin."""
    found: dict[Cell, tuple[dict[int, float], dict[int, float]]] = {}
    for record in records:
        if record.status is Status.OK and record.epoch == 0:
            pair = found.setdefault(dataclasses.replace(record.cell, max_steps=None), ({}, {}))
            figure = record.compute_s if record.cell.compute == "real" else 1 / record.samples_per_s
            pair[record.cell.max_steps is not None][record.replicate] = figure
    shared = {cell: sorted(one.keys() & two.keys()) for cell, (one, two) in found.items()}
    return {
        cell: ([found[cell][0][number] for number in rounds], [found[cell][1][number] for number in rounds])
        for cell, rounds in shared.items()
        if rounds
    }


def comparisons(records: Iterable[Record]) -> dict[Cell, Comparison]:
    """Return the comparison of each cell with its twin, uncorrected: paired by round, as reports pair."""
    return {cell: compare(one, two, better=Better.LOWER) for cell, (one, two) in twins(records).items()}


def called_different(found: Iterable[Comparison]) -> int:
    """Return the number of comparisons that see a difference."""
    return sum(one.verdict in (Verdict.FASTER, Verdict.SLOWER) for one in found)


def chance(alarms: int, count: int) -> float:
    """Return the probability of that many false alarms or more among so many independent comparisons."""
    fewer = sum(math.comb(count, k) * ALPHA**k * (1 - ALPHA) ** (count - k) for k in range(alarms))
    return 1 - fewer


def main() -> int:
    """Compare, print every ratio and how many were called different."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--replicates", type=int, help="fresh processes per cell, instead of 5")
    parser.add_argument("--run", type=Path, help="a run of the scenario that is there already")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        records: Sequence[Record] = (
            read_records(arguments.run)
            if arguments.run
            else bench_text(scenario(), folder / "run", folder / "stores", arguments.replicates)
        )
    found = comparisons(records)
    for cell, one in found.items():
        figure = "compute" if cell.compute == "real" else "loop"
        words = "no interval" if one.low is None else f"{one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}]"
        print(f"{cell.cache:5} {figure:8} {cell.backend.name:20} {words} {one.verdict}")
    alone, together = called_different(found.values()), called_different(corrected(list(found.values())))
    probability = chance(alone, len(found))
    print(
        f"{len(found)} independent comparisons: {alone} called different each alone, {together} with Holm's correction; "
        f"chance brings as many or more with a probability of {probability:.2f}"
    )
    return int(probability < IMPROBABLE)


if __name__ == "__main__":
    sys.exit(main())
