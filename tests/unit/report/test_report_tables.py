"""The first things a report must get right: its tables, and the files that it writes."""

import csv
import dataclasses
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from storebench.report.build import write_report
from storebench.report.tables import Table
from storebench.results import Counters, Status
from tests.support.planted import make_record, paper_records, replicates, write_run

Cli = Callable[..., CompletedProcess[str]]


@pytest.fixture
def drawn() -> None:
    """Have the plots drawn; other tests here are of words."""


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest) -> None:
    if "drawn" not in request.fixturenames:
        request.getfixturevalue("without_pictures")


def read_csv(path: Path) -> dict[str, dict[str, str]]:
    return {row["backend"]: row for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())}


def test_a_table_a_dataset_and_a_plot_with_the_planted_figures(drawn: None, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", paper_records())
    written = write_report(run, tmp_path / "out")
    rows = read_csv(tmp_path / "out" / "table-imagenet-4000.csv")
    assert list(rows) == ["png", "hdf5", "memory:python", "memory:native", "leveldb", "lmdb", "null"]
    assert float(rows["png"]["samples_per_s"]) == pytest.approx(32 / 0.076)
    rounds = [10.6 / 76, (0.594 + 10) / (65.34 + 10), (0.606 + 10) / (66.66 + 10)]
    assert float(rows["memory:native"]["time_ratio"]) == pytest.approx(statistics.geometric_mean(rounds))
    assert float(rows["png"]["data_wait_frac"]) == pytest.approx(66 / 76)
    assert float(rows["png"]["time_ratio"]) == 1.0
    assert {row["base"] for row in rows.values()} == {"png"}
    assert [rows[name]["compared"] for name in ("png", "lmdb", "null")] == ["base", "faster", "not compared"]
    assert rows["lmdb"]["replicates"] == "3"
    assert {path.suffix for path in written.files} >= {".md", ".csv", ".svg", ".png"}
    assert all(path.stat().st_size > 100 for path in written.files)


def test_the_ratio_is_paired_by_round_so_a_slow_round_cancels(tmp_path: Path) -> None:
    slow = [1.0, 5.0, 2.0]
    records = [
        make_record(backend, replicate=n, wait_ms=wait * factor, compute_ms=10 * factor)
        for n, factor in enumerate(slow)
        for backend, wait in (("png", 90.0), ("lmdb", 10.0))
    ]
    write_report(write_run(tmp_path / "run", records), tmp_path / "out")
    lmdb = read_csv(tmp_path / "out" / "table-imagenet-4000.csv")["lmdb"]
    assert [float(lmdb[name]) for name in ("time_ratio", "time_ratio_lo", "time_ratio_hi")] == pytest.approx(
        [0.2, 0.2, 0.2]
    )


def test_one_replicate_has_no_interval(tmp_path: Path) -> None:
    write_report(write_run(tmp_path / "run", paper_records(rounds=1)), tmp_path / "out")
    assert read_csv(tmp_path / "out" / "table-imagenet-4000.csv")["png"]["samples_per_s_lo"] == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"origin": "synthetic"}, "SYNTHETIC"),
        ({"origin": "derived"}, "DERIVED images: 95%"),
        ({"compute": "emulated:12", "compute_ms": 12.0}, "EMULATED by a sleep of 12 ms"),
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
    assert row[1] == "failed"


def test_the_command_prints_tables_and_paths(tmp_path: Path, cli: Cli) -> None:
    write_run(tmp_path / "run", [make_record("png", cache="cold"), make_record("lmdb", cache="cold")])
    done = cli("report", "run", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "PNG files" in done.stdout
    assert "Within this run" in done.stdout
    assert "Metadata hot" in done.stdout
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


def column(table: Table, head: str) -> dict[str, str]:
    place = table.head.index(head)
    return {row[0]: row[place] for row in table.rows}


def test_each_ratio_has_its_verdict_against_one_base_that_no_figure_chose(tmp_path: Path) -> None:
    records = [
        *replicates("png", [40.0, 40.1, 40.0, 40.1]),
        *replicates("hdf5", [41.0, 40.0, 40.5, 40.2]),
        *replicates("leveldb", [20.0, 60.0, 35.0, 55.0]),
        *replicates("lmdb", [15.0, 15.1, 15.0, 15.1]),
        *replicates("files+raw", [90.0, 90.1, 90.0, 90.1]),
    ]
    (table,) = write_report(write_run(tmp_path / "run", records), tmp_path / "out").tables
    assert column(table, "verdict") == {
        "PNG files": "base",
        "HDF5": "no difference",
        "LevelDB": "cannot be told",
        "LMDB": "faster",
        "raw files": "slower",
    }
    (note,) = [note for note in table.notes if "LevelDB" in note]
    assert note.startswith("LevelDB: cannot be told; ")
    assert note.endswith(" more rounds would be enough to see a difference of 1.25 times, if there is one.")
    assert not any("HDF5" in note or "LMDB" in note for note in table.notes)
    ratios = column(table, "times as fast as PNG files [simultaneous 95%]")
    assert ratios["LMDB"].startswith("2.00 [")
    assert column(table, "samples/s [single 95%]")["LMDB"].endswith("]")
    assert "Their intervals are simultaneous" in table.notes[0]
    assert "Intervals of rates are single" in table.notes[0]
    assert "Within this run" in table.caption


def test_a_proven_ratio_of_uncertain_size_asks_for_more_rounds(tmp_path: Path) -> None:
    records = [*replicates("png", [9900.0, 9902.0, 9904.0]), *replicates("lmdb", [10.0, 30.0, 60.0])]
    (table,) = write_report(write_run(tmp_path / "run", records), tmp_path / "out").tables
    assert column(table, "verdict")["LMDB"] == "faster"
    (note,) = [note for note in table.notes if note.startswith("LMDB: proven faster")]
    assert re.search(
        r"but 3 rounds hardly tell by how much; \d+ more rounds would tell the ratio to within a factor of 1\.25\.$",
        note,
    )


def test_short_figures_stay_on_one_line_and_long_ones_do_not(tmp_path: Path) -> None:
    records = [*replicates("png", [40.0, 40.1, 40.0]), *replicates("lmdb", [15.0, 15.1, 15.0])]
    write_report(write_run(tmp_path / "run", records), tmp_path / "out")
    tables = (tmp_path / "out" / "report.html").read_text().partition('id="cells"')[0]
    figures = re.findall(r'<td( class="short")?>([^<]*)</td>', tables)
    assert {bool(short) for short, text in figures if 0 < len(text) <= 20} == {True}
    assert {bool(short) for short, text in figures if len(text) > 30} <= {False}


def test_processor_time_and_cores_stand_in_the_table(tmp_path: Path) -> None:
    counters = Counters(device_read_bytes=10**9, cpu_user_s=1.5, cpu_system_s=0.6)
    record = make_record("lmdb", cache="cold", counters=counters)  # 3,200 samples in 1.4 s
    (table,) = write_report(write_run(tmp_path / "run", [record]), tmp_path / "out").tables
    assert column(table, "CPU per sample") == {"LMDB": "656 µs"}
    assert column(table, "cores") == {"LMDB": "1.5"}


def test_what_loading_costs_the_network_stands_in_the_table(tmp_path: Path) -> None:
    records = [make_record("null", cache="any", wait_ms=0.1, replicate=n) for n in range(3)]
    records += replicates("lmdb", [4.0] * 3, compute_ms=15.0)
    (table,) = write_report(write_run(tmp_path / "run", records), tmp_path / "out").tables
    assert column(table, "compute inflation [simultaneous 95%]") == {
        "LMDB": "1.50 [1.50, 1.50]",
        "null (no loading)": "",
    }


def test_metadata_is_called_cold_only_where_every_record_says_so(tmp_path: Path) -> None:
    record = make_record("png", cache="cold")
    assert record.cache is not None
    cold = dataclasses.replace(record, cache=dataclasses.replace(record.cache, metadata="cold"))
    (table,) = write_report(write_run(tmp_path / "run", [cold]), tmp_path / "out").tables
    assert any(note.startswith("Metadata cold") for note in table.notes)


def test_a_warm_table_says_what_warm_is_and_nothing_of_caches_below(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_record("lmdb", cache="warm")])
    (table,) = write_report(run, tmp_path / "out").tables
    assert any(note.startswith("Warm = the store's files were read in a row") for note in table.notes)
    assert not any("below" in note for note in table.notes)


def test_the_limit_stands_beside_what_was_resident(tmp_path: Path) -> None:
    record = make_record("lmdb", cache="limited", memory_bytes=400 * 2**20)
    assert record.cache is not None
    facts = dataclasses.replace(record.cache, resident_max_frac=0.5)
    (table,) = write_report(
        write_run(tmp_path / "run", [dataclasses.replace(record, cache=facts)]), tmp_path / "out"
    ).tables
    assert "limited to 400 MiB" in table.caption
    assert any("at no sampled moment more than 95% of that was resident" in note for note in table.notes)
