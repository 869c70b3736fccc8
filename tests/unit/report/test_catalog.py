"""The list of plots: every module that draws one is on it, and a line is all that another one takes."""

import importlib
import pkgutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import storebench
import storebench.report.plots
from storebench.report import catalog
from storebench.report.build import write_report
from storebench.report.catalog import PLOTS, plots
from storebench.report.cells import summarise
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import MOST_CELLS, Selection, drawable, with_count
from storebench.report.plots.style import WRAP, new_axes
from storebench.results import Record
from tests.support.planted import (
    make_record,
    paper_records,
    replicates,
    with_job,
    write_run,
)
from tests.support.planted_trainers import contest

LIMIT: dict[str, Any] = {"cache": "limited", "memory_bytes": 300 << 20}


def ladder_records() -> list[Record]:
    """Plant the rungs of LMDBIO's ladder from `lmdb` to the direct reader with its defaults."""
    alone = {"compute": "none", "workers": 1}
    options = ((), (("readahead", "off"),))
    return [
        record
        for name, reader_options in (("lmdb", options[0]), ("lmdb", options[1]), ("lmdb:direct", options[0]))
        for record in replicates(name, [20.0] * 3, reader_options=reader_options, **alone)
    ]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Return the facts of one dataset whose records can make every plot."""
    records = paper_records("cold") + paper_records("warm") + ladder_records()
    records += replicates("lmdb+png", [60.0] * 3, bytes_on_disk=1 << 30) + replicates("files+raw", [30.0] * 3)
    records += replicates("lmdb", [3.0] * 3, workers=2)
    for sync, exposed_ms in (("overlapped", 1.0), ("after", 2.0)):
        jobs = replicates("lmdb", [3.0] * 3, ranks=2, sync=sync)
        records += [with_job(record, exposed_ms=exposed_ms) for record in jobs]
    records += contest([0.01, 0.02, 0.015])
    records += [make_record("lmdb", **LIMIT)]
    run = write_run(tmp_path_factory.mktemp("catalog") / "run", records, with_steps=True)
    return derive(summarise(storebench.load_results(run)))


@pytest.fixture(scope="module")
def drawn(facts: Facts) -> list[Plot]:
    return plots(facts, "planted")


def drawing_modules() -> list[ModuleType]:
    package = storebench.report.plots
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    return [module for module in modules if hasattr(module, "drawn")]


def test_every_module_that_draws_a_plot_is_on_the_list_once() -> None:
    modules = drawing_modules()
    assert len(modules) > 10
    assert sorted(draw.__module__ for draw in PLOTS) == sorted(module.__name__ for module in modules)


def test_records_of_every_kind_make_every_plot(drawn: list[Plot]) -> None:
    questions = [plot.question for plot in drawn]
    lacking = [
        module.__name__
        for module in drawing_modules()
        if not any(question.startswith(module.QUESTION) for question in questions)
    ]
    assert lacking == []


def test_the_title_of_a_plot_is_its_question_and_its_answer_one_sentence(drawn: list[Plot]) -> None:
    for plot in drawn:
        figure = plot.ax.get_figure(root=True)
        assert isinstance(figure, Figure)
        titles = [legend.get_title().get_text() for legend in figure.legends]
        assert textwrap.fill(plot.question, WRAP - 24) in titles, plot.name
        assert plot.question.endswith("?"), plot.name
        assert plot.answer.endswith("."), plot.name


def test_names_of_plots_are_unique_and_end_with_the_dataset(drawn: list[Plot]) -> None:
    names = [plot.name for plot in drawn]
    assert len(set(names)) == len(names)
    assert all(name.endswith("-planted") for name in names)
    assert names[:3] == ["roofline-planted", "tournament-planted", "throughput-planted"]


def another(selection: Selection) -> Iterator[Plot]:
    """Yield a plot that nobody has thought of yet."""

    def draw() -> Axes:
        ax = new_axes()
        ax.plot([cell.cell.workers for cell in selection.measured])
        return ax

    yield Plot(name="another", question="Is another plot one line?", answer="Yes, it is.", draw=draw)


def test_another_plot_is_a_function_and_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(catalog, "PLOTS", (another, *catalog.PLOTS[:1]))
    write_report(write_run(tmp_path / "run", [make_record("png"), make_record("lmdb")]), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").glob("another-*")} == {
        "another-imagenet-4000.svg",
        "another-imagenet-4000.png",
    }
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "**Is another plot one line?** Yes, it is." in page
    assert "Plot: Is another plot one line? Yes, it is." in (tmp_path / "out" / "report.html").read_text()


def test_a_plot_draws_no_more_cells_than_fit_and_says_so() -> None:
    many = [
        make_record("lmdb:direct", reader_options=(("window_mib", str(n)),)) for n in range(MOST_CELLS + 1)
    ]
    cells = summarise(to_frame((record, Path("run/records.jsonl")) for record in many))
    assert len(drawable(cells)) == MOST_CELLS
    assert with_count("Told.", cells[:-1]) == "Told."
    assert with_count("Told.", cells).startswith(f"Told. Drawn are {MOST_CELLS} of {MOST_CELLS + 1} cells")


def test_a_dataset_without_a_measured_cell_makes_no_plot_of_its_panel() -> None:
    old = [make_record(name, portion=None, **LIMIT) for name in ("png", "lmdb")]
    cells = summarise(to_frame((record, Path("run/records.jsonl")) for record in old))
    selection = Selection(facts=derive(cells))
    assert (selection.panel, selection.measured, selection.null) == (None, (), ())
    assert selection.alike("cache") == []
    assert selection.steps is None
    assert plots(derive(cells), "x") == []
