"""The shared folder of the harness's tests, and the paper's six backends run once."""

import gc
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from storebench.probes.machine import IN_MEMORY, mount_of
from tests.support.harness_tools import SAMPLES, SIX, Bench, environment, run_folder_in
from tests.support.quick_cli import CommandServer
from tests.support.short_yardsticks import shorten

SIX_SCENARIO = f"""
name = "six"
question = "Do all six train the same?"
test_limit = 100

[[matrix]]
dataset = "mnist"
limit = {SAMPLES}
batch_size = 16
warmup_steps = 2
threads = 1
backends = {json.dumps(SIX)}
cache = "warm"
"""


@pytest.fixture
def plugged(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the plugin on the path of this process."""
    monkeypatch.syspath_prepend(plugin)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, plugin: Path, commands: CommandServer) -> Bench:
    root = tmp_path_factory.mktemp("bench")
    return Bench(root=root, stores=root / "stores", env=environment(plugin), commands=commands)


@pytest.fixture
def on_disk(bench: Bench) -> None:
    mount = mount_of(bench.root)
    if mount.fstype in IN_MEMORY or mount.device is None:
        pytest.skip(f"the temporary folder is on {mount.fstype}: a disk is needed (pytest --basetemp)")


@pytest.fixture(scope="session")
def six(bench: Bench) -> tuple[Path, list[dict[str, Any]]]:
    """Run the paper's six backends on MNIST by the command line; return the run's folder and its records."""
    path, out = bench.root / "six.toml", bench.root / "six"
    path.write_text(SIX_SCENARIO)
    done = bench.cli("bench", path, "--stores", bench.stores, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


@pytest.fixture
def run_folder(tmp_path: Path, bench: Bench) -> Path:
    return run_folder_in(tmp_path, bench)


@pytest.fixture(autouse=True)
def little_to_collect() -> None:
    """Spare the garbage collector everything so far: a cell in this process collects before each epoch."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def torch_state() -> Iterator[None]:
    """Give torch's threads and its random state back as they were: cells in this process set both."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    """Let cells in this process measure machine and communication for a moment only, those of fixtures, too."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch.setattr)
        yield


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Make a folder for temporary files whose path leaves room for the names of sockets in it."""
    with tempfile.TemporaryDirectory(prefix="sb-") as folder:
        yield Path(folder)
