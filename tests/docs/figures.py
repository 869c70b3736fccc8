"""Draw the plots of the README and of docs/ from the reference results, and print their figures: ``make figures``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pandas as pd
from matplotlib.axes import Axes
from storebench.report.facts import Facts, derive
from storebench.report.texts.headline import headline
from storebench.report.texts.labels import dataset_label, number, setting_label, with_interval
from storebench.report.texts.papers import gain_of
from storebench.report.texts.resting import precision_lines, precision_words, told
from storebench.report.texts.roofline import error_words

import storebench
from storebench.report.cells import summarise
from storebench.report.plots.style import svg_bytes
from storebench.report.roofline import error_summary
from tests.docs.gpu_table import gpu_lines, gpu_results
from tests.docs.ladder_table import ladder_lines

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "reference"
FIGURES = ROOT / "docs" / "figures"


def _imagenet(run: str, compute: str) -> pd.DataFrame:
    results = storebench.load_results(REFERENCE / run)
    return results[(results.dataset == "imagenet") & (results.compute == compute)]


def roofline() -> Axes:
    """Draw the accelerators that each store feeds, and mark this CPU."""
    return storebench.plot_roofline(_answer())


def _answer() -> pd.DataFrame:
    """Return the results of `make bench-all`."""
    return pd.concat([storebench.load_results(REFERENCE / name) for name in ("answer", "roofline")])


def codecs() -> Axes:
    """Draw the costs of container and codec, warm."""
    results = _imagenet("codecs", "none")
    return storebench.plot_container_codec(results[results.cache == "warm"])


def gpu() -> Axes:
    """Draw the roofline in memory of a machine with a GPU, and its networks as points."""
    return storebench.plot_roofline(gpu_results(cold=False))


DRAWN: dict[str, Callable[[], Axes]] = {
    "roofline": roofline,
    "codecs": codecs,
    "gpu": gpu,
}
"""File name without its ending -> what draws it."""


def _imagenet_panels(run: str) -> Iterator[tuple[tuple[str, str, float], pd.DataFrame]]:
    """Yield (compute, cache state, read-ahead or 0) and the results of each panel of readers alone."""
    results = _imagenet(run, "none")
    keys = [results.compute, results.cache, results.readahead_kib.astype("float64").fillna(0.0)]
    for key, panel in results.groupby(keys):
        yield cast("tuple[str, str, float]", key), panel


def _gain(facts: Facts, backend: str, over: str) -> str:
    """Return the ratio of the rates of two backends in a panel, with its interval."""
    found = [panel for part in facts.datasets.values() for panel in part.panels]
    for panel in found:
        fast, slow = panel.of(backend), panel.of(over)
        claim = facts.claims.between(fast, slow) if fast and slow else None
        if claim is not None and fast is not None:
            return with_interval(gain_of(claim, fast))
    return "an unknown number of"


def _answer_lines(facts: Facts) -> Iterator[str]:
    """Yield what make bench-all says: the answer, the ratio in memory, and the errors of the model."""
    yield f"make bench-all: {headline(facts).answer}"
    for panel in facts.panels:
        png, lmdb = panel.of("png"), panel.of("lmdb")
        claim = facts.claims.between(lmdb, png) if lmdb and png else None
        if claim is not None and lmdb is not None:
            yield f"    {dataset_label(lmdb)}, {setting_label(lmdb)}: LMDB {with_interval(gain_of(claim, lmdb))} times PNG files"
    errors = error_summary([point for one in facts.rooflines for point in one.points])
    if errors is not None:
        yield f"    {error_words(errors)}"
    claims = told(facts)
    yield f"    {precision_words(claims)}"
    for line in precision_lines(claims):
        yield f"        {line}"


def figure_lines() -> Iterator[str]:
    """Yield the figures of the README and of docs/results.md."""
    yield from _answer_lines(derive(summarise(_answer())))
    for (_, cache, readahead), results in _imagenet_panels("paper"):
        state = f"{cache}, read-ahead {readahead:.0f} KiB" if readahead else cache
        facts = derive(summarise(results))
        yield f"{state}: {headline(facts).answer}"
        yield f"    HDF5 loads {_gain(facts, 'hdf5', 'lmdb')} times as fast as LMDB"
        lmdb = results[(results.backend == "lmdb") & (results.epoch == results.epoch.max())]
        yield f"    LMDB: the device delivered {lmdb.read_amplification.median():.2g} times what was asked for"
        if cache == "limited":
            yield f"    HDF5 (direct) loads {_gain(facts, 'hdf5:direct', 'hdf5')} times as fast as HDF5"
    for (_, cache, readahead), results in _imagenet_panels("storage"):
        if cache == "limited":
            gain = _gain(derive(summarise(results)), "hdf5:direct", "hdf5")
            yield f"storage, read-ahead {readahead:.0f} KiB: HDF5 (direct) loads {gain} times as fast as HDF5"
    yield from _codec_lines()


def _codec_lines() -> Iterator[str]:
    """Yield what one process loads as JPEG, PNG and raw pixels in memory, and their sizes."""
    results = _imagenet("codecs", "none")
    cells = summarise(results[results.cache == "warm"])
    rates = {cell.backend: number(cell.interval("samples_per_s").mid) for cell in cells}
    yield f"codecs, warm: JPEG files {rates['jpeg']}/s, PNG files {rates['png']}/s, LMDB {rates['lmdb']} raw images/s"
    sizes = results.groupby("backend").bytes_on_disk.median()
    yield f"codecs: raw pixels take {sizes['lmdb'] / sizes['jpeg']:.1f} times the space of JPEG files"


def main() -> None:
    """Write every plot, and print the figures."""
    FIGURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        path = FIGURES / f"{name}.svg"
        path.write_bytes(svg_bytes(draw()))
        print(path.relative_to(ROOT))
    for line in [*figure_lines(), *gpu_lines(), *ladder_lines()]:
        print(line)


if __name__ == "__main__":
    main()
