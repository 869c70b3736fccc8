"""Records as a table: its columns and their types, the machine of a killed cell, and the files that are read."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from storebench.analysis.checks.records import find_runs
from storebench.analysis.frame import CELL_COLUMNS, COLUMNS, RECORD_COLUMN, sourced, to_frame
from storebench.errors import DataNotFoundError
from storebench.record.schema import CELL_FIELDS, Environment, Record, Status
from tests.support.planted import ENVIRONMENT, make_record, write_run


def table_of(*records: Record) -> pd.DataFrame:
    return to_frame(sourced((record, Path("run/some.jsonl")) for record in records))


def test_a_table_has_every_column_once_and_a_cells_fields_by_their_names() -> None:
    table = table_of(make_record("lmdb", workers=2))
    assert list(table.columns) == [*COLUMNS, RECORD_COLUMN]
    assert table.columns.is_unique
    assert set(CELL_FIELDS) == set(CELL_COLUMNS) <= set(table.columns)
    [row] = table.to_dict("records")
    assert {name: row[name] for name in ("backend", "workers", "cache")} == {
        "backend": "lmdb",
        "workers": 2,
        "cache": "warm",
    }


@pytest.mark.parametrize(
    ("column", "dtype"),
    [("steps", "Int64"), ("memory_bytes", "Int64"), ("shuffle", "boolean"), ("samples_per_s", "float64")],
)
def test_missing_values_change_no_type(column: str, dtype: str) -> None:
    assert str(table_of(make_record("lmdb")).dtypes[column]) == dtype
    assert str(table_of().dtypes[column]) == dtype


def test_a_killed_cell_ran_where_the_rest_of_its_run_did() -> None:
    killed = dataclasses.replace(make_record("png", run_id="a"), environment=None, status=Status.FAILED)
    elsewhere = Environment(key="e2", match={}, notes={})
    table = table_of(
        make_record("lmdb", run_id="b", environment=elsewhere), make_record("lmdb", run_id="a"), killed
    )
    assert list(table["environment_key"]) == ["e2A", f"{ENVIRONMENT.key}B", f"{ENVIRONMENT.key}B"]
    assert list(table_of(killed)["environment_key"]) == [""]


def test_the_place_of_a_measurement_has_columns_of_its_own() -> None:
    disk = {"model": "a disk", "read_ahead_kb": "128"}
    here = Environment(key="e1", match={"filesystem": "ext4", "block_device": disk}, notes={})
    [row] = table_of(make_record("lmdb", environment=here)).to_dict("records")
    assert (row["filesystem"], row["storage_device"], row["machine_readahead_kib"]) == ("ext4", "a disk", 128)


def test_runs_are_found_in_folders_of_folders_and_each_file_once(tmp_path: Path) -> None:
    first = write_run(tmp_path / "all" / "first", [make_record("lmdb")]) / "records.jsonl"
    second = write_run(tmp_path / "all" / "second", [make_record("png")]) / "records.jsonl"
    other = tmp_path / "array.json"
    other.write_text("[]")
    assert find_runs(tmp_path / "all") == [first, second]
    assert find_runs([second, tmp_path / "all", str(other), first]) == [second, first, other]


def test_a_folder_without_records_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = write_run(tmp_path / "run", [make_record("lmdb")])
    for name, problem in (("empty", r"no records\.jsonl here"), ("gone", "no such file or folder")):
        with pytest.raises(DataNotFoundError, match=problem) as refused:
            find_runs([run, tmp_path / name])
        assert refused.value.where == str(tmp_path / name)
