"""Whether a process forked from one that has imported everything measures what a fresh interpreter does.

``python -m benchmarks.starts [ROUNDS [PANELS]]`` runs the same cells both ways in turn (7 rounds take about six minutes), and prints
seconds per replicate and the ratio of rates for each. Exit code 1 where a rate differs by more than 3% beyond doubt.
"""

import contextlib
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from unittest import mock

from benchmarks.runs import ratio_words
from storebench.analysis.comparison import compare
from storebench.record.schema import Record
from storebench.run import execute as runner
from storebench.run.folder import Run
from storebench.run.launch import answer_of
from storebench.run.resources import permitted
from storebench.run.scenario import Scenario, make_scenario

ROUNDS = 7
MOST = 1.03
ALONE = {"model": "none", "compute": "none", "threads": 1, "warmup_steps": 2}
PANELS = [
    ALONE | {"dataset": "imagenet", "size": 1000, "backends": ["png"], "cache": "warm"},
    ALONE
    | {"dataset": "imagenet", "size": 1000, "backends": ["hdf5", "lmdb"], "cache": "warm", "epochs": 10},
    ALONE
    | {"dataset": "cifar10", "backends": ["leveldb", "lmdb", "memory:native"], "cache": "warm", "epochs": 10},
    ALONE
    | {"dataset": "imagenet", "size": 1000, "backends": ["png"], "cache": "warm", "workers": 2, "passes": 2},
    {
        "dataset": "mnist",
        "limit": 10_000,
        "model": "lenet",
        "threads": 1,
        "backends": ["lmdb"],
        "cache": "warm",
    }
    | {"warmup_steps": 2, "max_steps": 42},
    ALONE
    | {
        "dataset": "imagenet",
        "size": 1000,
        "backends": ["lmdb:direct"],
        "cache": "limited",
        "memory": "96 MiB",
    }
    | {"readahead": 128, "optional": True},
]


def interpreters() -> contextlib.AbstractContextManager[object]:
    """Start an interpreter for each replicate."""
    return mock.patch.object(runner, "answer_of", lambda *given: answer_of(*given[:-1]))


def scenario(number: int) -> Scenario:
    """Return one round of all cells, or of those of the first panels."""
    panels = PANELS[: int(sys.argv[2])] if sys.argv[2:] else PANELS
    settings = {"name": "starts", "question": "?", "replicates": 1, "test_limit": 0, "ceilings": False}
    return make_scenario(settings | {"seed": number, "matrix": panels})


def main() -> int:
    """Run all rounds and return the exit code."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else ROUNDS
    sides = {"interpreters": interpreters, "forks": contextlib.nullcontext}
    records: dict[str, list[Record]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        stores = Path(folder) / "stores"
        for number in range(rounds + 1):
            asked = scenario(number)
            cells = permitted(asked, asked.cells(), Path(folder)).cells
            for side in list(sides)[:: 1 if number % 2 else -1]:
                with sides[side]():
                    made = runner.execute(Run.create(asked, Path(folder) / f"{side}-{number}", cells), stores)
                records[side] += made if number else []  # the first round converts
    seconds = {side: statistics.median(_seconds(found)) for side, found in records.items()}
    print("; ".join(f"{side}: {median:.2f} s per replicate" for side, median in seconds.items()))
    rates = {side: _rates(found) for side, found in records.items()}
    differs = False
    for cell, before in rates["interpreters"].items():
        ratio = compare(before, rates["forks"][cell])
        beyond = bool(ratio.low and ratio.high and (ratio.low > MOST or ratio.high < 1 / MOST))
        differs |= beyond
        print(f"{cell}: forks to interpreters {ratio_words(ratio, 3)}{' differs' if beyond else ''}")
    return int(differs)


def _seconds(records: list[Record]) -> list[float]:
    return [record.conditions.wall_s for record in records if record.conditions]


def _rates(records: list[Record]) -> dict[str, list[float]]:
    """Return the median rate over the epochs of each round, by cell in words."""
    epochs: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for record in records:
        cell, rate = record.cell, record.samples_per_s
        words = f"{cell.data.name} {cell.backend.name} {cell.cache} {cell.model} {cell.workers} workers"
        if rate:
            epochs[words, record.run_id].append(rate)
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for (words, _), found in epochs.items():
        rates[words].append(statistics.median(found))
    return dict(rates)


if __name__ == "__main__":
    sys.exit(main())
