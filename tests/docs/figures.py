"""Draw the README's plots from the reference results: ``python -m tests.docs.figures`` (``make figures``)."""

import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

import storebench
from storebench.report.cells import summarise
from storebench.report.headline import headline
from storebench.report.plots.style import svg_bytes

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "reference"
FIGURES = ROOT / "docs" / "figures"


def _imagenet(run: str, compute: str) -> pd.DataFrame:
    results = storebench.load_results(REFERENCE / run)
    return results[(results.dataset == "imagenet") & (results.compute == compute)]


def answer() -> Axes:
    """Draw where the time goes from each format, cold and warm, with nothing computed."""
    return storebench.plot_step_time(_imagenet("paper", "none"))


def training() -> Axes:
    """Draw the same while CaffeNet trains."""
    return storebench.plot_step_time(_imagenet("paper", "real"))


def codecs() -> Axes:
    """Draw what the container and what the codec costs, warm."""
    results = _imagenet("codecs", "none")
    return storebench.plot_container_codec(results[results.cache == "warm"])


DRAWN: dict[str, Callable[[], Axes]] = {"answer": answer, "training": training, "codecs": codecs}
"""File name without its ending -> what draws it."""


def main() -> None:
    """Write every figure, and print the sentences that stand beside the first in the README."""
    FIGURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        path = FIGURES / f"{name}.svg"
        path.write_bytes(svg_bytes(draw()))
        print(path.relative_to(ROOT))
    for compute, cache in (("none", "cold"), ("none", "warm"), ("real", "cold")):
        results = _imagenet("paper", compute)
        print(headline(summarise(results[results.cache == cache])).answer)


if __name__ == "__main__":
    sys.exit(main())
