"""Does the null backend compute as long as training from memory? ``python -m benchmarks.null``.

The null cell is the ceiling that the network sets, so its compute must be that of real batches. Printed is its compute per
sample over that of ``memory:python``, paired by round, with a 95% interval, for each dataset. Constant grey, which
pooling and rectifiers predict well, computed 10 to 12% faster.

    python -m benchmarks.null [--replicates N] [--stores FOLDER]

Exit code 1 where the two differ by more than 5% beyond doubt.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runs import bench_text
from storebench.results import Record, Status
from storebench.runs.records import read_records
from storebench.stats import Comparison, compare
from storebench.units import Better

MEMORY, NULL = "memory:python", "null"
MOST = 1.05

SCENARIO = """
name = "null"
question = "Does the null backend compute as long as training from memory?"
replicates = 10
test_limit = 0

[[matrix]]
dataset = "mnist"
limit = 12800
model = "lenet"
backends = ["memory:python", "null"]
threads = 1

[[matrix]]
dataset = "cifar10"
limit = 6400
model = "cifar10_quick"
backends = ["memory:python", "null"]
threads = 1
"""


def compute_of(records: Sequence[Record], dataset: str, backend: str) -> dict[int, float]:
    """Return the compute seconds per sample of one cell by round."""
    return {
        one.replicate: one.compute_s / one.timed_samples
        for one in records
        if one.status is Status.OK and (one.cell.data.name, one.cell.backend.name) == (dataset, backend)
    }


def null_over_memory(records: Sequence[Record], dataset: str) -> Comparison:
    """Return the null cell's compute over that of training from memory, paired by round."""
    memory, null = (compute_of(records, dataset, backend) for backend in (MEMORY, NULL))
    shared = sorted(memory.keys() & null.keys())
    return compare(
        [memory[one] for one in shared], [null[one] for one in shared], better=Better.LOWER, paired=True
    )


def main() -> int:
    """Run the scenario, or read a run of it, and print one ratio per dataset."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--run", type=Path, help="a run of this benchmark that is there already")
    parser.add_argument("--replicates", type=int, help="fresh processes per cell, instead of 10")
    parser.add_argument("--stores", type=Path, help="keep the stores here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        stores = arguments.stores or Path(scratch) / "stores"
        records = (
            read_records(arguments.run)
            if arguments.run
            else bench_text(SCENARIO, Path(scratch) / "run", stores, arguments.replicates)
        )
    differs = 0
    for dataset in dict.fromkeys(one.cell.data.name for one in records):
        found = null_over_memory(records, dataset)
        assert found.ratio is not None
        assert found.low is not None
        assert found.high is not None
        print(
            f"{dataset}: compute of null over {MEMORY} {found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}], "
            f"{found.rounds} rounds"
        )
        differs += found.low > MOST or found.high < 1 / MOST
    return int(differs > 0)


if __name__ == "__main__":
    sys.exit(main())
