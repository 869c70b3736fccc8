"""Run a scenario through the command line, as a user would, and read its records."""

import subprocess
import sys
from pathlib import Path

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
