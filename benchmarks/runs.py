"""Run a scenario through the command line, as a user would, and read its records; say what rates of its rounds show."""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from storebench.comparison import Ratio, compare
from storebench.results import Record
from storebench.runs.records import read_records


def bench(scenario: Path, folder: Path, stores: Path, replicates: int | None = None) -> list[Record]:
    """Run the scenario into a new folder."""
    command = [sys.executable, "-m", "storebench", "bench", str(scenario), "--out", str(folder)]
    command += ["--stores", str(stores)]
    command += ["--replicates", str(replicates)] if replicates else []
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return read_records(folder)


def bench_text(scenario: str, folder: Path, stores: Path, replicates: int | None = None) -> list[Record]:
    """Run a scenario that is given as text."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".toml")
    path.write_text(scenario, encoding="utf-8")
    return bench(path, folder, stores, replicates)


def records_asked_for(scenario: str, about: str | None) -> list[Record]:
    """Parse the command line of a benchmark, and return the records of the run that it names, or of a new run."""
    parser = argparse.ArgumentParser(description=str(about).splitlines()[0])
    parser.add_argument("--run", type=Path, help="read this earlier run of the benchmark")
    parser.add_argument("--replicates", type=int, help="fresh processes per cell, instead of the scenario's")
    parser.add_argument("--stores", type=Path, help="keep the stores here")
    arguments = parser.parse_args()
    if arguments.run:
        return read_records(arguments.run)
    with tempfile.TemporaryDirectory() as scratch:
        stores = arguments.stores or Path(scratch) / "stores"
        return bench_text(scenario, Path(scratch) / "run", stores, arguments.replicates)


def ratio_words(found: Ratio) -> str:
    """Return the ratio with its interval; "[-]" where one round shows no spread."""
    if found.mid is None:
        return "no ratio"
    if found.low is None or found.high is None:
        return f"{found.mid:.2f} [-]"
    return f"{found.mid:.2f} [{found.low:.2f}, {found.high:.2f}]"


def claim_line(
    words: str, contender: Sequence[float], baselines: Sequence[Sequence[float]], least: float | None = None
) -> str:
    """Return a line with the ratio to each baseline, and whether the intervals show at least `least`."""
    found = [compare(baseline, contender) for baseline in baselines]
    line = f"{words}: {' and '.join(map(ratio_words, found))}"
    if least is None:
        return line
    if any(one.high is not None and one.high < least for one in found):
        return f"{line} (asked: {least:g}) missed"
    met = all(one.low is not None and one.low >= least for one in found)
    return f"{line} (asked: {least:g}) {'met' if met else 'undecided'}"
