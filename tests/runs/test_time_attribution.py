"""Time goes to whoever spent it: 50 ms planted in a reader or in the network show up there and nowhere else."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from storebench.arrays import ImageShape
from storebench.formats.registry import open_reader
from storebench.loading.order import epoch_order
from storebench.record.schema import Cell, Record
from storebench.training.models import MODELS, ModelSpec, Network, tiny
from tests.support.harness_tools import Bench, only_record, scenario, steps_of
from tests.support.planted_plugin import SLEEP_S

STEPS, BATCH = 12, 8
SMALL_NS = SLEEP_S * 1e9 / 2


def small_cell(backend: str, **matrix: Any) -> Cell:
    [cell] = scenario(
        dataset="mnist",
        synthetic=True,
        limit=STEPS * BATCH,
        batch_size=BATCH,
        model="tiny",
        backends=[backend],
        **matrix,
    ).cells()
    return cell


def typical(record: Record, run: Path) -> dict[str, float]:
    """Return the median over the steps of each part, in nanoseconds."""
    steps = steps_of(record, run)
    names = ("data_wait", "h2d", "compute", "fetch", "decode", "prep")
    return {name: float(np.median(steps[f"{name}_ns"])) for name in names}


def test_the_three_parts_explain_nearly_all(
    six: tuple[Path, list[dict[str, Any]]],
) -> None:
    shares = [one["overhead_s"] / one["timed_s"] for one in six[1]]
    assert all(share >= 0 for share in shares)
    assert np.median(shares) < 0.05
    for one in six[1]:
        parts = one["data_wait_s"] + one["h2d_s"] + one["compute_s"] + one["overhead_s"]
        assert parts == pytest.approx(one["timed_s"], rel=1e-9)


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.full), 2])
def test_a_sleep_in_the_reader_is_fetch_and_data_wait_and_nothing_else(
    workers: int, plugged: None, bench: Bench, run_folder: Path
) -> None:
    record = only_record(small_cell("planted:slow", workers=workers), bench.stores, run_folder)
    times = typical(record, run_folder)
    assert record.steps == STEPS
    assert times["fetch"] >= SLEEP_S * 1e9
    assert record.fetch_s >= STEPS * SLEEP_S
    steps = steps_of(record, run_folder)
    # By the shares as well: on a busy machine a sleep may take far longer than it was asked to.
    assert steps["fetch_ns"].sum() >= 0.8 * (steps["ready_ns"] - steps["fetch_start_ns"]).sum()
    # Two workers sleep at the same time, so the loop waits for half as long in all.
    assert record.data_wait_s >= STEPS * SLEEP_S / max(1, workers) * 0.8
    for name in ("h2d", "compute", "decode", "prep"):
        assert times[name] < SMALL_NS, name
    assert record.handover_s < STEPS * SLEEP_S / 2
    assert record.overhead_s < STEPS * SLEEP_S / 10


class Sleepy(nn.Module):
    """A tiny network that takes 50 ms more."""

    def __init__(self, shape: ImageShape, classes: int) -> None:
        super().__init__()
        self.body = tiny(shape, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP_S)
        logits: torch.Tensor = self.body(images)
        return logits


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_sleep_in_the_network_is_compute_and_nothing_else(
    workers: int, bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "sleepy", ModelSpec(name="sleepy", build=Sleepy, batch_size=BATCH))
    cell = dataclasses.replace(small_cell("lmdb", workers=workers), model="sleepy")
    record = only_record(cell, bench.stores, run_folder)
    times = typical(record, run_folder)
    assert times["compute"] >= SLEEP_S * 1e9
    assert record.compute_s >= STEPS * SLEEP_S
    for name in ("data_wait", "h2d", "fetch", "decode", "prep"):
        assert times[name] < SMALL_NS, name
    assert record.ceilings.gather_samples_per_s is None
    assert record.overhead_s < STEPS * SLEEP_S / 10


def test_an_emulated_step_sleeps_as_long_as_it_says(bench: Bench, run_folder: Path) -> None:
    record = only_record(small_cell("lmdb", compute="emulated:4"), bench.stores, run_folder)
    assert record.au_kind == "emulated"
    assert record.compute_s >= STEPS * 0.004
    assert record.loss is None
    assert record.digests is not None
    assert record.digests.loss is None


def test_without_compute_the_loop_only_waits_and_ceilings_are_measured(
    bench: Bench, run_folder: Path
) -> None:
    record = only_record(small_cell("lmdb", compute="none"), bench.stores, run_folder)
    assert record.au_kind == "none"
    assert record.accelerator_util_frac is None
    assert record.h2d_s == 0
    assert record.compute_s < record.data_wait_s, "a call that does nothing"
    spans = record.data_wait_s + record.compute_s + record.overhead_s
    assert spans == pytest.approx(record.timed_s, rel=1e-6)
    assert record.ceilings.gather_samples_per_s is not None
    assert record.ceilings.gather_samples_per_s > 0


def test_the_null_backend_fetches_nothing(bench: Bench, run_folder: Path) -> None:
    record = only_record(small_cell("null", compute="none"), bench.stores, run_folder)
    assert (record.fetch_s, record.decode_s, record.prep_s) == (0, 0, 0)


def test_the_null_backend_trains_on_real_samples_with_their_labels(bench: Bench, run_folder: Path) -> None:
    null = only_record(small_cell("null"), bench.stores, run_folder)
    lmdb = only_record(small_cell("lmdb"), bench.stores, run_folder)
    assert null.loss is not None
    assert lmdb.loss is not None
    # Its first batch is the first one of the epoch's order; the others follow an order of their own.
    assert null.loss.first == lmdb.loss.first
    assert null.loss.last != lmdb.loss.last


def test_the_first_loss_is_that_of_the_initial_weights(bench: Bench, run_folder: Path) -> None:
    cell = small_cell("memory:native", max_steps=1, seed=5)
    record = only_record(cell, bench.stores, run_folder)
    assert (record.steps, record.samples) == (1, BATCH)
    torch.manual_seed(cell.seed)
    network = Network(MODELS["tiny"], (28, 28, 1), 10)
    first = epoch_order(STEPS * BATCH, seed=cell.seed, epoch=0)[:BATCH]
    pixels = np.empty((BATCH, 28, 28, 1), dtype=np.uint8)
    [store] = bench.stores.glob(f"mnist-train-limit{STEPS * BATCH}-synthetic/memory+raw")
    with open_reader(store) as reader:
        reader.fetch_into(first, pixels)
        labels = torch.from_numpy(reader.labels[first])
    expected = nn.functional.cross_entropy(network(torch.from_numpy(pixels)), labels)
    assert record.loss is not None
    assert record.loss.first == pytest.approx(expected.item(), rel=1e-6)
