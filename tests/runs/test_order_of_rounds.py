"""All cells of a round share its order and its augmentation; networks start from the seed alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from storebench.record.lines import RECORDS_NAME
from tests.support.harness_tools import Bench, write_scenario
from tests.support.photo_folders import write_photos

COUNT = 12
EPOCHS = [(replicate, epoch) for replicate in range(3) for epoch in range(2)]
WORDS = ("--model", "tiny", "--image-size", "32", "--batch-size", "5", "--epochs", "2")


@pytest.fixture(scope="module")
def run(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounds")
    backends = ("png", "lmdb", "original", "lmdb+original")
    photos = write_photos(folder / "photos", each=COUNT // 2, only=0)
    done, _ = bench.run(
        *backends, "--dataset", photos, *WORDS, "--workers", "0,1", "--replicates", "3", out=folder / "run"
    )
    assert done.returncode == 0, done.stderr
    return folder / "run"


def records_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / RECORDS_NAME).read_text().splitlines()]


def digests(run: Path, name: str, *backends: str) -> list[set[str]]:
    """Return the different digests of each epoch of each round."""
    records = [record for record in records_of(run) if not backends or record["cell"]["backend"] in backends]
    found = [
        {
            record["digests"][name]
            for record in records
            if (record["replicate"], record["epoch"]) == (replicate, epoch)
        }
        for replicate, epoch in EPOCHS
    ]
    assert all(found)
    return found


@pytest.mark.parametrize(
    ("name", "backends"),
    [
        ("order", ()),
        ("loss", ("png", "lmdb")),
        ("loss", ("original", "lmdb+original")),
    ],
)
def test_the_cells_of_a_round_share_what_rounds_differ_in(
    name: str, backends: tuple[str, ...], run: Path
) -> None:
    shared = digests(run, name, *backends)
    assert [len(found) for found in shared] == [1] * len(EPOCHS)
    assert len(set.union(*shared)) == len(EPOCHS)


def test_the_network_starts_the_same_in_every_round(bench: Bench, tmp_path: Path) -> None:
    matrix = {"dataset": "mnist", "synthetic": True, "limit": 20, "model": "tiny", "shuffle": False}
    file = write_scenario(tmp_path / "kept.toml", matrix | {"backends": ["memory"]}, replicates=2)
    done = bench.cli("bench", file, "--stores", bench.stores, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    records = records_of(tmp_path / "run")
    assert len(records) == 2
    assert len({record["digests"]["loss"] for record in records}) == 1
