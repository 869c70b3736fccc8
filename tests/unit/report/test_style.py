"""What every plot shares: style, axes, names of rows, ticks and legends."""

import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from storebench.report.cells import CellSummary, summarise
from storebench.report.frame import to_frame
from storebench.report.intervals import Estimate
from storebench.report.plots.arrows import CUT, mark_cut
from storebench.report.plots.style import (
    backend_look,
    bar,
    beside,
    companion,
    legend_below,
    make_room,
    name_rows,
    new_axes,
    plain_numbers,
    plain_ticks,
    png_bytes,
    shown_end,
    styled,
    svg_bytes,
    title,
    whiskers,
)
from storebench.results import Record
from tests.support.planted import make_record


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/some.jsonl")) for record in records))


def figure_of(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def test_the_callers_settings_come_back_after_a_plot() -> None:
    before = mpl.rcParams["axes.titlesize"]
    with styled():
        assert mpl.rcParams["axes.titlesize"] == 9.5
        warnings.warn("a label is longer than the figure", UserWarning, stacklevel=1)
    assert mpl.rcParams["axes.titlesize"] == before


def test_a_new_figure_gets_smaller_axes_below_and_a_callers_does_not() -> None:
    ax = new_axes()
    assert companion(ax, own=False) == (ax, None)
    upper, below = companion(ax, own=True)
    assert below is not None
    assert figure_of(upper).axes == [upper, below]
    upper.set_xlim(3, 7)
    assert below.get_xlim() == (3, 7)
    assert below.get_position().height < upper.get_position().height


def test_a_question_is_the_figures_head_or_the_title_of_the_callers_axes() -> None:
    own = new_axes()
    title(own, "Which is faster?", "warm")
    [head] = figure_of(own).legends
    assert head.get_title().get_text() == "Which is faster?"
    shared = Figure().subplots(2)
    title(shared[0], "Which is faster?", "warm")
    assert shared[0].get_title(loc="left") == "Which is faster?\nwarm"


def test_rows_are_named_from_the_top_and_by_state_where_it_differs() -> None:
    ax = new_axes()
    name_rows(
        ax, cells_of(make_record("lmdb", cache="cold"), make_record("png"), make_record("null", cache="cold"))
    )
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["PNG files, warm", "LMDB, cold", "null (no loading)"]
    assert ax.get_ylim() == pytest.approx((2.55, -0.55))
    name_rows(ax, cells_of(make_record("lmdb"), make_record("png")))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["PNG files", "LMDB"]


def test_a_short_logarithmic_axis_has_ticks_within_its_decades() -> None:
    ax = new_axes()
    ax.set_yscale("log")
    ax.set_ylim(3, 40)
    plain_numbers(ax.yaxis)
    ticks = {round(float(tick), 6) for tick in ax.yaxis.get_major_locator().tick_values(3, 40)}
    assert {5.0, 10.0, 20.0} <= ticks
    assert ax.yaxis.get_major_formatter()(12345.5, 0) == "12,345.5"


def test_a_long_logarithmic_axis_has_powers_of_ten_alone() -> None:
    ax = new_axes()
    ax.set_yscale("log")
    ax.set_ylim(1, 1e5)
    plain_numbers(ax.yaxis)
    ticks = np.log10(np.asarray(ax.yaxis.get_major_locator().tick_values(1, 1e5), np.float64))
    np.testing.assert_allclose(ticks, np.round(ticks), atol=1e-9)


def test_chosen_ticks_are_written_plainly_and_no_others() -> None:
    ax = new_axes()
    ax.set_xscale("log")
    ax.set_xticks([0.5, 20.0])
    plain_ticks(ax.xaxis)
    assert [ax.xaxis.get_major_formatter()(tick, 0) for tick in (0.5, 20.0)] == ["0.5", "20"]
    assert ax.xaxis.get_minor_formatter()(2.0, 0) == ""


@pytest.mark.parametrize(("lines", "heading", "rows"), [(1, None, 1), (3, None, 2), (4, "readers", 3)])
def test_a_legend_makes_its_figure_taller(lines: int, heading: str | None, rows: int) -> None:
    ax = new_axes(3.0)
    for number in range(lines):
        ax.plot([0, 1], label=f"line {number}")
    legend_below(ax, heading)
    assert len(figure_of(ax).legends) == 1
    assert figure_of(ax).get_figheight() == pytest.approx(3.0 + 0.19 * rows)


def test_a_legend_of_long_names_has_one_column_and_stays_inside() -> None:
    ax = new_axes(3.0)
    for number in range(4):
        ax.axhline(number, label=f"device, one read per sample (a yardstick): 5,84{number}")
    legend_below(ax, "ceilings and yardsticks, samples per second")
    figure = figure_of(ax)
    figure.draw_without_rendering()
    [legend] = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    assert figure.get_figheight() == pytest.approx(3.0 + 0.19 * 5)


def test_a_name_that_is_longer_than_its_figure_goes_on_in_a_second_line() -> None:
    ax = new_axes(3.0)
    ax.plot([0, 1], label="LMDB (direct, " + ", ".join(f"option_{n}=off" for n in range(7)) + ")")
    legend_below(ax)
    figure = figure_of(ax)
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1
    assert figure.get_figheight() == pytest.approx(3.0 + 0.19 * 2)


def test_an_interval_is_marked_where_the_plot_cuts_it() -> None:
    ax = new_axes()
    ax.set_xlim(0, 100)
    inside, beyond = Estimate(mid=50, lo=40, hi=60, n=3), Estimate(mid=50, lo=10, hi=160, n=3)
    nothing = Estimate(mid=50, lo=1e-9, hi=1e9, n=2)
    assert mark_cut(ax, [0, 1], [inside, nothing], (0, 100), upright=False) == ""
    assert not ax.lines
    assert mark_cut(ax, [0, 1], [inside, beyond], (20, 100), upright=False) == CUT
    marks = [(line.get_marker(), *np.asarray(line.get_xydata())[0]) for line in ax.lines]
    assert marks == [("<", 20, 1), (">", 100, 1)]


def test_an_interval_that_says_nothing_has_no_whiskers() -> None:
    known, unknown = Estimate(mid=5, lo=4, hi=7, n=3), Estimate(mid=5, lo=1e-9, hi=1e9, n=2)
    assert whiskers([unknown]) is None
    ends = whiskers([known, unknown])
    assert ends is not None
    np.testing.assert_allclose(ends, [[1, 0], [2, 0]])
    assert shown_end([unknown, known]) == 7


def test_no_lines_have_no_legend_and_a_shared_figure_is_not_made_taller() -> None:
    empty = new_axes(3.0)
    legend_below(empty)
    assert (figure_of(empty).legends, figure_of(empty).get_figheight()) == ([], 3.0)
    figure = Figure(figsize=(4.0, 3.0))
    first, _ = figure.subplots(2)
    first.plot([0, 1], label="line")
    legend_below(first)
    assert first.get_legend() is not None
    assert (figure.legends, figure.get_figheight()) == ([], 3.0)


def test_an_axis_is_widened_until_the_texts_beside_its_bars_fit() -> None:
    figure = Figure(figsize=(5.4, 3.2))  # without a layout that would make room itself
    ax = figure.subplots()
    bar(ax, 0, 100.0, backend_look("lmdb", "lmdb", "raw"), height=0.5)
    ax.set_xlim(0, 100)
    beside(ax, 100.0, 0, "a text as long as a third of the figure")
    figure.draw_without_rendering()
    assert ax.texts[0].get_window_extent().x1 > figure.bbox.x1
    make_room(ax)
    figure.draw_without_rendering()
    assert ax.texts[0].get_window_extent().x1 <= figure.bbox.x1 + 1


def test_a_line_that_crosses_a_figure_beside_a_bar_is_hidden_there() -> None:
    ax = new_axes()
    line = ax.axvline(50.0, zorder=2)
    beside(ax, 40.0, 0, "4,000 [3,900, 4,100]")
    box = ax.texts[0].get_bbox_patch()
    assert box is not None
    assert box.get_alpha() in (None, 1.0)
    assert ax.texts[0].get_zorder() > line.get_zorder()


def test_a_figure_that_is_only_laid_out_before_is_saved_as_the_same_bytes() -> None:
    def drawn(ax: Axes) -> tuple[bytes, bytes]:
        ax.plot([1, 20_000], [3, 7_000_000], label="a name beside others")
        ax.set_ylabel("samples per second")
        ax.legend(title="legends have their place in a layout")
        return svg_bytes(ax), png_bytes(ax)

    with styled():
        plain_figure = Figure(figsize=(5.4, 3.2), layout="constrained")
        assert drawn(new_axes(3.2)) == drawn(plain_figure.subplots())


def test_a_plot_is_written_as_png() -> None:
    assert png_bytes(new_axes()).startswith(b"\x89PNG\r\n\x1a\n")
