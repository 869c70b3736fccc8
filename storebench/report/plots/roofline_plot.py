"""The storage roofline: delivered training rate against the rate of the accelerator."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from storebench.accelerators import Accelerator, find_accelerator
from storebench.analysis.labels import backend_label, number
from storebench.analysis.roofline import Roofline, rooflines
from storebench.analysis.summary import CellSummary, as_cells
from storebench.plain_text import plain
from storebench.report.plots.style import MOST_LINES, finish, looks, new_axes, plain_numbers, styled, whiskers

QUESTION = "Which accelerators does each store feed?"

_MOST_MARKS = 5


def plot_roofline(
    results: pd.DataFrame | Sequence[CellSummary], *, accelerators: Sequence[str] = (), ax: Axes | None = None
) -> Axes:
    """Draw the delivered training rate against the ingestion rate of the accelerator, one curve per backend.

    Parameters
    ----------
    results
        Cells with ``compute = "none"``, whose rates give the curves, and cells of the same settings that train on a
        GPU or with emulated compute, which are the points. The first setting by the order of the report is drawn.
    accelerators
        Names of profiles to mark, ``NAME[:MODEL]``; `storebench accelerators` lists them. Others as ``NAME=RATE``
        in images/s.
    ax
        Axes to draw on; None makes a new figure.

    Examples
    --------
    >>> import storebench
    >>> results = storebench.load_results("results/reference/roofline")
    >>> ax = storebench.plot_roofline(results)
    """
    roofs = rooflines([cell for cell in as_cells(results) if cell.usable])
    return draw_roofline(roofs[0] if roofs else None, [find_accelerator(name) for name in accelerators], ax)


def draw_roofline(
    roofline: Roofline | None, accelerators: Sequence[Accelerator] = (), ax: Axes | None = None
) -> Axes:
    """Draw one roofline, with named accelerators as marks."""
    with styled():
        ax = new_axes(4.2, ax)
        ax.set_xlabel("rate of the accelerator without waits (images/s)")
        ax.set_ylabel("delivered training rate (images/s)")
        if roofline is None:
            ax.text(0.5, 0.5, "no cell only loads (compute none)", ha="center", transform=ax.transAxes)
            finish(ax, QUESTION)
            return ax
        curves = roofline.curves[:MOST_LINES]
        marks = [(profile.title, profile.images_per_s) for profile in accelerators]
        shown = [rate for _, rate in marks[:_MOST_MARKS]]
        shown += [rate for curve in curves for rate in (curve.starving.mid, curve.supply.mid)]
        shown += [point.ingestion.mid for point in roofline.points]
        rates = np.geomspace(min(shown) / 2, max(shown) * 2, 300)
        machines = list(dict.fromkeys(curve.loader.machine for curve in curves))
        for curve, look in zip(curves, looks([curve.loader for curve in curves]), strict=True):
            delivered = [curve.delivered(float(rate)) for rate in rates]
            most = "at most" if curve.at_most else "up to"
            fed = f"{most} {number(curve.starving.mid)}/s" if curve.decided else "undecided"
            label = f"{backend_label(curve.backend)}: {fed}"
            stroke = look.stroke
            if machines[1:]:
                label = f"{curve.loader.machine}, {label}"
                stroke["linestyle"] = ("-", "--", "-.", ":")[machines.index(curve.loader.machine) % 4]
            ax.plot(rates, delivered, **stroke, linewidth=1.6, label=label)
            end = curve.starving.mid
            ax.plot(
                end, curve.delivered(end), color=look.colour, marker="|", markersize=13, markeredgewidth=2
            )
            for point in curve.points:
                x, y, ends = point.ingestion.mid, point.delivered.mid, whiskers([point.delivered])
                ax.errorbar(x, y, yerr=ends, color=look.colour, marker=look.marker, markersize=5, capsize=2)
        ax.set_xscale("log")
        ax.set_yscale("log")
        heights = [curve.delivered(float(rate)) for curve in curves for rate in (rates[0], rates[-1])]
        heights += [point.delivered.mid for point in roofline.points]
        ax.set_xlim(rates[0], rates[-1])
        ax.set_ylim(min(heights) / 1.5, max(heights) * 2)
        ax.plot(rates, rates, color="black", linewidth=0.8, linestyle=":")
        for place, (name, rate) in enumerate(sorted(marks[:_MOST_MARKS], key=lambda mark: mark[1])):
            ax.axvline(rate, color="#777777", linewidth=0.8, linestyle=(0, (4, 3)))
            where = ax.get_xaxis_transform()
            ax.text(rate, 0.02 + 0.055 * (place % 3), f" {plain(name)}", fontsize=8.5, transform=where)
        plain_numbers(ax.xaxis)
        plain_numbers(ax.yaxis)
        note = "Upright bar: the fastest accelerator kept busy 90% of its time. Points: measured"
        finish(ax, QUESTION, [curve.loader for curve in curves], note)
    return ax
