"""Draw the plots of the README and of docs/ from the reference results: ``make docs``."""

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes

import storebench
from storebench.report.plots.style import saved
from tests.docs.doc_files import ROOT

REFERENCE = ROOT / "results" / "reference"
FIGURES = ROOT / "docs" / "figures"


def _of(*runs: str) -> pd.DataFrame:
    return pd.concat([storebench.load_results(REFERENCE / name) for name in runs])


def gpu() -> Axes:
    """Draw the roofline in memory of a machine with a GPU, and its networks as points."""
    results = _of("gpu", "gpu-small")
    return storebench.plot_roofline(results[results.cache != "cold"])


def results() -> Axes:
    """Draw the rates of stores larger than memory, at Linux's own read-ahead."""
    frame = _of("roofline")
    limited = frame[(frame.cache == "limited") & (frame.readahead_kib == 128) & (frame.compute == "none")]
    return storebench.plot_throughput(limited)


DRAWN: dict[str, Callable[[], Axes]] = {
    "results": results,
    "roofline": lambda: storebench.plot_roofline(_of("answer", "roofline")),
    "gpu": gpu,
}
"""File name without its ending -> what draws it."""


def main() -> None:
    """Write every plot."""
    FIGURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        path = FIGURES / f"{name}.svg"
        path.write_bytes(saved(draw(), "svg"))
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
