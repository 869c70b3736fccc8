"""Does the null backend compute as long as training from memory? ``python -m benchmarks.null``.

The null cell is the upper bound that the network sets, so its compute must equal that of real batches. The script prints
its compute per sample over that of ``memory:python``, paired by round, with a 95% interval, for each dataset. Constant
grey images computed 10 to 12% faster, because the branches in pooling and rectifiers become predictable.

    python -m benchmarks.null [--run FOLDER] [--replicates N] [--stores FOLDER]

The exit code is 1 if an interval lies entirely outside of plus or minus 5%.
"""

import sys
from collections.abc import Sequence

from benchmarks.runs import records_asked_for
from storebench.results import Record, Status
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
        record.replicate: record.compute_s / record.timed_samples
        for record in records
        if record.status is Status.OK
        and (record.cell.data.name, record.cell.backend.name) == (dataset, backend)
    }


def null_over_memory(records: Sequence[Record], dataset: str) -> Comparison:
    """Return the null cell's compute over that of training from memory, paired by round."""
    memory, null = (compute_of(records, dataset, backend) for backend in (MEMORY, NULL))
    shared = sorted(memory.keys() & null.keys())
    return compare(
        [memory[number] for number in shared],
        [null[number] for number in shared],
        better=Better.LOWER,
        paired=True,
    )


def main() -> int:
    """Run the scenario, or read a run of it, and print one ratio per dataset."""
    records = records_asked_for(SCENARIO, __doc__)
    differs = 0
    for dataset in dict.fromkeys(record.cell.data.name for record in records):
        compared = null_over_memory(records, dataset)
        assert compared.ratio is not None
        assert compared.low is not None
        assert compared.high is not None
        print(
            f"{dataset}: compute of null over {MEMORY} {compared.ratio:.3f} [{compared.low:.3f}, {compared.high:.3f}], "
            f"{compared.rounds} rounds"
        )
        differs += compared.low > MOST or compared.high < 1 / MOST
    return int(differs > 0)


if __name__ == "__main__":
    sys.exit(main())
