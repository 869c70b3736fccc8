"""Looks of the backends of one plot: those that share a colour get different lines and markers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from storebench.report.cells import CellSummary
from storebench.report.plots.style import BackendStyle, look

_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "D", "^", "s", "v", "P", "X")


def told_apart(looks: Sequence[BackendStyle]) -> list[BackendStyle]:
    """Return the looks of one plot; of those with one colour, later ones get a line and a marker that are still free."""
    return list(_free(looks))


def cell_looks(cells: Sequence[CellSummary]) -> list[BackendStyle]:
    """Return a look for each cell of one plot: its backend's, told apart from those of the others."""
    return told_apart([look(cell) for cell in cells])


def backend_looks(cells: Sequence[CellSummary]) -> dict[str, BackendStyle]:
    """Return backend -> look for the backends of one plot, told apart."""
    firsts = {cell.backend: look(cell) for cell in cells}
    return dict(zip(firsts, told_apart(list(firsts.values())), strict=True))


def _free(looks: Sequence[BackendStyle]) -> Iterator[BackendStyle]:
    lines: set[tuple[str, str]] = set()
    markers: set[tuple[str, str]] = set()
    for one in looks:
        line = next((n for n in (one.line, *_LINES) if (one.colour, n) not in lines), one.line)
        marker = next((n for n in (one.marker, *_MARKERS) if (one.colour, n) not in markers), one.marker)
        lines.add((one.colour, line))
        markers.add((one.colour, marker))
        yield replace(one, line=line, marker=marker)
