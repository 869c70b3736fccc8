"""What a cell is made of: the preparation of its samples, its weights, and the batches of each of its ranks."""

import contextlib
import dataclasses
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from storebench.loading.augment import Augment
from storebench.ranks.membership import Membership
from storebench.ranks.trainers import Trainer
from storebench.run.execute import Silent, prepare
from storebench.settings.words import ComputeKind, Share, TrainerData
from storebench.training.models import get_model
from storebench.worker.setup import Setup, augment_of, device_of
from storebench.worker.sharding import Sampling
from tests.support.harness_tools import SMALL_MATRIX, Bench, cell_job, scenario

COUNT = 50


def setup_of(bench: Bench, run: Path, **asked: Any) -> Setup:
    matrix = {"dataset": "mnist", "synthetic": True, "limit": COUNT, "batch_size": 4, "model": "tiny"}
    [cell] = scenario(**(matrix | {"backends": ["lmdb"]} | asked)).cells()
    return Setup.of(cell_job(cell, bench.stores, run))


def as_rank(setup: Setup, rank: int, ranks: int, trainers: int = 1, **changes: Any) -> Sampling:
    """Return the sampling of one rank of a job, without the job."""
    membership = Membership(rank=rank, ranks=ranks, local_rank=rank, local_ranks=ranks)
    cell = dataclasses.replace(setup.cell, ranks=ranks, trainers=trainers, **changes)
    trainer = Trainer.of(membership, trainers)
    return dataclasses.replace(setup.sampling, cell=cell, ranks=ranks, trainer=trainer)


def counted(batches: list[Any]) -> Counter[int]:
    return Counter(int(index) for batch in batches for index in batch)


@pytest.mark.parametrize(
    ("ranks", "trainers", "changes"),
    [
        (3, 1, {}),
        (3, 1, {"pad": True}),
        (3, 1, {"max_steps": 2}),
        (4, 2, {"max_steps": 2}),
        (4, 2, {"trainer_data": TrainerData.REPLICATED}),
        (6, 3, {"pad": True, "passes": 2}),
    ],
)
def test_the_batches_of_all_ranks_are_what_their_trainers_should_serve(
    ranks: int, trainers: int, changes: dict[str, Any], bench: Bench, run_folder: Path
) -> None:
    setup = setup_of(bench, run_folder)
    for epoch in (0, 1):
        shared = [as_rank(setup, rank, ranks, trainers, **changes) for rank in range(ranks)]
        served = counted([batch for rank in shared for batch in rank.batches(epoch)])
        assert served == counted(shared[0].expected(epoch)), epoch
        steps = {len(rank.batches(epoch)) for rank in shared}
        assert steps == {len(shared[0].global_sizes())}, "every rank takes the same steps"
        for step, size in enumerate(shared[0].global_sizes()):
            sizes = [len(rank.batches(epoch)[step]) for rank in shared[: ranks // trainers]]
            assert sum(sizes) == size
    assert not np.array_equal(shared[0].batches(0)[0], shared[0].batches(1)[0]), "each epoch has an order"


@pytest.mark.parametrize("changes", [{}, {"pad": True, "passes": 2}, {"max_steps": 2}])
def test_a_data_store_is_told_the_batches_of_all_ranks_step_by_step(
    changes: dict[str, Any], bench: Bench, run_folder: Path
) -> None:
    setup, ranks = setup_of(bench, run_folder), 3
    shared = [as_rank(setup, rank, ranks, share=Share.STORE, **changes) for rank in range(ranks)]
    for epoch in (0, 1):
        of_each = [rank.batches(epoch) for rank in shared]
        plan = shared[1].plan(epoch, of_each[1])
        assert (plan.epoch, plan.batches) == (epoch, of_each[1])
        assert plan.everyone is not None
        everyone = [[batch.tolist() for batch in step] for step in plan.everyone]
        assert everyone == [[batch.tolist() for batch in step] for step in zip(*of_each, strict=True)]
        assert len(everyone) == len(shared[0].global_sizes())
    alone = as_rank(setup, 1, ranks, **changes)
    plan = alone.plan(0, alone.batches(0))
    assert plan.everyone is None, "other readers need to know their own batches only"


def test_a_rank_without_a_sample_in_a_step_is_served_an_empty_batch(bench: Bench, run_folder: Path) -> None:
    setup = setup_of(bench, run_folder)
    setup.sampling = as_rank(setup, 2, 3)
    batches = setup.sampling.batches(0)
    sizes = [len(batch) for batch in batches]
    assert sizes[-1] == 0, "50 samples in steps of 12 leave 2 for the last one"
    setup.opened = setup.loader.open()
    with contextlib.closing(setup.loader):
        assert setup.pids == {os.getpid(), *(producer.pid for producer in setup.opened)}
        served = [
            (batch.pixels.shape, batch.indices.tolist())
            for batch in setup.served(setup.sampling.plan(0, batches))
        ]
    assert [indices for _, indices in served] == [batch.tolist() for batch in batches]
    assert [tuple(shape) for shape, _ in served] == [(size, 28, 28, 1) for size in sizes]


@pytest.mark.parametrize(("backend", "held"), [("lmdb", False), ("memory:python", True)])
def test_a_reader_that_holds_all_pixels_serves_from_memory(
    backend: str, held: bool, bench: Bench, run_folder: Path
) -> None:
    setup = setup_of(bench, run_folder, backends=[backend])
    assert setup.from_memory is held
    assert setup.limit is None
    with setup.outside_limit() as nothing:
        assert nothing is None


@pytest.mark.parametrize("compute", [["none", "real"], ["real", "none"]])
def test_a_trained_cell_has_test_samples_whichever_cell_of_its_store_is_first(
    compute: list[str], bench: Bench
) -> None:
    asked = scenario(**SMALL_MATRIX, backends=["lmdb"], compute=compute).model_copy(update={"test_limit": 8})
    prepared = prepare(dict.fromkeys(asked.cells()), asked, bench.stores, Silent())
    [trained] = [stores for cell, stores in prepared.items() if cell.compute.kind is ComputeKind.REAL]
    assert trained.test_store


@pytest.mark.parametrize(
    ("own", "size", "codec", "expected"),
    [
        ("caffenet", None, "raw", {"crop": 227, "mirror": True, "resized": None}),
        ("caffenet", 64, "raw", {"crop": None, "mirror": True, "resized": None}),
        ("caffenet", None, "original", {"crop": None, "mirror": True, "resized": 227}),
        ("caffenet", 64, "original", {"crop": None, "mirror": True, "resized": 64}),
        (None, None, "original", {"crop": None, "mirror": True, "resized": 40}),
    ],
)
def test_samples_get_the_size_asked_for_or_that_of_the_network(
    own: str | None, size: int | None, codec: str, expected: dict[str, Any]
) -> None:
    manifest: Any = SimpleNamespace(codec=codec, dataset=SimpleNamespace(image_shape=(40, 60, 3)))
    cell: Any = SimpleNamespace(data=SimpleNamespace(image_size=size))
    found = augment_of(cell, manifest, get_model(own) if own else None)
    assert isinstance(found, Augment)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("device", "rank", "ranks", "own"),
    [("cpu", 1, 2, "cpu"), ("cuda", 0, 1, "cuda"), ("cuda", 1, 2, "cuda:1"), ("cuda:3", 0, 1, "cuda:3")],
)
def test_each_rank_of_a_node_has_a_gpu_of_its_own(device: str, rank: int, ranks: int, own: str) -> None:
    cell: Any = SimpleNamespace(device=device)
    assert device_of(cell, Membership(rank=rank, ranks=ranks, local_rank=rank, local_ranks=ranks)) == own
