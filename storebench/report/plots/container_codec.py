"""The cost of the container and the cost of the codec, taken apart."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from storebench.plain_text import plain
from storebench.report.cells import CellSummary, as_cells
from storebench.report.claims import Claim, ClaimKind, Claims
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.report.plots.style import new_axes, styled, title
from storebench.report.texts.labels import FORMATS, common_setting, duration, store_label, with_interval
from storebench.report.texts.sentence import Sentence
from storebench.report.texts.verdicts import bounded

QUESTION = "What does the container cost, and what the codec?"

_CODECS = ("raw", "png", "jpeg", "original")

_Storage = tuple[str, str]
"""(container, codec)"""


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot if the panel holds a container with two codecs, and a codec in two containers."""
    cells = selection.measured
    if crossed(cells):
        sentence = codec_answer(cells, selection.facts.claims)
        yield Plot(
            name="container-codec",
            question=QUESTION,
            answer=sentence.text,
            claims=sentence.claims,
            draw=functools.partial(plot_container_codec, cells),
        )


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
    upper_bounds = {key for key, cell in best_cells(cells).items() if cell.at_most}
    grid = np.array([[table.get((c, k), np.nan) * 1000 for k in codecs] for c in containers])
    with styled():
        ax = new_axes(1.9 + 0.5 * len(containers), ax)
        # Values below one millisecond and above ten are both common: colour by the logarithm.
        image = ax.imshow(np.log10(grid), cmap="cividis_r", aspect="auto")
        middle = float(np.nanmean(image.get_clim()))
        for (row, column), value in np.ndenumerate(grid):
            text = "not measured" if np.isnan(value) else duration(value / 1000)
            text = f"at least\n{text}" if (containers[row], codecs[column]) in upper_bounds else text
            dark = not np.isnan(value) and np.log10(value) > middle
            ax.text(
                column, row, text, ha="center", va="center", fontsize=9, color="white" if dark else "black"
            )
        ax.set_xticks(range(len(codecs)), [*map(plain, codecs)], parse_math=False)
        names = [plain(FORMATS.get(name, name)) for name in containers]
        ax.set_yticks(range(len(containers)), names, parse_math=False)
        ax.grid(visible=False)
        ax.set_xlabel("codec: compare the columns of a row for its cost")
        ax.set_ylabel("container: compare the rows\nof a column for its cost")
        note = f"{common_setting(cells)}. Time per sample"
        title(ax, QUESTION, note, cells)
    return ax


def best_cells(cells: Sequence[CellSummary]) -> dict[_Storage, CellSummary]:
    """Return the cell with the fastest reader by (container, codec)."""
    best: dict[_Storage, CellSummary] = {}
    for cell in cells:
        key, rate = (cell.cell.backend.format, cell.cell.backend.codec), cell.median("samples_per_s")
        if rate and (key not in best or rate > (best[key].median("samples_per_s") or 0.0)):
            best[key] = cell
    return best


def best_times(cells: Sequence[CellSummary]) -> dict[_Storage, float]:
    """Return seconds per sample by (container, codec), of the fastest reader."""
    return {key: 1 / (cell.median("samples_per_s") or 1.0) for key, cell in best_cells(cells).items()}


def codec_answer(cells: Sequence[CellSummary], claims: Claims) -> Sentence:
    """Return the largest proven difference that the codec makes in a container, and that the container makes with a codec."""
    best = best_cells(cells)
    codec = _most(best, claims, lambda first, second: first[0] == second[0])
    container = _most(best, claims, lambda first, second: first[1] == second[1])
    clauses = [
        f"within one {kept} {_effect(changed, claim)}"
        for kept, changed, claim in (("container", "codec", codec), ("codec", "container", container))
    ]
    text = "; ".join(clauses)
    proven = tuple(claim for claim in (codec, container) if claim is not None)
    return Sentence(text=f"{text[0].upper()}{text[1:]}.", claims=proven)


def _most(
    best: dict[_Storage, CellSummary], claims: Claims, alike: Callable[[_Storage, _Storage], bool]
) -> Claim | None:
    """Return the largest proven difference between two cells that are alike; None if none is proven."""
    differences = (
        claims.between(best[first], best[second])
        for first, second in itertools.combinations(best, 2)
        if alike(first, second)
    )
    proven = [claim for claim in differences if claim is not None and claim.kind is ClaimKind.FASTER]
    return max(proven, key=lambda claim: claim.figure.mid if claim.figure else 0.0, default=None)


def _effect(changed: str, claim: Claim | None) -> str:
    if claim is None or claim.object is None:
        return f"no difference by the {changed} is proven"
    slow, fast = (store_label(side, (claim.object, claim.subject)) for side in (claim.object, claim.subject))
    most = bounded(claim) or "up to "
    return (
        f"the {changed} changes the time by {most}{with_interval(claim.figure)} times ({slow} against {fast})"
    )
