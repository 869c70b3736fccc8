"""The history of the benchmark suite: one line per night, and a plot of each benchmark with its steps marked.

python -m benchmarks.history SESSIONS FILE appends the medians of the sessions of ``make bench-ci`` to a file.
"""

import json
import math
import statistics
import sys
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from storebench.report.plots.style import finish, new_axes, styled

HISTORY = Path("results/history.jsonl")

# Fewer nights than this on either side are no step.
FEWEST_NIGHTS = 3

# A step has to explain this many times the noise of a night, times the logarithm of the number of nights.
PENALTY = 2.5


def append(sessions: Path, file: Path) -> None:
    """Append a line with the median over sessions of each benchmark's median time."""
    contents = [json.loads(path.read_text()) for path in sorted(sessions.glob("session-*.json"))]
    times: dict[str, list[float]] = {}
    for benchmark in (benchmark for content in contents for benchmark in content["benchmarks"]):
        times.setdefault(benchmark["name"], []).append(benchmark["stats"]["median"])
    first = contents[0]
    line = {
        "date": first["datetime"],
        "commit": first["commit_info"]["id"],
        "machine": first["machine_info"]["cpu"].get("brand_raw", ""),
        "median_s": {name: float(f"{statistics.median(each):.4g}") for name, each in sorted(times.items())},
    }
    with file.open("a") as history:
        history.write(json.dumps(line) + "\n")


def steps(times: Sequence[float]) -> list[int]:
    """Return the positions at which a series of times changes its level."""
    import numpy as np
    import ruptures

    logarithms = np.log(times)
    if len(times) < 2 * FEWEST_NIGHTS:
        return []
    # Differences of neighbours show the noise of a night beside few steps; 0.95 makes their median a standard deviation.
    noise = max(float(np.median(np.abs(np.diff(logarithms)))) / 0.95, 0.005)
    # Distances from medians, not squares: a slow night is no step.
    search = ruptures.Pelt(model="l1", min_size=FEWEST_NIGHTS, jump=1).fit(logarithms)
    found: list[int] = search.predict(pen=PENALTY * noise * math.log(len(times)))[:-1]
    return found


def plots(file: Path = HISTORY) -> list[Axes]:
    """Draw the times of each benchmark over the nights, a line and the commit at each step; those with steps first."""
    nights: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    drawn: list[tuple[bool, Axes]] = []
    for name in sorted({name for night in nights for name in night["median_s"]}):
        seen = [night for night in nights if name in night["median_s"]]
        times = [1000 * night["median_s"][name] for night in seen]
        found = steps(times)
        with styled():
            ax = new_axes(2.4, None)
            ax.plot(range(len(times)), times, marker=".", color="#0072b2")
            for step in found:
                ax.axvline(step - 0.5, color="#d55e00", linewidth=1)
                ax.annotate(
                    seen[step]["commit"][:8], (step - 0.3, 1.05 * max(times)), color="#d55e00", fontsize=8
                )
            ax.set_ylabel("time (ms)")
            ax.set_xlabel(f"night, from {seen[0]['date'][:10]} to {seen[-1]['date'][:10]}")
            ax.set_ylim(0, 1.2 * max(times))
            finish(ax, name)
        drawn.append((not found, ax))
    return [ax for _, ax in sorted(drawn, key=itemgetter(0))]


if __name__ == "__main__":
    append(Path(sys.argv[1]), Path(sys.argv[2]))
