"""Step tables: a file per record, read as it was written, and only those that are asked for."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import storebench
from storebench.errors import CorruptDataError
from storebench.record.steps import step_columns, write_steps
from tests.support.findings import validate
from tests.support.planted import make_record, steps_table, write_run

RECORDS = [
    make_record(backend, cache="warm", replicate=round_) for backend in ("png", "lmdb") for round_ in (0, 1)
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of four records with their step tables."""
    return write_run(tmp_path / "run", RECORDS, with_steps=True)


@pytest.mark.parametrize("losses", [(1.0, 0.5), (1.0, float("nan")), (float("nan"), float("nan"))])
def test_a_table_is_read_as_it_was_written(losses: tuple[float, float], tmp_path: Path) -> None:
    table = {
        "step": np.arange(2),
        "warmup": np.array([True, False]),
        "start_ns": np.array([1 << 60, -1]),
        "loss": np.array(losses, np.float32),
    }
    write_steps(table, tmp_path / "steps" / "0.parquet")
    read = step_columns(tmp_path, "steps/0.parquet")
    assert list(read) == list(table)
    for name, column in table.items():
        assert read[name].dtype == column.dtype
        np.testing.assert_array_equal(read[name], column)


def test_the_steps_of_many_records_are_one_table_with_the_columns_of_all(run: Path) -> None:
    one = run / "steps" / "00001.parquet"
    pq.write_table(pq.read_table(one).drop_columns(["queue_depth"]), one)
    results = storebench.load_results(run)
    steps = storebench.load_steps(results)
    assert steps.groupby(["backend", "replicate"]).size().tolist() == [100] * 4
    assert steps[steps["queue_depth"].isna()]["replicate"].unique().tolist() == [1]
    for path, name in zip(results["steps_path"], results["steps_file"], strict=True):
        assert Path(path) == run.resolve() / name


def test_the_steps_of_one_record_are_read_without_those_of_the_others(run: Path) -> None:
    steps = storebench.load_steps(run)
    (run / "steps" / "00003.parquet").write_bytes(b"PAR1 it is not PAR1")
    results = storebench.load_results(run, allow_invalid=True)
    assert storebench.load_steps(results.head(3)).equals(steps.head(300))
    with pytest.raises(CorruptDataError, match=r"steps/00003\.parquet: not a step table"):
        storebench.load_steps(results.tail(1))
    [found] = validate(run)
    assert found.figure == "steps_file"


def test_a_table_of_more_rows_than_an_epoch_has_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [dataclasses.replace(RECORDS[0], steps_file="steps/0.parquet")])
    steps = {name: np.zeros(1 << 24 | 1, np.int8) for name in steps_table(RECORDS[0]).columns[:1]}
    write_steps(steps, run / "steps" / "0.parquet")
    [found] = validate(run)
    assert "more than 16,777,216" in found.message
