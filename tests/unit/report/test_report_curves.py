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
from storebench.report.facts import derive
from storebench.report.frame import to_frame
from storebench.report.plots.cold_curve import cold_answer
from storebench.report.plots.curve import curve
from storebench.report.plots.steady_state import steady_answer
from storebench.report.texts.headline import headline
from storebench.report.texts.notes import cache_notes
from storebench.results import Record, ResidencyPoint
from storebench.runs.records import STEPS_DIR, append_records
from storebench.worker.portion import portion_sums
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
        wait_ms=sum(waits) / STEPS,
        compute_ms=0,
        compute="none",
        model="none",
        fetch_ms=0.1,
        **changes,
    )
    if record.portion is not None:
        steps = steps_table(record, wait_ns=(np.array(waits) * 1e6).astype(np.int64))
        first = portion_sums({str(name): column.to_numpy()[:COLD] for name, column in steps.items()})
        part = portion_of(record, share=COLD / STEPS, asked_frac=COLD * 32 / 4000, **first)
        points = [
            ResidencyPoint(
                elapsed_s=steps["start_ns"][n] / 1e9,
                asked_frac=n * 32 / 4000,
                resident_frac=min(1.0, n * n * 32 / 4000),
            )
            for n in range(STEPS)
        ]
        assert record.cache is not None
        facts = dataclasses.replace(record.cache, curve=tuple(points))
        record = dataclasses.replace(record, portion=part, cache=facts)
    return record, waits


def lines(ax: Axes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {str(line.get_label()): (line.get_xdata(), line.get_ydata()) for line in ax.lines}  # type: ignore[misc]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    run = tmp_path_factory.mktemp("curves") / "run"
    return storebench.load_results(
        write(run, [cold("png", 64, 64), cold("lmdb", 320, 8), cold("memory:native", 1, 1)])
    )


def test_the_cold_part_is_drawn_at_its_rate_and_ends_at_its_share(results: pd.DataFrame) -> None:
    shares, rates = lines(storebench.plot_cold_curve(results))["LMDB"]
    assert shares[-1] == pytest.approx(100 * COLD * 32 / 4000)
    assert rates == pytest.approx([100.0] * len(rates))


def test_a_rate_with_workers_is_that_of_a_batch_of_each(tmp_path: Path) -> None:
    """Batches of two workers arrive in pairs: a rate of single steps would alternate between two extremes."""
    record = make_record("lmdb", compute_ms=0, compute="none", model="none", cache="warm", workers=2)
    table = storebench.load_results(write(tmp_path / "run", [(record, [63.0, 1.0] * (STEPS // 2))]))
    [row] = summarise(table)[0].rows
    found = curve(row, growing=True)
    assert found is not None
    assert len(found.samples_per_s) > 3
    assert found.samples_per_s == pytest.approx([1000.0] * len(found.samples_per_s))


def test_the_whole_epoch_is_drawn_but_no_arrays_in_memory(results: pd.DataFrame) -> None:
    axes = storebench.plot_cold_curve(results)
    whole = [line for line in axes.lines if str(line.get_label()).startswith("_")]
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


def test_the_answer_gives_the_cold_rate_beside_the_whole_epochs(results: pd.DataFrame) -> None:
    said = cold_answer(summarise(results))
    assert said.startswith("PNG files and LMDB were cold until 3.2% of the store had been requested; ")
    assert "LMDB gave 100 samples/s while cold (up to 3.2%) and 1,560 over the entire epoch" in said


def test_an_upper_bound_of_a_cold_rate_is_told_as_one() -> None:
    record, _ = cold("lmdb", 320, 8)
    assert record.portion is not None
    bounded = dataclasses.replace(record, portion=dataclasses.replace(record.portion, upper_bound=True))
    ranks = dataclasses.replace(bounded, cell=dataclasses.replace(record.cell, ranks=2))
    cells = summarise(to_frame([(one, Path("run/records.jsonl")) for one in (bounded, ranks)]))
    assert "LMDB gave at most 100 samples/s while cold" in cold_answer(cells)
    assert "LMDB gives at most 100" in headline(derive(cells[:1])).answer
    (note,) = [one for one in cache_notes(cells) if one.startswith("At most = ")]
    assert "resident after the first step (LMDB)" in note


def test_records_of_an_earlier_release_are_drawn_without_a_cold_part(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [cold("lmdb", 320, 8, portion=None), cold("png", 64, 64, portion=None)])
    old = storebench.load_results(run)
    axes = storebench.plot_cold_curve(old)
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 1
    assert len(lines(axes)["LMDB"][0]) == 0
    assert "cold start, whole epoch" in str([text.get_text() for text in figure.legends[-1].get_texts()])
    assert "no cold rate is given" in cold_answer(summarise(old))


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


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_cold_part_of_fewer_than_three_batches_is_no_curve(batches: int, tmp_path: Path) -> None:
    record, waits = cold("lmdb", 320, 8)
    assert record.portion is not None
    record = dataclasses.replace(record, portion=dataclasses.replace(record.portion, steps=batches))
    run = write(tmp_path / "run", [(record, waits)])
    write_report(run, tmp_path / "report", allow_invalid=True)
    drawn = list((tmp_path / "report").glob("cold-curve*.svg"))
    said = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert bool(drawn) is (batches >= 3)
    why = f"is not drawn where no cell was cold for more than {batches} step"
    assert (why in said) is (batches < 3)


def test_a_rate_of_one_cold_batch_is_not_held_against_that_of_an_epoch() -> None:
    (short, _), (long, _) = cold("lmdb", 320, 8), cold("png", 64, 64)
    assert short.portion is not None
    short = dataclasses.replace(short, portion=dataclasses.replace(short.portion, steps=1))
    cells = summarise(to_frame((record, Path("run/records.jsonl")) for record in (short, long)))
    said = cold_answer(cells)
    assert "LMDB gave" not in said
    assert said.endswith("over the entire epoch. LMDB was cold for 1 step only.")


def test_an_epoch_that_stays_cold_has_no_rate_after_it() -> None:
    record, _ = cold("png", 64, 64)
    assert record.portion is not None
    record = dataclasses.replace(record, portion=dataclasses.replace(record.portion, steps=STEPS))
    cells = summarise(to_frame([(record, Path("run/records.jsonl"))]))
    assert cold_answer(cells) == "PNG files were cold throughout the epoch."


def test_a_cell_that_was_cold_throughout_and_is_an_upper_bound_says_why() -> None:
    record, _ = cold("lmdb", 64, 64)
    assert record.portion is not None
    risen = dataclasses.replace(record.portion, steps=STEPS, drift=3.14, upper_bound=True)
    cells = summarise(to_frame([(dataclasses.replace(record, portion=risen), Path("run/records.jsonl"))]))
    why = "something other than the device may have served the later"
    assert cold_answer(cells).startswith("LMDB was cold throughout the epoch, as far as resident pages show.")
    assert f"Its rate rose 3.1-fold within it, so that {why} steps" in cold_answer(cells)
    (note,) = [one for one in cache_notes(cells) if one.startswith("At most = ")]
    assert f"the rate rose within the cold steps (LMDB, 3.1-fold), so that {why} ones" in note
    assert "resident after the first step" not in note


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


def test_shared_pages_explain_a_cold_store_that_is_resident() -> None:
    record, _ = cold("lmdb", 64, 64)
    assert record.portion is not None
    shared = dataclasses.replace(record.portion, steps=STEPS, drift=3.0, shared_drift=4.0)
    cells = summarise(to_frame([(dataclasses.replace(record, portion=shared), Path("run/records.jsonl"))]))
    assert cold_answer(cells) == (
        "LMDB was cold throughout the epoch. Several samples share a page (LMDB): each request also brings in samples that were"
        " not requested, so more of the store is resident and the rate rises, but it counts as cold."
    )
