"""The style of every plot: one colour per format, one pattern per codec, a question as title."""

import io
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from storebench.comparison import Estimate
from storebench.plain_text import plain
from storebench.report.cells import CellSummary
from storebench.report.labels import backend_label, caveats, common_setting, state_label

# Okabe and Ito's palette, which is distinguishable with any kind of colour blindness.
_BACKEND_COLOURS = {"memory:python": "#56B4E9", "null": "#000000"}
_FORMAT_COLOURS = {
    "files": "#D55E00",
    "hdf5": "#E69F00",
    "memory": "#0072B2",
    "leveldb": "#CC79A7",
    "lmdb": "#009E73",
}
_OTHER_COLOUR = "#666666"

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

_STYLE = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "storebench",
    "svg.fonttype": "none",  # glyphs as paths would double the page
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "figure.facecolor": "white",
}
_WIDTH_IN = 6.0
_WRAP = 84
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "D", "^", "s", "v", "P", "X")
_CODECS = {"raw": ("", "o"), "png": ("//", "s"), "jpeg": ("..", "^"), "original": ("oo", "v")}
_DECADES = 50.0
_OWN = "storebench"
"""Label of figures that hold one plot only."""

MOST_CELLS, MOST_LINES = 24, 10
"""Bars and lines drawn in one plot; the tables hold the others."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Colour, pattern, marker and line of one backend."""

    colour: str
    hatch: str = ""
    marker: str = "o"
    line: str = "-"

    @property
    def stroke(self) -> dict[str, Any]:
        """Colour and line style, as ``Axes.plot`` takes them."""
        return {"color": self.colour, "linestyle": self.line}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot of a report, drawn when it is asked for."""

    name: str
    question: str
    draw: Callable[[], Axes]


def looks_of(backends: Sequence[tuple[str, str, str]]) -> list[Look]:
    """Return a look for each (backend, format, codec) of one plot; those that share a colour are told apart."""
    places: Counter[str] = Counter()
    found: dict[tuple[str, str, str], Look] = {}
    for name, container, codec in dict.fromkeys(backends):
        colour = _BACKEND_COLOURS.get(name) or _FORMAT_COLOURS.get(container, _OTHER_COLOUR)
        hatch, marker = _CODECS.get(codec, ("xx", "D"))
        if container == "files" and codec in ("png", "raw"):  # files usually hold PNG
            hatch = "" if codec == "png" else "//"
        place = places[colour]
        places[colour] += 1
        own = Look(colour=_shade(colour, place), hatch=hatch, marker=marker, line=_LINES[place % len(_LINES)])
        found[name, container, codec] = replace(own, marker=_MARKERS[place]) if 0 < place < 7 else own
    return [found[backend] for backend in backends]


def looks(cells: Sequence[CellSummary]) -> list[Look]:
    """Return a look for each cell of one plot."""
    return looks_of([(c.backend, c.cell.backend.format, c.cell.backend.codec) for c in cells])


def _shade(colour: str, place: int) -> str:
    factor = (1.0, 0.55, 1.5)[place % 3]
    if factor == 1.0:
        return colour
    red, green, blue = (p * factor if factor < 1 else 1 - (1 - p) * (2 - factor) for p in to_rgb(colour))
    return to_hex((red, green, blue))


@contextmanager
def styled() -> Iterator[None]:
    """Make a plot in storebench's style, and leave the caller's settings unchanged."""
    with mpl.rc_context(cast("Any", _STYLE)), warnings.catch_warnings():
        # Names in records may be longer than the figure, or have characters that the font lacks.
        warnings.simplefilter("ignore", UserWarning)
        yield


def new_axes(height_in: float, ax: Axes | None, *, rows: Sequence[float] = (1,)) -> tuple[Axes, Axes | None]:
    """Return the axes to draw on: the caller's, or those of a new figure; with two `rows` also those below."""
    if ax is not None:
        return ax, None
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained", label=_OWN)
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), 1, sharex=True, height_ratios=list(rows), squeeze=False)
    return axes[0, 0], axes[1, 0] if len(rows) > 1 else None


def finish(ax: Axes, question: str, cells: Sequence[CellSummary] = (), note: str = "") -> None:
    """Write the question above a plot, below it the conditions and what is not real, and the legend beneath."""
    words = [common_setting(cells), note, *caveats(cells)]
    small = textwrap.fill(plain(". ".join(word for word in words if word)), _WRAP)
    figure = ax.get_figure(root=True)
    handles, labels = ax.get_legend_handles_labels()
    if not isinstance(figure, Figure) or figure.get_label() != _OWN:
        ax.set_title(f"{question}\n{small}", loc="left", fontsize=9)
        if handles:
            ax.legend()
        return
    figure.suptitle(textwrap.fill(plain(question), 58), x=0.01, ha="left", fontweight="bold")
    figure.axes[0].set_title(small, loc="left", fontsize=8, color="#444444", x=0)
    if handles:
        wrapped = [textwrap.fill(label, 60) for label in labels]
        figure.legend(
            handles, wrapped, loc="outside lower left", ncols=1 if len(max(wrapped, key=len)) > 30 else 2
        )
        figure.set_figheight(figure.get_figheight() + 0.12 * len(handles) + 0.1)


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Name horizontal bars, from the top."""
    ax.set_yticks(range(len(names)), [textwrap.fill(plain(name), 36) for name in names])
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.grid(visible=False, axis="y")


def row_names(cells: Sequence[CellSummary]) -> list[str]:
    """Return the backends of cells, with the cache state if that differs."""
    states = {state_label(cell) for cell in cells if not cell.is_null}
    return [
        backend_label(c.backend) + (f", {state_label(c)}" if len(states) > 1 and not c.is_null else "")
        for c in cells
    ]


def whiskers(found: Sequence[Estimate]) -> npt.NDArray[np.float64]:
    """Return the distances of interval ends, float64 [2, n], as errorbar takes them; 0 for an unknown one."""
    below = [0.0 if one.low is None else max(0.0, one.mid - one.low) for one in found]
    above = [0.0 if one.high is None else max(0.0, one.high - one.mid) for one in found]
    return np.array([below, above], np.float64)


def beside(ax: Axes, end: float, position: float, text: str) -> None:
    """Write a figure beside the end of a bar."""
    ax.annotate(
        text,
        (end, position),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
    )


def plain_numbers(axis: Axis) -> None:
    """Write an axis in plain numbers; a logarithmic one that spans little gets 1, 2 and 5 of each decade."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        axis.set_major_locator(
            LogLocator(subs=(1.0,) if high / low > _DECADES else (1.0, 2.0, 5.0), numticks=7)
        )
        axis.set_minor_formatter(NullFormatter())


def plain_ticks(axis: Axis, ticks: Sequence[float]) -> None:
    """Write these ticks in plain numbers, and no others."""
    axis.set_ticks(list(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def saved(ax: Axes, kind: str) -> bytes:
    """Return a plot as "svg" or "png", the same bytes for the same figures."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else None
    with styled():
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()
