"""What torchrun costs a single rank: ``python -m benchmarks.torchrun``.

The same cell runs as a plain process and as the only rank of a torchrun job, in a fresh process each time. The two take
turns, and which of them begins turns as well. A ratio is that of the two rates of one round. The geometric mean over the
cells varies by half as much as a single cell. It is the one comparison that answers the question, so its interval holds with
95% by itself. Those of the cells show where a difference would come from; they hold together with 95%.

torch has one thread, as in the scenarios. With a thread per core, processes of one cell vary by 8% on two cores, and 3% takes
a hundred rounds.

    python -m benchmarks.torchrun [--rounds N] [--threads N] [--stores PATH]

Exit code 1 if an interval lies entirely outside of 1 +- 3%.
"""

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from storebench.results import Cell
from storebench.runner import Silent, prepare
from storebench.runs.records import record_from_dict
from storebench.scenario import Scenario, make_scenario
from storebench.stats import Comparison, compare_family
from storebench.surroundings import Surroundings
from storebench.system.scratch import scratch_folder
from storebench.worker.job import CellJob
from storebench.worker.launch import answer_of

MOST_FRAC = 0.03
TIMEOUT_S = 600.0


def scenario_of(threads: int) -> Scenario:
    """Return the cells: training and loading alone, with and without a worker."""
    common = {"dataset": "mnist", "backends": ["lmdb"], "cache": "warm", "workers": [0, 1], "warmup_steps": 5}
    common |= {"threads": threads}
    train = common | {"limit": 12_800, "model": "lenet"}
    load = common | {"model": "none", "compute": "none", "passes": 5}
    return make_scenario(
        {"name": "torchrun", "test_limit": 0, "check_pixels": False, "matrix": [train, load]}
    )


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
        check_pixels=scenario.checks_pixels(0),
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


def rates_of(job: CellJob, rounds: int) -> tuple[list[float], list[float]]:
    """Return the rates of the plain process and of the rank, by round, after one round that does not count."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(-1, rounds):
        for torchrun in (True, False) if number % 2 else (False, True):
            rate = rate_of(job, torchrun=torchrun)
            if number >= 0:
                rates[torchrun].append(rate)
    return rates[False], rates[True]


def together(pairs: Sequence[tuple[list[float], list[float]]]) -> tuple[list[float], list[float]]:
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


def main() -> int:
    """Measure every cell and print the ratios."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each cell")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--stores", type=Path, default=Path("stores"), help="folder of all stores")
    arguments = parser.parse_args()
    scenario = scenario_of(arguments.threads)
    cells = scenario.cells()
    with tempfile.TemporaryDirectory() as folder:
        jobs = [job_of(cell, scenario, arguments.stores, Path(folder)) for cell in cells]
        pairs = [rates_of(job, arguments.rounds) for job in jobs]
    compared = [*compare_family(pairs), *compare_family([together(pairs)])]
    kinds = [cell.model if cell.compute.kind == "real" else "loader only" for cell in cells]
    names = [f"{kind}, {cell.workers} workers" for kind, cell in zip(kinds, cells, strict=True)]
    for name, comparison in zip([*names, "all cells together"], compared, strict=True):
        print(f"{name}, one rank over plain process: {words(comparison)}")
    return int(any(map(differs, compared)))


if __name__ == "__main__":
    sys.exit(main())
