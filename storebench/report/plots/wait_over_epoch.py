"""The data wait of every step over one epoch."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator

from storebench.report.claims import Claim, ClaimKind
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection, medians_words
from storebench.report.plots.step_lines import MOST_POINTS, some_points, step_lines
from storebench.report.plots.style import legend_below, new_axes, plain_numbers, stacked, styled, title
from storebench.report.texts.labels import backend_label, number
from storebench.report.texts.sentence import Sentence

QUESTION = "Is the wait steady, or are there spikes?"

_MOST_TOGETHER = 2
"""More lines than these cross each other too often to be followed: each gets its own axes."""

_ROW_IN, _ROW_TICKS = 0.85, 4
"""Height of the axes of one line, and most ticks beside it."""

Waits = npt.NDArray[np.float64]


def drawn(selection: Selection) -> Iterator[Plot]:
    """Yield the plot if the panel's steps were recorded."""
    if selection.steps is not None:
        sentence = tail_answer(selection.facts.claims.each(ClaimKind.SPIKE, selection.measured))
        yield Plot(
            name="wait-over-epoch",
            question=QUESTION,
            answer=sentence.text,
            claims=sentence.claims,
            draw=functools.partial(plot_wait_over_epoch, selection.steps, note=selection.step_note),
        )


def tail_answer(claims: Sequence[Claim]) -> Sentence:
    """Return a sentence on the longest wait over the median wait, for the steadiest and the least steady backend."""
    ordered = sorted(claims, key=lambda claim: claim.figure.mid if claim.figure else 0.0)
    if not ordered:
        return Sentence(text="The waits are too short to be told as multiples of their median.")
    least, most = ordered[0], ordered[-1]
    more = "" if most is least else f", and {_times(most)}"
    medians = medians_words([claim.subject for claim in claims])
    text = f"The longest wait of an epoch is {_times(least, ' the median one')}{more}{medians}."
    return Sentence(text=text, claims=(least, most))


def _times(claim: Claim, of: str = "") -> str:
    assert claim.figure is not None
    return f"{number(claim.figure.mid)} times{of} with {backend_label(claim.subject.backend)}"


def plot_wait_over_epoch(steps: pd.DataFrame, *, ax: Axes | None = None, note: str = "") -> Axes:
    """Draw the data wait of every step over one epoch, to see whether it is steady.

    Parameters
    ----------
    steps
        The table that `storebench.load_steps` returned; the first replicate and epoch of
        each cell is drawn. Of more than 2,000 steps the longest wait in each of
        2,000 equal pieces is drawn, so that no spike is lost.

    Returns
    -------
    Axes
        Those of all cells. Where more than two would share them, each cell has its own, and these are the lowest.
    """
    with styled():
        lines = list(step_lines(steps))
        if ax is None and len(lines) > _MOST_TOGETHER:
            rows = stacked(len(lines), 1.0 + _ROW_IN * len(lines))
        else:
            rows = [new_axes(3.9, ax)] * max(1, len(lines))
        for row, (label, style, line_steps) in zip(rows, lines, strict=False):
            waits = np.maximum(line_steps["data_wait_ns"].to_numpy(np.float64) / 1e6, 1e-4)
            places, highest = thinned(waits)
            row.plot(
                places,
                highest,
                color=style.colour,
                linestyle=style.line,
                linewidth=0.9,
                marker=style.marker,
                markersize=4,
                markevery=some_points(len(places)),
                label=label,
            )
        _finish(rows, [label for label, *_ in lines], note)
    return rows[-1]


def _finish(rows: Sequence[Axes], names: Sequence[str], note: str) -> None:
    """Label the axes; where each line has its own, its name is above it, else a legend has all names."""
    first, last = rows[0], rows[-1]
    first.set_yscale("log")
    last.set_xlabel("step of the epoch")
    last.xaxis.set_major_locator(MaxNLocator(integer=True))
    if first is last:
        plain_numbers(first.yaxis)
        first.set_ylabel("data wait (ms)")
        legend_below(first)
    else:
        for row, name in zip(rows, names, strict=True):
            plain_numbers(row.yaxis)
            row.yaxis.set_major_locator(LogLocator(numticks=_ROW_TICKS))
            row.set_title(name, loc="left", fontsize=8.5, pad=2, parse_math=False)
        rows[len(rows) // 2].set_ylabel("data wait (ms)")
    title(first, QUESTION, note)


def thinned(waits: Waits) -> tuple[npt.NDArray[np.int64], Waits]:
    """Return (places, waits), int64 and float64 [points], thinned to the longest wait of each piece."""
    if len(waits) <= MOST_POINTS:
        return np.arange(len(waits)), waits
    starts = np.linspace(0, len(waits), MOST_POINTS, endpoint=False).astype(np.int64)
    return starts, np.maximum.reduceat(waits, starts)
