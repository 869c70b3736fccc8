"""The parts that both curve plots draw: the rate of an epoch, its residency, and the axes."""

from pathlib import Path

import numpy as np
import pytest

from storebench.report.analysis import load_results
from storebench.report.cells import CellSummary, as_cells
from storebench.report.plots.curve import (
    FAINT,
    EpochCurve,
    curve_axes,
    draw_rate,
    finish_curves,
    first_replicate,
    residency_percent,
)
from storebench.report.plots.style import BackendStyle, new_axes
from storebench.results import ResidencyPoint
from tests.support.planted import make_record, write_run

ASKED = np.array([0.25, 0.5, 0.75, 1.0])
RATES = np.array([100.0, 200.0, 400.0, 800.0])
DASHED = BackendStyle(colour="#009E73", hatch="", marker="o", line="--")
COUNTS = (
    ResidencyPoint(elapsed_s=0.0, asked_frac=0.0, resident_frac=0.1),
    ResidencyPoint(elapsed_s=1.0, asked_frac=0.5, resident_frac=0.6),
)


def epoch(*portion: bool) -> EpochCurve:
    return EpochCurve(asked_frac=ASKED, samples_per_s=RATES, portion=np.array(portion), residency=COUNTS)


@pytest.fixture
def cell(tmp_path: Path) -> CellSummary:
    """Return a cell of two replicates with two epochs each: 3,200 of 4,000 samples, the first 800 of them steady."""
    records = [
        make_record(
            replicate=replicate,
            epoch=number,
            epochs=2,
            wait_ms=4.0 + number,
            cache="limited",
            memory_bytes=1 << 27,
        )
        for replicate in range(2)
        for number in range(2)
    ]
    [found] = as_cells(load_results(write_run(tmp_path / "run", records, with_steps=True)))
    return found


def test_a_rate_is_faint_but_for_the_steps_that_count() -> None:
    ax = new_axes()
    draw_rate(ax, DASHED, epoch(True, True, False, False), 100 * ASKED, label="LMDB")
    faint, thick = ax.lines
    np.testing.assert_array_equal(faint.get_xdata(), 100 * ASKED)
    np.testing.assert_array_equal(faint.get_ydata(), RATES)
    np.testing.assert_array_equal(thick.get_xdata(), [25.0, 50.0])
    np.testing.assert_array_equal(thick.get_ydata(), [100.0, 200.0])
    assert (faint.get_alpha(), faint.get_linestyle(), thick.get_linestyle()) == (FAINT, "--", "--")
    assert thick.get_linewidth() > faint.get_linewidth()
    assert thick.get_label() == "LMDB"


def test_residency_is_given_in_percent_over_what_was_asked_for() -> None:
    asked, held = residency_percent(epoch(True, True, True, True))
    assert asked.tolist() == [0.0, 0.5]
    assert held.tolist() == pytest.approx([10.0, 60.0])


def test_curves_are_those_of_the_first_replicate(cell: CellSummary) -> None:
    first, second = first_replicate(cell, growing=False)
    assert first.asked_frac[-1] == pytest.approx(0.8)
    assert first.asked_frac[first.portion][-1] == pytest.approx(0.2)
    assert first.samples_per_s.mean() == pytest.approx(32 / 0.014)
    assert second.samples_per_s.mean() == pytest.approx(32 / 0.015)


def test_growing_pieces_begin_with_single_steps(cell: CellSummary) -> None:
    growing, even = (first_replicate(cell, growing=one)[0] for one in (True, False))
    assert growing.asked_frac[0] == pytest.approx(32 / 4000)
    assert even.asked_frac[0] > growing.asked_frac[0]


def test_residency_has_axes_only_in_a_new_figure_and_if_it_was_sampled(cell: CellSummary) -> None:
    assert curve_axes(None, [cell])[1] is None
    ax = new_axes()
    assert curve_axes(ax, [cell]) == (ax, None)


def test_finished_curves_have_a_question_units_and_a_logarithmic_rate(cell: CellSummary) -> None:
    ax, below = new_axes(), new_axes()
    draw_rate(ax, DASHED, epoch(True, True, True, True), ASKED, label="LMDB")
    finish_curves(ax, below, "How fast?", "Dot: the end", [cell])
    assert (ax.get_yscale(), ax.get_ylabel()) == ("log", "throughput (samples/s)")
    assert (below.get_ylabel(), below.get_ylim()) == ("resident (%)", (-3, 108))
    head = ax.get_figure(root=True).legends[-1]
    assert head.get_title().get_text() == "How fast?"
    assert "Dot: the end" in head.get_texts()[0].get_text().replace("\n", " ")
