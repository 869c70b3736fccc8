"""Summaries of cells: which records count in each cache state, and which cells are comparable."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.analysis.comparison import Verdict
from storebench.analysis.frame import sourced
from storebench.analysis.labels import dataset_label, dataset_slug
from storebench.analysis.panels import ordered, panels, rate_ratio
from storebench.analysis.summary import CellSummary, ceiling_key, summarise, varying_fields, work_key
from storebench.errors import NotComparableError
from storebench.record.schema import CodeFacts, Record, Status
from tests.support.planted import ENVIRONMENT, cold_start, make_record, paper_records, portion_of, replicates

LIMITED: dict[str, Any] = {"cache": "limited", "memory_bytes": 400_000_000}
NONE: dict[str, Any] = {"compute": "none", "model": "none", "compute_ms": 0.0}
WAITS = [4.0, 4.02, 3.98, 4.01, 3.99]


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(sourced((record, Path("run/records.jsonl")) for record in records))


def cell_of(*records: Record) -> CellSummary:
    (cell,) = cells_of(*records)
    return cell


def test_a_rate_is_the_median_over_replicates_of_the_median_over_epochs() -> None:
    waits = {(0, 0): 4.0, (0, 1): 6.0, (1, 0): 10.0, (1, 1): 12.0, (2, 0): 30.0, (2, 1): 32.0}
    records = [
        make_record("lmdb", replicate=r, epoch=e, epochs=2, wait_ms=ms) for (r, e), ms in waits.items()
    ]
    cell = cell_of(*records)
    assert list(cell.values("data_wait_s").values()) == pytest.approx([0.5, 1.1, 3.1])
    assert cell.median("data_wait_s") == pytest.approx(1.1)
    assert cell.per_step("data_wait_s") == pytest.approx(0.011)


def test_a_limited_cell_has_the_rate_of_its_steady_steps_and_last_epoch() -> None:
    records = [
        make_record("lmdb", epoch=e, epochs=2, wait_ms=ms, **LIMITED) for e, ms in enumerate((40.0, 4.0))
    ]
    unsteady = cell_of(dataclasses.replace(records[1], portion=None))
    assert (unsteady.whole_only, unsteady.median("samples_per_s")) == (True, None)
    slow = dataclasses.replace(records[1], portion=portion_of(records[1], slower=2.0))
    cell = cell_of(records[0], slow)
    assert slow.portion is not None
    assert cell.median("samples_per_s") == pytest.approx(slow.portion.samples_per_s)
    assert cell.median("whole_samples_per_s") != pytest.approx(slow.portion.samples_per_s)
    assert cell.median("data_wait_frac") == pytest.approx(8.0 / 18.0)


@pytest.mark.parametrize(
    ("drifts", "unsteady", "doubt"),
    [([1.0, 1.0, 4.0], (1, 3), ""), ([4.0, 0.25, 1.0], (2, 3), "not steady")],
)
def test_most_replicates_decide_whether_a_limited_cell_is_steady(
    drifts: list[float], unsteady: tuple[int, int], doubt: str
) -> None:
    records = replicates("lmdb", [4.0] * len(drifts), **NONE, **LIMITED)
    records = [
        dataclasses.replace(r, portion=portion_of(r, drift=d)) for r, d in zip(records, drifts, strict=True)
    ]
    cell = cell_of(*records)
    assert (cell.unsteady_replicates, cell.doubt) == (unsteady, doubt)


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({}, ""),
        ({"cache": "cold"}, "cold start"),
        ({"steps": 19, "cache": "warm"}, "too few steps"),
        ({"steps": 20}, ""),
    ],
)
def test_what_ranks_nothing(changes: dict[str, Any], doubt: str) -> None:
    cell = cell_of(make_record("lmdb", **changes))
    assert cell.doubt == doubt


def test_rates_from_a_cold_start_are_medians() -> None:
    records = [
        cold_start(make_record("lmdb", replicate=n, cache="cold"), at_5=(rate, 0.1, 0.05))
        for n, rate in enumerate((100.0, 300.0, 200.0))
    ]
    cell = cell_of(*records)
    assert cell.cold_rate(0.05) == pytest.approx((200.0, 0.1, 0.05))
    assert cell.cold_rate(0.25) is None


def test_a_cell_of_other_code_is_not_pooled() -> None:
    records = [make_record("lmdb", replicate=n, code=CodeFacts(digest=str(n) * 16)) for n in (1, 2)]
    with pytest.raises(NotComparableError, match="other code"):
        cells_of(*records)


def test_a_late_replicate_makes_the_rate_an_upper_bound() -> None:
    late = make_record("png", replicate=5, status=Status.FAILED, failure="no answer after 60 s", **NONE)
    base, other = replicates("png", WAITS, **NONE), replicates("lmdb", [w / 4 for w in WAITS], **NONE)
    png, lmdb = sorted(cells_of(*base, late, *other), key=lambda cell: cell.backend == "lmdb")
    assert png.at_most
    found = rate_ratio(lmdb, png)
    assert found is not None
    assert found.verdict is Verdict.FASTER
    turned = rate_ratio(png, lmdb)
    assert turned is not None
    assert turned.verdict is Verdict.SLOWER


def test_a_cell_that_served_wrong_samples_once_ranks_nothing() -> None:
    good = replicates("lmdb", [wait / 4 for wait in WAITS], **NONE)
    coverage = good[0].coverage
    assert coverage is not None
    wrong = dataclasses.replace(
        good[0],
        replicate=5,
        status=Status.FAILED,
        failure="wrong samples",
        coverage=dataclasses.replace(coverage, timed_wrong=1),
    )
    assert cell_of(*good).doubt == ""
    assert cell_of(*good, wrong).doubt == "wrong samples"


def test_panels_hold_what_differs_in_the_backend_only() -> None:
    cells = cells_of(*paper_records("warm"), *paper_records("cold"), *replicates("lmdb", WAITS, workers=2))
    made = panels(cells)
    assert sorted(len(panel.cells) for panel in made) == [1, 6, 6]
    assert all(panel.null is not None for panel in made if len(panel.cells) == 6)
    best = ordered(made)[0]
    assert (best.first.cell.cache, best.base.backend if best.base else "") == ("warm", "png")
    assert [cell.backend for cell in best.stored] == ["png", "hdf5", "leveldb", "lmdb"]


ORDER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"cache": "limited", "memory_bytes": 1 << 28, **NONE}, {"cache": "warm", **NONE}),
    ({"cache": "warm", **NONE}, {"cache": "cold", **NONE}),
    ({"readahead_kib": 128, **LIMITED, **NONE}, {"readahead_kib": 8192, **LIMITED, **NONE}),
    ({"workers": 0, **NONE}, {"workers": 2, **NONE}),
]


@pytest.mark.parametrize(("first", "second"), ORDER)
def test_settings_decide_the_order_of_panels(first: dict[str, Any], second: dict[str, Any]) -> None:
    records = [
        record
        for setting in (second, first)
        for name in ("png", "lmdb")
        for record in replicates(name, WAITS, **setting)
    ]
    lead = ordered(panels(cells_of(*records)))[0].first.cell
    assert all(
        str(lead.fields()[name]) == str(value) for name, value in first.items() if name != "compute_ms"
    )


def test_keys_leave_out_what_they_promise() -> None:
    base = cell_of(make_record("lmdb"))
    states = cell_of(make_record("hdf5", cache="cold", max_steps=7))
    assert work_key(base) == work_key(states)
    assert ceiling_key(base) == ceiling_key(cell_of(make_record("null", cache="cold")))
    assert ceiling_key(base) != ceiling_key(cell_of(make_record("null", workers=2)))
    assert varying_fields([base, states]) == {"cache", "max_steps"}
    assert varying_fields([base, cell_of(make_record("lmdb", epochs=2))]) == {"epochs"}


def test_samples_of_one_name_are_told_apart_by_the_fewest_words() -> None:
    elsewhere = dataclasses.replace(ENVIRONMENT, key="e2", match=ENVIRONMENT.match | {"filesystem": "xfs"})
    here = dataclasses.replace(ENVIRONMENT, match=ENVIRONMENT.match | {"filesystem": "ext4"})
    cells = cells_of(
        make_record("lmdb", environment=here),
        make_record("lmdb", environment=elsewhere),
        make_record("lmdb", environment=here, dataset="cifar10", size=None),
    )
    assert {dataset_label(cell) for cell in cells} == {
        "ImageNet, 4,000 images, on ext4",
        "ImageNet, 4,000 images, on xfs",
        "CIFAR-10",
    }
    assert len({dataset_slug(cell) for cell in cells}) == 3
