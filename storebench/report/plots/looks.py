"""Looks of the backends of one plot: those that share a colour get different shades, lines and markers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from matplotlib.colors import to_hex, to_rgb

from storebench.report.cells import CellSummary
from storebench.report.plots.style import BackendStyle, look

_SHADES = (1.0, 0.5, 1.5)
"""Brightness of the first, second and third look of one colour."""

_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "D", "^", "s", "v", "P", "X")


def told_apart(looks: Sequence[BackendStyle]) -> list[BackendStyle]:
    """Return the looks of one plot; of those with one colour, later ones get another shade, and a line and a marker that are free."""
    return list(_free(looks))


def cell_looks(cells: Sequence[CellSummary]) -> list[BackendStyle]:
    """Return a look for each cell of one plot: its backend's, told apart from those of the others."""
    return told_apart([look(cell) for cell in cells])


def backend_looks(cells: Sequence[CellSummary]) -> dict[str, BackendStyle]:
    """Return backend -> look for the backends of one plot, told apart."""
    firsts = {cell.backend: look(cell) for cell in cells}
    return dict(zip(firsts, told_apart(list(firsts.values())), strict=True))


def shaded(colour: str, place: int) -> str:
    """Return the shade of a format's colour for the backend of it at a place, counted from 0; the first has the colour itself."""
    shade = _SHADES[place % len(_SHADES)]
    if shade == 1:
        return colour
    red, green, blue = (
        part * shade if shade < 1 else 1 - (1 - part) * (2 - shade) for part in to_rgb(colour)
    )
    return to_hex((red, green, blue))


def _free(looks: Sequence[BackendStyle]) -> Iterator[BackendStyle]:
    lines: set[tuple[str, str]] = set()
    markers: set[tuple[str, str]] = set()
    places: Counter[str] = Counter()
    for style in looks:
        line = next((n for n in (style.line, *_LINES) if (style.colour, n) not in lines), style.line)
        marker = next(
            (n for n in (style.marker, *_MARKERS) if (style.colour, n) not in markers), style.marker
        )
        lines.add((style.colour, line))
        markers.add((style.colour, marker))
        yield replace(style, colour=shaded(style.colour, places[style.colour]), line=line, marker=marker)
        places[style.colour] += 1
