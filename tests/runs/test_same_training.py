"""All six backends of the paper train alike: the same samples, the same order, bit-identical losses."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from storebench.arrays import ImageShape
from storebench.record.schema import Record
from storebench.training.models import MODELS, tiny
from tests.support.harness_tools import (
    SAMPLES,
    SIX,
    Bench,
    cell_records,
    only_record,
    run_folder_in,
    scenario,
    steps_of,
)

MATRICES: dict[str, dict[str, Any]] = {
    "mnist": {"limit": SAMPLES, "batch_size": 16},
    "imagenet": {"limit": 24, "batch_size": 5, "model": "tiny"},
}
WORKERS = (0, 2)
FEW_WORKERS = {"imagenet": (2,)}
"""Data set -> its numbers of workers; the others, and all with --full, are trained with all of `WORKERS`."""

Trained = list[tuple[Record, bytes]]


def test_by_the_command_line_samples_order_and_losses_are_equal(
    six: tuple[Path, list[dict[str, Any]]],
) -> None:
    run, records = six
    assert sorted(record["cell"]["backend"] for record in records) == sorted(SIX)
    assert {record["status"] for record in records} == {"ok"}
    for name in ("order", "loss"):
        assert len({record["digests"][name] for record in records}) == 1
    losses = {steps_of(record, run)["loss"].tobytes() for record in records}
    assert len(losses) == 1
    assert len(losses.pop()) == 4 * -(-SAMPLES // 16)
    assert len({record["test_accuracy"] for record in records}) == 1
    assert {record["test_samples"] for record in records} == {100}


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    run = run_folder_in(tmp_path_factory.mktemp("trained"), bench)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "imagenet":
            # CaffeNet's crops and mirroring, without its 60 million weights.
            spec = dataclasses.replace(MODELS["tiny"], augment=MODELS["caffenet"].augment)
            patch.setitem(MODELS, "tiny", spec)
        every = request.config.getoption("--full")
        return train(request.param, bench, run, WORKERS if every else FEW_WORKERS.get(request.param, WORKERS))


def train(dataset: str, bench: Bench, run: Path, workers: Sequence[int]) -> Trained:
    matrix = scenario(dataset=dataset, backends=list(SIX), workers=list(workers), **MATRICES[dataset])
    records = [only_record(cell, bench.stores, run) for cell in matrix.cells()]
    return [(record, steps_of(record, run)["loss"].tobytes()) for record in records]


@pytest.mark.parametrize("trained", ["mnist", "imagenet"], indirect=True)
def test_losses_are_bit_identical_from_every_backend(trained: Trained) -> None:
    workers = {one.cell.workers for one, _ in trained}
    assert {(one.cell.backend.name, one.cell.workers) for one, _ in trained} == set(
        itertools.product(SIX, workers)
    )
    first, losses = trained[0]
    assert workers == set(WORKERS) or first.cell.data.name in FEW_WORKERS
    assert len(losses) == 4 * first.steps
    assert np.isfinite(np.frombuffer(losses, np.float32)).all()
    assert len(set(np.frombuffer(losses, np.float32).tolist())) > 1
    for record, its_losses in trained:
        assert its_losses == losses, record.cell.backend.name
        assert record.digests == first.digests, record.cell.backend.name
        assert record.coverage is not None
        assert record.coverage.complete


def with_dropout(shape: ImageShape, classes: int) -> nn.Module:
    """Return a small network with the layer that draws while it trains."""
    return nn.Sequential(tiny(shape, classes), nn.Dropout(0.5))


def test_dropout_is_the_same_with_and_without_workers(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(MODELS["caffenet"], name="tiny", build=with_dropout)
    monkeypatch.setitem(MODELS, "tiny", small)
    matrix = {"dataset": "imagenet", "limit": 24, "batch_size": 4, "max_steps": 2, "model": "tiny"}
    png, lmdb = (
        only_record(scenario(**matrix, backends=[name], workers=workers).cells()[0], bench.stores, run_folder)
        for name, workers in (("png", 2), ("lmdb", 0))
    )
    assert png.digests == lmdb.digests
    assert steps_of(png, run_folder)["loss"].tobytes() == steps_of(lmdb, run_folder)["loss"].tobytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lenet_learns_the_real_digits_in_one_epoch(data_root: Path, tmp_path: Path, run_folder: Path) -> None:
    # One backend is enough: the tests above hold the losses of all six equal, bit by bit.
    matrix = {"dataset": "mnist", "backends": ["memory:native"], "synthetic": False, "limit": 6_000}
    [cell] = scenario(**matrix).cells()
    [record] = cell_records(cell, tmp_path / "stores", run_folder, test_limit=1_000)
    assert (record.samples, record.test_samples) == (6_000, 1_000)
    assert record.test_accuracy is not None
    assert record.test_accuracy >= 0.85
    assert record.overhead_s < 0.05 * record.epoch_s
