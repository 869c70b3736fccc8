"""Two backends of one format are told apart in every plot that draws both."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.axes import Axes

from storebench.report.cells import CellSummary, summarise
from storebench.report.frame import to_frame
from storebench.report.plots.looks import backend_looks, told_apart
from storebench.report.plots.size import plot_size
from storebench.report.plots.style import backend_look
from storebench.report.plots.wait_distribution import plot_wait_distribution
from storebench.report.plots.wait_over_epoch import plot_wait_over_epoch
from storebench.results import Record
from tests.support.planted import make_record


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def waits_of(backend: str) -> pd.DataFrame:
    """Return the steps of one epoch of an LMDB store, in the columns that the plots use."""
    table = pd.DataFrame({"data_wait_ns": [5e6, 6e6, 7e6], "warmup": False})
    names = {"cell_id": backend, "backend": backend, "format": "lmdb", "codec": "raw", "cache": "cold"}
    return table.assign(**names, run_id="a", replicate=0, epoch=0)


def test_backends_of_one_colour_differ_in_shade_line_and_marker() -> None:
    lmdb, direct, png = (backend_look(f"lmdb{rest}", "lmdb", "raw") for rest in ("", ":direct", "+png"))
    first, second, third = told_apart([lmdb, direct, png])
    assert first == lmdb
    assert len({side.colour for side in (first, second, third)}) == 3
    assert len({side.line for side in (first, second, third)}) == 3
    assert len({side.marker for side in (first, second, third)}) == 3
    many = told_apart([lmdb] * 20)
    assert len({(one.line, one.marker) for one in many}) >= 7


def _drawn_by(label: str, ax: Axes) -> tuple[object, ...]:
    (line,) = [line for line in ax.get_lines() if line.get_label() == label]
    return line.get_color(), line.get_linestyle(), line.get_marker()


@pytest.mark.parametrize("draw", [plot_wait_over_epoch, plot_wait_distribution])
def test_waits_of_two_readers_of_one_format_are_drawn_differently(draw: Callable[..., Axes]) -> None:
    steps = pd.concat([waits_of("lmdb"), waits_of("lmdb:direct")])
    ax = draw(steps)
    one, other = (_drawn_by(label, ax) for label in ("LMDB", "LMDB (direct)"))
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert one[2] != other[2]


@pytest.mark.parametrize("draw", [plot_wait_over_epoch, plot_wait_distribution])
def test_without_steps_the_axes_are_empty(draw: Callable[..., Axes]) -> None:
    assert not draw(waits_of("lmdb").iloc[:0]).get_lines()


def test_waits_of_several_backends_have_axes_with_their_names() -> None:
    names = ("lmdb", "lmdb+original", "lmdb:direct")
    ax = plot_wait_over_epoch(pd.concat([waits_of(name) for name in names]))
    figure = ax.get_figure(root=True)
    assert figure is not None
    assert [row.get_title(loc="left") for row in figure.axes] == ["LMDB", "LMDB+original", "LMDB (direct)"]
    assert [len(row.get_lines()) for row in figure.axes] == [1, 1, 1]
    assert len({str(row.get_lines()[0].get_color()) for row in figure.axes}) == 3
    assert len({row.get_ylim() for row in figure.axes}) == 1
    assert not figure.legends or not figure.legends[-1].get_texts()[0].get_text().startswith("LMDB")


def test_sizes_of_two_readers_of_one_store_have_different_markers() -> None:
    cells = cells_of(*(make_record(name, bytes_on_disk=1000) for name in ("lmdb", "lmdb:direct")))
    drawn = {line.get_marker() for line in plot_size(cells).get_lines()}
    assert len(drawn & {"o", "D", "^", "s"}) == 2


def test_a_backend_keeps_its_look_in_every_state_of_one_plot() -> None:
    cells = cells_of(make_record("lmdb"), make_record("lmdb", cache="warm"), make_record("lmdb:direct"))
    assert backend_looks(cells)["lmdb"] == backend_look("lmdb", "lmdb", "raw")
