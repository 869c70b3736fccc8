"""What the container costs, and what the codec costs."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from storebench.plain_text import plain
from storebench.report.cells import CellSummary, as_cells
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.report.plots.style import new_axes, styled, title
from storebench.report.texts.labels import FORMATS, common_setting, duration, number

QUESTION = "What does the container cost, and what the codec?"

_CODECS = ("raw", "png", "jpeg")


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot where the panel holds a container with two codecs, and a codec in two containers."""
    cells = selection.measured
    if crossed(cells):
        answer = codec_answer(cells)
        yield Plot(name="container-codec", question=QUESTION, answer=answer, ax=plot_container_codec(cells))


def crossed(cells: Sequence[CellSummary]) -> bool:
    """Whether some container was measured with two codecs, and some codec in two containers."""
    pairs = {(cell.cell.backend.format, cell.cell.backend.codec) for cell in cells}
    containers, codecs = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    return max(containers.values(), default=0) > 1 and max(codecs.values(), default=0) > 1


def plot_container_codec(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw milliseconds per sample for every container and codec, with the fastest reader of each."""
    cells = [cell for cell in as_cells(results) if cell.usable and not cell.is_null]
    table = best_times(cells)
    codecs = [name for name in _CODECS if any(key[1] == name for key in table)]
    codecs += sorted({key[1] for key in table} - set(codecs))
    containers = sorted(
        {key[0] for key in table}, key=lambda name: min(table[k] for k in table if k[0] == name)
    )
    grid = np.array([[table.get((c, k), np.nan) * 1000 for k in codecs] for c in containers])
    with styled():
        ax = new_axes(1.9 + 0.5 * len(containers), ax)
        # Values below one millisecond and above ten are both common: colour by the logarithm.
        image = ax.imshow(np.log10(grid), cmap="cividis_r", aspect="auto")
        middle = float(np.nanmean(image.get_clim()))
        for (row, column), value in np.ndenumerate(grid):
            text = "not measured" if np.isnan(value) else duration(value / 1000)
            dark = not np.isnan(value) and np.log10(value) > middle
            ax.text(
                column, row, text, ha="center", va="center", fontsize=9, color="white" if dark else "black"
            )
        ax.set_xticks(range(len(codecs)), [*map(plain, codecs)], parse_math=False)
        names = [plain(FORMATS.get(name, name)) for name in containers]
        ax.set_yticks(range(len(containers)), names, parse_math=False)
        ax.grid(visible=False)
        ax.set_xlabel("codec: across a row is what it costs")
        ax.set_ylabel("container: down a column\nis what it costs")
        note = f"{common_setting(cells)}. Time a sample"
        title(ax, QUESTION, note, cells)
    return ax


def best_times(cells: Sequence[CellSummary]) -> dict[tuple[str, str], float]:
    """Return seconds per sample by (container, codec), of the fastest reader."""
    table: dict[tuple[str, str], float] = {}
    for cell in cells:
        rate = cell.median("samples_per_s")
        if rate:
            key = (cell.cell.backend.format, cell.cell.backend.codec)
            table[key] = min(table.get(key, float("inf")), 1 / rate)
    return table


def codec_answer(cells: Sequence[CellSummary]) -> str:
    """Return how much difference the codec makes within a container, and the container within a codec."""
    table = best_times(cells)
    across = [_spread([v for (c, _), v in table.items() if c == name]) for name in {c for c, _ in table}]
    down = [_spread([v for (_, k), v in table.items() if k == name]) for name in {k for _, k in table}]
    codec, container = max(across, default=1.0), max(down, default=1.0)
    return (
        f"Within one container the codec changes the time by up to {number(codec)} times;"
        f" within one codec the container does by up to {number(container)} times."
    )


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values)
