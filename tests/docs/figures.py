"""Draw the plots of the README and of docs/ from the reference results: ``python -m tests.docs.figures`` (``make figures``)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pandas as pd
from matplotlib.axes import Axes

import storebench
from storebench.report.cells import summarise
from storebench.report.facts import derive
from storebench.report.plots.style import svg_bytes
from storebench.report.texts.headline import headline

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "reference"
FIGURES = ROOT / "docs" / "figures"


def _imagenet(run: str, compute: str) -> pd.DataFrame:
    results = storebench.load_results(REFERENCE / run)
    return results[(results.dataset == "imagenet") & (results.compute == compute)]


def roofline() -> Axes:
    """Draw which accelerators each store feeds, and say where this CPU stands."""
    return storebench.plot_roofline(_answer())


def _answer() -> pd.DataFrame:
    """Return the results of `make bench-all`."""
    return pd.concat([storebench.load_results(REFERENCE / name) for name in ("answer", "roofline")])


def codecs() -> Axes:
    """Draw what the container and what the codec costs, warm."""
    results = _imagenet("codecs", "none")
    return storebench.plot_container_codec(results[results.cache == "warm"])


DRAWN: dict[str, Callable[[], Axes]] = {
    "roofline": roofline,
    "codecs": codecs,
}
"""File name without its ending -> what draws it."""


def _imagenet_panels() -> Iterator[tuple[tuple[str, str, float], pd.DataFrame]]:
    """Yield (compute, cache state, read-ahead or 0) and the results of each panel of readers alone."""
    results = _imagenet("paper", "none")
    keys = [results.compute, results.cache, results.readahead_kib.astype("float64").fillna(0.0)]
    for key, panel in results.groupby(keys):
        yield cast("tuple[str, str, float]", key), panel


def main() -> None:
    """Write every figure, and print the sentences that stand in the README."""
    FIGURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        path = FIGURES / f"{name}.svg"
        path.write_bytes(svg_bytes(draw()))
        print(path.relative_to(ROOT))
    print(f"make bench-all: {headline(derive(summarise(_answer()))).answer}")
    for (_, cache, readahead), results in _imagenet_panels():
        state = f"{cache}, read-ahead {readahead:.0f} KiB" if readahead else cache
        print(f"{state}: {headline(derive(summarise(results))).answer}")
        lmdb = results[(results.backend == "lmdb") & (results.epoch == results.epoch.max())]
        print(
            f"    LMDB: the device delivered {lmdb.read_amplification.median():.2g} times what was asked for"
        )


if __name__ == "__main__":
    main()
