"""How every plot looks: one colour a format, one pattern a codec, a question as title, no text cut off."""

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from storebench.report.cells import CellSummary
from storebench.report.labels import caveats

# Okabe and Ito's palette, which people with any kind of colour blindness can tell apart.
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

# Paul Tol's muted palette: other colours than the backends', because they mean something else.
PART_COLOURS = {
    "data wait": "#882255",
    "copy": "#DDCC77",
    "compute": "#BBBBBB",
    "fetch": "#332288",
    "decode": "#88CCEE",
    "prep": "#44AA99",
    "hand-over": "#999933",
}

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
    "legend.fontsize": 8.5,
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "storebench",
    "figure.facecolor": "white",
}
WIDTH_IN = 5.4
WRAP = 62


@dataclass(frozen=True, kw_only=True)
class Look:
    """How one backend is drawn."""

    colour: str
    hatch: str
    marker: str
    line: str


_CODEC_LOOKS = {"raw": ("", "o", "-"), "png": ("//", "s", "--"), "jpeg": ("..", "^", ":")}


def look(cell: CellSummary) -> Look:
    """Return the look of a cell's backend: colour by format, pattern and marker by codec."""
    return backend_look(cell.backend, cell.cell.format, cell.cell.codec)


def backend_look(backend: str, container: str, codec: str) -> Look:
    """Return the look of a backend; a backend looks the same in every plot."""
    colour = BACKEND_COLOURS.get(backend) or FORMAT_COLOURS.get(container, OTHER_COLOUR)
    hatch, marker, line = _CODEC_LOOKS.get(codec, ("xx", "D", "-."))
    return Look(colour=colour, hatch="" if backend in BACKEND_COLOURS else hatch, marker=marker, line=line)


@contextmanager
def styled() -> Iterator[None]:
    """Make a plot in our style, so that nobody's own settings change."""
    with mpl.rc_context(cast("Any", _STYLE)):
        yield


def new_axes(height_in: float = 3.2, ax: Axes | None = None) -> Axes:
    """Return the axes to draw into: the caller's, or those of a new figure that pyplot does not know."""
    if ax is not None:
        return ax
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots()


def title(ax: Axes, question: str, note: str = "", cells: Sequence[CellSummary] = ()) -> None:
    """Head a plot with its question, and below it the conditions and caveats.

    In a figure of its own the head is set at the left edge of the figure; in
    the caller's axes it is the axes' title.
    """
    small = textwrap.fill(". ".join(part for part in (note, *caveats(cells)) if part), WRAP)
    large = textwrap.fill(question, WRAP - 12)
    figure = ax.get_figure(root=True)
    if figure is None or len(figure.axes) > 1:
        ax.set_title(f"{large}\n{small}", loc="left")
        return
    # A legend is the one thing outside the axes that the layout makes room for and that takes two fonts.
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


def save(ax: Axes, stem: Path) -> tuple[Path, Path]:
    """Write a plot as ``stem.svg`` and ``stem.png`` and return both."""
    paths = (stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png"))
    paths[0].write_bytes(svg_bytes(ax))
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.savefig(paths[1], dpi=160)
    return paths


def svg_bytes(ax: Axes) -> bytes:
    """Return a plot as SVG, the same bytes for the same figures."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
