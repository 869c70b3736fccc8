"""The loader with 0 and 2 workers, and one training step."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from benchmarks.suite.drawn import BATCH, DrawnDataset
from benchmarks.suite.measurement import Measurement
from storebench.formats.registry import parse_backend
from storebench.loading.batch import LOOP_WORKER, EpochPlan, LoadedBatch, LoadJob, Spans
from storebench.loading.loader import BatchLoader, get_loader
from storebench.loading.order import epoch_order, split_batches
from storebench.probes.page_cache import warm
from storebench.settings.words import Compute
from storebench.stores.find import Store
from storebench.training.compute import CpuStep, make_step
from storebench.training.models import get_model

EPOCHS = 8
BACKEND = "memory:python"
"""A loader's benchmark should measure the loader: nothing is read from a file, nothing is decoded."""


@pytest.fixture
def loader(
    request: pytest.FixtureRequest, stores: Callable[[str], Store]
) -> Iterator[tuple[BatchLoader, Store]]:
    store = stores(BACKEND)
    job = LoadJob(store=store.path, backend=parse_backend(BACKEND))
    with get_loader("processes")(job, workers=request.param) as opened:
        warm([*store.path.rglob("*.*")])
        opened.open()
        yield opened, store


@pytest.mark.parametrize("loader", [0, 2], indirect=True, ids=["workers-0", "workers-2"])
def test_loader(measured: Callable[[Measurement], None], loader: tuple[BatchLoader, Store]) -> None:
    opened, store = loader
    count = store.manifest.count
    plan = EpochPlan(epoch=0, batches=split_batches(epoch_order(count, seed=0, epoch=0), BATCH))
    measured(
        Measurement(
            target=lambda: sum(len(batch.indices) for _ in range(EPOCHS) for batch in opened.epoch(plan)),
            samples=EPOCHS * count,
        )
    )


def test_training_step(measured: Callable[[Measurement], None], thumbnails: DrawnDataset) -> None:
    model = get_model("cifar10_quick")
    pixels = thumbnails.pixels()[: model.batch_size]
    torch.manual_seed(0)
    step = make_step(
        Compute("real"), model, model.augment.output_shape(thumbnails.info.image_shape), 10, "cpu"
    )
    assert isinstance(step, CpuStep)
    labels = np.arange(len(pixels), dtype=np.int64) % 10
    spans = Spans(start_ns=0, fetch_ns=0, decode_ns=0, prep_ns=0, ready_ns=0)
    batch = LoadedBatch(
        pixels=torch.from_numpy(pixels),
        labels=labels,
        indices=labels,
        spans=spans,
        payload_bytes=0,
        worker=LOOP_WORKER,
    )

    def target() -> int:
        step.copy(batch)
        step.compute()
        return len(pixels)

    measured(Measurement(target=target, samples=len(pixels)))
