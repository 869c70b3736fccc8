"""Loaders that serve other batches than they were asked for, or make them when no clock runs."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.record.lines import read_records
from tests.support import careless_plugin
from tests.support.harness_tools import write_scenario
from tests.support.quick_cli import storebench

SMALL = {"dataset": "cifar10", "synthetic": True, "limit": 400, "batch_size": 40, "compute": "none"}
LARGE = {"dataset": "imagenet", "size": 24, "batch_size": 8, "model": "caffenet"}

Run = Callable[..., tuple[int, str | None, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for stores, with the plugin installed in `site`."""
    root = tmp_path_factory.mktemp("loaders")
    info = root / "site" / "storebench_patched-1.0.dist-info"
    info.mkdir(parents=True)
    careless = Path(careless_plugin.__file__)
    for module in (careless, careless.with_name("faulty_loaders.py")):
        shutil.copy(module, root / "site")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: storebench-patched\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[storebench.formats]\npatched = faulty_loaders:PatchedFormat\n")
    return root


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Run:
    """Return a function that runs a cell with a fault; it returns exit code, failure, and findings of `validate`."""

    def run_cell(fault: str, **matrix: Any) -> tuple[int, str | None, str]:
        scenario = write_scenario(
            tmp_path / "one.toml", SMALL | {"backends": ["patched"]} | matrix, ceilings=False
        )
        out = tmp_path / "run"
        env: dict[str, Any] = {"PYTHONPATH": str(place / "site"), "PLANTED_LOADER": fault}
        done = storebench(place, "bench", scenario, "--stores", "stores", "--out", out, **env)
        records = read_records(out)
        assert records, done.stderr
        return done.returncode, records[-1].failure, storebench(place, "validate", out, **env).stdout

    return run_cell


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("backwards", "not served the samples of its plan in the drawn order"),
        ("repeating", "40 missing, 40 served twice"),
        ("omitting", "40 missing, 0 served twice"),
    ],
)
def test_a_loader_that_serves_another_order_fails_the_cell(fault: str, failure: str, run: Run) -> None:
    code, found, _ = run(fault)
    assert code == 5
    assert failure in (found or "")


def test_a_loader_that_augments_for_another_epoch_fails_the_cell(run: Run) -> None:
    code, found, _ = run("tomorrow", **LARGE, limit=24)
    assert code == 5
    assert "of 24 kept from the timed batches 24 wrong" in (found or "")


@pytest.mark.parametrize(
    ("fault", "finding", "matrix"),
    [
        ("early", "before the epoch", {}),
        ("keeping", "before the epoch", {"epochs": 2, "shuffle": False}),
        ("late", "after the loop had it", {"compute": "emulated:200"}),
    ],
)
def test_a_loader_that_works_when_no_clock_runs_is_found(
    fault: str, finding: str, matrix: dict[str, Any], run: Run
) -> None:
    code, failure, findings = run(fault, **matrix)
    assert (code, failure) == (0, None)
    assert finding in findings, findings
