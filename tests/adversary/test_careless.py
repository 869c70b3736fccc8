"""Mistakes that the author of a format makes without meaning to: the cell fails, or its figures are called wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import careless_plugin
from tests.support.quick_cli import storebench

MANY = (
    *("--dataset", "cifar10", "--synthetic", "--limit", "2500"),
    *("--batch-size", "50", "--compute", "none"),
)
SMALL = ("--dataset", "cifar10", "--synthetic", "--limit", "400", "--batch-size", "40", "--compute", "none")
LARGE = ("--dataset", "imagenet", "--size", "24", "--synthetic", "--batch-size", "8", "--model", "caffenet")

Run = Callable[..., tuple[int, str, dict[str, list[dict[str, Any]]]]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for stores, with the plugin installed in `site`."""
    root = tmp_path_factory.mktemp("careless")
    info = root / "site" / "storebench_careless-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(Path(careless_plugin.__file__), root / "site")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: storebench-careless\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[storebench.formats]\ncareless = careless_plugin:CarelessFormat\n"
    )
    return root


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Run:
    """Return a function that runs cells and returns exit code, findings of `validate`, and records by reader."""

    def run_cells(*words: str) -> tuple[int, str, dict[str, list[dict[str, Any]]]]:
        site, out = str(place / "site"), tmp_path / "run"
        common = ("--threads", "1", "--replicates", "1", "--stores", "stores", "--out", out, "--json")
        done = storebench(place, "run", *words, *common, PYTHONPATH=site)
        assert done.stdout, done.stderr
        records: dict[str, list[dict[str, Any]]] = {}
        for record in json.loads(done.stdout):
            records.setdefault(record["cell"]["reader"], []).append(record)
        return done.returncode, storebench(place, "validate", out, PYTHONPATH=site).stdout, records

    return run_cells


def test_pixels_that_an_earlier_epoch_decoded_are_found(run: Run) -> None:
    _, findings, records = run(
        "careless+png:remembering", "careless+png", *MANY, "--cache", "warm", "--epochs", "2"
    )
    assert [record["status"] for record in records["remembering"]] == ["ok", "ok"]
    lines = [line for line in findings.splitlines() if "decode_s" in line]
    assert len(lines) == 1, findings
    assert "careless+png:remembering" in lines[0]
    assert "epoch 1" in lines[0]


def test_decoding_that_is_not_reported_is_found(run: Run) -> None:
    _, findings, _ = run("careless+png:silent", "careless+png", *SMALL, "--cache", "warm")
    [line] = [line for line in findings.splitlines() if "decode_s" in line]
    assert "careless+png:silent" in line
    assert "does not report its decoding" in line


@pytest.mark.parametrize(
    ("reader", "figure"), [("summing", "fetch_s: -"), ("numbered", "reader_notes.threads")]
)
def test_an_impossible_figure_of_a_reader_fails_its_cell_alone(reader: str, figure: str, run: Run) -> None:
    code, _, records = run(f"careless+png:{reader}", "careless+png", *SMALL, "--cache", "any")
    assert code == 5
    [failed], [right] = records[reader], records["right"]
    assert failed["status"] == "failed"
    assert figure in failed["failure"]
    assert right["status"] == "ok"


@pytest.mark.parametrize(
    ("reader", "setting", "loader", "workers"),
    [
        ("threads", "torch's threads", "processes", 0),
        ("polite", "its priority", "processes", 1),
        ("threads", "torch's threads", "ring", 1),
        ("urgent", "its scheduling class", "processes", 0),
        ("urgent", "its scheduling class", "ring", 1),
        ("idle", "its I/O class", "processes", 1),
    ],
)
def test_a_reader_that_changes_its_process_fails_the_cell(
    reader: str, setting: str, loader: str, workers: int, run: Run
) -> None:
    code, _, records = run(f"careless:{reader}", *SMALL, "--loader", loader, "--workers", str(workers))
    assert code == 5
    [failed] = records[reader]
    assert f"the reader of careless:{reader} changed {setting}" in failed["failure"]


def test_a_reader_that_changes_the_loops_process_fails_the_cell(run: Run) -> None:
    code, _, records = run("careless:later", *SMALL)
    assert code == 5
    assert "changed its priority from" in records["later"][0]["failure"]


def test_windows_that_are_copied_after_the_fetch_fail_the_cell(run: Run) -> None:
    code, _, records = run("careless:hasty", *LARGE, "--compute", "emulated:80")
    assert code == 5
    [failed] = records["hasty"]
    assert failed["status"] == "failed"
    assert failed["coverage"]["timed_wrong"] > 0
