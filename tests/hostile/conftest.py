"""A real run, real stores and the command line in this process, for files that are damaged on purpose."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from storebench.cli.main import app
from tests.support.quick_cli import storebench

SAMPLES = "mnist-train-limit96-synthetic"
SAMPLES_OPTIONS = ("--dataset", "mnist", "--limit", "96", "--synthetic")
BACKENDS = ("lmdb", "hdf5", "memory+png", "files+raw", "leveldb")
SCENARIO = """
name = "hostile"
test_limit = 0

[[matrix]]
dataset = "mnist"
limit = 96
synthetic = true
compute = "none"
model = "none"
batch_size = 16
threads = 1
epochs = 2
backends = ["lmdb"]
cache = "warm"
"""


@pytest.fixture(scope="session")
def here() -> Callable[..., int]:
    """Run the command line in this process; success or one line is required, and the exit code returned."""

    def run(change: str, *arguments: object) -> int:
        done = CliRunner().invoke(app, [*map(str, arguments)])
        told = f"{change}: {arguments}: exit code {done.exit_code}, {done.stderr[-2000:]}, {done.exception!r}"
        assert done.exception is None or isinstance(done.exception, SystemExit), told
        lines = [line for line in done.stderr.splitlines() if line.startswith("storebench: ")]
        assert done.exit_code in range(6), told
        assert "Traceback" not in done.stderr + done.stdout, told
        assert "unexpected error" not in done.stderr, told
        assert len(lines) <= 1, told
        assert lines or done.stdout or done.exit_code == 0, told
        assert all(len(line) < 3000 for line in done.stderr.splitlines()), told
        return done.exit_code

    return run


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run in ``run`` and stores of 96 images in ``stores``, made by the command line."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "scenario.toml").write_text(SCENARIO, encoding="utf-8")
    for arguments in (
        ("convert", *BACKENDS, *SAMPLES_OPTIONS, "--out", "stores"),
        ("bench", "scenario.toml", "--out", "run", "--stores", "stores"),
    ):
        done = storebench(root, *arguments)
        assert done.returncode == 0, done.stderr
    return root


@pytest.fixture
def run(built: Path, tmp_path: Path) -> Path:
    """Return a copy of the run."""
    return Path(shutil.copytree(built / "run", tmp_path / "run"))


@pytest.fixture
def stores(built: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder of the stores, one folder for each format."""
    return Path(shutil.copytree(built / "stores", tmp_path / "stores")) / SAMPLES
