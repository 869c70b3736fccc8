"""What every loader promises, whichever way its batches take: one class, run for each loader and number of workers."""

import ast
import dataclasses
import itertools
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from storebench.errors import CellFailedError, CorruptDataError, CorruptStoreError, UnknownNameError
from storebench.formats.base import Batch, Indices
from storebench.formats.registry import PAPER_BACKENDS
from storebench.loading.augment import Augment
from storebench.loading.batch import LOOP_WORKER, EpochPlan, LoadedBatch, LoadJob
from storebench.loading.loader import LOADERS, RECEIVED, BatchLoader, ReceivingLoader, get_loader
from storebench.loading.order import epoch_order
from storebench.loading.producer import READY_BATCHES
from storebench.testing.stores import COUNT, SHAPE, SmallStore
from tests.support.loading_tools import MakeJob, MakePlan, StoreOf, assert_served, copied, drained

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]

FEW = (0, 1, 2)
MORE = 4
"""More workers than a small machine has cores; with them only the order and the shares are checked, all with --full."""


@pytest.fixture(params=[*sorted(LOADERS), "receiving"])
def kind(request: pytest.FixtureRequest) -> type[BatchLoader]:
    return ReceivingLoader if request.param == "receiving" else get_loader(request.param)


@pytest.fixture(params=[*FEW, pytest.param(MORE, marks=pytest.mark.full)])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def _ready(small: SmallStore, job: LoadJob, epoch: int) -> tuple[Batch, Indices]:
    """Return the nine samples, augmented, that begin an epoch's order."""
    order = epoch_order(COUNT, seed=job.seed, epoch=epoch)[:9]
    pixels = np.empty((9, *job.augment.output_shape(SHAPE)), np.uint8)
    job.augment.apply(small.pixels[order], order, pixels, seed=job.seed, epoch=epoch)
    return pixels, small.labels[order]


@pytest.mark.thinned
class TestEveryLoader:
    @pytest.mark.thinned("kind workers")
    @pytest.mark.parametrize("workers", [*FEW, MORE])
    def test_two_epochs_in_the_plans_order(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        with kind(make_job(), workers=workers) as loader:
            assert len(loader.open()) == max(1, workers)
            for number in range(2):
                plan = make_plan(number)
                batches = drained(loader, plan)
                assert_served(batches, plan, store_of("lmdb"))
                assert len(batches[-1].indices) == COUNT % 10
                made_by = [batch.worker for batch in batches]
                assert made_by == [step % workers if workers else LOOP_WORKER for step in range(len(batches))]
            assert len(loader.close()) == max(1, workers)

    def test_spans_follow_one_another(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        job = make_job("png", augment=Augment(crop=20, mirror=True))
        with kind(job, workers=workers) as loader:
            opened = loader.open()
            assert all(one.open_ns > 0 and one.pid > 0 for one in opened)
            before = time.perf_counter_ns()
            batches = drained(loader, make_plan())
        ends: dict[int, int] = {}
        for batch in batches:
            spans = batch.spans
            assert spans.start_ns >= ends.get(batch.worker, before)
            assert min(spans.fetch_ns, spans.decode_ns, spans.prep_ns) > 0
            assert spans.start_ns + spans.fetch_ns + spans.decode_ns + spans.prep_ns <= spans.ready_ns
            ends[batch.worker] = spans.ready_ns
        assert max(ends.values()) < time.perf_counter_ns()

    def test_augmented_pixels_are_the_same_from_every_producer(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        augment, plan = Augment(crop=24, mirror=True), make_plan(3)
        with kind(make_job(augment=augment), workers=workers) as loader:
            loader.open()
            for batch in drained(loader, plan):
                expected = np.empty((len(batch.indices), 24, 24, 3), dtype=np.uint8)
                images = store_of("lmdb").pixels[batch.indices]
                augment.apply(images, batch.indices, expected, seed=5, epoch=3)
                np.testing.assert_array_equal(batch.pixels.numpy(), expected)

    def test_batches_may_grow_and_shrink_between_epochs(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        with kind(make_job(), workers=workers) as loader:
            loader.open()
            for number, batch_size in enumerate([3, 30, 1, COUNT]):
                plan = make_plan(number, batch_size)
                assert_served(drained(loader, plan), plan, store_of("lmdb"))

    def test_a_batch_stays_as_it_is_until_the_next_is_asked_for(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        """However long the loop takes and however far ahead the producers are."""
        with kind(make_job(), workers=workers) as loader:
            loader.open()
            for batch in loader.epoch(make_plan(batch_size=4)):
                time.sleep(0.004)
                np.testing.assert_array_equal(batch.pixels.numpy(), store_of("lmdb").pixels[batch.indices])

    @pytest.mark.parametrize("backend", [*PAPER_BACKENDS, "jpeg", "leveldb+png"])
    def test_every_backend_with_two_workers(
        self, kind: type[BatchLoader], backend: str, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        with kind(make_job(backend), workers=2) as loader:
            opened = loader.open()
            for number in range(2):
                assert_served(drained(loader, make_plan(number)), make_plan(number), store_of(backend))
        if backend.startswith("leveldb"):
            assert {one.notes["snapshot"] for one in opened} == {"hard links"}

    @pytest.mark.parametrize("batch_size", [0, 9])
    def test_ready_made_batches_are_real_samples_and_change(
        self, kind: type[BatchLoader], workers: int, batch_size: int, make_job: MakeJob, store_of: StoreOf
    ) -> None:
        """With their own labels, whatever sizes are asked for later, within an epoch and between two."""
        job = dataclasses.replace(
            make_job("null", augment=Augment(crop=5, mirror=True)), batch_size=batch_size
        )
        right = [_ready(store_of("null"), job, epoch) for epoch in range(READY_BATCHES * max(1, workers))]
        with kind(job, workers=workers) as loader:
            loader.open()
            for sizes in ([2] * 9, [2] * 5 + [9] * 9, [4] * 9):
                batches = [np.arange(size, dtype=np.int64) for size in sizes]
                served = drained(loader, EpochPlan(epoch=0, batches=batches))
                assert [len(batch.pixels) for batch in served] == sizes
                which = [
                    [
                        number
                        for number, (pixels, labels) in enumerate(right)
                        if np.array_equal(pixels[: len(batch.labels)], batch.pixels.numpy())
                        and np.array_equal(labels[: len(batch.labels)], batch.labels)
                    ]
                    for batch in served
                ]
                assert all(len(numbers) == 1 for numbers in which)
                assert all(one != following for one, following in itertools.pairwise(which))

    @pytest.mark.usefixtures("odd")
    @pytest.mark.parametrize("workers", [*FEW, MORE])
    def test_each_producer_is_told_its_share_and_asked_for_no_other(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        """Round robin, so that every loader gives each producer the same share."""
        with kind(make_job("odd+raw"), workers=workers) as loader:
            loader.open()
            plans = [make_plan(0), make_plan(1)]
            for plan in plans:
                drained(loader, plan)
            closed = loader.close()
        n = max(1, workers)
        shares = [np.concatenate([b for p in plans for b in p.batches[k::n]]).tolist() for k in range(n)]
        notes = [one.notes for one in closed]
        assert sorted(ast.literal_eval(note["planned"]) for note in notes) == sorted(shares)
        assert all(note["asked"] == note["planned"] and note["plans"] == "2" for note in notes)

    def test_an_error_comes_in_its_turn_and_as_it_is(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        """The batches before it are served; the loader goes on to work for others."""
        small, plan = store_of("png"), make_plan()
        bad = int(plan.batches[4][3])
        path = small.format.locate(small.path, small.manifest, bad)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        served: list[LoadedBatch] = []
        try:
            with kind(make_job("png"), workers=workers) as loader:
                loader.open()
                with pytest.raises(CorruptDataError, match=f"sample {bad}: "):
                    served.extend(copied(batch) for batch in loader.epoch(plan))
                assert_served(served, make_plan(max_steps=4), small)
                good = EpochPlan(epoch=1, batches=[batch for batch in plan.batches if bad not in batch])
                assert_served(drained(loader, good), good, small)
        finally:
            path.write_bytes(whole)

    @pytest.mark.usefixtures("odd")
    def test_an_error_that_nobody_expected_reaches_the_loop(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        with kind(make_job("odd+raw:failing"), workers=workers) as loader:
            loader.open()
            with pytest.raises(ValueError, match="nobody expected this"):
                drained(loader, make_plan())

    def test_a_store_that_is_gone_is_refused_at_the_opening(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, tmp_path: Path
    ) -> None:
        with kind(make_job(store=tmp_path / "gone"), workers=workers) as loader:
            with pytest.raises(CorruptStoreError, match="gone"):
                loader.open()
            loader.close()

    def test_an_epoch_may_be_left_for_another(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        """By closing it, or by simply beginning the next."""
        with kind(make_job(), workers=workers) as loader:
            loader.open()
            for left_after in range(1, 6):
                left = loader.epoch(make_plan(left_after, batch_size=4))
                for _ in range(left_after):
                    next(left)
                if left_after % 2:
                    del left
                assert_served(drained(loader, make_plan(7)), make_plan(7), store_of("lmdb"))

    def test_closing_in_the_middle_of_an_epoch_does_not_hang(
        self, kind: type[BatchLoader], workers: int, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        """As happens when the loop raises: its traceback keeps the iterator alive."""
        loader = kind(make_job(), workers=workers)
        loader.open()
        batches = loader.epoch(make_plan(batch_size=3))
        next(batches)
        start = time.monotonic()
        assert len(loader.close()) == max(1, workers)
        assert time.monotonic() - start < 20
        assert loader.close() == []

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_pinned_batches_for_a_gpu(
        self, kind: type[BatchLoader], make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        for workers in (0, 2):
            with kind(make_job(), workers=workers, pin=True) as loader:
                loader.open()
                for batch in loader.epoch(make_plan()):
                    assert batch.pixels.is_pinned()
                    there = batch.pixels.to("cuda", non_blocking=True).cpu().numpy()
                    np.testing.assert_array_equal(there, store_of("lmdb").pixels[batch.indices])


@pytest.mark.parametrize("name", ["threads", "ring"])
class TestMakingBatchesAhead:
    """What the loaders of lanes promise beyond the contract."""

    def test_a_lane_is_ahead_by_the_batches_it_has_memory_for(
        self, name: str, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        """One is with the loop, two more are ready; the next waits for the first to come back."""
        with get_loader(name)(make_job(), workers=1) as loader:
            loader.open()
            for patience_s in (0.05, 0.5, 5.0):  # a busy machine may need more of it
                batches = loader.epoch(make_plan(batch_size=5))
                next(batches)
                time.sleep(patience_s)
                asked = time.perf_counter_ns()
                ready = [next(batches).spans.ready_ns for _ in range(3)]
                assert asked < ready[2], "it was made in memory that the loop still had"
                if ready[0] < ready[1] < asked:
                    return
        raise AssertionError("the next two were not made while the loop had the first")

    def test_memory_is_bounded_and_used_again(
        self, name: str, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        with get_loader(name)(make_job(), workers=2) as loader:
            loader.open()
            places: dict[int, set[int]] = {0: set(), 1: set()}
            for number in range(3):
                for batch in loader.epoch(make_plan(number, batch_size=3)):
                    places[batch.worker].add(batch.pixels.data_ptr())
        assert all(1 <= len(own) <= 3 for own in places.values())  # fewer where the loop is quick
        assert not places[0] & places[1]

    def test_an_epoch_that_was_left_does_not_go_on(
        self, name: str, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        """It neither steals the next one's batches nor waits for ever for its own."""
        with get_loader(name)(make_job(), workers=2) as loader:
            loader.open()
            left = loader.epoch(make_plan(0))
            next(left)
            batches = loader.epoch(make_plan(1))
            served = [copied(next(batches))]
            with pytest.raises(RuntimeError, match="has begun another"):
                next(left)
            served.extend(copied(batch) for batch in batches)
            assert_served(served, make_plan(1), store_of("lmdb"))
            last = loader.epoch(make_plan(2))
            next(last)
        with pytest.raises(RuntimeError, match="was closed"):
            next(last)

    @pytest.mark.usefixtures("odd")
    def test_a_reader_that_fails_to_open_leaves_nothing_running(self, name: str, make_job: MakeJob) -> None:
        loader = get_loader(name)(make_job("odd+raw:unopenable"), workers=3)
        with pytest.raises(ValueError, match="does not open"):
            loader.open()
        assert loader.close() == []


def drained_or_bereaved(loader: ReceivingLoader, plan: EpochPlan) -> None:
    """Run an epoch as the harness does: torch's signal handler reports a dead worker wherever the loop is."""
    try:
        drained(loader, plan)
    except RuntimeError as error:
        raise loader.casualty() or error from error


@pytest.mark.usefixtures("odd")
class TestReceivingAhead:
    """What a loader for an emulated accelerator promises beyond the contract."""

    def test_batches_of_workers_that_overtake_each_other_stay_whole(
        self, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        """The memory of a batch is not used again before the loop is done with it, whatever order they arrive in."""
        with ReceivingLoader(make_job(), workers=3) as loader:
            assert all(one.notes.items() >= RECEIVED.items() for one in loader.open())
            for number in range(8):
                for batch in loader.epoch(make_plan(number, batch_size=2)):
                    time.sleep(0.001 if len(batch.indices) % 3 else 0.004)
                    np.testing.assert_array_equal(
                        batch.pixels.numpy(), store_of("lmdb").pixels[batch.indices]
                    )

    def test_a_worker_that_dies_is_told_and_the_thread_ends(
        self, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        with ReceivingLoader(make_job("odd+raw:dying"), workers=2) as loader:
            loader.open()
            with pytest.raises(CellFailedError, match="was killed by SIGKILL"):
                drained_or_bereaved(loader, make_plan())

    def test_an_error_of_the_thread_reaches_the_loop(
        self, make_job: MakeJob, make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise MemoryError("no room for a copy")

        with ReceivingLoader(make_job(), workers=2) as loader:
            loader.open()
            monkeypatch.setattr("storebench.loading.loader.np.copyto", full)
            with pytest.raises(MemoryError, match="no room for a copy"):
                drained(loader, make_plan())
            monkeypatch.undo()

    def test_without_workers_there_is_no_thread(self, make_job: MakeJob) -> None:
        with ReceivingLoader(make_job(), workers=0) as loader:
            assert all(not one.notes.items() >= RECEIVED.items() for one in loader.open())


def test_an_unknown_loader_is_named_with_its_neighbour() -> None:
    with pytest.raises(UnknownNameError, match="'threads'"):
        get_loader("thread")
