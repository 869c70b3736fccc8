"""A job of ranks serves, trains and proves what one process with the global batch does, from every format."""

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from storebench.formats.base import Indices
from storebench.loading.batch import EpochPlan, LoadedBatch
from storebench.loading.loader import ProcessLoader
from storebench.ranks import communication as exposed
from storebench.ranks.group import Group
from storebench.ranks.membership import dealt
from storebench.record.merging import ideal_ring_s
from storebench.record.schema import CacheVerdict, Cell, LinkKind, Record
from storebench.record.steps import step_ends
from storebench.settings.words import Sync
from storebench.training.compute import CpuStep
from storebench.worker import replicate
from storebench.worker import sharding as sampling
from storebench.worker.epoch_record import RankEpoch, part_of
from storebench.worker.job import CellJob
from storebench.worker.replicate import run as run_replicate
from storebench.worker.setup import Setup
from tests.support.harness_tools import SAMPLES, SIX, Bench, run_folder_in, steps_of
from tests.support.rank_cells import (
    RankRun,
    RankWork,
    assert_sound,
    plain_rank,
    ranked_cell,
    run_ranks,
    sound_ranks,
)
from tests.support.same_training import assert_same_losses, assert_same_weights

RANKS, BATCH = 3, 11
"""MNIST has 6 steps of 33 samples and one of 2, CIFAR-10 has 3 and one of 1: some ranks have none in the last."""

DEFAULT_BACKENDS = ("png", "memory:native", "lmdb")
"""The backends that run without --full; the others train in ranks as in one process (test_same_training.py).
All six are there with --full."""

MATRICES: dict[str, dict[str, Any]] = {
    "mnist": {"dataset": "mnist", "limit": SAMPLES},
    "cifar10": {"dataset": "cifar10", "limit": 100},
}
Weights = dict[str, npt.NDArray[np.float32]]
Plain = Callable[[str], RankRun]


def weights_of(setup: Setup) -> Weights:
    if not isinstance(setup.step, CpuStep):
        return {}
    return {name: value.detach().numpy().copy() for name, value in setup.step.network.named_parameters()}


def rank(group: Group, *, job: CellJob) -> tuple[list[Record], Weights]:
    setup = Setup.of(job, group=group)
    records = run_replicate(setup)
    return records, weights_of(setup)


def cell_of(backend: str, dataset: str = "mnist", **matrix: Any) -> Cell:
    return ranked_cell(backend, **({"ranks": RANKS, "batch_size": BATCH} | MATRICES[dataset] | matrix))


def trained(cell: Cell, bench: Bench, run: Path, work: RankWork = rank) -> RankRun:
    """Run a cell of one epoch; the note of each rank is its weights after it."""
    return run_ranks(cell, bench, run, work)


def assert_same_training(found: RankRun, whole: RankRun) -> None:
    assert found.record.digests is not None
    assert whole.record.digests is not None
    assert found.record.digests.order == whole.record.digests.order
    model = found.record.cell.model
    assert_same_losses(found.losses, whole.losses, model)
    for weights in found.notes:
        assert_same_weights(weights, whole.notes[0], model)


@pytest.fixture(scope="module")
def whole(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> RankRun:
    """Train LeNet in one process from one backend; all backends give the same losses."""
    cell = cell_of("memory:native", ranks=1, batch_size=RANKS * BATCH)
    return trained(cell, bench, run_folder_in(tmp_path_factory.mktemp("whole"), bench))


@pytest.fixture(scope="module")
def plain(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """Train LeNet in three ranks, once from each backend; return what they made."""

    @functools.cache
    def plain(backend: str) -> RankRun:
        return trained(cell_of(backend), bench, run_folder_in(tmp_path_factory.mktemp("plain"), bench))

    return plain


@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=() if name in DEFAULT_BACKENDS else pytest.mark.full) for name in SIX],
)
def test_lenet_trains_in_ranks_as_in_one_process_from(backend: str, whole: RankRun, plain: Plain) -> None:
    found = plain(backend)
    assert_same_training(found, whole)
    assert_sound(found)
    assert found.record.coverage is not None
    assert found.record.coverage.unique == SAMPLES
    assert found.record.coverage.timed_checked >= 64
    assert (found.record.samples, found.record.steps) == (SAMPLES, 7)


def test_a_global_batch_is_dealt_to_the_ranks(plain: Plain, bench: Bench, run_folder: Path) -> None:
    strong = cell_of("lmdb", batch_size=None, global_batch_size=RANKS * BATCH)
    assert strong.batch_size == BATCH
    found = trained(strong, bench, run_folder)
    assert found.losses.tobytes() == plain("lmdb").losses.tobytes()
    assert found.job.global_batch_size == RANKS * BATCH


def clocked_at_barriers(group: Group, *, job: CellJob) -> tuple[list[Record], list[tuple[float, float]]]:
    """Return also when each empty barrier that is measured began and ended, by a clock read inside the measurement."""
    spans: list[tuple[float, float]] = []
    barrier, measure = group.barrier, exposed.communication
    first: list[int] = []

    def clocked() -> None:
        begin_s = time.perf_counter()
        barrier()
        spans.append((begin_s, time.perf_counter()))

    def noted(*args: Any) -> dict[str, Any]:
        first.append(len(spans))
        return measure(*args)

    setattr(group, "barrier", clocked)  # noqa: B010 - this process is a copy that ends with its job
    setattr(exposed, "communication", noted)  # noqa: B010
    records, _ = rank(group, job=job)
    [start] = first
    return records, spans[start : start + exposed._UNTIMED + exposed.BARRIERS]


def test_an_empty_barrier_takes_as_long_as_a_clock_inside_says(bench: Bench, run_folder: Path) -> None:
    found = trained(cell_of("lmdb", max_steps=2), bench, run_folder, clocked_at_barriers)
    spans = found.notes[0]
    timed = spans[-exposed.BARRIERS :]
    assert found.job.barrier_s is not None
    assert found.job.barrier_s >= statistics.median(end_s - begin_s for begin_s, end_s in timed)
    # At least this many of those before the last took no less than the median, one after the other.
    no_shorter = exposed.BARRIERS // 2 - 1
    assert found.job.barrier_s <= (timed[-1][0] - spans[-exposed.BARRIERS - 1][1]) / no_shorter


def test_a_record_says_what_each_rank_did(bench: Bench, run_folder: Path) -> None:
    found = trained(cell_of("lmdb", warmup_steps=2), bench, run_folder)
    assert_sound(found)
    job, record = found.job, found.record
    assert [one.samples for one in job.per_rank] == [4 * BATCH + 1, 4 * BATCH + 1, 4 * BATCH]
    assert record.timed_samples == SAMPLES - 2 * RANKS * BATCH
    assert record.samples_per_s == pytest.approx(record.timed_samples / record.timed_s)
    assert record.timed_s >= max(one.seconds for one in job.per_rank)
    assert (job.ranks, job.nodes, job.sync) == (RANKS, 1, Sync.OVERLAPPED)
    assert (job.unique_samples, job.total_samples, job.duplicates) == (SAMPLES, SAMPLES, 0)
    assert job.samples_per_s_min <= job.samples_per_s_median <= job.samples_per_s_max
    assert job.samples_per_s_until_first_end > 0
    assert job.barrier_exit_s is not None
    table = steps_of(record, run_folder)
    begins, ends = ([getattr(one, name) for one in job.per_rank] for name in ("begin_s", "end_s"))
    assert 0 <= job.barrier_exit_s <= max(begins)
    timed = ~table["warmup"]
    job_s = int(step_ends(table)[timed].max() - table["start_ns"][timed].min()) / 1e9
    assert record.timed_s <= max(ends) - min(begins) == pytest.approx(job_s)
    assert job.gradient_bytes == 4 * sum(value.size for value in found.notes[0].values())
    assert job.exposed_communication_s is not None
    assert job.exposed_pairs >= exposed.FEWEST_PAIRS
    assert job.link is LinkKind.LOOPBACK
    assert job.link_bytes_per_s is not None
    assert job.link_latency_s is not None
    assert job.gradient_bytes is not None
    ring_s = ideal_ring_s(job.gradient_bytes, RANKS, job.link_bytes_per_s, job.link_latency_s)
    assert job.ring_bound_s == pytest.approx(ring_s)
    assert job.exposed_over_bound == pytest.approx(job.exposed_communication_s / ring_s)
    assert table["rank"].tolist() == [0, 1, 2] * 7
    assert table["step"].tolist() == sorted([*range(7)] * 3)


def ahead_on_a_second_node(group: Group, *, job: CellJob) -> tuple[list[Record], Weights]:
    """Put the last rank alone on a second node whose clock is a day ahead."""
    last = group.membership.rank == group.membership.ranks - 1

    def part(*args: Any, **kinds: Any) -> RankEpoch:
        made = part_of(*args, **kinds)
        if not last or made.table is None:
            return made
        ahead_ns = 24 * 3600 * 10**9
        clocks = {name: made.table[name] + ahead_ns for name in ("start_ns", "fetch_start_ns", "ready_ns")}
        membership = replace(made.membership, node=1)
        return replace(
            made,
            table=made.table | clocks,
            barrier_ns=made.barrier_ns + ahead_ns,
            membership=membership,
        )

    setattr(replicate, "part_of", part)  # noqa: B010 - this process is a copy that ends with its job
    return rank(group, job=job)


def test_clocks_of_two_machines_are_never_subtracted(bench: Bench, run_folder: Path) -> None:
    found = trained(cell_of("lmdb"), bench, run_folder, ahead_on_a_second_node)
    assert_sound(found)
    assert found.job.nodes == 2
    assert max(one.seconds for one in found.job.per_rank) <= found.record.timed_s < 60
    since_barrier = [(one.begin_s or 0.0, one.end_s or 0.0) for one in found.job.per_rank]
    assert all(0 <= begin_s < end_s < 60 for begin_s, end_s in since_barrier)
    assert found.job.wait_for_slowest_s is None


def failed_on_a_second_node(group: Group, *, job: CellJob) -> tuple[list[Record], Weights]:
    """Put the last rank alone on a second node that finds its cache in another state after the epoch."""
    last = group.membership.rank == group.membership.ranks - 1

    def part(*args: Any, **kinds: Any) -> RankEpoch:
        made = part_of(*args, **kinds)
        if not last or made.record.cache is None:
            return made
        failed = replace(made.record.cache, verdict=CacheVerdict.FAILED, reason="96% of it was resident")
        record = replace(made.record, cache=failed)
        return replace(made, record=record, membership=replace(made.membership, node=1))

    setattr(replicate, "part_of", part)  # noqa: B010 - this process is a copy that ends with its job
    return rank(group, job=job)


def test_a_second_node_in_another_cache_state_fails_the_job(bench: Bench, run_folder: Path) -> None:
    found = trained(cell_of("lmdb"), bench, run_folder, failed_on_a_second_node)
    assert found.record.failure is not None
    assert found.record.failure.startswith("node 1: the cache was not")
    assert "96% of it was resident" in found.record.failure


def test_ranks_with_workers_serve_the_same_samples(plain: Plain, bench: Bench, run_folder: Path) -> None:
    found = trained(cell_of("lmdb", workers=1), bench, run_folder)
    assert_sound(found)
    assert_same_training(found, plain("lmdb"))


def test_ranks_that_only_load_do_not_wait_for_each_other(bench: Bench, run_folder: Path) -> None:
    found = trained(cell_of("lmdb", compute="none", model="none", passes=2), bench, run_folder)
    assert_sound(found)
    assert found.job.sync is None
    assert found.job.wait_for_slowest_s is found.job.exposed_communication_s is None
    assert found.job.link is found.job.ring_bound_s is None
    assert (found.job.total_samples, found.job.duplicates) == (2 * SAMPLES, 0)


LATE_S = 0.010


def late_rank(setup: Setup) -> None:
    """Let every batch of rank 1 come late."""
    serve = setup.loader.epoch

    def late(plan: EpochPlan) -> Iterator[LoadedBatch]:
        for batch in serve(plan):
            time.sleep(LATE_S)
            yield batch

    if setup.membership.rank == 1:
        setup.loader.epoch = late  # type: ignore[method-assign]


@pytest.mark.quiet
def test_the_wait_for_the_slowest_rank_is_apart_from_communication(bench: Bench, run_folder: Path) -> None:
    cell = cell_of("memory:native", compute="emulated:30", model="none", sync="after", ranks=2, batch_size=20)
    found = sound_ranks(cell, bench, run_folder, late_rank)
    waits = [one.wait_for_slowest_s or 0.0 for one in found.job.per_rank]
    late_s = found.record.steps * LATE_S
    # Beside a busy process, everything takes longer, including sleeps.
    assert waits[0] > 0.5 * late_s
    assert waits[1] < waits[0]
    assert found.job.exposed_communication_s is not None
    assert found.job.exposed_communication_s < waits[0] / found.record.steps
    assert found.job.per_rank[1].data_wait_s > found.job.per_rank[0].data_wait_s + 0.5 * late_s


def test_shards_that_overlap_fail_the_job(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_shard(order: Indices, *, ranks: int, **more: Any) -> Iterator[list[Indices]]:
        return ([pieces[0]] * ranks for pieces in dealt(order, ranks=ranks, **more))

    monkeypatch.setattr(sampling, "dealt", first_shard)
    found = trained(cell_of("lmdb"), bench, run_folder)
    assert found.record.failed
    assert found.record.failure is not None
    assert found.record.failure.startswith("wrong samples: 133 missing, ")


class BackwardsLoader(ProcessLoader):
    """Serve what was planned, last batch first."""

    def epoch(self, plan: EpochPlan) -> Iterator[LoadedBatch]:
        yield from super().epoch(replace(plan, batches=plan.batches[::-1]))


@pytest.mark.parametrize("backwards", [(1,), (1, 2)])
def test_a_rank_that_serves_its_samples_in_another_order_is_named(
    backwards: tuple[int, ...], bench: Bench, run_folder: Path
) -> None:
    """The job as a whole serves every sample once, so only the order of this rank's own plan can tell."""

    def change(setup: Setup) -> None:
        if setup.membership.rank in backwards:
            setup.loader.__class__ = BackwardsLoader

    work = functools.partial(plain_rank, change=change)
    found = trained(cell_of("lmdb", limit=2 * RANKS * BATCH), bench, run_folder, work)
    assert found.record.coverage is not None
    assert found.record.coverage.complete
    assert found.record.failure == "rank 1 was not served the samples of its plan in the drawn order"


@pytest.mark.still_pages
def test_the_rates_of_a_job_from_a_cold_start_are_those_of_all_ranks(bench: Bench, run_folder: Path) -> None:
    cell = cell_of("hdf5", cache="cold", compute="none", model="none", ranks=2, batch_size=20)
    found = trained(cell, bench, run_folder)
    assert_sound(found)
    cache = found.record.cache
    assert cache is not None
    assert cache.resident_frac_before == 0
    assert cache.curve[-1].asked_frac == 1.0
    last = found.record.cold_rates[-1]
    assert last.read_frac == 1.0
    assert last.samples_per_s == pytest.approx(found.record.samples_per_s)
