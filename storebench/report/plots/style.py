"""The style of every plot: one colour per format, one pattern per codec, a question as title."""

import io
import math
import textwrap
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from storebench.analysis.comparison import Estimate
from storebench.analysis.labels import backend_label, common_setting, state_label
from storebench.analysis.summary import CellSummary
from storebench.plain_text import plain

# Okabe and Ito's palette, which is distinguishable with any kind of colour blindness.
_BACKEND_COLOURS = {"memory:python": "#56B4E9", "memory:native": "#0072B2", "null": "#000000"}
_FORMAT_COLOURS = {
    "files": "#D55E00",
    "hdf5": "#E69F00",
    "memory": "#0072B2",
    "leveldb": "#CC79A7",
    "lmdb": "#009E73",
}
_OTHER_COLOURS = ("#666666", "#8C564B", "#7F7F00", "#AA4499", "#994F00")
_SHADES = {"direct": 0.55, "readahead=off": 1.5}
_OTHER_SHADES = (0.75, 0.4, 1.25, 1.65)

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
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.title_fontsize": 8.5,
    "legend.borderpad": 0.2,
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "storebench",
    "svg.fonttype": "none",  # glyphs as paths would double the page
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "figure.facecolor": "white",
}
_WIDTH_IN = 4.6  # a phone shows it at 1.1 pixels per point
_WRAP = 62
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "D", "^", "s", "v", "P", "X")
_CODECS = {"raw": ("", "o"), "png": ("//", "s"), "jpeg": ("..", "^"), "original": ("oo", "v")}
_DECADES = 50.0

# Label of figures that hold one plot only.
_OWN = "storebench"

# Bars and lines drawn in one plot; the tables hold the others.
MOST_CELLS, MOST_LINES = 24, 10


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


def colour_of(backend: str, container: str) -> str:
    """Return the one colour of a backend: the hue of its format, its shade from the reader and its options."""
    if backend in _BACKEND_COLOURS:
        return _BACKEND_COLOURS[backend]
    other = _OTHER_COLOURS[zlib.crc32(container.encode()) % len(_OTHER_COLOURS)]
    hue = _FORMAT_COLOURS.get(container, other)
    _, split, variant = backend.replace("?", ":", 1).partition(":")
    if not split:
        return hue
    factor = _SHADES.get(variant, _OTHER_SHADES[zlib.crc32(variant.encode()) % len(_OTHER_SHADES)])
    red, green, blue = (p * factor if factor < 1 else 1 - (1 - p) * (2 - factor) for p in to_rgb(hue))
    return to_hex((red, green, blue))


def looks_of(backends: Sequence[tuple[str, str, str]]) -> list[Look]:
    """Return a look for each (backend, format, codec) of one plot; those of one format differ in line and marker."""
    places: Counter[str] = Counter()
    look_of: dict[tuple[str, str, str], Look] = {}
    for name, container, codec in dict.fromkeys(backends):
        hatch, marker = _CODECS.get(codec.partition(":")[0], ("xx", "D"))
        if container == "files" and codec in ("png", "raw"):  # files usually hold PNG
            hatch = "" if codec == "png" else "//"
        place = places[container]
        places[container] += 1
        marker = _MARKERS[place] if 0 < place < len(_MARKERS) else marker
        line = _LINES[place % len(_LINES)]
        look_of[name, container, codec] = Look(
            colour=colour_of(name, container), hatch=hatch, marker=marker, line=line
        )
    return [look_of[backend] for backend in backends]


def looks(cells: Sequence[CellSummary]) -> list[Look]:
    """Return a look for each cell of one plot."""
    return looks_of([(c.backend, c.cell.backend.format, c.cell.backend.codec) for c in cells])


@contextmanager
def styled() -> Iterator[None]:
    """Make a plot in storebench's style, and leave the caller's settings unchanged."""
    with mpl.rc_context(cast("Any", _STYLE)), warnings.catch_warnings():
        # Names in records may be longer than the figure, or have characters that the font lacks.
        warnings.simplefilter("ignore", UserWarning)
        yield


def new_axes(height_in: float, ax: Axes | None) -> Axes:
    """Return the axes to draw on: the caller's, or those of a new figure."""
    if ax is not None:
        return ax
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained", label=_OWN)
    FigureCanvasAgg(figure)
    return figure.subplots()


def finish(ax: Axes, question: str, cells: Sequence[CellSummary] = (), note: str = "") -> None:
    """Write the question above a plot, and the conditions and the legend beneath."""
    words = [common_setting(cells), note]
    small = textwrap.fill(plain(". ".join(word for word in words if word)), _WRAP)
    figure = ax.get_figure(root=True)
    handles, labels = ax.get_legend_handles_labels()
    if not isinstance(figure, Figure) or figure.get_label() != _OWN:
        ax.set_title(f"{question}\n{small}", loc="left", fontsize=9)
        if handles:
            ax.legend()
        return
    figure.suptitle(textwrap.fill(plain(question), 44), x=0.01, ha="left", fontweight="bold")
    wrapped = [textwrap.fill(label, 46) for label in labels]
    ncols = 1 if len(max(wrapped, key=len, default="")) > 22 else 2
    legend = figure.legend(
        handles, wrapped, loc="outside lower left", ncols=ncols, alignment="left", title=small
    )
    legend.get_title().set_color("#444444")
    lines = small.count("\n") + 1 + math.ceil(len(handles) / ncols)
    figure.set_figheight(figure.get_figheight() + 0.14 * lines)


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Name horizontal bars, from the top."""
    ax.set_yticks(range(len(names)), [textwrap.fill(plain(name), 22) for name in names])
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.grid(visible=False, axis="y")


def row_names(cells: Sequence[CellSummary]) -> list[str]:
    """Return the backends of cells, with the cache state if that differs."""
    states = {state_label(cell) for cell in cells if not cell.is_null}
    return [
        backend_label(c.backend) + (f", {state_label(c)}" if len(states) > 1 and not c.is_null else "")
        for c in cells
    ]


def whiskers(estimates: Sequence[Estimate]) -> npt.NDArray[np.float64]:
    """Return the distances of interval ends, float64 [2, n], as errorbar takes them; 0 for an unknown one."""
    below = [0.0 if estimate.low is None else max(0.0, estimate.mid - estimate.low) for estimate in estimates]
    above = [
        0.0 if estimate.high is None else max(0.0, estimate.high - estimate.mid) for estimate in estimates
    ]
    return np.array([below, above], np.float64)


def beside(ax: Axes, end: float, position: float, text: str) -> None:
    """Write a figure beside the end of a bar."""
    ax.annotate(
        text,
        (end, position),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
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
        axis.set_minor_locator(NullLocator())


def saved(ax: Axes, kind: str) -> bytes:
    """Return a plot as "svg" or "png", the same bytes for the same figures."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else None
    with styled():
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    return buffer.getvalue()
