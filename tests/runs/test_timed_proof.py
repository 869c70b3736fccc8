"""What was timed is what is proven: faults that only the timed pass has fail the cell, with every loader."""

import ctypes
import dataclasses
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storebench.analysis.checks.findings import Rule
from storebench.analysis.checks.rules import check_record
from storebench.analysis.checks.step_tables import check_steps
from storebench.formats import windows
from storebench.formats.base import Indices
from storebench.formats.reads import direct_file
from storebench.loading import augment
from storebench.loading import proof as evidence
from storebench.loading.batch import BatchRequest, EpochPlan, LoadedBatch, Spans
from storebench.loading.loader import ProcessLoader
from storebench.loading.order import epoch_order, order_digest
from storebench.loading.producer import Producer
from storebench.loading.proof import SampleKeeper, TimedCheck, coverage
from storebench.record.schema import KEPT_AT_LEAST, KEPT_BYTES, Cell, Coverage, Record, Status
from storebench.system import kernel
from tests.support.harness_tools import Bench, cell_records, only_record, scenario, steps_of

SAMPLES, BATCH = 50, 8
"""Fewer samples than are kept of an epoch, so that all of them are: what a fault hits is found for certain."""

Epoch = Callable[[ProcessLoader, EpochPlan], Iterator[LoadedBatch]]
Run = Callable[..., Record]

LOADERS = [("processes", 0), ("processes", 2), ("threads", 2), ("ring", 1)]
every_loader = pytest.mark.parametrize(("loader", "workers"), LOADERS)


def small_cell(backend: str, **matrix: Any) -> Cell:
    small = {"dataset": "mnist", "synthetic": True, "limit": SAMPLES, "batch_size": BATCH, "model": "tiny"}
    [cell] = scenario(**(small | {"backends": [backend]} | matrix)).cells()
    return cell


@pytest.fixture
def run(plugged: None, bench: Bench, run_folder: Path) -> Run:
    """Run a cell of a backend and further keys of its matrix in this process."""
    return lambda backend, **matrix: only_record(small_cell(backend, **matrix), bench.stores, run_folder)


def coverage_of(record: Record) -> Coverage:
    assert record.coverage is not None
    return record.coverage


def failure_of(record: Record) -> str:
    assert record.status is Status.FAILED
    assert record.failure is not None
    return record.failure


@pytest.fixture
def produce(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., LoadedBatch]], None]:
    """Plant a producer; workers are forked, so they have it as well."""
    right = Producer.produce

    def plant(wrong: Callable[..., LoadedBatch]) -> None:
        monkeypatch.setattr(Producer, "produce", lambda self, request: wrong(right, self, request))

    return plant


@pytest.mark.thinned
@every_loader
@pytest.mark.parametrize("cache", ["cold", "any"])
def test_a_right_reader_passes_and_its_timed_samples_were_compared(
    cache: str, loader: str, workers: int, run: Run
) -> None:
    record = run("planted", loader=loader, workers=workers, cache=cache)
    assert (record.status, record.failure) == (Status.OK, None)
    assert (coverage_of(record).timed_checked, coverage_of(record).timed_wrong) == (SAMPLES, 0)
    assert coverage_of(record).proof_s > 0


@pytest.mark.thinned
@every_loader
@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("uncopied", SAMPLES // 2),  # memory that a test before has given back may hold right samples
        ("cold", SAMPLES),
        ("shifted", 1),
        ("neighbour", SAMPLES),
        ("swapping", 2 * 7),
    ],
)
def test_a_fault_in_the_timed_pass_alone_fails_the_cell(
    fault: str, wrong: int, loader: str, workers: int, run: Run
) -> None:
    record = run(f"planted:{fault}", loader=loader, workers=workers)
    served = coverage_of(record)
    assert (served.missing, served.duplicates) == (0, 0)
    assert wrong <= served.timed_wrong <= served.timed_checked == SAMPLES
    told = f"of 50 kept from the timed batches {served.timed_wrong} wrong, the first sample "
    assert told in failure_of(record)


@every_loader
def test_indices_come_from_the_producer_that_read_them(
    loader: str, workers: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are forked, so they have the wrong producer as well."""
    right = Producer.produce

    def serve_sample_0(producer: Producer, request: BatchRequest) -> LoadedBatch:
        zero = np.zeros_like(request.indices)
        return right(
            producer, BatchRequest(epoch=request.epoch, step=request.step, indices=zero, plan=request.plan)
        )

    monkeypatch.setattr(Producer, "produce", serve_sample_0)
    record = run("planted", loader=loader, workers=workers)
    assert "49 missing, 49 served twice" in failure_of(record)


@every_loader
def test_a_reader_that_changes_the_indices_it_was_given_is_found(loader: str, workers: int, run: Run) -> None:
    record = run("planted:mutating", loader=loader, workers=workers)
    assert coverage_of(record).missing == SAMPLES - 1
    assert failure_of(record)


serve = ProcessLoader.epoch


def kept(batches: Iterable[LoadedBatch]) -> Iterator[LoadedBatch]:
    """Give each batch memory of its own."""
    return (dataclasses.replace(batch, pixels=batch.pixels.clone()) for batch in batches)


def replanned(change: Callable[[list[Indices]], list[Indices]]) -> Epoch:
    return lambda loader, plan: serve(loader, dataclasses.replace(plan, batches=change(plan.batches)))


def yesterdays(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Serve each batch with the pixels of the batch before."""
    before = None
    for batch in kept(serve(loader, plan)):
        pixels = batch.pixels if before is None else before[: len(batch.pixels)]
        before = batch.pixels
        yield dataclasses.replace(batch, pixels=pixels)


def short(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Serve batches without their last row of pixels."""
    return (dataclasses.replace(batch, pixels=batch.pixels[:-1]) for batch in serve(loader, plan))


def tomorrows(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Crop and mirror as in the next epoch."""
    return serve(loader, dataclasses.replace(plan, epoch=plan.epoch + 1))


CUT = {"dataset": "imagenet", "size": 256, "limit": 12, "model": "caffenet", "batch_size": 4}
UNORDERED = "not served the samples of its plan in the drawn order"


@pytest.mark.parametrize(
    ("epoch", "said", "matrix"),
    [
        (yesterdays, f"of 50 kept from the timed batches {SAMPLES - BATCH} wrong", {}),
        (short, "of 50 kept from the timed batches 7 wrong", {}),
        (tomorrows, "of 12 kept from the timed batches 12 wrong", CUT),
        (replanned(lambda batches: [batches[0], *batches[:-1]]), "2 missing, 8 served twice", {}),
        (replanned(lambda batches: batches[:-1]), "2 missing, 0 served twice", {}),
        (replanned(lambda batches: [*batches[-2::-1], batches[-1]]), UNORDERED, {}),
    ],
)
def test_a_loader_that_serves_other_samples_is_found(
    epoch: Epoch, said: str, matrix: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessLoader, "epoch", epoch)
    assert said in failure_of(run("lmdb", compute="none", **matrix))


def early(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Make all batches before the first one is requested."""
    return iter(list(kept(serve(loader, plan))))


def late(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
    """Give batches to the loop before their pixels are there."""

    def fill(batch: LoadedBatch, right: torch.Tensor) -> None:
        time.sleep(0.01)
        batch.pixels.copy_(right)
        batch.spans.ready_ns = time.perf_counter_ns()

    for batch in kept(serve(loader, plan)):
        right = batch.pixels.clone()
        batch.pixels.zero_()
        threading.Thread(target=fill, args=(batch, right)).start()
        yield batch


def again() -> Epoch:
    """Serve the batches of the first epoch in every epoch that has the same order."""
    first: list[LoadedBatch] = []

    def epoch(loader: ProcessLoader, plan: EpochPlan) -> Iterator[LoadedBatch]:
        first.extend([] if first else kept(serve(loader, plan)))
        return map(dataclasses.replace, first)

    return epoch


@pytest.mark.parametrize(
    ("epoch", "finding", "matrix"),
    [
        (early, "before the epoch", {"compute": "none"}),
        (again(), "before the epoch", {"compute": "none", "epochs": 2, "shuffle": False}),
        (late, "after the loop had it", {"compute": "emulated:100"}),
    ],
)
def test_a_loader_that_works_when_no_clock_runs_is_found(
    epoch: Epoch,
    finding: str,
    matrix: dict[str, Any],
    bench: Bench,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProcessLoader, "epoch", epoch)
    records = cell_records(small_cell("lmdb", **matrix), bench.stores, run_folder)
    assert [record.failure for record in records] == [None] * len(records)
    findings = check_steps(records[-1], run_folder)
    assert any(finding in found.message for found in findings), findings


@pytest.mark.parametrize(
    "backend",
    [
        *("png", "lmdb:direct", "memory:native"),
        *(pytest.param(name, marks=pytest.mark.full) for name in ("jpeg", "lmdb?readahead=off", "leveldb")),
    ],
)
def test_cropped_mirrored_and_decoded_samples_are_proven(backend: str, run: Run) -> None:
    record = run(backend, compute="none", **CUT)
    assert (record.status, record.failure) == (Status.OK, None)
    assert (coverage_of(record).timed_checked, coverage_of(record).timed_wrong) == (12, 0)


# What the library does wrong -> the cell that uses it, what the right source has there, and what the wrong one has.
LIBRARY_FAULTS = {
    "windows at the left edge": ("memory:native", CUT, "(top * columns + left)", "(top * columns)"),
    "windows not mirrored": ("png", CUT, "mirrored = places[2]", "mirrored = 0"),
    "one sample throughout": ("lmdb:direct", {}, "source + offsets[n], (size_t)", "source + offsets[0], (size_t)"),
    "the last sample left out": ("lmdb:direct", {}, "n < count; n++, out += size", "n < count - 1; n++, out += size"),
}  # fmt: skip


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("name", LIBRARY_FAULTS)
def test_a_compiled_kernel_with_a_fault_fails_the_cell(
    name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof cuts and copies by other code than the loader."""
    backend, matrix, right, wrong = LIBRARY_FAULTS[name]
    source, faulty = kernel.LIBRARY.with_name("kernel.c").read_text(encoding="utf-8"), tmp_path / "faulty.so"
    assert right in source
    compiler = ("cc", "-O1", "-shared", "-fPIC", "-o", str(faulty), "-x", "c", "-")
    subprocess.run(compiler, input=source.replace(right, wrong, 1), text=True, check=True)
    loaded = kernel.Kernel(ctypes.CDLL(str(faulty)))
    for module in (augment, direct_file, windows):
        monkeypatch.setattr(module, "load_kernel", lambda: loaded)
    record = run(backend, compute="none", **matrix)
    assert failure_of(record)
    assert coverage_of(record).timed_wrong > 0


def test_the_time_that_keeping_takes_is_in_no_span_and_in_no_sum(
    run: Run, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, copies = SampleKeeper.copy, list[tuple[int, int]]()

    def slow_copy(keeper: SampleKeeper, batch: LoadedBatch, rows: Sequence[int]) -> None:
        begun_ns = time.perf_counter_ns()
        time.sleep(0.01)
        right(keeper, batch, rows)
        copies.append((begun_ns, time.perf_counter_ns()))

    monkeypatch.setattr(SampleKeeper, "copy", slow_copy)
    record = run("lmdb", compute="none")
    steps = steps_of(record, run_folder)
    starts, paused = steps["start_ns"], steps["paused_ns"]
    ends = starts + steps["data_wait_ns"] + steps["h2d_ns"] + steps["compute_ns"]
    begun, copied = np.array(copies, np.int64).T
    # By the clock that times the steps: a copy begins after its step, and ends within the pause and before the next.
    assert (ends <= begun).all()
    assert (copied <= ends + paused).all()
    assert (copied[:-1] <= starts[1:]).all()
    assert (copied - begun).sum() / 1e9 <= coverage_of(record).proof_s <= paused.sum() / 1e9 + 1e-9
    # The sums are those of the steps, and of the gaps between them without the pauses.
    gaps = starts[1:] - ends[:-1] - paused[:-1]
    assert (gaps >= 0).all()
    assert record.overhead_s == pytest.approx(gaps.sum() / 1e9, abs=1e-9)
    assert record.timed_s == record.epoch_s == pytest.approx(((ends - starts).sum() + gaps.sum()) / 1e9)
    assert record.data_wait_s == pytest.approx(steps["data_wait_ns"].sum() / 1e9)
    assert (starts <= steps["fetch_start_ns"]).all()
    assert (steps["ready_ns"] <= ends).all()


def kept_steps(sizes: Sequence[int], first_step: int = 0) -> list[int]:
    """Return how many samples are kept of each step."""
    keeper = SampleKeeper(sizes, (1, 1, 1), first_step=first_step)
    counts = [0]
    for size in sizes:
        keeper(made(0, size))
        counts.append(len(keeper.kept.indices))
    return np.diff(counts).tolist()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pauses take as long as they like: how long they take depends on who else is computing."""
    monkeypatch.setattr(evidence, "PAUSED_FRAC", 1e9)


@pytest.mark.usefixtures("unhurried")
def test_what_is_kept_is_bounded_drawn_anew_and_after_the_warm_up() -> None:
    first, second = (kept_steps([64] * 100, first_step=10) for _ in range(2))
    assert sum(first) == sum(second) == evidence.KEPT_SAMPLES
    assert first[:10] == [0] * 10
    assert first != second
    assert kept_steps([3, 2], first_step=1) == [0, 2]
    assert kept_steps([3, 2], first_step=9) == [0, 0]


@pytest.mark.usefixtures("unhurried")
def test_every_sample_has_the_same_chance() -> None:
    counts = np.sum([kept_steps([16] * 32) for _ in range(200)], axis=0)
    # 800 of each step are expected; their standard deviation is 23.
    assert counts.sum() == 200 * evidence.KEPT_SAMPLES
    assert (abs(counts - 800) < 160).all()


def test_large_images_are_kept_in_bounded_memory() -> None:
    side = 4096
    keeper = SampleKeeper([8] * 4, (side, side, 1))
    assert keeper.kept.pixels.nbytes == 0
    assert keeper._pixels.nbytes == KEPT_BYTES == 4 * side * side


def made(step: int, size: int = 4) -> LoadedBatch:
    spans = Spans(start_ns=0, fetch_ns=0, decode_ns=0, prep_ns=0, ready_ns=0)
    zeros = np.zeros(size, np.int64)
    pixels = torch.full((size, 1, 1, 1), step % 256, dtype=torch.uint8)
    return LoadedBatch(pixels=pixels, labels=zeros, indices=zeros, spans=spans, payload_bytes=size)


def test_pauses_are_bounded_and_what_was_left_out_is_not_called_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = SampleKeeper.copy

    def slow_copy(keeper: SampleKeeper, batch: LoadedBatch, rows: Sequence[int]) -> None:
        time.sleep(0.002)
        right(keeper, batch, rows)

    monkeypatch.setattr(SampleKeeper, "copy", slow_copy)
    keeper = SampleKeeper([4] * 40, (1, 1, 1))
    kept = sum(keeper(made(step)) for step in range(40))
    assert kept < 40
    # A batch over, and one sample of one late step in twenty.
    assert KEPT_AT_LEAST <= len(keeper.kept.indices) <= KEPT_AT_LEAST + 4 + 12
    assert keeper.kept.absent == 0


def indices(*numbers: int) -> Indices:
    return np.array(numbers, dtype=np.int64)


def test_missing_and_repeated_samples_are_counted() -> None:
    found = coverage(
        [indices(0, 1, 2), indices(3, 4)], [indices(0, 1, 1), indices(1, 4)], TimedCheck(checked=5, wrong=1)
    )
    assert (found.expected, found.served, found.unique) == (5, 5, 3)
    assert (found.duplicates, found.missing) == (2, 2)
    assert (found.timed_checked, found.timed_wrong) == (5, 1)
    assert not found.complete


def test_of_several_passes_each_sample_has_to_come_once_per_pass() -> None:
    planned = [indices(0, 1, 2), indices(2, 0, 1)]
    right = coverage(planned, [indices(2, 1, 0), indices(0, 1, 2)], TimedCheck())
    assert (right.expected, right.served, right.unique, right.duplicates, right.missing) == (6, 6, 3, 0, 0)
    wrong = coverage(planned, [indices(2, 1, 0), indices(2, 1, 2)], TimedCheck())
    assert (wrong.duplicates, wrong.missing) == (1, 1)
    unplanned = coverage(planned, [indices(0, 1, 2), indices(0, 1, 7)], TimedCheck())
    assert (unplanned.duplicates, unplanned.missing) == (0, 1)


@every_loader
def test_several_passes_are_one_record_with_an_order_each(loader: str, workers: int, run: Run) -> None:
    record = run("lmdb", workers=workers, loader=loader, passes=3, cache="any")
    assert (record.status, record.samples, record.steps) == (Status.OK, 3 * SAMPLES, 3 * 7)
    assert coverage_of(record).complete
    assert coverage_of(record).unique == SAMPLES
    assert record.digests is not None
    orders = [epoch_order(SAMPLES, seed=record.cell.seed, epoch=turn) for turn in range(3)]
    assert record.digests.order == order_digest(orders)
    assert [finding for finding in check_record(record, None) if finding.kind is Rule.COVERAGE] == []


def test_an_epoch_that_served_nothing_is_not_complete() -> None:
    assert not coverage([indices(0)], [], TimedCheck()).complete
