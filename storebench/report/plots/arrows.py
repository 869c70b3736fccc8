"""Arrows in plots: where an interval goes on beyond the plot, and at points that are only upper bounds."""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes

from storebench.report.intervals import Estimate
from storebench.report.plots.style import ends_of

CUT = "Arrow: the interval goes on"
"""The note of a plot in which an interval is cut."""


def mark_cut(
    ax: Axes,
    places: Sequence[float],
    intervals: Sequence[Estimate],
    limits: tuple[float, float],
    *,
    upright: bool,
    colour: Any = "black",
) -> str:
    """Draw an arrow where a limit of the plot cuts an interval, and return the note on that; "" if none is cut.

    Parameters
    ----------
    places
        Place of each interval on the axis that it does not lie along.
    limits
        Least and largest value that is shown.
    upright
        Whether the intervals lie along the y axis.
    """
    low, high = sorted(limits)
    arrows = ("v", "^") if upright else ("<", ">")
    note = ""
    for place, interval in zip(places, intervals, strict=True):
        least, most = ends_of(interval)
        for limit, arrow, is_cut in ((low, arrows[0], least < low), (high, arrows[1], most > high)):
            if is_cut and interval.known:
                x, y = (place, limit) if upright else (limit, place)
                ax.plot(
                    x, y, marker=arrow, color=colour, markersize=5, linestyle="none", clip_on=False, zorder=5
                )
                note = CUT
    return note


LIMIT = "Arrow at a point: at most"
"""The note of a plot that holds points that are only upper bounds."""

_ARROW_PT = 16


def mark_limits(
    ax: Axes, points: Iterable[tuple[float, float]], bounded: Iterable[bool], *, upright: bool, colour: Any
) -> str:
    """Draw an arrow from each point that is only an upper bound, towards smaller values; return the note on that, or "".

    Parameters
    ----------
    points
        (x, y) of each point.
    bounded
        Whether it is an upper bound.
    upright
        Whether the values lie along the y axis.
    """
    limits = [point for point, is_bound in zip(points, bounded, strict=True) if is_bound]
    for point in limits:
        # Its head is at the end that an annotation calls the text's.
        ax.annotate(
            "",
            point,
            xytext=(0, -_ARROW_PT) if upright else (-_ARROW_PT, 0),
            textcoords="offset points",
            arrowprops={"arrowstyle": "<-", "color": colour, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0},
        )
    return LIMIT if limits else ""
