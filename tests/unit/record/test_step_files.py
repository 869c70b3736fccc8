"""Step tables in one file, and in a file per record: every reader gives the same answer, and no table is lost."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import storebench
from storebench.cli.main import app
from storebench.errors import CorruptDataError, OutputError
from storebench.record.lines import append_records, read_records
from storebench.record.schema import Record
from storebench.record.step_files import merge_tables
from tests.support.findings import validate
from tests.support.planted import make_record, paper_records, steps_table, write_run
from tests.support.step_tables import LABELS, all_tables, merged_tables, own_tables

RECORDS = [
    make_record(backend, cache="warm", replicate=round_) for backend in ("png", "lmdb") for round_ in (0, 1)
]


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Return a run of four records whose tables are files of their own."""
    return write_run(tmp_path / "split", RECORDS, with_steps=True)


@pytest.fixture
def merged(split: Path, tmp_path: Path) -> Path:
    """Return a copy of the run with all tables in one file."""
    run = Path(shutil.copytree(split, tmp_path / "merged"))
    assert merge_tables(run) == len(RECORDS)
    return run


def storebench_does(*arguments: object) -> str:
    """Run a command in this process and return what it printed."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def without_path(results: pd.DataFrame) -> pd.DataFrame:
    return results.drop(columns=["steps_path", "record"])


def add(run: Path, name: str, table: pd.DataFrame, record: Record = RECORDS[0]) -> str:
    """Add a record of another replicate whose table is a file of its own; return the table's name."""
    named = dataclasses.replace(record, replicate=len(read_records(run)), steps_file=f"steps/{name}.parquet")
    (run / "steps").mkdir(exist_ok=True)
    # Without metadata of pandas: tables of a run have none.
    rows = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata()
    pq.write_table(rows, run / str(named.steps_file))
    append_records(run, [named])
    return str(named.steps_file)


def damage(path: Path, group: int) -> None:
    """Overwrite the data of one row group; the end of the file stays as it is."""
    columns = pq.read_metadata(path).row_group(group)
    with path.open("r+b") as file:
        for number in range(columns.num_columns):
            column = columns.column(number)
            file.seek(column.dictionary_page_offset or column.data_page_offset)
            file.write(b"\xff" * column.total_compressed_size)


def test_a_merged_run_holds_the_same_tables_and_nothing_else(split: Path, merged: Path) -> None:
    assert sorted(path.name for path in merged.iterdir()) == ["records.jsonl", "steps.parquet"]
    assert all_tables(merged).keys() == all_tables(split).keys()
    assert all(table.equals(all_tables(split)[name]) for name, table in all_tables(merged).items())
    names = [record.steps_file for record in read_records(merged)]
    metadata = pq.read_metadata(merged / "steps.parquet")
    groups = [pq.ParquetFile(merged / "steps.parquet").read_row_group(number) for number in range(len(names))]
    assert metadata.num_row_groups == len(names)
    assert [group["steps_file"].unique().to_pylist() for group in groups] == [[name] for name in names]


def test_each_row_says_which_record_it_belongs_to(merged: Path) -> None:
    rows = pd.read_parquet(merged / "steps.parquet")
    assert list(rows.columns)[:4] == LABELS
    found = rows[LABELS].drop_duplicates().itertuples(index=False)
    wanted = [(r.steps_file, r.cell.cell_id, r.replicate, r.epoch) for r in read_records(merged)]
    assert [tuple(row) for row in found] == wanted


def test_every_reader_gives_the_same_answer_for_both_layouts(
    split: Path, merged: Path, tmp_path: Path
) -> None:
    assert validate(split) == validate(merged) == []
    results = [storebench.load_results(run) for run in (split, merged)]
    for read in (without_path, storebench.load_steps):
        first, second = map(read, results)
        pd.testing.assert_frame_equal(first, second)
    assert {Path(path).name for path in results[1]["steps_path"]} == {"steps.parquet"}
    for run in (split, merged):
        storebench_does("trace", run, "--cell", "lmdb", "--out", tmp_path / f"{run.name}.json")
    assert (tmp_path / "split.json").read_bytes() == (tmp_path / "merged.json").read_bytes()


def test_results_that_were_read_before_the_merge_still_find_their_steps(split: Path) -> None:
    results = storebench.load_results(split)
    before = storebench.load_steps(results)
    merge_tables(split)
    pd.testing.assert_frame_equal(storebench.load_steps(results), before)


def test_the_steps_of_one_record_are_read_without_those_of_the_others(split: Path, merged: Path) -> None:
    damage(merged / "steps.parquet", 3)
    results = storebench.load_results(merged, allow_invalid=True)
    steps = storebench.load_steps(results.head(3))
    pd.testing.assert_frame_equal(steps, storebench.load_steps(storebench.load_results(split).head(3)))
    with pytest.raises(CorruptDataError, match=r"steps\.parquet: not a step table"):
        storebench.load_steps(results.tail(1))
    [found] = validate(merged)
    assert found.figure == "steps_file"
    assert "steps/00003.parquet cannot be read: " in found.message


def test_a_merge_adds_what_is_new_and_repeats_nothing(merged: Path) -> None:
    before = (merged / "steps.parquet").read_bytes()
    assert merge_tables(merged) == 0
    assert (merged / "steps.parquet").read_bytes() == before
    name = add(merged, "00004", steps_table(RECORDS[0]))
    assert validate(merged) == []
    assert len(storebench.load_steps(merged)) == 500
    assert merge_tables(merged) == 1
    assert list(merged_tables(merged)) == [f"steps/{number:05d}.parquet" for number in range(5)]
    assert merged_tables(merged)[name].equals(merged_tables(merged)["steps/00000.parquet"])
    assert validate(merged) == []


def test_a_merge_that_was_killed_before_it_removed_the_tables_goes_on(split: Path) -> None:
    own = {path.name: path.read_bytes() for path in (split / "steps").iterdir()}
    merge_tables(split)
    (split / "steps").mkdir()
    for name in list(own)[:2]:
        (split / "steps" / name).write_bytes(own[name])
    before = (split / "steps.parquet").read_bytes()
    assert validate(split) == []
    assert merge_tables(split) == 2
    assert (split / "steps.parquet").read_bytes() == before
    assert not (split / "steps").exists()


def test_tables_of_an_earlier_release_merge_with_those_of_this_one(split: Path) -> None:
    name = add(split, "older", steps_table(RECORDS[0]).drop(columns="paused_ns"))
    assert merge_tables(split) == 5
    assert validate(split) == []
    assert pd.read_parquet(split / "steps.parquet")["paused_ns"].isna().sum() == 100
    results = storebench.load_results(split)
    older = storebench.load_steps(results[results["steps_file"] == name])
    assert "paused_ns" not in older.columns
    storebench_does("trace", split, "--out", split / "trace.json")
    assert json.loads((split / "trace.json").read_text())["traceEvents"]


def test_a_loss_that_is_not_a_number_or_null_merges_as_it_is(split: Path) -> None:
    nan, null = steps_table(RECORDS[0]), steps_table(RECORDS[0])
    nan["loss"] = nan["loss"].where(nan["step"] < 50, float("nan"))
    null["loss"] = pd.array([None] * len(null), dtype="Float32")
    add(split, "nan", nan)
    add(split, "null", null)
    before = storebench.load_steps(split)
    assert merge_tables(split) == 6
    pd.testing.assert_frame_equal(storebench.load_steps(split), before)


def test_a_table_of_no_rows_keeps_its_own_file(split: Path) -> None:
    name = add(split, "odd", steps_table(RECORDS[0]).head(0))
    assert merge_tables(split) == 4
    assert list(own_tables(split)) == [name]
    assert len(merged_tables(split)) == 4


def test_a_damaged_table_is_named_and_nothing_moves(split: Path) -> None:
    (split / "steps" / "00001.parquet").write_bytes(b"PAR1 it is not PAR1")
    with pytest.raises(CorruptDataError, match=r"steps/00001\.parquet: not a step table"):
        merge_tables(split)
    assert not (split / "steps.parquet").exists()
    assert len(list((split / "steps").iterdir())) == 4


def test_a_damaged_file_of_all_steps_is_never_written_over(merged: Path) -> None:
    damage(merged / "steps.parquet", 1)
    content = (merged / "steps.parquet").read_bytes()
    name = add(merged, "00004", steps_table(RECORDS[0]))
    with pytest.raises(CorruptDataError, match=r"steps\.parquet: not a step table"):
        merge_tables(merged)
    assert (merged / "steps.parquet").read_bytes() == content
    assert list(own_tables(merged)) == [name]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_folder_that_may_not_be_written_is_left_alone(split: Path) -> None:
    split.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="no permission"):
            merge_tables(split)
    finally:
        split.chmod(0o700)
    assert len(own_tables(split)) == 4


@pytest.mark.full
@pytest.mark.usefixtures("without_bitmaps")
def test_the_paper_in_one_file_makes_the_same_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", paper_records("warm"), with_steps=True)
    storebench_does("report", run, "--out", tmp_path / "before")
    merge_tables(run)
    storebench_does("report", run, "--out", tmp_path / "after")
    names = sorted(path.name for path in (tmp_path / "before").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "after").iterdir())
    for name in names:
        if not name.endswith(".png"):
            assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes(), name
