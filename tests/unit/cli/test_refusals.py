"""What cannot be measured is refused before anything is converted."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness_tools import write_scenario

Cli = Callable[..., Any]
MNIST = ("--dataset", "mnist", "--synthetic", "--limit", "500")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "memory", *MNIST, "--stores", "s3://bucket/stores"),
        ("report", "s3://bucket/run"),
        ("run", "memory", "-ds3://bucket/photos"),
    ],
)
def test_an_address_is_no_folder(words: tuple[str, ...], cli: Cli, tmp_path: Path) -> None:
    done = cli(*words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "an address, not a path" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_address_in_a_variable_is_no_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOREBENCH_STORES", "s3://bucket/stores")
    done = cli("run", "memory", *MNIST, env=dict(os.environ))
    assert done.returncode == 2
    assert "an address, not a path" in done.stderr
    assert not list(tmp_path.iterdir())


def test_workers_without_a_batch_are_told(cli: Cli) -> None:
    done = cli("run", "memory", *MNIST, "--compute", "none", "--workers", "2", "--batch-size", "256")
    assert "too few images" not in done.stderr
    done = cli("run", "memory", *MNIST, "--compute", "none", "--workers", "2", "--batch-size", "500")
    assert "too few images for 2 workers x 500" in done.stderr


@pytest.fixture
def in_memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="storebench-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "words",
    [
        ("--cache", "warm,cold"),
        pytest.param(("--cache", "limited", "--memory", "32MiB"), marks=pytest.mark.root),
    ],
)
def test_a_cold_store_in_memory_is_refused_before_it_is_written(
    words: tuple[str, ...], cli: Cli, in_memory: Path
) -> None:
    done = cli("run", "lmdb", *MNIST, "--compute", "none", *words, "--stores", str(in_memory / "st"))
    assert done.returncode == 2, done.stderr
    assert "no store can be cold here" in done.stderr or "control group" in done.stderr
    assert not list(in_memory.iterdir())


@pytest.mark.root
@pytest.mark.parametrize("states", ["limited", "warm,limited"])
def test_a_limit_that_holds_a_store_is_refused_before_one_is_written(
    states: str, cli: Cli, tmp_path: Path
) -> None:
    words = ("--compute", "none", "--cache", states, "--memory", "40MiB", "--stores", str(tmp_path / "st"))
    done = cli("run", "lmdb", "png", *MNIST[:-2], "--size", "40000", *words)
    assert done.returncode == 2, done.stderr
    assert "png: a limit of 40 MiB holds the whole store" in done.stderr or "control group" in done.stderr
    assert not (tmp_path / "st").exists()


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_stores_larger_than_the_disk_are_refused_before_one_is_written(
    verb: str, cli: Cli, tmp_path: Path
) -> None:
    matrix = {"dataset": "imagenet", "synthetic": True, "size": 10**9, "model": "none", "compute": "none"}
    file = write_scenario(tmp_path / "huge.toml", matrix | {"backends": ["lmdb"]})
    words = ("lmdb", "--dataset", "imagenet", "--synthetic", "--size", str(10**9), "--compute", "none")
    stores = tmp_path / "st"
    done = cli(verb, *(words if verb == "run" else (str(file),)), "--stores", str(stores))
    assert done.returncode == 5, done.stderr
    assert f"{stores}: the stores take about " in done.stderr
    assert not stores.exists()
