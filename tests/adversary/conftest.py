"""A small real run that attacks are planted into: made once, copied for each attack."""

import shutil
from pathlib import Path

import pytest

from tests.support.quick_cli import storebench

SCENARIO = """
name = "adversary"
replicates = 2
test_limit = 0

[[matrix]]
dataset = "cifar10"
limit = 1000
synthetic = true
model = "tiny"
batch_size = 32
threads = 1
backends = ["hdf5", "null"]
cache = ["cold", "warm"]

[[matrix]]
dataset = "cifar10"
limit = 1000
synthetic = true
model = "tiny"
batch_size = 32
threads = 1
backends = ["png"]
cache = "warm"
"""


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a real run: HDF5 cold and warm, PNG files warm, and null, two rounds each."""
    root = tmp_path_factory.mktemp("adversary")
    (root / "scenario.toml").write_text(SCENARIO, encoding="utf-8")
    done = storebench(root, "bench", "scenario.toml", "--out", "run", "--stores", "stores")
    assert done.returncode == 0, done.stderr
    return root / "run"


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """Return a copy of the real run to plant something into."""
    return Path(shutil.copytree(honest, tmp_path / "run"))
