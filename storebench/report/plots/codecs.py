"""Codecs of one container: bytes per image against images per second."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from storebench.analysis.codec_frontier import Coded, coded, frontier
from storebench.analysis.labels import FORMATS, number
from storebench.analysis.summary import CellSummary, as_cells
from storebench.report.plots.style import finish, new_axes, plain_numbers, styled

QUESTION = "Which codec is small and fast?"
_LOSSLESS, _LOSSY = "#0072B2", "#D55E00"


def plot_codecs(results: pd.DataFrame | Sequence[CellSummary], *, ax: Axes | None = None) -> Axes:
    """Draw images per second against bytes per image for the codecs of one container, with their Pareto frontiers.

    Parameters
    ----------
    results
        The table that `storebench.load_results` returned, filtered to one dataset and setting. The container with
        the most codecs is drawn.
    ax
        Axes to draw on; None makes a new figure.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/codecs")
    >>> ax = storebench.plot_codecs(results.query("dataset == 'imagenet'"))
    """
    fastest: dict[str, Coded] = {}
    for point in sorted(
        coded(cell for cell in as_cells(results) if cell.usable), key=lambda point: point.images_per_s
    ):
        fastest[point.cell.cell.backend.codec] = point
    points = list(fastest.values())
    lossless, lossy = ([point for point in points if point.lossless is kept] for kept in (True, False))
    with styled():
        ax = new_axes(3.8, ax)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.margins(0.12)
        for shown, colour, marker, label in (
            (lossless, _LOSSLESS, "o", "lossless"),
            (lossy, _LOSSY, "D", "lossy (PSNR in dB)"),
        ):
            ax.plot(*_places(shown), color=colour, marker=marker, linestyle="none", label=label, zorder=3)
            for point in shown:
                name = point.cell.cell.backend.codec + (
                    "" if point.psnr_db is None else f" ({number(point.psnr_db, 2)})"
                )
                place = (point.bytes_per_image, point.images_per_s)
                ax.annotate(name, place, (6, -9), textcoords="offset points", fontsize=8, color=colour)
        ax.plot(*_places(frontier(lossless)), color=_LOSSLESS, label="frontier, lossless")
        ax.plot(*_places(frontier(points)), color="#444444", linestyle=":", label="frontier, all")
        ax.set_xlim(right=1.5 * max((point.bytes_per_image for point in points), default=1.0))
        ax.set_xlabel("payload (bytes per image)")
        ax.set_ylabel("read and decoded (images/s)")
        plain_numbers(ax.xaxis)
        plain_numbers(ax.yaxis)
        container = points[0].cell.cell.backend.format if points else ""
        note = f"Container: {FORMATS.get(container, container)}. Each codec has its fastest decoder"
        finish(ax, QUESTION, [point.cell for point in points], note)
    return ax


def _places(codecs: Sequence[Coded]) -> tuple[list[float], list[float]]:
    return [point.bytes_per_image for point in codecs], [point.images_per_s for point in codecs]
