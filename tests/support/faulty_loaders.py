"""A third party's package that changes the loader of the process that is measured; PLANTED_LOADER names the fault.

Its format is that of `planted_plugin`, whose right reader is the only one that is used.
"""

import dataclasses
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from storebench.formats.base import FormatInfo
from storebench.loading.batch import BatchRequest, EpochPlan, LoadedBatch
from storebench.loading.loader import ProcessLoader

if TYPE_CHECKING:
    from tests.support.planted_plugin import PlantedFormat
else:
    PlantedFormat = importlib.import_module("planted_plugin").PlantedFormat  # installed beside this module

Serve = Callable[[ProcessLoader, EpochPlan], Iterator[LoadedBatch]]
LATE_S = 10e-3

serve: Serve = ProcessLoader.epoch


def produced(loader: ProcessLoader, request: BatchRequest) -> LoadedBatch:
    """Make a batch in memory of its own."""
    batch = loader._dataset.producer.produce(request)
    batch.pixels = batch.pixels.clone()
    return batch


def requests(plan: EpochPlan) -> list[BatchRequest]:
    return [
        BatchRequest(epoch=plan.epoch, step=step, indices=indices, plan=None)
        for step, indices in enumerate(plan.batches)
    ]


def backwards(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Serve the batches in another order."""
    return serve(loader, dataclasses.replace(plan, batches=plan.batches[::-1]))


def repeating(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Serve the first batch in place of the second."""
    first, _, *rest = plan.batches
    return serve(loader, dataclasses.replace(plan, batches=[first, first, *rest]))


def omitting(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Leave out the last batch."""
    return serve(loader, dataclasses.replace(plan, batches=plan.batches[:-1]))


def tomorrow(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Crop and mirror as in the next epoch."""
    return serve(loader, dataclasses.replace(plan, epoch=plan.epoch + 1))


def early(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Make all batches before the first one is requested."""
    return iter([produced(loader, request) for request in requests(plan)])


kept: list[LoadedBatch] = []


def keeping(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Serve the batches of the first epoch again in every epoch that has the same order."""
    if not kept:
        kept.extend(dataclasses.replace(batch, pixels=batch.pixels.clone()) for batch in serve(loader, plan))
    return iter([dataclasses.replace(batch) for batch in kept])


def late(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Give batches to the loop before their pixels are there."""
    for batch in (produced(loader, request) for request in requests(plan)):
        right = batch.pixels.clone()
        batch.pixels.zero_()
        threading.Thread(target=fill, args=(batch, right)).start()
        yield batch


def fill(batch: LoadedBatch, right: Any) -> None:
    time.sleep(LATE_S)
    batch.pixels.copy_(right)
    batch.spans.ready_ns = time.perf_counter_ns()


FAULTS: dict[str, Serve] = {
    "backwards": backwards,
    "repeating": repeating,
    "omitting": omitting,
    "tomorrow": tomorrow,
    "early": early,
    "keeping": keeping,
    "late": late,
}


class PatchedFormat(PlantedFormat):
    """The planted format under another name."""

    info = FormatInfo(name="patched", summary="a loader", default_codec="raw", default_reader="flat")


ProcessLoader.epoch = FAULTS[os.environ["PLANTED_LOADER"]]  # type: ignore[method-assign,assignment]
