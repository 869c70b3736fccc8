"""``storebench export``: one flat table that says what the records say."""

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from storebench import load_results
from tests.support.planted import make_record, replicates, write_run

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [*replicates("png", [9.0, 9.5, 10.0]), *replicates("lmdb", [1.0, 1.25, 1.5])]
    return write_run(tmp_path_factory.mktemp("export") / "run", records, with_steps=True)


def assert_same(found: pd.DataFrame, run: Path) -> None:
    expected = load_results(run).drop(columns="record")
    assert list(found.columns) == list(expected.columns)
    for name in ("dataset", "backend", "cell_id", "steps_file"):
        assert found[name].tolist() == expected[name].tolist(), name
    for name in ("samples_per_s", "data_wait_s", "replicate", "bytes_on_disk", "data_wait_p99_ns"):
        assert found[name].astype(float).tolist() == pytest.approx(expected[name].astype(float).tolist()), (
            name
        )


def test_csv_goes_to_standard_output_by_default(run: Path, cli: Cli) -> None:
    done = cli("export", str(run))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert_same(pd.read_csv(io.StringIO(done.stdout)), run)


def test_files_are_written_in_both_formats(run: Path, cli: Cli, tmp_path: Path) -> None:
    done = cli("export", str(run), "--csv", "all.csv", "--parquet", "all.parquet")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    columns = len(load_results(run).columns) - 1  # without the records themselves
    assert f"all.csv: 6 records, {columns} columns" in done.stderr
    assert_same(pd.read_csv(tmp_path / "all.csv"), run)
    assert_same(pd.read_parquet(tmp_path / "all.parquet"), run)


def test_lists_are_json(cli: Cli, tmp_path: Path) -> None:
    record = make_record("lmdb", status="failed")
    write_run(tmp_path / "run", [record])
    found = pd.read_csv(io.StringIO(cli("export", "run").stdout))
    assert json.loads(found["reader_options"][0]) == []


def test_a_folder_without_records_is_refused(cli: Cli) -> None:
    done = cli("export", ".")
    assert done.returncode == 2
    assert "no records.jsonl here" in done.stderr
