"""The curve of a cold epoch and of a limited page cache: what is drawn is what was planted."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import storebench
from storebench.report.build import write_report
from storebench.report.cells import summarise
from storebench.report.frame import to_frame
from storebench.report.plots.cold_curve import cold_answer
from storebench.report.plots.curve import curve
from storebench.report.plots.steady_state import steady_answer
from storebench.results import Record, ResidencyPoint
from storebench.runs.records import STEPS_DIR, append_records
from storebench.worker.figures import with_cold_rates
from tests.support.planted import make_record, portion_of, steps_table

STEPS, COLD = 100, 4
LIMITED: dict[str, Any] = {"cache": "limited", "memory_bytes": 300_000_000}


def write(folder: Path, records: list[tuple[Record, list[float]]]) -> Path:
    """Write a run whose steps waited so many milliseconds."""
    (folder / STEPS_DIR).mkdir(parents=True)
    for number, (record, waits_ms) in enumerate(records):
        name = f"{STEPS_DIR}/{number}.parquet"
        waits = (np.array(waits_ms) * 1e6).astype(np.int64)
        steps_table(record, wait_ns=waits).to_parquet(folder / name)
        append_records(folder, [dataclasses.replace(record, steps_file=name)])
    return folder


def cold(backend: str, cold_ms: float, warm_ms: float, **changes: Any) -> tuple[Record, list[float]]:
    """Plant an epoch of 32 x 100 of 4,000 samples: four cold steps, after which the page cache feeds it."""
    waits = [cold_ms] * COLD + [warm_ms] * (STEPS - COLD)
    record = make_record(
        backend,
        cache="cold",
        wait_ms=sum(waits) / STEPS,
        compute_ms=0,
        compute="none",
        model="none",
        fetch_ms=0.1,
        **changes,
    )
    if record.cache is None or record.cache.applies_to == "open":
        return record, waits
    steps = steps_table(record, wait_ns=(np.array(waits) * 1e6).astype(np.int64))
    points = [
        ResidencyPoint(
            elapsed_s=steps["start_ns"][n] / 1e9,
            asked_frac=n * 32 / 4000,
            resident_frac=min(1.0, n * n * 32 / 4000),
        )
        for n in range(STEPS)
    ]
    record = dataclasses.replace(record, cache=dataclasses.replace(record.cache, curve=tuple(points)))
    return with_cold_rates(record, {str(name): column.to_numpy() for name, column in steps.items()}), waits


def lines(ax: Axes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {str(line.get_label()): (line.get_xdata(), line.get_ydata()) for line in ax.lines}  # type: ignore[misc]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    run = tmp_path_factory.mktemp("curves") / "run"
    return storebench.load_results(
        write(run, [cold("png", 64, 64), cold("lmdb", 320, 8), cold("memory:native", 1, 1)])
    )


def test_a_rate_with_workers_is_that_of_a_batch_of_each(tmp_path: Path) -> None:
    """Batches of two workers arrive in pairs: a rate of single steps would alternate between two extremes."""
    record = make_record("lmdb", compute_ms=0, compute="none", model="none", cache="warm", workers=2)
    table = storebench.load_results(write(tmp_path / "run", [(record, [63.0, 1.0] * (STEPS // 2))]))
    [row] = summarise(table)[0].rows
    found = curve(row, growing=True)
    assert found is not None
    assert len(found.samples_per_s) > 3
    assert found.samples_per_s == pytest.approx([1000.0] * len(found.samples_per_s))


def test_the_answer_gives_the_rates_of_the_store_that_changed_most(results: pd.DataFrame) -> None:
    said = cold_answer(summarise(results))
    assert said.startswith("LMDB changed most: 100 samples/s with 2.0% of the store read, 681 with 25%")


def test_the_whole_epoch_is_drawn_but_no_arrays_in_memory(results: pd.DataFrame) -> None:
    axes = storebench.plot_cold_curve(results)
    whole = [line for line in axes.lines if line.get_linewidth() > 2]
    ends = {tuple(np.asarray(line.get_xydata())[-1].round()) for line in whole}
    assert ends == {(80.0, 500), (80.0, 4000)}
    assert set(lines(axes)) >= {"PNG files", "LMDB"}
    assert not any("memory" in name for name in lines(axes))


def test_what_was_resident_is_drawn_below_against_what_was_asked_for(results: pd.DataFrame) -> None:
    figure = storebench.plot_cold_curve(results).get_figure()
    assert isinstance(figure, Figure)
    _, below = figure.axes
    asked, held = below.lines[0].get_xdata(), below.lines[0].get_ydata()
    assert np.asarray(held) == pytest.approx(np.minimum(100, np.asarray(asked) ** 2 * 40 / 32))
    assert below.get_ylabel() == "resident (%)"


def limited(
    backend: str, waits: tuple[float, ...], *, steady: bool = True, drift: float = 0.97
) -> list[tuple[Record, list[float]]]:
    found = []
    for epoch, wait in enumerate(waits):
        record = make_record(
            backend,
            epoch=epoch,
            wait_ms=wait,
            compute_ms=0,
            fetch_ms=0.1,
            prep_ms=0.1,
            portion=None,
            **LIMITED,
        )
        if steady and epoch == len(waits) - 1:
            assert record.cache is not None
            level = record.cache.resident_frac_before or 0.0
            curve = tuple(
                ResidencyPoint(elapsed_s=elapsed_s, asked_frac=asked, resident_frac=level)
                for elapsed_s, asked in ((0.0, 0.0), (wait * STEPS / 1000, 1.0))
            )
            record = dataclasses.replace(
                record,
                portion=portion_of(record, share=0.5, first_step=50, drift=drift),
                cache=dataclasses.replace(record.cache, curve=curve, resident_max_frac=level),
            )
        found.append((record, [wait] * STEPS))
    return found


def test_a_limited_cell_is_drawn_whole_with_its_steady_part_marked(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [*limited("lmdb", (8, 64)), *limited("png", (32, 32), steady=False)])
    results = storebench.load_results(run)
    axes = storebench.plot_steady_state(results)
    thick = [line for line in axes.lines if line.get_linewidth() > 2 and len(np.asarray(line.get_xdata()))]
    (steady,) = thick
    assert np.asarray(steady.get_ydata()) == pytest.approx(500)
    assert np.asarray(steady.get_xdata())[-1] == pytest.approx(1.8)
    said = steady_answer(summarise(results))
    assert "1 of 2 backends are shown to be steady with a page cache of 286 MiB" in said
    assert "by at most 3.1% (LMDB)" in said
    assert "not shown: PNG files" in said


def test_a_steady_part_whose_rate_still_moved_is_not_called_steady(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [*limited("lmdb", (8, 64)), *limited("png", (32, 32), drift=1.4)])
    said = steady_answer(summarise(storebench.load_results(run)))
    assert "1 of 2 backends are shown to be steady" in said
    assert "by at most 3.1% (LMDB)" in said
    assert "not shown: PNG files" in said


def test_a_disturbed_replicate_is_told_beside_the_median_one() -> None:
    records = [
        dataclasses.replace(record, replicate=number)
        for number, drift in enumerate((0.97, 5.0, 0.9))
        for record, _ in limited("lmdb", (64, 64), drift=drift)
    ]
    said = steady_answer(summarise(to_frame((record, Path("run/records.jsonl")) for record in records)))
    assert said == (
        "1 of 1 backends are shown to be steady with a page cache of 286 MiB; the second half of the steady part, in the median"
        " replicate of each, differs from the first by at most 11% (LMDB); of these, single replicates were not steady: LMDB (1 of 3,"
        " by up to 400%)."
    )


@pytest.mark.usefixtures("without_pictures")
def test_every_cold_and_limited_panel_has_its_curve_in_the_report(tmp_path: Path) -> None:
    records = [
        *[cold(name, 64, 8, readahead_kib=size) for name in ("png", "lmdb") for size in (None, 128)],
        *limited("lmdb", (64,), drift=1.0),
    ]
    write_report(write(tmp_path / "run", records), tmp_path / "report")
    names = {path.stem for path in (tmp_path / "report").glob("*.svg")}
    curves = [name for name in names if name.startswith(("cold-curve", "limited-286-mib"))]
    assert len(curves) == 3
    assert not any(name[-2:] == "-2" for name in names)


def test_each_limit_has_the_colour_of_its_store(tmp_path: Path) -> None:
    pairs = [(_sampled(one, 1), waits) for one, waits in limited("lmdb", (8, 64))]
    pairs += [(_sampled(one, 2), waits) for one, waits in limited("png", (8, 64))]
    axes = storebench.plot_steady_state(storebench.load_results(write(tmp_path / "run", pairs)))
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    dotted = {line.get_color() for ax in figure.axes for line in ax.lines if line.get_linestyle() == ":"}
    assert dotted == {line.get_color() for line in axes.lines if line.get_linewidth() > 2}
    assert len(dotted) == 2
    heads = [text.get_text().replace("\n", " ") for one in figure.legends for text in one.get_texts()]
    assert any("Dotted: the limit as a share of the store of its colour" in text for text in heads)


def _sampled(record: Record, part: int) -> Record:
    """Return a limited record with sampled residency, of a store that is smaller by a factor."""
    assert record.store is not None
    assert record.cache is not None
    point = ResidencyPoint(elapsed_s=0.0, asked_frac=0.1, resident_frac=0.1)
    store = dataclasses.replace(record.store, file_bytes=record.store.file_bytes // part)
    return dataclasses.replace(
        record, store=store, cache=dataclasses.replace(record.cache, curve=(point, point))
    )
