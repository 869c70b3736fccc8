"""Networks that are trained on a GPU test the roofline, and give the handoff on which its curves rest."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text

from storebench.accelerators import find_accelerator
from storebench.report.cells import CellSummary, summarise
from storebench.report.frame import to_frame
from storebench.report.plots.roofline import plot_roofline
from storebench.report.roofline import Roofline, point_keys, rooflines
from storebench.report.roofline_errors import Cause
from storebench.report.roofline_tables import error_table, starving_table
from storebench.report.texts.feeding import feeding_words, trained_words
from storebench.report.texts.roofline import delivering_sentences, handoff_sentence, roofline_answer
from storebench.results import Record
from tests.support.planted import make_record, portion_of
from tests.support.planted_roofline import BATCH, SPREAD, loader_records, point_records

ON_GPU: dict[str, Any] = {"device": "cuda", "workers": 2}


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def roofline_of(*records: Record) -> Roofline:
    (found,) = rooflines(cells_of(*records))
    return found


def trained(backend: str, rate: float, delivered: float, **changes: Any) -> list[Record]:
    """Return the replicates of a network that ingests `rate` images per second and trains `delivered` of them."""
    compute_ms = 1000 * BATCH / rate
    fields: dict[str, Any] = ON_GPU | {
        "model": "resnet50",
        "compute": "real",
        "batch_size": BATCH,
        "cache": "warm",
        "compute_ms": compute_ms,
        "h2d_ms": 0.0,
        "prep_ms": 0.0,
    }
    return [
        make_record(
            backend,
            replicate=replicate,
            **({"wait_ms": max(0.0, 1000 * BATCH / delivered - compute_ms) * part} | fields | changes),
        )
        for replicate, part in enumerate(SPREAD)
    ]


def test_a_network_on_a_gpu_is_a_point_and_one_on_the_cpu_is_none() -> None:
    loads = loader_records("png", 600.0, **ON_GPU)
    (point,) = roofline_of(*loads, *trained("png", 2000.0, 600.0)).points
    assert (point.ingestion.mid, point.delivered.mid) == pytest.approx((2000.0, 600.0), rel=0.01)
    assert (point.emulated, point.error) == (False, pytest.approx(0.0, abs=0.01))
    on_cpu = loader_records("png", 600.0, workers=2)
    assert roofline_of(*on_cpu, *trained("png", 2000.0, 600.0, device="cpu")).points == ()


@pytest.mark.parametrize(
    ("workers", "slowed"), [(2, 1 / (1 / 600 + 0.5e-3)), (0, 1 / (1 / 600 + 1 / 2000 + 1e-3))]
)
def test_crops_that_the_supply_rate_lacks_are_added_to_it(workers: int, slowed: float) -> None:
    """A millisecond per image is shared by two workers, and all of it is waited for without any."""
    changes = {"workers": workers, "prep_ms": 1.0 * BATCH}
    loads = loader_records("png", 600.0, device="cuda", workers=workers)
    (point,) = roofline_of(*loads, *trained("png", 2000.0, slowed, **changes)).points
    assert point.predicted == pytest.approx(slowed, rel=0.01)
    augmented = loader_records("png", 500.0, device="cuda", workers=workers, model="resnet50")
    both = {
        roofline.augmented: roofline
        for roofline in rooflines(cells_of(*loads, *augmented, *trained("png", 2000.0, slowed, **changes)))
    }
    assert both[False].points[0].predicted == pytest.approx(slowed, rel=0.01)
    included = 500.0 if workers else 1 / (1 / 500 + 1 / 2000)
    assert both[True].points[0].predicted == pytest.approx(included, rel=0.01)


def test_the_handoff_beside_a_gpu_is_the_one_that_counts() -> None:
    """A loader at full speed hands over while its workers take the cores: its handoff would starve a GPU that is fed."""
    loads = loader_records("lmdb", 15_000.0, **ON_GPU, handoff_ms=1.0)
    (alone,) = roofline_of(*loads).curves
    assert alone.starving.mid < 4000
    (curve,) = roofline_of(*loads, *trained("lmdb", 8000.0, 7900.0, handoff_ms=0.02)).curves
    assert curve.constant_s == pytest.approx(0.02e-3 / BATCH)
    assert curve.starving.mid == pytest.approx(15_000 / 0.9, rel=0.01)


def test_a_network_on_a_gpu_keeps_its_place_in_the_other_tables() -> None:
    loads = loader_records("png", 600.0, **ON_GPU)
    sleeps = [
        record
        for sleep_ms in (320.0, 100.0, 32.0)
        for record in point_records(
            "png", sleep_ms, 1000 * BATCH / max(sleep_ms, 1000 * BATCH / 600), **ON_GPU
        )
    ]
    found = roofline_of(*loads, *sleeps, *trained("png", 2000.0, 600.0))
    assert (len(found.points), found.speeds) == (4, 3)
    keys = point_keys([found], [])
    assert {point.cell.key in keys for point in found.points if point.emulated} == {True}
    assert {point.cell.key in keys for point in found.points if not point.emulated} == {False}


def test_the_table_of_errors_names_the_network() -> None:
    found = roofline_of(*loader_records("png", 600.0, **ON_GPU), *trained("png", 2000.0, 600.0))
    table = error_table([found])
    (row,) = table.rows
    assert row[table.head.index("step")] == "trains ResNet-50"


def test_a_plot_says_that_its_points_are_networks() -> None:
    records = [*loader_records("png", 600.0, **ON_GPU), *trained("png", 2000.0, 600.0)]
    sleeps = point_records("png", 100.0, 320.0, **ON_GPU)
    for more, words in (([], "networks on this GPU"), (sleeps, "networks on this GPU or compute EMULATED")):
        figure = plot_roofline(cells_of(*records, *more)).get_figure(root=True)
        assert figure is not None
        texts = " ".join(" ".join(text.get_text().split()) for text in figure.findobj(Text))
        assert f"Points: measured, {words}" in texts


def test_the_answer_tells_which_stores_feed_the_gpu() -> None:
    records = loader_records("png", 600.0, **ON_GPU) + loader_records("lmdb", 15_000.0, **ON_GPU)
    records += trained("null", 2000.0, 2000.0, cache="any")
    records += trained("png", 2000.0, 600.0) + trained("lmdb", 2000.0, 2000.0)
    records += trained("null", 100.0, 100.0, cache="any", model="caffenet")
    records += trained("png", 100.0, 100.0, model="caffenet")
    answer = roofline_answer(rooflines(cells_of(*records)))
    assert answer is not None
    assert "this GPU (ResNet-50 at 2,000" in answer
    assert "is kept busy at least 90% of its time by LMDB, starved by PNG files" in answer
    assert "this GPU (CaffeNet at 100" in answer
    assert "A100" not in answer, "the GPU itself says more"


def test_the_first_batch_of_a_cold_portion_is_in_its_rate() -> None:
    """An epoch of 25 steps begins with a wait that nothing overlaps with."""
    steps, first_s, rate = 25, 0.25, 1950.0
    delivered = BATCH * steps / (BATCH * steps / rate + first_s)
    loads = loader_records("png", 3000.0, **ON_GPU, cache="cold")
    records = trained("png", rate, delivered, cache="cold", steps=steps, time_to_first_batch_s=first_s)
    records = [dataclasses.replace(one, portion=portion_of(one, share=1.0)) for one in records]
    (point,) = roofline_of(*loads, *records).points
    assert point.explanation is not None
    assert point.explanation.cause is Cause.FIRST_BATCH
    assert point.explanation.error == pytest.approx(0.0, abs=0.02)


def test_a_first_batch_that_the_supply_rate_has_too_explains_nothing() -> None:
    """Both are slowed by it, so it is left out on both sides."""
    first_s, steps, supply, delivered = 0.2, 25, 1765.0, 1200.0
    begun: dict[str, Any] = ON_GPU | {"cache": "cold", "steps": steps, "time_to_first_batch_s": first_s}
    loads = [
        dataclasses.replace(one, portion=portion_of(one, share=1.0))
        for one in loader_records("png", supply, **begun)
    ]
    fed = [
        dataclasses.replace(one, portion=portion_of(one, share=1.0))
        for one in trained("png", 20_000.0, delivered, **begun)
    ]
    (point,) = roofline_of(*loads, *fed).points
    assert point.error == pytest.approx(supply / delivered - 1, abs=0.01)
    assert point.unexplained


def test_crops_of_files_that_are_resized_anyway_are_not_added_again() -> None:
    """Image files as they are take as long to prepare for a network as for nothing."""
    loads = loader_records("original", 442.0, **ON_GPU, prep_ms=2.4 * BATCH)
    (point,) = roofline_of(*loads, *trained("original", 2000.0, 442.0, prep_ms=2.3 * BATCH)).points
    assert point.error == pytest.approx(0.0, abs=0.01)


def test_a_store_beside_which_the_gpu_waited_does_not_feed_it() -> None:
    """Its own handoff is long, although that of another store gives the curve."""
    records = loader_records("png", 600.0, **ON_GPU) + loader_records("lmdb", 15_000.0, **ON_GPU)
    records += trained("png", 2000.0, 600.0) + trained("lmdb", 2000.0, 1300.0, handoff_ms=8.0)
    found = rooflines(cells_of(*records))
    answer = roofline_answer(found)
    assert answer is not None
    assert "is starved by PNG files, undecided for LMDB" in answer
    table = starving_table(found)
    told = {row[1]: row[-1] for row in table.rows}
    assert told["LMDB"] == "cannot be told: it was busy 65% of its time there"


def test_a_handoff_that_was_measured_alone_starves_no_accelerator() -> None:
    """It takes longest where nothing is computed. Beside an emulated accelerator it is what it is."""
    loads = loader_records("lmdb", 15_000.0, **ON_GPU, handoff_ms=1.0)
    (alone,) = roofline_of(*loads).curves
    assert alone.handed_alone
    assert alone.starving.mid < 4000
    assert [alone.feeding(rate) for rate in (3000.0, 5000.0, 20_000.0)] == [
        "feeds it",
        "cannot be told",
        "starves it",
    ]
    reason = "cannot be told: its handoff was measured with nothing to compute"
    assert feeding_words(alone, 5000.0) == reason
    network = trained("null", 5000.0, 5000.0, cache="any")
    found = roofline_of(*loads, *network)
    assert trained_words(found.curves[0], found.trained[0], 0.0) == reason
    sleeps = point_records("lmdb", 4.0, 1000 * BATCH / 5.0, **ON_GPU, handoff_ms=1.0)
    (beside,) = roofline_of(*loads, *sleeps).curves
    assert not beside.handed_alone
    assert [beside.feeding(rate) for rate in (3000.0, 5000.0)] == ["feeds it", "starves it"]
    assert not roofline_of(*loader_records("lmdb", 15_000.0, workers=0)).curves[0].handed_alone


def test_what_rests_on_a_handoff_measured_alone_is_called_a_bound() -> None:
    loads = loader_records("lmdb", 15_000.0, **ON_GPU, handoff_ms=4.0)
    fast = find_accelerator("fast=2470")
    bound = " ".join(delivering_sentences(roofline_of(*loads), fast, "in memory"))
    assert "(busy at least 76%)" in bound
    assert "By these figures none" not in bound
    longest = (
        "This was measured with nothing to compute, where it takes longest, so they may feed faster ones."
    )
    assert longest in handoff_sentence([roofline_of(*loads)])
    sleeps = point_records("lmdb", 13.0, 1000 * BATCH / 17.0, **ON_GPU, handoff_ms=4.0)
    known = roofline_of(*loads, *sleeps)
    assert "(busy 76%)" in " ".join(delivering_sentences(known, fast, "in memory"))
    assert longest not in handoff_sentence([known])
