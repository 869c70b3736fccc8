"""The keys by which a cell finds its siblings, and the null cell that bounds it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.errors import NotComparableError
from storebench.report.cells import CellSummary, as_cells, ceiling_key, key_without, summarise, varying_fields
from storebench.report.frame import to_frame
from storebench.report.panels import fullest, panels
from storebench.report.texts.labels import setting_label
from storebench.report.validation.findings import Finding, Rule
from storebench.report.validation.validate import validate_records
from storebench.results import CodeFacts, Record
from tests.support.planted import ENVIRONMENT, make_record

FILE = Path("run/some.jsonl")
STATES = [
    {"cache": "warm"},
    {"cache": "limited", "memory_bytes": 1 << 28},
    {"cache": "cold", "readahead_kib": 128},
]


def cell_of(record: Record) -> CellSummary:
    [cell] = summarise(to_frame([(record, FILE)]))
    return cell


@pytest.mark.parametrize(
    ("changes", "siblings"),
    [
        ({"workers": 2}, True),
        ({"workers": 2, "cache": "cold"}, False),
        ({"workers": 2, "seed": 1}, False),
        ({"workers": 2, "size": 400}, False),
        ({"workers": 2, "environment": dataclasses.replace(ENVIRONMENT, key="e2")}, False),
    ],
)
def test_siblings_share_a_key_without_the_field_that_differs(changes: dict[str, Any], siblings: bool) -> None:
    first, second = cell_of(make_record("lmdb")), cell_of(make_record("lmdb", **changes))
    assert (key_without(first, "workers") == key_without(second, "workers")) is siblings
    assert key_without(first) != key_without(second)


@pytest.mark.parametrize("backend", ["png", "lmdb:direct", "lmdb+jpeg"])
def test_the_parts_of_a_backend_count_as_its_name(backend: str) -> None:
    first, second = cell_of(make_record("lmdb")), cell_of(make_record(backend))
    assert key_without(first, "backend") == key_without(second, "backend")
    assert key_without(first, "cache") != key_without(second, "cache")


@pytest.mark.parametrize("state", STATES)
def test_a_null_cell_belongs_to_panels_in_every_state_of_the_store(state: dict[str, Any]) -> None:
    null, cell = cell_of(make_record("null", cache="warm")), cell_of(make_record("lmdb", **state))
    assert ceiling_key(null) == ceiling_key(cell)
    [panel] = panels([cell, null])
    assert panel.null is null
    assert panel.listed == (cell, null)


def test_a_null_cell_of_another_setting_belongs_to_no_panel() -> None:
    null, cell = cell_of(make_record("null", workers=2)), cell_of(make_record("lmdb"))
    [panel] = panels([cell, null])
    assert panel.null is None


def test_readers_of_other_epochs_share_a_panel_and_of_other_passes_none() -> None:
    cells = [cell_of(make_record("png", passes=2)), cell_of(make_record("lmdb", passes=2, epochs=40))]
    [panel] = panels(cells)
    assert panel.cells == tuple(cells)
    assert "epochs" not in setting_label(panel.first, varying_fields(cells))
    assert len(panels([cell_of(make_record("png", passes=2)), cell_of(make_record("lmdb", passes=40))])) == 2


def test_a_backend_with_two_numbers_of_epochs_has_two_panels() -> None:
    png = cell_of(make_record("png", epochs=2))
    few, many = cell_of(make_record("lmdb", epochs=2)), cell_of(make_record("lmdb", epochs=40))
    assert [panel.cells for panel in panels([png, few, many])] == [(png, few), (many,)]
    varying = varying_fields([png, few, many])
    assert [setting_label(cell, varying).rpartition(", ")[2] for cell in (few, many)] == [
        "2 epochs",
        "40 epochs",
    ]


def test_of_panels_of_one_state_the_fullest_speaks() -> None:
    short = [
        make_record(name, replicate=n, max_steps=9) for name in ("png", "lmdb", "hdf5") for n in range(3)
    ]
    long = [make_record(name, replicate=n, max_steps=30) for name in ("png", "lmdb") for n in range(5)]
    cold = [make_record(name, cache="cold", max_steps=9) for name in ("png", "lmdb")]
    found = panels(summarise(to_frame([(record, FILE) for record in (*short, *long, *cold)])))
    assert len(found) == 3
    assert {(one.first.cell.cache, one.first.cell.max_steps) for one in fullest(found)} == {
        ("warm", 30),
        ("cold", 9),
    }


def test_the_null_cell_bounds_cells_with_any_number_of_epochs() -> None:
    null, cell = cell_of(make_record("null", epochs=9)), cell_of(make_record("lmdb", epochs=40))
    [panel] = panels([cell, null])
    assert panel.null is null


def ceiling_findings(*records: Record) -> list[Finding]:
    findings = validate_records([(record, FILE) for record in records])
    return [finding for finding in findings if finding.kind is Rule.CEILING]


@pytest.mark.parametrize("state", STATES)
def test_validation_accepts_the_null_cell_that_a_panel_shows(state: dict[str, Any]) -> None:
    alone: dict[str, Any] = {"compute": "none", "compute_ms": 0.0}
    null = make_record("null", cache="warm", wait_ms=90.0, fetch_ms=0.0, prep_ms=0.0, **alone)
    cell = make_record("lmdb", wait_ms=10.0, **alone, **state)
    [finding] = ceiling_findings(null, cell)
    assert finding.figure == "samples_per_s"
    assert finding.message.startswith("9.00 times what compute alone reaches")


def test_a_loader_alone_is_bounded_by_the_same_loader_only() -> None:
    alone: dict[str, Any] = {"compute": "none", "compute_ms": 0.0}
    null = make_record("null", cache="warm", wait_ms=90.0, fetch_ms=0.0, prep_ms=0.0, **alone)
    assert ceiling_findings(null, make_record("lmdb", wait_ms=10.0, workers=2, **alone)) == []


def test_real_compute_bounds_a_cell_with_any_number_of_workers() -> None:
    null = make_record("null", cache="warm", wait_ms=0.1, compute_ms=90.0, fetch_ms=0.0, prep_ms=0.0)
    cell = make_record("lmdb", wait_ms=10.0, compute_ms=0.1, workers=2)
    assert [finding.figure for finding in ceiling_findings(null, cell)] == ["samples_per_s"]


def test_summaries_are_made_of_a_table_and_left_as_they_are() -> None:
    table = to_frame([(make_record("lmdb"), FILE), (make_record("png"), FILE)])
    cells = as_cells(table)
    assert [cell.backend for cell in cells] == ["png", "lmdb"]
    assert as_cells(cells) == cells


@pytest.mark.parametrize(
    ("steps", "compute", "short"), [(19, "real", True), (20, "real", False), (5, "none", False)]
)
def test_only_real_training_of_fewer_than_20_steps_is_short(steps: int, compute: str, short: bool) -> None:
    cell = cell_of(make_record("lmdb", cache="warm", steps=steps, compute=compute))
    assert cell.short_training is short


def test_rounds_of_different_code_are_not_pooled() -> None:
    records = [
        make_record("lmdb", run_id=f"run-{digest}", replicate=number, code=CodeFacts(digest=digest))
        for number, digest in enumerate(("3680", "1da4"))
    ]
    with pytest.raises(NotComparableError, match="run run-3680 measured other code"):
        summarise(to_frame((record, FILE) for record in records))
    assert len(summarise(to_frame((record, FILE) for record in records[:1]))) == 1
