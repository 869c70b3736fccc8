"""Records: checked when read, one synced line when written, and half a line is never a record."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench.errors import CorruptDataError, DataNotFoundError, SchemaVersionError
from storebench.record.lines import (
    RECORDS_NAME,
    append_records,
    read_records,
    record_from_dict,
    record_to_dict,
)
from storebench.record.schema import (
    CacheFacts,
    CacheVerdict,
    Cell,
    Counters,
    Coverage,
    Digests,
    Loss,
    Percentiles,
    Record,
    Status,
)
from storebench.settings.words import CacheState


def make(replicate: int = 0, **more: Any) -> Record:
    cell = Cell.of_fields(
        dataset="mnist",
        backend="lmdb?readahead=off",
        format="lmdb",
        codec="raw",
        reader="get",
        reader_options=(("readahead", "off"),),
        batch_size=64,
        model="lenet",
    )
    return Record(
        storebench_version="0",
        run_id="test",
        cell=cell,
        replicate=replicate,
        epoch=0,
        started_utc="2026-01-01T00:00:00+00:00",
        digests=Digests(order="bb", loss=None),
        loss=Loss(first=2.5, last=0.25),
        data_wait_ns=Percentiles(p50=1, p95=2, p99=3, max=4),
        cache=CacheFacts(
            requested=CacheState.COLD,
            method="fadvise+cachestat",
            resident_frac_before=0.0,
            resident_frac_after=None,
            verdict=CacheVerdict.VERIFIED,
        ),
        counters=Counters(device_read_bytes=5, reasons={"read_calls": "no /proc/PID/io"}),
        **more,
    )


def test_a_record_survives_json_whole() -> None:
    record = make(status=Status.FAILED, failure="it failed")
    copy = record_from_dict(json.loads(json.dumps(record_to_dict(record))), where="here")
    assert copy == record
    assert copy.cell.cell_id == record.cell.cell_id
    assert copy.status is Status.FAILED


def test_records_come_back_in_the_order_in_which_they_were_appended(tmp_path: Path) -> None:
    records = [make(number) for number in range(3)]
    for record in records:
        append_records(tmp_path, [record])
    assert read_records(tmp_path) == records
    assert read_records(tmp_path / RECORDS_NAME) == records


@given(cut=st.integers(min_value=1))
def test_a_last_line_cut_anywhere_is_dropped_and_the_next_record_is_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    append_records(folder, [make(0)])
    append_records(folder, [make(1)])
    path = folder / RECORDS_NAME
    first, second = path.read_bytes().splitlines(keepends=True)
    cut = 1 + cut % (len(second) - 2)
    path.write_bytes(first + second[:cut])
    assert read_records(folder) == [make(0)]
    append_records(folder, [make(2)])
    assert read_records(folder) == [make(0), make(2)]
    assert path.read_bytes().startswith(first)


def test_a_line_that_is_no_record_is_an_error_with_line_and_field(tmp_path: Path) -> None:
    append_records(tmp_path, [make(0)])
    raw = record_to_dict(make(1))
    raw["samples_per_s"] = "fast"
    with (tmp_path / RECORDS_NAME).open("a") as file:
        file.write(json.dumps(raw) + "\n")
    with pytest.raises(CorruptDataError, match=r"records\.jsonl:2: not a record: samples_per_s"):
        read_records(tmp_path)


@pytest.mark.parametrize("field", ["data", "backend.name", "more.speed"])
def test_a_field_that_no_cell_has_is_refused(field: str) -> None:
    raw = record_to_dict(make())
    with pytest.raises(CorruptDataError, match=field):
        record_from_dict(raw | {"cell": {field: "x", **raw["cell"]}}, where="here")


@pytest.mark.parametrize("version", [None, 0, 3, "1.0"])
def test_a_record_of_another_schema_is_refused_as_not_comparable(version: object) -> None:
    raw = record_to_dict(make()) | {"schema_version": version}
    with pytest.raises(SchemaVersionError) as caught:
        record_from_dict(raw, where="here")
    assert caught.value.exit_code == 3


def test_a_missing_field_is_named() -> None:
    raw = record_to_dict(make())
    del raw["cell"]["batch_size"]
    with pytest.raises(CorruptDataError, match=r"cell\.batch_size"):
        record_from_dict(raw, where="here")


def test_no_records_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="storebench bench"):
        read_records(tmp_path)
    (tmp_path / RECORDS_NAME).write_text('{"half": ')
    with pytest.raises(DataNotFoundError, match="does not hold a complete record"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("counts", "complete"),
    [((0, 0, 0), True), ((1, 0, 0), False), ((0, 1, 0), False), ((0, 0, 1), False)],
)
def test_coverage_is_complete_only_without_any_fault(counts: tuple[int, int, int], complete: bool) -> None:
    duplicates, missing, wrong = counts
    found = Coverage(
        expected=9,
        served=9,
        unique=9,
        duplicates=duplicates,
        missing=missing,
        timed_wrong=wrong,
    )
    assert found.complete is complete


def test_processor_time_is_given_per_sample_and_as_cores() -> None:
    counted = dataclasses.replace(
        make(), samples=400, epoch_s=2.0, counters=Counters(cpu_user_s=2.5, cpu_system_s=0.5)
    )
    assert counted.cpu_s_per_sample == pytest.approx(3.0 / 400)
    assert counted.cores_used == pytest.approx(1.5)


def test_processor_time_that_was_not_counted_is_not_zero() -> None:
    halved = dataclasses.replace(make(), samples=400, epoch_s=2.0, counters=Counters(cpu_user_s=2.5))
    assert (halved.cpu_s_per_sample, halved.cores_used) == (None, None)
    failed = dataclasses.replace(
        make(), samples=0, epoch_s=0.0, counters=Counters(cpu_user_s=1, cpu_system_s=1)
    )
    assert (failed.cpu_s_per_sample, failed.cores_used) == (None, None)
