"""A real run, real stores and the command line in this process, for files that are damaged on purpose."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from storebench.cli.main import app
from tests.hostile.hostile_run import SAMPLES, Answer, Here
from tests.support.quick_cli import storebench

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
BACKENDS = ("lmdb", "hdf5", "hdf5+png", "memory", "memory+png", "png", "leveldb")


@pytest.fixture(scope="session")
def here() -> Here:
    """Return the command line, run in this process: a hundred times as fast as a subprocess."""
    runner = CliRunner()

    def run(*arguments: object) -> Answer:
        done = runner.invoke(app, [*map(str, arguments)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise AssertionError(f"{arguments}: not caught: {done.exception!r}") from done.exception
        return Answer(code=done.exit_code, out=done.stdout, err=done.stderr)

    return run


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run in ``run`` and stores of 96 images in ``stores``, made by the command line."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "scenario.toml").write_text(SCENARIO, encoding="utf-8")
    samples = ("--dataset", "mnist", "--limit", "96", "--synthetic")
    for arguments in (
        ("convert", *BACKENDS, *samples, "--out", "stores"),
        ("bench", "scenario.toml", "--out", "run", "--stores", "stores"),
        ("verify", f"stores/{SAMPLES}/lmdb+raw", "--reader", "direct"),
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
