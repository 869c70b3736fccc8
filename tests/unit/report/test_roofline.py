"""The storage roofline, checked with planted records whose supply and ingestion rates are known."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.report.cells import CellSummary, summarise
from storebench.report.facts import derive
from storebench.report.frame import to_frame
from storebench.report.roofline import Roofline, rooflines
from storebench.report.roofline_curve import Feeding, Point
from storebench.report.roofline_errors import Cause
from storebench.report.roofline_model import RooflineModel
from storebench.report.roofline_tables import starving_table
from storebench.report.texts.feeding import feeding_of
from storebench.report.texts.roofline import roofline_answer
from storebench.results import Percentiles, Record
from tests.support.planted import make_record, portion_of
from tests.support.planted_roofline import (
    BATCH,
    SLEEPS_MS,
    SPREAD,
    curve_records,
    loader_records,
    point_records,
)

LIMITED: dict[str, Any] = {"cache": "limited", "memory_bytes": 128 << 20}


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def roofline_of(*records: Record) -> Roofline:
    (found,) = rooflines(cells_of(*records))
    return found


def test_with_workers_the_slower_side_decides() -> None:
    model = RooflineModel(supply=600.0, constant_s=0.0, overlap=True)
    assert [model.delivered(rate) for rate in (100.0, 600.0, 9000.0)] == pytest.approx([100.0, 600.0, 600.0])
    assert model.starving == pytest.approx(600 / 0.9)


def test_without_workers_both_sides_take_their_time() -> None:
    model = RooflineModel(supply=300.0, constant_s=0.0, overlap=False)
    assert model.delivered(600.0) == pytest.approx(200.0)
    assert model.starving == pytest.approx(300 / 9)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("constant_s", [0.0, 1e-5, 1e-3])
def test_at_its_starving_point_an_accelerator_is_busy_nine_tenths(overlap: bool, constant_s: float) -> None:
    model = RooflineModel(supply=500.0, constant_s=constant_s, overlap=overlap)
    assert model.delivered(model.starving) / model.starving == pytest.approx(0.9)
    assert model.delivered(1.1 * model.starving) / (1.1 * model.starving) < 0.9


@pytest.mark.parametrize(("workers", "starving"), [(2, 600 / 0.9), (0, 600 / 9)])
def test_known_rates_give_their_curve_and_no_error(workers: int, starving: float) -> None:
    found = roofline_of(*curve_records("png", 600.0, workers=workers))
    (curve,) = found.curves
    assert curve.supply.mid == pytest.approx(600.0)
    assert curve.starving.mid == pytest.approx(starving, rel=1e-6)
    assert curve.starving.lo < starving < curve.starving.hi
    assert [point.ingestion.mid for point in curve.points] == pytest.approx(
        [1000 * BATCH / sleep for sleep in SLEEPS_MS]
    )
    assert found.errors is not None
    assert (found.errors.count, found.errors.above) == (5, 0)
    assert found.errors.most < 0.01
    assert found.curve("png") is curve
    assert found.curve("lmdb") is None


def test_the_handoff_is_measured_and_taken_off_every_step() -> None:
    handing = {"workers": 2, "handoff_ms": 1.0}
    step_ms = 4.0
    records = loader_records("lmdb", 20_000.0, **handing)
    records += point_records("lmdb", step_ms, 1000 * BATCH / (step_ms + 1.0), **handing)
    (curve,) = roofline_of(*records).curves
    assert curve.constant_s == pytest.approx(1e-3 / BATCH)
    assert curve.points[0].error == pytest.approx(0.0, abs=0.01)
    assert curve.starving.mid == pytest.approx((1 / 0.9 - 1) * BATCH / 1e-3, rel=0.01)


@pytest.mark.parametrize(("workers", "constant_ms"), [(2, 1.0), (0, 0.0)])
def test_points_in_memory_give_the_handoff_of_a_limited_store(workers: int, constant_ms: float) -> None:
    slow = loader_records("lmdb", 5_000.0, workers=workers, handoff_ms=3.0, **LIMITED)
    warm = loader_records("lmdb", 20_000.0, workers=workers, handoff_ms=2.0)
    warm += point_records("lmdb", 4.0, 1000 * BATCH / 5.0, workers=workers, handoff_ms=1.0)
    limited, _ = rooflines(cells_of(*slow, *warm))
    assert limited.first.cell.cache == "limited"
    assert limited.curves[0].constant_s == pytest.approx(constant_ms / 1000 / BATCH)
    assert limited.points == ()
    own = point_records("lmdb", 4.0, 1000 * BATCH / 7.0, workers=workers, handoff_ms=2.5, **LIMITED)
    limited, _ = rooflines(cells_of(*slow, *own, *warm))
    assert limited.curves[0].constant_s == pytest.approx(constant_ms / 1000 / BATCH)


def test_the_handoff_of_a_store_without_points_is_that_of_its_loader() -> None:
    """A store that only ever loaded at full speed measured its handoff while its workers took the cores."""
    records = loader_records("lmdb:direct", 5_000.0, workers=2, handoff_ms=5.0, **LIMITED)
    records += loader_records("png", 600.0, workers=2, handoff_ms=4.0)
    records += point_records("png", 100.0, 320.0, workers=2, handoff_ms=0.5)
    limited, _ = rooflines(cells_of(*records))
    (direct,) = limited.curves
    assert direct.backend == "lmdb:direct"
    assert direct.constant_s == pytest.approx(0.5e-3 / BATCH)
    assert direct.starving.mid == pytest.approx(5_000 / 0.9)


@pytest.mark.parametrize(("rounds", "constant_ms"), [(1, 1.0), (2, 1.0), (3, 0.25)])
def test_points_of_few_rounds_do_not_shape_the_curve_they_test(rounds: int, constant_ms: float) -> None:
    records = loader_records("lmdb", 20_000.0, workers=2, handoff_ms=2.0)
    records += point_records("lmdb", 4.0, 1000 * BATCH / 5.0, workers=2, handoff_ms=1.0)
    records += point_records(
        "png", 100.0, 320.0, workers=2, handoff_ms=0.25, spread=SPREAD[:rounds]
    ) + loader_records("png", 600.0, workers=2, handoff_ms=4.0)
    for curve in roofline_of(*records).curves:
        assert curve.constant_s == pytest.approx(constant_ms / 1000 / BATCH)
        assert len(curve.points) == 1
        assert curve.certain


def missed(delivered: float, sleep_ms: float = 100.0, **changes: Any) -> Point:
    """Return the point of a loader of 600 samples per second that delivers another rate than predicted."""
    fields: dict[str, Any] = {"workers": 2, "fetch_ms": 2 * 1000 * BATCH / 600}
    records = loader_records("png", 600.0, workers=2)
    records += point_records("png", sleep_ms, delivered, **(fields | changes))
    (curve,) = roofline_of(*records).curves
    (point,) = curve.points
    return point


def test_a_planted_error_is_shown_and_unexplained() -> None:
    point = missed(200.0)
    assert point.error == pytest.approx(320 / 200 - 1, rel=1e-3)
    assert point.explanation is None
    assert point.unexplained


def test_an_error_of_a_fifth_needs_no_explanation() -> None:
    point = missed(320 / 1.19)
    assert point.error == pytest.approx(0.19, rel=1e-3)
    assert (point.explanation, point.unexplained) == (None, False)


def test_slower_producers_explain_a_point_below_the_curve() -> None:
    point = missed(300.0, 32.0, fetch_ms=4 * 1000 * BATCH / 600)
    assert point.error == pytest.approx(1.0, rel=0.02)
    assert point.explanation is not None
    assert point.explanation.cause is Cause.PRODUCERS
    assert point.explanation.figure == pytest.approx(2.0, rel=0.02)
    assert point.explanation.error == pytest.approx(0.0, abs=0.02)


def test_slower_producers_without_workers_take_their_own_time() -> None:
    supply, sleep_ms = 600.0, 10.0
    batch_ms = 1000 * BATCH / supply
    records = loader_records("png", supply)
    records += point_records("png", sleep_ms, 1000 * BATCH / (sleep_ms + 2 * batch_ms), fetch_ms=2 * batch_ms)
    (point,) = roofline_of(*records).points
    assert point.explanation is not None
    assert point.explanation.cause is Cause.PRODUCERS
    assert point.explanation.error == pytest.approx(0.0, abs=0.02)


def test_a_first_batch_explains_a_short_epoch() -> None:
    steps, sleep_ms, first_ms = 10, 100.0, 500.0
    delivered = 1000 * BATCH * steps / (steps * sleep_ms + first_ms)
    changes: dict[str, Any] = {"warmup_steps": 0, "steps": steps, "time_to_first_batch_s": first_ms / 1000}
    point = missed(delivered, sleep_ms, **changes)
    assert point.explanation is not None
    assert point.explanation.cause is Cause.FIRST_BATCH
    assert point.explanation.figure == pytest.approx(500 / 1500, rel=0.02)
    assert missed(delivered, sleep_ms, **(changes | {"warmup_steps": 2})).unexplained


def test_a_handoff_explains_a_step_that_is_too_short_for_it() -> None:
    records = loader_records("lmdb", 100_000.0, workers=2)
    other = {"workers": 2, "fetch_ms": 0.64}
    records += point_records("lmdb", 100.0, 1000 * BATCH / 100.1, handoff_ms=0.1, **other)
    records += point_records("lmdb", 1.0, 1000 * BATCH / 3.0, handoff_ms=2.0, **other)
    (curve,) = roofline_of(*records).curves
    fast = curve.points[-1]
    assert fast.explanation is not None
    assert fast.explanation.cause is Cause.HANDOFF
    assert fast.explanation.figure == pytest.approx(2.0, rel=0.05)


def test_uneven_batches_explain_a_point_at_the_knee_only() -> None:
    waits = Percentiles(p50=0, p95=200_000_000, p99=300_000_000, max=300_000_000)
    near = missed(400.0, 1000 * BATCH / 700, data_wait_ns=waits)
    assert near.explanation is not None
    assert near.explanation.cause is Cause.JITTER
    even = Percentiles(p50=30_000_000, p95=40_000_000, p99=41_000_000, max=41_000_000)
    assert missed(400.0, 1000 * BATCH / 700, data_wait_ns=even).unexplained
    far = Percentiles(p50=0, p95=500_000_000, p99=500_000_000, max=500_000_000)
    assert missed(100.0, 200.0, data_wait_ns=far).unexplained, "an accelerator of a quarter of the rate"


def test_replicates_that_differ_by_more_explain_an_error() -> None:
    point = missed(220.0, 100.0, spread=(0.2, 1.0, 3.0))
    assert point.explanation is not None
    assert point.explanation.cause is Cause.SPREAD


def portioned(record: Record, **changes: Any) -> Record:
    """Return a record with its first steps as its portion."""
    return dataclasses.replace(record, portion=portion_of(record, **changes))


def test_without_a_cell_that_only_loads_there_is_no_roofline() -> None:
    records = [*point_records("png", 10.0, 500.0), make_record("png"), make_record("null")]
    assert rooflines(cells_of(*records)) == []
    facts = derive(cells_of(*records))
    assert facts.rooflines == ()
    assert facts.main is not None


def test_nothing_measured_makes_no_roofline() -> None:
    assert rooflines([]) == []
    failed = [make_record("png", compute="none", status="failed", failure="broken")]
    assert rooflines(cells_of(*failed)) == []


@pytest.mark.parametrize(
    "other",
    [{"workers": 1}, {"batch_size": 64}, {"cache": "any"}, {"loader": "ring", "workers": 2}, {"threads": 2}],
    ids="-".join,
)
def test_a_point_belongs_to_the_curve_of_its_own_setting(other: dict[str, Any]) -> None:
    records = loader_records("png", 600.0, workers=2)
    records += point_records("png", 100.0, 320.0, **({"workers": 2} | other))
    assert roofline_of(*records).points == ()


def test_length_and_loader_may_differ_where_they_change_nothing() -> None:
    records = loader_records("png", 600.0, max_steps=10, loader="ring")
    records += point_records("png", 100.0, 200.0, passes=3, loader="threads")
    assert len(roofline_of(*records).points) == 1


def test_loaders_that_augment_have_a_roofline_of_their_own() -> None:
    plain, augmenting = rooflines(
        cells_of(*loader_records("png", 600.0), *loader_records("png", 500.0, model="caffenet"))
    )
    assert (plain.augmented, augmenting.augmented) == (False, True)
    assert plain.first.cell.model == "none"


def test_settings_decide_which_roofline_comes_first() -> None:
    found = rooflines(
        cells_of(
            *loader_records("png", 1.0),
            *loader_records("png", 900.0, workers=2),
            *loader_records("png", 5.0, workers=2, readahead_kib=8192, **LIMITED),
            *loader_records("png", 7.0, workers=2, readahead_kib=128, **LIMITED),
            *loader_records("png", 3.0, workers=2, cache="cold"),
        )
    )
    order = [(one.first.cell.workers, one.first.cell.cache, one.first.cell.readahead_kib) for one in found]
    assert order == [
        (2, "limited", 128),
        (2, "limited", 8192),
        (2, "warm", None),
        (2, "cold", None),
        (0, "warm", None),
    ]


def test_points_rank_nothing_and_have_no_panel_of_their_own() -> None:
    facts = derive(cells_of(*curve_records("png", 600.0), *curve_records("lmdb", 6000.0)))
    assert {panel.first.cell.compute for panel in facts.panels} == {"none"}
    assert {decision.cell.cell.compute for decision in facts.decisions.found.values()} == {"none"}
    assert len(facts.cells) == 12
    (part,) = facts.datasets.values()
    assert part.rooflines == facts.rooflines
    assert len(facts.rooflines[0].points) == 10


def test_one_speed_of_emulated_compute_is_a_setting_like_others() -> None:
    records = curve_records("png", 600.0, sleeps_ms=[10.0]) + curve_records("lmdb", 6000.0, sleeps_ms=[10.0])
    facts = derive(cells_of(*records))
    assert {panel.first.cell.compute for panel in facts.panels} == {"none", "emulated:10"}


@pytest.mark.parametrize(("fetch_ms", "handoff_ms"), [(12.0, 0.25), (24.0, 4.0)])
def test_a_point_whose_producers_fall_behind_gives_no_handoff(fetch_ms: float, handoff_ms: float) -> None:
    """Two workers need half of the fetch for a batch, and the accelerator 10 ms; receiving batches that are late hides nothing."""
    loads = loader_records("lmdb", 6000.0, workers=2, handoff_ms=4.0)
    sleeps = point_records("lmdb", 10.0, 3000.0, workers=2, handoff_ms=0.25, fetch_ms=fetch_ms)
    (curve,) = roofline_of(*loads, *sleeps).curves
    assert curve.constant_s == pytest.approx(handoff_ms / 1000 / BATCH)
    assert curve.handed_alone is (handoff_ms == 4.0)


def test_a_sleep_beside_one_of_several_stores_is_a_point_alone() -> None:
    """It compares nothing, so it has no panel; a sleep that two stores share compares them, and so does one without a roofline."""
    loads = [*loader_records("png", 600.0, workers=2), *loader_records("lmdb", 6000.0, workers=2)]
    sleeps = point_records("lmdb", 10.0, 3200.0, workers=2)
    facts = derive(cells_of(*loads, *sleeps))
    assert {panel.first.cell.compute for panel in facts.panels} == {"none"}
    assert [point.cell.backend for point in facts.rooflines[0].points] == ["lmdb"]
    shared = derive(cells_of(*loads, *sleeps, *point_records("hdf5", 10.0, 3200.0, workers=2)))
    assert {panel.first.cell.compute for panel in shared.panels} == {"none", "emulated:10"}
    single = derive(cells_of(*loader_records("lmdb", 6000.0, workers=2), *sleeps))
    assert {panel.first.cell.compute for panel in single.panels} == {"none", "emulated:10"}


def test_the_network_of_this_machine_is_an_ingestion_rate() -> None:
    records = loader_records("png", 600.0)
    records += [make_record("png", replicate=n, compute_ms=900.0, batch_size=16) for n in range(3)]
    (trained,) = roofline_of(*records).trained
    assert trained.rate.mid == pytest.approx(16 / 0.9)
    records += [
        make_record("null", replicate=n, compute_ms=950.0, batch_size=16, wait_ms=0.0) for n in range(3)
    ]
    (trained,) = roofline_of(*records).trained
    assert trained.rate.mid == pytest.approx(16 / 0.95), "with nothing to load nothing disturbs it"


def test_a_network_of_another_dataset_or_machine_is_not_marked() -> None:
    records = [*loader_records("png", 600.0), make_record("png", dataset="mnist", size=None, model="lenet")]
    found = rooflines(cells_of(*records))
    assert [one.trained for one in found] == [()]


def feeding(rate: float, **changes: Any) -> Feeding:
    (curve,) = roofline_of(*loader_records("png", 900.0, workers=2, **changes)).curves
    return curve.feeding(rate)


def test_an_accelerator_is_fed_or_starved_outside_of_the_interval_only() -> None:
    assert feeding(900.0) is Feeding.FEEDS
    assert feeding(1100.0) is Feeding.STARVES
    assert feeding(1000.0) is Feeding.UNDECIDED
    assert feeding(500.0, spread=SPREAD[:2]) is Feeding.UNDECIDED, "two rounds decide nothing"


def test_a_rate_that_is_still_moving_decides_nothing() -> None:
    records = loader_records("lmdb", 900.0, workers=2, portion=None, **LIMITED)
    (curve,) = roofline_of(*(portioned(record, drift=3.0) for record in records)).curves
    assert not curve.decided
    assert curve.feeding(10.0) is Feeding.UNDECIDED


def test_a_wide_interval_is_not_called_decided() -> None:
    (curve,) = roofline_of(*loader_records("png", 900.0, spread=(0.5, 1.0, 2.0))).curves
    assert curve.certain
    assert not curve.decided


def test_the_band_of_a_curve_is_that_of_its_supply() -> None:
    (curve,) = roofline_of(*loader_records("png", 900.0, workers=2)).curves
    fast, slow = curve.delivered(1e6), curve.delivered(10.0)
    assert (fast.lo, fast.mid, fast.hi) == pytest.approx(
        (curve.supply.lo, curve.supply.mid, curve.supply.hi), rel=1e-3
    )
    assert (slow.mid, slow.lo, slow.hi) == pytest.approx((10.0, 10.0, 10.0))
    assert slow.n == 3


def test_a_starving_point_that_the_handoff_limits_has_its_uncertainty() -> None:
    records = [
        record
        for replicate, handoff_ms in enumerate((0.8, 1.0, 1.2))
        for record in [
            dataclasses.replace(
                loader_records("lmdb", 20_000.0, workers=2, handoff_ms=handoff_ms, spread=(1.0,))[0],
                replicate=replicate,
            )
        ]
    ]
    (curve,) = roofline_of(*records).curves
    middle = (1 / 0.9 - 1) * BATCH / 1e-3
    assert curve.starving.mid == pytest.approx(middle, rel=0.01)
    assert curve.starving.lo is not None
    assert curve.starving.hi is not None
    assert curve.starving.lo < middle / 1.2 < middle / 0.8 < curve.starving.hi


@pytest.mark.parametrize(
    ("prep_ms", "said"), [(1.0, "busy at least 90% of its time"), (160.0, "is undecided for PNG files")]
)
def test_a_network_is_fed_if_its_augmentation_leaves_the_time(prep_ms: float, said: str) -> None:
    # Reading alone feeds 1,000 images/s, and the network takes 500; 10 ms of augmentation per image would leave 180.
    beside = [
        make_record("png", replicate=n, compute_ms=32.0, batch_size=16, prep_ms=prep_ms) for n in range(3)
    ]
    found = roofline_of(*loader_records("png", 900.0, workers=2), *beside)
    assert said in (roofline_answer([found]) or "")
    (row,) = starving_table([found]).rows
    assert row[-1].startswith("yes" if prep_ms == 1.0 else "cannot be told: 0.")


def test_a_network_whose_augmentation_was_not_measured_is_not_called_fed() -> None:
    alone = [make_record("null", replicate=n, compute_ms=32.0, batch_size=16, wait_ms=0.0) for n in range(3)]
    found = roofline_of(*loader_records("png", 900.0, workers=2), *alone)
    assert "is undecided for PNG files" in (roofline_answer([found]) or "")


def of_network(supply: float, trained: tuple[float, ...], alpha: float) -> Feeding:
    """Return whether PNG files of three replicates feed a network of so many images/s in each."""
    beside = [
        make_record("png", replicate=n, compute_ms=16e3 / rate, batch_size=16)
        for n, rate in enumerate(trained)
    ]
    found = roofline_of(*loader_records("png", supply, workers=2), *beside).concluding(alpha)
    return feeding_of(found.curves[0], found.trained[0], 0.0)


def test_a_network_is_judged_by_the_ratio_of_rates_not_by_two_intervals() -> None:
    noisy = (3.7, 3.9, 4.2)
    assert of_network(740.0, noisy, 1e-4) is Feeding.FEEDS
    assert of_network(0.04, noisy, 1e-4) is Feeding.STARVES
    assert of_network(4.5, noisy, 1e-4) is Feeding.UNDECIDED
    assert of_network(4.5, noisy, 0.5) is Feeding.FEEDS, "the error that may be spent decides"
