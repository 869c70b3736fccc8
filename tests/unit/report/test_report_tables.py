"""The first things a report must get right: its tables, and the files that it writes."""

import csv
import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from planted import make_record, paper_records, replicates, write_run

from storebench.report.build import write_report
from storebench.results import Status

Cli = Callable[..., CompletedProcess[str]]


def read_csv(path: Path) -> dict[str, dict[str, str]]:
    return {row["backend"]: row for row in csv.DictReader(path.open())}


def test_a_table_a_dataset_and_a_plot_with_the_planted_figures(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", paper_records())
    written = write_report(run, tmp_path / "out")
    rows = read_csv(tmp_path / "out" / "table-imagenet-4000.csv")
    assert list(rows) == ["png", "hdf5", "memory:python", "memory:native", "leveldb", "lmdb", "null"]
    assert float(rows["png"]["samples_per_s"]) == pytest.approx(32 / 0.120)
    rounds = [120 / 11, (108.9 + 10) / (0.99 + 10), (111.1 + 10) / (1.01 + 10)]
    assert float(rows["png"]["time_ratio"]) == pytest.approx(statistics.geometric_mean(rounds))
    assert float(rows["png"]["data_wait_frac"]) == pytest.approx(110 / 120)
    assert float(rows["memory:native"]["time_ratio"]) == 1.0
    assert rows["lmdb"]["replicates"] == "3"
    assert {path.suffix for path in written.files} >= {".md", ".csv", ".tex", ".svg", ".png"}
    assert all(path.stat().st_size > 100 for path in written.files)


def test_the_ratio_is_paired_by_round_so_a_slow_round_cancels(tmp_path: Path) -> None:
    slow = [1.0, 5.0, 2.0]
    records = [
        make_record(backend, replicate=n, wait_ms=wait * factor, compute_ms=10 * factor)
        for n, factor in enumerate(slow)
        for backend, wait in (("png", 90.0), ("lmdb", 10.0))
    ]
    write_report(write_run(tmp_path / "run", records), tmp_path / "out")
    png = read_csv(tmp_path / "out" / "table-imagenet-4000.csv")["png"]
    assert [float(png[name]) for name in ("time_ratio", "time_ratio_lo", "time_ratio_hi")] == pytest.approx(
        [5, 5, 5]
    )


def test_one_replicate_has_no_interval(tmp_path: Path) -> None:
    write_report(write_run(tmp_path / "run", paper_records(rounds=1)), tmp_path / "out")
    assert read_csv(tmp_path / "out" / "table-imagenet-4000.csv")["png"]["samples_per_s_lo"] == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"origin": "synthetic"}, "SYNTHETIC"),
        ({"origin": "derived"}, "DERIVED images: 95%"),
        ({"compute": "emulated:12"}, "EMULATED by a sleep of 12 ms"),
    ],
)
def test_what_is_not_real_is_said_in_every_caption_and_plot(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    records = replicates("lmdb", [4.0], **changes) + replicates("png", [40.0], **changes)
    written = write_report(write_run(tmp_path / "run", records), tmp_path / "out")
    assert all(said in table.caption for table in written.tables)
    assert all(said in path.read_text() for path in written.files if path.suffix == ".md")


def test_a_failed_cell_stands_in_the_table_without_a_figure(tmp_path: Path) -> None:
    broken = make_record("lmdb", samples_per_s=0.0, status=Status.FAILED, failure="12% resident")
    written = write_report(write_run(tmp_path / "run", [make_record("png"), broken]), tmp_path / "out")
    row = next(row for row in written.tables[0].rows if "LMDB" in row[0])
    assert row[0] == "LMDB (FAILED: 12% resident)"
    assert row[1] == ""


def test_the_command_prints_tables_and_paths(tmp_path: Path, cli: Cli) -> None:
    write_run(tmp_path / "run", [make_record("png"), make_record("lmdb")])
    done = cli("report", "run", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "PNG files" in done.stdout
    assert "fastest" in done.stdout
    assert "out/step-time-imagenet-4000.png" in done.stderr


@pytest.mark.parametrize("text", ["", '{"schema_version": 1, "half'])
def test_an_empty_or_half_written_folder_gives_one_line(tmp_path: Path, cli: Cli, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "records.jsonl").write_text(text)
    done = cli("report", "run")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no whole record" in done.stderr


def test_a_half_written_last_line_is_dropped(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [dataclasses.replace(make_record("png"))])
    with (run / "records.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "cell": {')
    assert len(write_report(run, tmp_path / "out").tables[0].rows) == 1
