"""What cannot be measured is refused before anything is converted."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
MNIST = ("--dataset", "mnist", "--synthetic", "--limit", "500")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "memory", *MNIST, "--stores", "s3://bucket/stores"),
        ("run", "memory", *MNIST, "--out=gs://bucket/run"),
        ("run", "--dataset", "folder:https://host/photos"),
        ("convert", "lmdb", *MNIST, "--out", "s3://bucket/stores"),
        ("report", "s3://bucket/run"),
    ],
)
def test_an_address_is_no_folder(words: tuple[str, ...], cli: Cli, tmp_path: Path) -> None:
    done = cli(*words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "an address, not a path" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_reason_may_name_an_address(cli: Cli) -> None:
    done = cli("check", "none", "nothing", "--update", "--reason", "see https://host/ci/1")
    assert "an address, not a path" not in done.stderr


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


@pytest.mark.parametrize("states", ["cold", "warm,cold"])
def test_a_cold_store_in_memory_is_refused_before_it_is_written(
    states: str, cli: Cli, in_memory: Path
) -> None:
    done = cli(
        "run", "lmdb", *MNIST, "--compute", "none", "--cache", states, "--stores", str(in_memory / "st")
    )
    assert done.returncode == 2, done.stderr
    assert "no store can be cold here" in done.stderr
    assert not list(in_memory.iterdir())


@pytest.mark.root
def test_a_limit_that_holds_any_store_is_refused_before_one_is_written(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "png", *MNIST, "--compute", "none", "--cache", "limited", "--memory", "64MB")
    assert done.returncode == 2, done.stderr
    assert "holds any store" in done.stderr or "control group" in done.stderr
    assert "converting" not in done.stderr
