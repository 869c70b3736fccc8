"""Does the epoch get shorter as the spans predict when the reader gets faster? ``python -m benchmarks.training``.

The prediction for training from ``lmdb:direct`` takes nothing from that training itself:

- C, the compute (and copying to the device) of the same epoch fed by LMDB without readahead: what the kernel reads ahead
  of plain LMDB takes processor time from the network, which is printed, too;
- W, what the direct reader takes warm with nothing to compute: the loop copies its batches in its own thread;
- R, what it takes cold with nothing to compute: reading ahead goes on while the network computes.

The epoch should take max(C + W, R). Printed is measured over predicted, paired by round, with a 95% interval, and how
much shorter the epoch is than from LMDB.

    python -m benchmarks.training [--run FOLDER] [--replicates N] [--stores FOLDER]
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runs import bench
from storebench.results import Cell, Record, Status
from storebench.runs.records import read_records
from storebench.stats import Comparison, compare

SCENARIO = Path(__file__).parents[1] / "scenarios" / "training.toml"
OFF_FRAC = 0.10
PLAIN, SLOW, DIRECT = "lmdb", "lmdb?readahead=off", "lmdb:direct"

Rounds = dict[int, Record]


def rounds(records: Sequence[Record], **wanted: object) -> Rounds:
    """Return the usable records of one cell by round."""
    return {
        one.replicate: one
        for one in records
        if one.status is Status.OK and wanted.items() <= one.cell.fields().items()
    }


def predicted_s(slow: Record, warm: Record, cold: Record) -> float:
    """Return how long the epoch from the direct reader should take."""
    return max(slow.compute_s + slow.h2d_s + warm.timed_s, cold.timed_s)


def held_against(records: Sequence[Record], dataset: str) -> dict[str, Comparison]:
    """Return measured over predicted time, and time over that from LMDB, for one dataset."""
    of = {"dataset": dataset}
    plain, slow, direct = (
        rounds(records, backend=name, compute="real", **of) for name in (PLAIN, SLOW, DIRECT)
    )
    cold, warm = (
        rounds(records, backend=DIRECT, compute="none", cache=cache, **of) for cache in ("cold", "warm")
    )
    shared = sorted(plain.keys() & slow.keys() & direct.keys() & cold.keys() & warm.keys())
    measured = [direct[one].timed_s for one in shared]
    predictions = [predicted_s(slow[one], warm[one], cold[one]) for one in shared]
    return {
        "measured over predicted": compare(predictions, measured),
        f"of the epoch from {PLAIN}": compare([plain[one].timed_s for one in shared], measured),
        f"of the epoch from {SLOW}": compare([slow[one].timed_s for one in shared], measured),
        f"compute while {PLAIN} reads ahead, over compute beside {SLOW}": compare(
            [slow[one].compute_s for one in shared], [plain[one].compute_s for one in shared]
        ),
    }


def cells(records: Sequence[Record]) -> list[str]:
    """Return the datasets of a run in its order."""
    found: list[Cell] = [one.cell for one in records]
    return list(dict.fromkeys(cell.data.name for cell in found))


def main() -> int:
    """Run the scenario, or read a run, and print one block a dataset."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--run", type=Path, help="a run of scenarios/training.toml that is there already")
    parser.add_argument("--replicates", type=int, help="fresh processes a cell, instead of the scenario's")
    parser.add_argument("--stores", type=Path, help="keep the stores here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        stores = arguments.stores or Path(scratch) / "stores"
        records = (
            read_records(arguments.run)
            if arguments.run
            else bench(SCENARIO, Path(scratch) / "run", stores, arguments.replicates)
        )
    missed = 0
    for dataset in sorted(cells(records)):
        print(f"\n{dataset}")
        for words, one in held_against(records, dataset).items():
            print(f"  {words}: {one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}], {one.rounds} rounds")
            missed += words.startswith("measured") and abs(one.ratio - 1) > OFF_FRAC
    print(f"\n{missed} predictions are off by more than {OFF_FRAC:.0%}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
