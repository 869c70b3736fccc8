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
from storebench.loading.order import order_digest
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
    "cifar10": {"limit": 100, "batch_size": 16},
    "imagenet": {"limit": 24, "batch_size": 5, "model": "tiny"},
}
WORKERS = (0, 2)
FEW_WORKERS = {"cifar10": (0,), "imagenet": (2,)}
"""Data set -> the numbers of workers that it is trained with; the others, and all with --full, with all of `WORKERS`."""

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


@pytest.mark.parametrize(
    "trained",
    [
        "mnist",
        pytest.param("cifar10", marks=pytest.mark.full),
        "imagenet",
    ],  # cifar10 is small and raw as mnist is
    indirect=True,
)
def test_losses_are_bit_identical_from_every_backend(
    trained: Trained,
) -> None:
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


@pytest.mark.parametrize("model", ["tiny", pytest.param("caffenet", marks=pytest.mark.full)])
def test_dropout_is_the_same_with_and_without_workers(
    model: str, bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a small network with the crops and the mirroring of CaffeNet, and by CaffeNet itself."""
    small = dataclasses.replace(MODELS["caffenet"], name="tiny", build=with_dropout)
    monkeypatch.setitem(MODELS, "tiny", small)
    matrix = {"dataset": "imagenet", "limit": 24, "batch_size": 4, "max_steps": 2, "model": model}
    png, lmdb = (
        only_record(scenario(**matrix, backends=[name], workers=workers).cells()[0], bench.stores, run_folder)
        for name, workers in (("png", 2), ("lmdb", 0))
    )
    assert png.digests == lmdb.digests
    assert steps_of(png, run_folder)["loss"].tobytes() == steps_of(lmdb, run_folder)["loss"].tobytes()


def test_the_seed_decides_order_and_losses(bench: Bench, run_folder: Path) -> None:
    matrix = {"dataset": "mnist", "backends": ["memory:native"], **MATRICES["mnist"]}
    first, again, other = (
        only_record(scenario(**matrix, seed=seed).cells()[0], bench.stores, run_folder) for seed in (0, 0, 1)
    )
    assert first.digests == again.digests
    assert first.digests is not None
    assert other.digests is not None
    assert first.digests.order != other.digests.order
    assert first.digests.loss != other.digests.loss


def test_each_epoch_has_its_own_order_and_the_network_learns(bench: Bench, run_folder: Path) -> None:
    [cell] = scenario(dataset="mnist", backends=["memory:native"], epochs=2, **MATRICES["mnist"]).cells()
    one, two = cell_records(cell, bench.stores, run_folder)
    assert (one.epoch, two.epoch) == (0, 1)
    assert one.digests is not None
    assert two.digests is not None
    assert one.digests.order != two.digests.order
    assert one.loss is not None
    assert two.loss is not None
    assert two.loss.last < one.loss.first


def test_without_shuffling_the_order_is_that_of_the_store(bench: Bench, run_folder: Path) -> None:
    [cell] = scenario(dataset="mnist", backends=["lmdb"], shuffle=False, **MATRICES["mnist"]).cells()
    record = only_record(cell, bench.stores, run_folder)
    assert record.digests is not None
    assert record.digests.order == order_digest([np.arange(SAMPLES)])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("limit", "tested", "accuracy", "threads"),
    [(6_000, 1_000, 0.85, 1), pytest.param(None, 10_000, 0.98, 2, marks=pytest.mark.full)],
    ids=["a tenth", "whole"],
)
def test_lenet_learns_the_real_digits_in_one_epoch(
    limit: int | None,
    tested: int,
    accuracy: float,
    threads: int,
    data_root: Path,
    tmp_path: Path,
    run_folder: Path,
) -> None:
    # One backend is enough: the tests above hold the losses of all six equal, bit by bit.
    matrix = {"dataset": "mnist", "backends": ["memory:native"], "synthetic": False, "limit": limit}
    [cell] = scenario(**matrix, threads=threads).cells()
    [record] = cell_records(cell, tmp_path / "stores", run_folder, test_limit=tested)
    assert (record.samples, record.test_samples) == (limit or 60_000, tested)
    assert record.test_accuracy is not None
    assert record.test_accuracy >= accuracy
    assert record.overhead_s < 0.01 * record.epoch_s
