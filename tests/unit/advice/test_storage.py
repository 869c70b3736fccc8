"""The tables of a run that only loads: requests, bytes and waits of each store by number of readers."""

import dataclasses
from pathlib import Path
from typing import Any

from storebench.advice.storage import storage_tables
from storebench.report.cells import CellSummary, summarise
from storebench.report.frame import to_frame
from storebench.report.tables import Table
from storebench.results import Counters, Record, Status
from tests.support.planted import PAYLOAD, make_record

NONE: dict[str, Any] = {"compute": "none", "model": "none", "compute_ms": 0.0}


def loaded(backend: str, wait_ms: float, workers: int = 0, **changes: Any) -> list[Record]:
    """Return three records that took 10 calls and 2 faults per step of `wait_ms`."""
    records = [
        make_record(backend, replicate=n, wait_ms=wait_ms, workers=workers, **NONE | changes)
        for n in range(3)
    ]
    counted = [
        Counters(read_calls=10 * record.steps, major_faults=2 * record.steps, read_amplification=1.5)
        for record in records
    ]
    return [dataclasses.replace(r, counters=c) for r, c in zip(records, counted, strict=True)]


def cells_of(*parts: list[Record]) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for part in parts for record in part))


def rows_of(table: Table) -> list[tuple[str, ...]]:
    return [tuple(row) for row in table.rows]


def test_one_number_of_readers_has_a_row_per_store() -> None:
    [table] = storage_tables(cells_of(loaded("png", 40.0), loaded("lmdb", 8.0)))
    mib = 32 * PAYLOAD["raw"] / 0.008 / 2**20
    assert [row[0] for row in table.rows] == ["PNG files", "LMDB"]
    assert rows_of(table)[1][1:] == (f"{mib:.0f}", "1,500", "1.50", "8.00 ms", "8.00 ms")


def test_several_numbers_of_readers_have_a_column_each() -> None:
    [table] = storage_tables(cells_of(*(loaded("lmdb", 8.0 / (1 + n), workers=n) for n in (0, 1, 3))))
    assert table.head[2:] == ("no workers", "1 worker", "3 workers")
    assert rows_of(table)[1] == ("", "requests/s", "1,500", "3,000", "6,000")


def test_each_state_has_a_table_of_its_own() -> None:
    assert len(storage_tables(cells_of(loaded("lmdb", 8.0), loaded("lmdb", 8.0, cache="cold")))) == 2
    alike = storage_tables(cells_of(loaded("lmdb", 8.0, batch_size=16), loaded("lmdb", 8.0, batch_size=64)))
    assert len({table.caption for table in alike}) == 2


def test_an_empty_cell_has_a_reason_and_a_note() -> None:
    failed = [
        dataclasses.replace(record, status=Status.FAILED, failure="killed") for record in loaded("png", 8.0)
    ]
    short = loaded("lmdb", 8.0, cache="limited", memory_bytes=1 << 28, portion=None)
    [table, limited] = storage_tables(cells_of(failed, loaded("hdf5", 8.0), short))
    assert rows_of(table)[0][1:] == ("failed", "", "", "", "")
    assert rows_of(limited)[0][1] == "too short"
    assert [note for note in limited.notes if "--size 8000" in note]
    assert not [note for note in table.notes if "--size" in note]


def test_runs_that_compute_have_no_such_table() -> None:
    assert not storage_tables(cells_of(loaded("lmdb", 8.0), [make_record("png")]))
