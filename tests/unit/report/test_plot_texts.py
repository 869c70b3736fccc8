"""Every text of every plot is inside the plot, and none lies on another, however long names and large figures are."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

import storebench
from storebench.report.catalog import PLOTS, plots
from storebench.report.cells import summarise
from storebench.report.facts import Facts, derive
from storebench.report.plots.plot import Plot
from storebench.report.plots.selection import Selection
from storebench.results import Ceilings, Record
from tests.support.planted import PAYLOAD, make_record, paper_records, replicates, write_run

_SLACK = 1.0
"""Pixels by which texts may touch: boxes include the room above and below letters."""

_LIMIT: dict[str, Any] = {"cache": "limited", "memory_bytes": 300 << 20}


def usual() -> list[Record]:
    """Plant what makes every plot but the ladder."""
    records = paper_records("cold", handoff_ms=0.3) + paper_records("warm")
    records += replicates("lmdb+png", [60.0, 61.0, 62.0], bytes_on_disk=1 << 30)
    records += replicates("files+raw", [30.0, 31.0, 32.0]) + replicates("jpeg", [40.0, 41.0, 42.0])
    records += replicates("lmdb", [3.0, 3.1, 3.2], workers=2) + replicates(
        "png", [70.0, 71.0, 70.0], workers=16
    )
    return [*records, make_record("lmdb", **_LIMIT), make_record("png", **_LIMIT)]


def ladder() -> list[Record]:
    alone: dict[str, Any] = {"compute": "none", "compute_ms": 0.0}
    rungs: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
        ("lmdb", ()), ("lmdb", (("readahead", "off"),)), ("lmdb:direct", ()),
    )  # fmt: skip
    return [
        record
        for workers in (1, 2, 16)
        for name, options in rungs
        for record in replicates(name, [20.0, 21.0, 22.0], reader_options=options, workers=workers, **alone)
    ] + [
        record
        for ranks in (1, 2, 4)
        for share in ("none", "node")[:ranks]
        for name, options in rungs
        if share == "none" or not options
        for record in replicates(name, [90.0, 91.0, 93.0], reader_options=options, ranks=ranks, share=share)
    ]


def long_names() -> list[Record]:
    """Plant more cells than a plot draws, with names of two lines' length and rates of seven digits."""
    names = [(("keep_leaf", "on"), ("readahead", "off"), ("window_mib", str(1000 + n))) for n in range(25)]
    waits = [0.001 * 1.3**n for n in range(25)]
    return [
        make_record(
            "lmdb:direct", replicate=n, reader_options=options, wait_ms=wait * (1 + n / 9), compute_ms=0.001,
            fetch_ms=wait / 2, prep_ms=0.0, origin="derived", amplification=1234.5678, batch_size=256,
        )
        for options, wait in zip(names, waits, strict=True)
        for n in range(2)
    ]  # fmt: skip


def wide_intervals() -> list[Record]:
    """Plant rates whose intervals end far beyond the figures."""
    records = replicates("png", [5000.0, 90.0, 700.0]) + replicates("lmdb", [900.0, 1.0, 30.0])
    return records + replicates("hdf5", [9000.0, 9100.0, 9050.0], compute_ms=0.01)


def yardsticks() -> list[Record]:
    """Plant rates near the yardsticks of their machine, whose names are the longest of any legend."""
    ceilings = Ceilings(
        copy_ceiling_samples_per_s=4_123.0,
        device_random_1_bytes_per_s=4_840.0 * PAYLOAD["raw"],
        device_best_bytes_per_s=4_950.0 * PAYLOAD["raw"],
    )
    return [dataclasses.replace(one, ceilings=ceilings) for one in usual()]


PLANTED = {
    "usual": usual,
    "yardsticks": yardsticks,
    "ladder": ladder,
    "long names": long_names,
    "wide intervals": wide_intervals,
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.full if name in {"usual", "yardsticks"} else ())
        for name in PLANTED
    ],
)
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    run = write_run(tmp_path_factory.mktemp("texts") / "run", PLANTED[request.param](), with_steps=True)
    return derive(summarise(storebench.load_results(run)))


def shown(axis: Axis) -> Iterator[Text]:
    """Yield the labels of the ticks that are drawn, and that of the axis."""
    drawn: Any = axis  # which of its ticks are within the axis is known to it alone
    for tick in drawn._update_ticks():
        yield from (tick.label1, tick.label2)
    yield from (axis.label, axis.offsetText)


def texts_of(figure: Figure) -> list[Text]:
    """Return every text that is drawn."""
    found: list[Text] = []
    legends = list(figure.legends)
    for ax in figure.axes:
        own = ax.get_legend()
        legends += [own] if own is not None else []
        found += [*ax.texts, *shown(ax.xaxis), *shown(ax.yaxis)]
        titles: Any = ax
        found += [ax.title, titles._left_title, titles._right_title]
    for legend in legends:
        found += [legend.get_title(), *legend.get_texts()]
    return [one for one in found if one.get_visible() and one.get_text().strip()]


def misplaced(ax: Axes) -> list[str]:
    """Return the texts that leave the figure, and the pairs that lie on each other."""
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    # That of an annotation would include its arrow.
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts_of(figure)]
    edge = figure.bbox
    found = [
        f"outside: {text}"
        for text, box in boxes
        if box.x0 < edge.x0 - _SLACK
        or box.x1 > edge.x1 + _SLACK
        or box.y0 < edge.y0 - _SLACK
        or box.y1 > edge.y1 + _SLACK
    ]
    for (text, box), (other, there) in itertools.combinations(boxes, 2):
        across = min(box.x1, there.x1) - max(box.x0, there.x0)
        down = min(box.y1, there.y1) - max(box.y0, there.y0)
        found += [f"overlap: {text} | {other}"] if across > _SLACK and down > 2 * _SLACK else []
    return found


def test_texts_are_inside_their_plots_and_apart(facts: Facts) -> None:
    drawn = plots(facts, "planted")
    assert drawn
    found = {plot.name: misplaced(plot.ax) for plot in drawn}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_the_longest_yardstick_is_in_a_legend() -> None:
    plot = next(
        plot for plot in plots(derive(summarise_planted(yardsticks())), "x") if plot.name == "throughput-x"
    )
    figure = plot.ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    labels = [text.get_text() for text in texts_of(figure)]
    assert "device, one read per sample (a yardstick): 4,840" in labels


def test_a_text_that_is_outside_or_on_another_is_seen() -> None:
    cells = summarise_planted(paper_records())
    plot = next(one for draw in PLOTS for one in draw(Selection(facts=derive(cells))))
    assert isinstance(plot, Plot)
    assert misplaced(plot.ax) == []
    ax = plot.ax
    ax.text(1.4, 0.5, "far to the right", transform=ax.transAxes)
    first: Any = ax.texts[0]
    ax.annotate(first.get_text(), first.xy, xytext=(8, 0), textcoords="offset points", va="center")
    assert {one.partition(":")[0] for one in misplaced(ax)} == {"outside", "overlap"}


def summarise_planted(records: list[Record]) -> Any:
    from storebench.report.frame import to_frame

    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))
