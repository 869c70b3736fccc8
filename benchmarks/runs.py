"""Run a scenario through the command line, as a user would, and read its records; say what rates of its rounds show."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from storebench.analysis.comparison import Ratio, compare
from storebench.record.lines import read_records
from storebench.record.schema import Record


def bench_text(scenario: str, folder: Path, stores: Path, replicates: int | None = None) -> list[Record]:
    """Run a scenario that is given as text into a new folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".toml")
    path.write_text(scenario, encoding="utf-8")
    command = [sys.executable, "-m", "storebench", "bench", str(path), "--out", str(folder)]
    command += ["--stores", str(stores)]
    command += ["--replicates", str(replicates)] if replicates else []
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return read_records(folder)


def ratio_words(found: Ratio, digits: int = 2) -> str:
    """Return the ratio with its interval; "[-]" where one round shows no spread."""
    if found.mid is None:
        return "no ratio"
    if found.low is None or found.high is None:
        return f"{found.mid:.{digits}f} [-]"
    return f"{found.mid:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


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
