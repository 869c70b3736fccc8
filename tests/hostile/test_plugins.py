"""Mistakes in other people's readers: the cell fails, or its figures are called wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.record.lines import read_records
from storebench.record.schema import Record, Status
from tests.support import planted_plugin
from tests.support.harness_tools import write_scenario
from tests.support.quick_cli import storebench

SMALL = {"dataset": "cifar10", "synthetic": True, "limit": 400, "batch_size": 40, "compute": "none"}
MANY = SMALL | {"limit": 2500, "batch_size": 50, "cache": "warm", "epochs": 2}
LARGE = {"dataset": "imagenet", "size": 24, "batch_size": 8, "model": "caffenet"}

Run = Callable[..., tuple[int, dict[str, list[Record]], str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for stores, with a package of faulty readers in `site`."""
    root = tmp_path_factory.mktemp("plugins")
    info = root / "site" / "storebench_planted-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(planted_plugin.__file__, root / "site")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: storebench-planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[storebench.formats]\nplanted = planted_plugin:PlantedFormat\n")
    return root


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Run:
    """Return a function that runs cells; it returns exit code, records by reader, and findings of `validate`."""

    def run_cells(backends: list[str], **matrix: Any) -> tuple[int, dict[str, list[Record]], str]:
        path, out = tmp_path / "one.toml", tmp_path / "run"
        scenario = write_scenario(path, SMALL | {"backends": backends} | matrix, ceilings=False)
        env: dict[str, Any] = {"PYTHONPATH": str(place / "site")}
        done = storebench(place, "bench", scenario, "--stores", "stores", "--out", out, **env)
        records: dict[str, list[Record]] = {}
        for record in read_records(out):
            records.setdefault(record.cell.backend.reader, []).append(record)
        assert records, done.stderr
        return done.returncode, records, storebench(place, "validate", out, **env).stdout

    return run_cells


@pytest.mark.parametrize(
    ("reader", "matrix", "words"),
    [
        ("remembering", MANY, ("epoch 1",)),
        ("silent", {"cache": "warm"}, ("does not report its decoding",)),
    ],
)
def test_decoding_that_is_saved_or_not_reported_is_found(
    reader: str, matrix: dict[str, Any], words: tuple[str, ...], run: Run
) -> None:
    _, records, findings = run([f"planted+png:{reader}", "planted+png:decoding"], **matrix)
    assert {record.status for record in records[reader]} == {Status.OK}
    [line] = [line for line in findings.splitlines() if "decode_s" in line]
    assert all(word in line for word in (f"planted+png:{reader}", *words))


@pytest.mark.parametrize(
    ("reader", "figure"), [("summing", "fetch_s: -"), ("numbered", "reader_notes.threads")]
)
def test_an_impossible_figure_of_a_reader_fails_its_cell_alone(reader: str, figure: str, run: Run) -> None:
    code, records, _ = run([f"planted+png:{reader}", "planted+png:decoding"], cache="any")
    assert code == 5
    assert figure in (records[reader][0].failure or "")
    assert records["decoding"][0].status is Status.OK


@pytest.mark.parametrize(
    ("reader", "setting", "loader", "workers"),
    [
        ("threads", "torch's threads", "processes", 0),
        ("polite", "its priority", "processes", 1),
        ("urgent", "its scheduling class", "ring", 1),
        ("idle", "its I/O class", "processes", 1),
        ("later", "its priority", "processes", 0),
    ],
)
def test_a_reader_that_changes_its_process_fails_the_cell(
    reader: str, setting: str, loader: str, workers: int, run: Run
) -> None:
    code, records, _ = run([f"planted:{reader}"], loader=loader, workers=workers)
    assert code == 5
    assert f"changed {setting}" in (records[reader][0].failure or "")


def test_windows_that_are_copied_after_the_fetch_fail_the_cell(run: Run) -> None:
    code, records, _ = run(["planted:hasty"], **LARGE, limit=24, compute="emulated:80")
    assert code == 5
    coverage = records["hasty"][0].coverage
    assert coverage is not None
    assert coverage.timed_wrong > 0
