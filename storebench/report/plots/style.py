"""The style of every plot: one colour per format, one pattern per codec, a question as title, no text cut off."""

import io
import itertools
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from storebench.plain_text import plain
from storebench.report.cells import CellSummary
from storebench.report.intervals import Estimate
from storebench.report.plots import quick_figure
from storebench.report.plots.quick_figure import lay_out
from storebench.report.texts.caveats import caveats
from storebench.report.texts.labels import backend_label

_T = TypeVar("_T")

# Okabe and Ito's palette, which is distinguishable with any kind of colour blindness.
BACKEND_COLOURS = {
    "png": "#D55E00",
    "hdf5": "#E69F00",
    "memory:python": "#56B4E9",
    "memory:native": "#0072B2",
    "leveldb": "#CC79A7",
    "lmdb": "#009E73",
    "null": "#000000",
}
FORMAT_COLOURS = {
    "files": "#D55E00",
    "hdf5": "#E69F00",
    "memory": "#0072B2",
    "leveldb": "#CC79A7",
    "lmdb": "#009E73",
}
OTHER_COLOUR = "#666666"

# Paul Tol's muted palette: not the backends' colours, because these mean parts of a step.
PART_COLOURS = {
    "data wait": "#882255",
    "copy": "#DDCC77",
    "compute": "#BBBBBB",
    "fetch": "#332288",
    "decode": "#88CCEE",
    "prep": "#44AA99",
    "handoff": "#999933",
    "exposed communication": "#CC6677",
    "wait for the slowest rank": "#117733",
}

_LEGEND_PT = 8.5
_STYLE = {
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": _LEGEND_PT,
    "legend.handlelength": 2.8,
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "storebench",
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "figure.facecolor": "white",
}
WIDTH_IN = 5.4
WRAP = 80
_COMPANION = "storebench: below"
_DECADES = 50.0
_MOST_BEYOND = 1.6
"""The axis ends at this multiple of the largest figure, even if an interval is longer, so that bars keep their length."""

_MOST_DECADES = 6
"""Most ticks of an axis of long numbers: more of them would overlap."""

_DIGIT_PT, _APART_PT = 6.0, 12.0
"""Width of a digit of a tick, and the room between two ticks."""

_LEGEND_KEY_PT = 50.0
"""Width of what stands beside a label of a legend: its key, and the room around both."""

_LEGEND_WRAP = 62
_NAME_WRAP, _SMALL_PT = 34, 7.5
_LEGEND_ROW_IN = 0.19


@dataclass(frozen=True, kw_only=True)
class BackendStyle:
    """Colour, pattern, marker and line of one backend."""

    colour: str
    hatch: str
    marker: str
    line: str


_CODEC_LOOKS = {
    "raw": ("", "o", "-"),
    "png": ("//", "s", "--"),
    "jpeg": ("..", "^", ":"),
    "original": ("oo", "v", "-."),
}


def look(cell: CellSummary) -> BackendStyle:
    """Return the look of a cell's backend: colour by format, pattern and marker by codec."""
    return backend_look(cell.backend, cell.cell.backend.format, cell.cell.backend.codec)


def backend_look(backend: str, container: str, codec: str) -> BackendStyle:
    """Return the look of a backend; a backend looks the same in every plot."""
    colour = BACKEND_COLOURS.get(backend) or FORMAT_COLOURS.get(container, OTHER_COLOUR)
    hatch, marker, line = _CODEC_LOOKS.get(codec, ("xx", "D", "-."))
    if container == "files":  # files usually hold PNG, so raw files get the pattern
        hatch, line = (
            ("//", "--")
            if codec == "raw"
            else (hatch if codec != "png" else "", line if codec != "png" else "-")
        )
    return BackendStyle(colour=colour, hatch=hatch, marker=marker, line=line)


@contextmanager
def styled() -> Iterator[None]:
    """Make a plot in storebench's style, and leave the caller's settings unchanged.

    Matplotlib warns of labels that are longer than the figure, and of characters that its font lacks. Both come from
    names in the records, so the warnings would tell the reader of a report nothing that could be fixed.
    """
    with mpl.rc_context(cast("Any", _STYLE)), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def new_axes(height_in: float = 3.2, ax: Axes | None = None) -> Axes:
    """Return the axes to draw on: the caller's, or those of a new figure that pyplot does not manage."""
    if ax is not None:
        return ax
    figure = quick_figure.Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots()


def companion(ax: Axes, *, own: bool) -> tuple[Axes, Axes | None]:
    """Return the axes with smaller ones below them that share the x axis, or with None in the caller's axes."""
    figure = ax.get_figure()
    if not own or not isinstance(figure, Figure):
        return ax, None
    figure.clear()
    ax, below = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    below.set_label(_COMPANION)
    return ax, below


def stacked(count: int, height_in: float) -> list[Axes]:
    """Return axes one below the other that share both scales, in a new figure of that height."""
    figure = new_axes(height_in).get_figure(root=True)
    assert figure is not None
    figure.clear()
    axes = [figure.add_subplot(count, 1, 1)]
    for place in range(1, count):
        axes.append(figure.add_subplot(count, 1, place + 1, sharex=axes[0], sharey=axes[0], label=_COMPANION))
    for ax in axes[:-1]:
        ax.tick_params(labelbottom=False)
    return axes


def _shared(figure: Figure | None) -> bool:
    """Return whether the figure holds axes of other plots."""
    return figure is None or len([ax for ax in figure.axes if ax.get_label() != _COMPANION]) > 1


def title(ax: Axes, question: str, note: str = "", cells: Sequence[CellSummary] = ()) -> None:
    """Write a plot's question above it, and below that the conditions and caveats.

    In its own figure, the head is set at the left edge of the figure; in
    the caller's axes it is the axes' title.
    """
    small = textwrap.fill(plain(". ".join(part for part in (note, *caveats(cells, note)) if part)), WRAP)
    large = textwrap.fill(plain(question), WRAP - 24)
    figure = ax.get_figure(root=True)
    if figure is None or _shared(figure):
        ax.set_title(f"{large}\n{small}", loc="left", parse_math=False)
        return
    # Only a legend gets room from the layout outside of the axes, and can have two fonts.
    head = figure.legend(
        [Patch(alpha=0)],
        [small],
        title=large,
        loc="outside upper left",
        alignment="left",
        handlelength=0,
        handletextpad=0,
        borderpad=0.2,
        labelcolor="#444444",
    )
    head.get_title().set(fontsize=11, fontweight="bold")


def ends_of(interval: Estimate) -> tuple[float, float]:
    """Return the ends of an interval; twice the figure where the interval is not known."""
    if interval.lo is None or interval.hi is None or not interval.known:
        return interval.mid, interval.mid
    return interval.lo, interval.hi


def whiskers(intervals: Sequence[Estimate]) -> npt.NDArray[np.float64] | None:
    """Return the distances of interval ends, float64 [2, n] as errorbar's `xerr`, or None if no interval is known."""
    if not any(interval.known for interval in intervals):
        return None
    below = [interval.mid - ends_of(interval)[0] for interval in intervals]
    above = [ends_of(interval)[1] - interval.mid for interval in intervals]
    # By rounding, the interval of a ratio's median may end just beside it.
    ends: npt.NDArray[np.float64] = np.maximum(np.array([below, above], np.float64), 0.0)
    return ends


def noted(note: str, *more: str) -> str:
    """Return a plot's note with further ones, each said once."""
    return ". ".join(dict.fromkeys(part for part in (note, *more) if part))


def shown_end(intervals: Sequence[Estimate]) -> float:
    """Return the end of an axis: that of the longest interval, but not far beyond the largest figure."""
    largest = max((interval.mid for interval in intervals), default=1.0)
    end = max((ends_of(interval)[1] for interval in intervals), default=1.0)
    return min(end, _MOST_BEYOND * largest) or 1.0


def bar(
    ax: Axes, position: float, length: float, style: BackendStyle, *, height: float, left: float = 0.0
) -> None:
    """Draw one horizontal bar."""
    ax.barh(
        position,
        length,
        left=left,
        height=height,
        color=style.colour,
        hatch=style.hatch,
        edgecolor="white",
        linewidth=0,
    )


def beside(ax: Axes, end: float, position: float, text: str, *, line: int = 0, size: float = 8) -> None:
    """Write a figure beside the end of a bar, on white that hides grid and ceiling lines; `line` 1 is above it, -1 below."""
    ax.annotate(
        text,
        (end, position),
        xytext=(6, line),
        textcoords="offset points",
        va={1: "bottom", 0: "center", -1: "top"}[line],
        fontsize=size,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
    )


def make_room(ax: Axes) -> None:
    """Move the end of the x axis until what was written `beside` its marks ends within the figure."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    lay_out(figure)
    box, edge, longer = ax.get_window_extent(), figure.bbox.x1, 1.0
    for text in ax.texts:
        if isinstance(text, Annotation):
            start = ax.transData.transform(text.xy)[0]
            room = edge - box.x0 - (text.get_window_extent().x1 - start)
            longer = max(longer, (start - box.x0) / max(room, 1.0))
    scale = ax.xaxis.get_transform()
    low, high = scale.transform(ax.get_xlim())
    ax.set_xlim(right=float(scale.inverted().transform([low + longer * (high - low)])[0]))


def name_rows(ax: Axes, cells: Sequence[CellSummary]) -> None:
    """Name horizontal bars by their backends, from the top, with the cache state if that differs."""
    states = {cell.cell.cache for cell in cells if not cell.is_null}
    names = [
        backend_label(c.backend) + (f", {plain(c.cell.cache)}" if len(states) > 1 and not c.is_null else "")
        for c in cells
    ]
    label_rows(ax, names)
    ax.set_ylim(len(cells) - 0.45, -0.55)
    ax.grid(visible=False, axis="y")


def label_rows(ax: Axes, names: Sequence[str]) -> None:
    """Write the names of rows beside the axes; where one goes on in a second line, all are smaller."""
    wrapped = [textwrap.fill(name, _NAME_WRAP) for name in names]
    size = _SMALL_PT if any("\n" in name for name in wrapped) else None
    ax.set_yticks(range(len(names)), wrapped, parse_math=False, fontsize=size)


def plain_numbers(axis: Axis) -> None:
    """Write an axis in plain numbers; a logarithmic one that spans little gets 1, 2 and 5 of each decade."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        decades = math.floor(math.log10(high)) - math.ceil(math.log10(low)) + 1
        subs = (1.0,) if high / low > _DECADES and decades > 1 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=subs, numticks=None if len(subs) > 1 else _MOST_DECADES))
        axis.set_minor_formatter(NullFormatter())


def spaced_numbers(ax: Axes) -> None:
    """Write a linear x axis in plain numbers, with as many ticks as there is room for."""
    ax.xaxis.set_major_locator(MaxNLocator(min(6, max(1, _most_ticks(ax)))))
    plain_numbers(ax.xaxis)


def spaced_decades(ax: Axes) -> None:
    """Write a logarithmic x axis with as many of its decades as there is room for."""
    low, high = ax.get_xlim()
    if high / low > _DECADES:
        ax.xaxis.set_major_locator(LogLocator(numticks=max(2, _most_ticks(ax))))


def _most_ticks(ax: Axes) -> int:
    """Return the number of ticks of the x axis that there is room for."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    length_pt = 72 * ax.get_window_extent().width / figure.dpi
    widest_pt = _DIGIT_PT * len(f"{ax.get_xlim()[1]:,.0f}") + _APART_PT
    return int(length_pt // widest_pt)


def plain_ticks(axis: Axis) -> None:
    """Write the ticks that an axis has in plain numbers, and no others."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def legend_below(ax: Axes, heading: str | None = None) -> None:
    """Put the legend below the axes, in as many columns as fit, and make the figure taller by its height."""
    figure = ax.get_figure(root=True)
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    if not isinstance(figure, Figure) or _shared(figure):
        ax.legend(title=heading)
        return
    columns = _legend_columns(labels, figure.get_figwidth())
    # A name that is longer than the figure goes on in a second line.
    wrapped = labels if columns > 1 else [textwrap.fill(label, _LEGEND_WRAP) for label in labels]
    figure.legend(handles, wrapped, loc="outside lower left", ncols=columns, title=heading, alignment="left")
    lines = [1 + label.count("\n") for label in wrapped]
    rows = max(sum(column) for column in _split(lines, columns)) + (heading is not None)
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW_IN * rows)


def _split(items: Sequence[_T], columns: int) -> list[Sequence[_T]]:
    """Return the items of each column of a legend, which fills one column after the other."""
    size, more = divmod(len(items), columns)
    ends = list(itertools.accumulate(size + (n < more) for n in range(columns)))
    return [items[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _legend_columns(labels: Sequence[str], width_in: float) -> int:
    """Return the number of columns, two at most, in which all labels of a legend fit into a figure."""
    if len(labels) < 2:
        return 1
    font = FontProperties(size=_LEGEND_PT)
    widths_pt = [text_to_path.get_text_width_height_descent(label, font, ismath=False)[0] for label in labels]
    whole_pt = sum(max(column) + _LEGEND_KEY_PT for column in _split(widths_pt, 2))
    return 2 if whole_pt <= 72 * width_in else 1


def png_bytes(ax: Axes) -> bytes:
    """Return a plot as PNG."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format="png", dpi=160)
    return buffer.getvalue()


def svg_bytes(ax: Axes) -> bytes:
    """Return a plot as SVG, the same bytes for the same figures."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
