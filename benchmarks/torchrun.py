"""What torchrun costs a single rank: ``python -m benchmarks.torchrun``.

The same cell runs as a plain process and as the only rank of a torchrun job, in a fresh process each time. The two take
turns, and which of them begins turns as well. A ratio is that of the two rates of one round.

The answer is the geometric mean of the ratios of the training cells: LeNet with and without a worker. A job of ranks trains,
so this is the rate that the launcher could change. It was chosen before the run that docs/methodology.md reports. It is the
one comparison that answers the question, so its interval holds with 95% by itself. The two training cells show where a
difference would come from; their intervals hold together with 95%.

Cells that only load (``--loading``) are printed as single lines, and answer nothing: their epochs take about a second, and the
processes of one cell vary more.

torch has one thread, as in the scenarios. With a thread per core, processes of one cell vary by 8% on two cores, and 3% takes
a hundred rounds.

    python -m benchmarks.torchrun [--rounds N] [--threads N] [--loading N] [--stores PATH]

Exit code 1 if the interval of the answer lies entirely outside of 1 +- 3%.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from storebench.results import Cell
from storebench.runner import Silent, prepare
from storebench.runs.records import record_from_dict
from storebench.scenario import Scenario, make_scenario
from storebench.stats import Comparison, compare, compare_family
from storebench.surroundings import Surroundings
from storebench.system.scratch import scratch_folder
from storebench.worker.job import CellJob
from storebench.worker.launch import answer_of

MOST_FRAC = 0.03
TIMEOUT_S = 600.0

Pair = tuple[list[float], list[float]]
"""Rates of the plain process and of the rank, by round."""


def scenario_of(threads: int) -> Scenario:
    """Return the cells, with and without a worker: two that train, then two that only load."""
    common = {"dataset": "mnist", "backends": ["lmdb"], "cache": "warm", "workers": [0, 1], "warmup_steps": 5}
    common |= {"threads": threads}
    train = common | {"limit": 12_800, "model": "lenet"}
    load = common | {"model": "none", "compute": "none", "passes": 5}
    return make_scenario({"name": "torchrun", "test_limit": 0, "matrix": [train, load]})


def job_of(cell: Cell, scenario: Scenario, stores: Path, run: Path) -> CellJob:
    """Return the job of a cell, its store built if there is none."""
    prepared = prepare({cell: None}, scenario, stores, Silent())[cell]
    return CellJob(
        cell=cell,
        replicate=0,
        run_id="torchrun",
        run=run,
        tables=run / "steps",
        store=prepared.store,
        out=run / "out.json",
    )


def rate_of(job: CellJob, *, torchrun: bool) -> float:
    """Run a job in a fresh process, and return the rate of its timed steps, in samples per second."""
    with scratch_folder("replicate") as scratch:
        job = dataclasses.replace(job, torchrun=torchrun, out=scratch / "out.json")
        answer = answer_of(job, scratch, job.run / "log", Surroundings(), TIMEOUT_S)
    if "failure" in answer:
        raise SystemExit(f"{job.cell.backend.name}: {answer['failure']}")
    record = record_from_dict(answer["records"][0], where="answer")
    if record.failure is not None:
        raise SystemExit(f"{job.cell.backend.name}: {record.failure}")
    return record.samples_per_s


def pairs_of(jobs: Sequence[CellJob], rounds: int) -> list[Pair]:
    """Return the rates of each job, all of them in every round, after one round that does not count."""
    rates: list[Pair] = [([], []) for _ in jobs]
    for number in range(-1, rounds):
        for job, (plain, ranked) in zip(jobs, rates, strict=True):
            for torchrun in (True, False) if number % 2 else (False, True):
                rate = rate_of(job, torchrun=torchrun)
                if number >= 0:
                    (ranked if torchrun else plain).append(rate)
    return rates


def together(pairs: Sequence[Pair]) -> Pair:
    """Return the geometric means over the cells, by round."""
    plain, ranked = (
        [statistics.geometric_mean(rates) for rates in zip(*(pair[side] for pair in pairs), strict=True)]
        for side in (0, 1)
    )
    return plain, ranked


def words(found: Comparison) -> str:
    """Say what a ratio and its interval mean for the limit."""
    if found.ratio is None or found.low is None or found.high is None:
        return f"{found.ratio}, no interval: more rounds"
    if found.low > 1 - MOST_FRAC and found.high < 1 + MOST_FRAC:
        meaning = f"equal within {MOST_FRAC:.0%}"
    elif differs(found):
        meaning = f"DIFFERENT BY MORE THAN {MOST_FRAC:.0%}"
    else:
        meaning = f"not told from {MOST_FRAC:.0%}: more rounds, or a quieter machine"
    return f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}], {found.rounds} rounds: {meaning}"


def differs(found: Comparison) -> bool:
    """Return whether the rates differ by more than the limit beyond doubt."""
    if found.low is None or found.high is None:
        return False
    return found.low > 1 + MOST_FRAC or found.high < 1 - MOST_FRAC


def answer_to(training: Mapping[str, Pair]) -> Comparison:
    """Return the comparison that answers the question: all training cells together."""
    return compare(*together(list(training.values())))


def lines(training: Mapping[str, Pair], loading: Mapping[str, Pair]) -> Iterator[str]:
    """Yield the answer, a line per training cell, and a line per cell that only loads."""
    yield f"training, one rank over plain process: {words(answer_to(training))}"
    for name, found in zip(training, compare_family(list(training.values())), strict=True):
        yield f"  {name}: {words(found)}"
    for name, pair in loading.items():
        yield f"  {name}, a single interval: {words(compare(*pair))}"


def main() -> int:
    """Measure the cells and print the ratios."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=24, help="rounds of the training cells")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--loading", type=int, default=0, help="rounds of the cells that only load")
    parser.add_argument("--stores", type=Path, default=Path("stores"), help="folder of all stores")
    arguments = parser.parse_args()
    scenario = scenario_of(arguments.threads)
    cells = scenario.cells()
    trains = {f"{cell.model}, {cell.workers} workers": cell for cell in cells if cell.compute.kind == "real"}
    loads = {f"loader only, {cell.workers} workers": cell for cell in cells if cell.compute.kind != "real"}
    with tempfile.TemporaryDirectory() as folder:

        def measured(chosen: Mapping[str, Cell], rounds: int) -> dict[str, Pair]:
            jobs = [job_of(cell, scenario, arguments.stores, Path(folder)) for cell in chosen.values()]
            return dict(zip(chosen, pairs_of(jobs, rounds), strict=True))

        training = measured(trains, arguments.rounds)
        loading = measured(loads, arguments.loading) if arguments.loading else {}
    for line in lines(training, loading):
        print(line)
    return int(differs(answer_to(training)))


if __name__ == "__main__":
    sys.exit(main())
