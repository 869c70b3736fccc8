"""``storebench run`` ends with what its report says, and begins with how long it will take."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from storebench.cli.main import app
from storebench.report.build import Report, write_report
from tests.support.copies import warm_cells
from tests.support.harness_tools import SMALL, Bench
from tests.support.photo_folders import write_photos

LOADING = ("--model", "none", "--compute", "none", "--cache", "warm", "--threads", "1")


def run(bench: Bench, out: Path, *words: str) -> Result:
    """Run ``storebench run`` in this process."""
    options = [*words, *SMALL, *LOADING, "--stores", str(bench.stores), "--out", str(out)]
    with warm_cells():
        return CliRunner(env=dict(bench.env)).invoke(app, ["run", *options])


@pytest.fixture(scope="module")
def finished(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("answer")
    return out, run(bench, out, "lmdb", "png", "--workers", "0,1", "--replicates", "1")


@pytest.fixture(scope="module")
def report(finished: tuple[Path, Result], tmp_path_factory: pytest.TempPathFactory) -> Report:
    return write_report([finished[0]], tmp_path_factory.mktemp("report"), allow_invalid=True)


def test_a_run_that_only_loads_ends_with_a_row_per_store_and_number_of_readers(
    finished: tuple[Path, Result],
) -> None:
    _, found, table = finished[1].stdout.partition("delivers\n")
    rows = [line.split()[:3] for line in table.splitlines() if " worker" in line]
    first = [
        ["PNG", "files,", "0"],
        ["PNG", "files,", "1"],
        ["LMDB,", "0", "workers"],
        ["LMDB,", "1", "worker"],
    ]
    assert found
    assert sorted(rows[:4]) == sorted(first)
    assert "accelerator" not in finished[1].stdout


def test_a_run_whose_cells_failed_still_shows_its_table(plugged: None, bench: Bench, tmp_path: Path) -> None:
    result = run(bench, tmp_path, "planted:broken")
    assert result.exit_code == 5
    assert " failed" in result.stdout
    assert result.stdout.splitlines()[0] == "Nothing was measured that could be compared."
    assert result.stderr.count("FAILED: ") == 1
    assert "1 of 1 record failed" in result.stderr


def test_a_limit_beyond_the_dataset_is_said_and_not_counted(bench: Bench, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", each=4)
    words = [
        "--dataset",
        str(tmp_path / "photos"),
        "--limit",
        "1000",
        "--image-size",
        "32",
        "--batch-size",
        "4",
    ]
    places = ["--stores", str(tmp_path / "stores"), "--out", str(tmp_path / "run"), "--replicates", "1"]
    with warm_cells():
        result = CliRunner(env=dict(bench.env)).invoke(app, ["run", "png", *words, *LOADING, *places])
    assert result.exit_code == 0, result.output
    assert "photos has 8 samples here, fewer than the limit of 1,000" in result.stderr
    assert "photos, 8 images" in result.stdout
    assert "1,000 images," not in result.stdout
