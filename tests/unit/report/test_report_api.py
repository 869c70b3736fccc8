"""The names that notebooks rely on."""

import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import storebench
from storebench.analysis.frame import sourced, to_frame
from storebench.errors import DataNotFoundError, UsageError
from storebench.record.lines import read_records
from storebench.training.step_table import step_table
from tests.support.planted import make_record, paper_records, replicates, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = (
        paper_records()
        + replicates("leveldb", [8.0], cache="cold")
        + replicates("lmdb+png", [60, 61, 60])
        + replicates("files+raw", [30, 31, 30])
    )
    records += replicates("lmdb", [3, 3.1], workers=2)
    records += replicates("lmdb", [3, 3.1], cache="limited", memory_bytes=300_000_000)
    records += replicates("lmdb", [3, 3.1, 3], compute="none", model="none", compute_ms=0.0)
    records += replicates("png", [60, 61, 60], cache="warm") + replicates("lmdb", [3, 3, 3], cache="warm")
    return write_run(tmp_path_factory.mktemp("api") / "run", records, with_steps=True)


@pytest.fixture(scope="module")
def results(run: Path) -> pd.DataFrame:
    """Return a table of planted records, which would not validate."""
    return to_frame(sourced((record, run / "records.jsonl") for record in read_records(run)))


def test_every_exported_name_is_there_and_importing_stays_light() -> None:
    assert all(getattr(storebench, name) is not None for name in storebench.__all__)
    assert set(storebench.__all__) == set(dir(storebench))
    with pytest.raises(AttributeError):
        _ = storebench.plot_everything
    names = ("pandas", "matplotlib", "torch", "pydantic")
    code = f"import sys, storebench; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_row_a_record_with_units_in_the_names(results: pd.DataFrame) -> None:
    assert len(results) == 55
    row = results[results["backend"] == "png"].iloc[0]
    assert row["samples_per_s"] == pytest.approx(row["timed_samples"] / row["timed_s"])
    assert (row["store_image_shape"], row["cache_verdict"], row["store_samples_digest"]) == (
        "256x256x3",
        "verified",
        "aa",
    )
    assert str(results["limit"].dtype) == "Int64"


def test_several_paths_and_folders_of_runs_are_read_once(run: Path, results: pd.DataFrame) -> None:
    paths = [run, run / "records.jsonl", run.parent]
    assert len(storebench.load_results(paths, allow_invalid=True)) == len(results)


def test_steps_carry_their_cell(results: pd.DataFrame) -> None:
    steps = storebench.load_steps(results[results["backend"] == "lmdb"].head(1))
    assert len(steps) == 100
    assert set(step_table([], [], warmup_steps=0)) <= set(steps.columns)
    assert set(steps["backend"]) == {"lmdb"}


def test_steps_that_are_not_there_are_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="no step files"):
        storebench.load_steps(write_run(tmp_path / "run", [make_record("png")]))


def test_compare_pairs_what_differs_in_one_column_only(results: pd.DataFrame) -> None:
    backends = storebench.compare(results, by="backend", baseline="png")
    assert set(backends["workers"]) == {0}, "there is no png cell with 2 workers"
    lmdb = backends[backends["backend"] == "lmdb"].iloc[0]
    assert (lmdb["rounds"], lmdb["verdict"]) == (5, "faster")
    assert lmdb["ratio"] == pytest.approx(76.0 / 13.0, rel=0.05)
    assert lmdb["ratio_lo"] < lmdb["ratio"] < lmdb["ratio_hi"]
    codecs = storebench.compare(results, by="codec", baseline="raw")
    assert {(row.format, row.codec) for row in codecs.itertuples()} == {("lmdb", "png"), ("files", "png")}


def test_compare_decides_nothing_on_fewer_rounds_than_a_report_does(results: pd.DataFrame) -> None:
    few = storebench.compare(results[results["replicate"] < 2], by="backend", baseline="png")
    assert set(few["rounds"]) == {2}
    assert set(few["verdict"]) == {"undecided"}


def test_compare_ranks_no_store_by_a_rate_that_an_answer_does_not_rank() -> None:
    records = [(r, Path("run/records.jsonl")) for r in paper_records("cold")]
    table = to_frame(sourced(records))
    stores = storebench.compare(table, by="backend", baseline="png")
    assert set(stores[stores["backend"] == "lmdb"]["verdict"]) == {"undecided"}
    waits = storebench.compare(table, by="backend", baseline="png", metric="data_wait_s")
    assert set(waits[waits["backend"] == "lmdb"]["verdict"]) == {"slower"}


def test_compare_refuses_what_no_cell_has(results: pd.DataFrame) -> None:
    with pytest.raises(UsageError, match="no column"):
        storebench.compare(results, by="speed", baseline="png")
    with pytest.raises(UsageError, match="does not occur"):
        storebench.compare(results, by="backend", baseline="sqlite")


CELL_PLOTS = [name for name in storebench.__all__ if name.startswith("plot_")]
STEP_PLOTS = {"plot_loss", "plot_wait_distribution", "plot_wait_over_epoch"}


@pytest.mark.parametrize("name", CELL_PLOTS)
def test_plots_have_units_and_leave_the_callers_style_alone(results: pd.DataFrame, name: str) -> None:
    before = dict(mpl.rcParams)
    data = storebench.load_steps(results[results["replicate"] == 0]) if name in STEP_PLOTS else results
    axes = getattr(storebench, name)(data)
    assert isinstance(axes, Axes)
    assert axes.get_xlabel()
    assert axes.has_data()
    assert dict(mpl.rcParams) == before


def test_a_plot_draws_into_the_axes_that_it_is_given(results: pd.DataFrame) -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert storebench.plot_throughput(results, ax=right) is right
    assert "How many images" in right.get_title(loc="left")
    assert not left.has_data()


def test_a_backend_has_the_same_colour_in_every_plot(results: pd.DataFrame) -> None:
    lmdb = results[(results["backend"] == "lmdb") & (results["workers"] == 0)]
    bar = storebench.plot_throughput(lmdb).patches[0].get_facecolor()
    line = storebench.plot_loss(storebench.load_steps(lmdb)).lines[0].get_color()
    assert mpl.colors.to_rgba(line) == bar


def test_no_text_is_cut_off(results: pd.DataFrame) -> None:
    for axes in (
        storebench.plot_throughput(results),
        storebench.plot_step_time(results),
    ):
        figure = axes.get_figure()
        assert isinstance(figure, Figure)
        figure.canvas.draw()
        inside = figure.bbox
        for text in [*axes.texts, *axes.get_yticklabels(), axes.xaxis.label]:
            box = text.get_window_extent()
            assert box.x0 >= inside.x0 - 1, text.get_text()
            assert box.x1 <= inside.x1 + 1, text.get_text()
