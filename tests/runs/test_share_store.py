"""A data store in memory: the same training as with ranks that read separately, without reads once it is full."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from storebench.probes.page_count import Residency, resident
from storebench.ranks.heartbeat import Position
from storebench.record.lines import read_records
from storebench.record.schema import CacheVerdict, Cell, DataStoreFacts
from storebench.worker.setup import Setup
from tests.support.harness_tools import SAMPLES, SMALL, Bench, wait_for
from tests.support.photo_folders import write_photos
from tests.support.rank_cells import NAMED_S, RankRun, ranked_cell, sound_ranks

RANKS, BATCH = 3, 11
"""200 samples of MNIST are 6 steps of 33 and one of 2, in which the last rank has no samples but still has to send."""

PIXELS = 28 * 28

FILLS = ("preload", "first-epoch")


def facts_of(found: RankRun, epoch: int) -> list[DataStoreFacts]:
    """Return the facts of each rank's part of the data store."""
    job = found.records[epoch].job
    assert job is not None
    return [rank.data_store for rank in job.per_rank if rank.data_store is not None]


def total(found: RankRun, epoch: int, name: str) -> int:
    """Return the sum of a count over all ranks."""
    return sum(getattr(facts, name) for facts in facts_of(found, epoch))


def cell_of(backend: str = "lmdb", **matrix: Any) -> Cell:
    asked = {"limit": SAMPLES, "ranks": RANKS, "batch_size": BATCH, "epochs": 2} | matrix
    return ranked_cell(backend, **asked)


@pytest.mark.full
def test_ranks_train_from_memory_as_from_the_store(bench: Bench, run_folder: Path) -> None:
    alone = sound_ranks(cell_of("png", ranks=2), bench, run_folder)
    for fill in FILLS:
        found = sound_ranks(cell_of("png", ranks=2, share="store", store_fill=fill), bench, run_folder)
        assert found.losses.tobytes() == alone.losses.tobytes()
        for mine, theirs in zip(found.records, alone.records, strict=True):
            assert mine.digests == theirs.digests
            assert mine.coverage is not None
            assert mine.coverage.unique == SAMPLES
            assert mine.coverage.timed_checked >= 64
        assert total(found, 0, "from_store") == (SAMPLES if fill == "first-epoch" else 0)
        assert total(found, 1, "from_store") == 0
        assert total(found, 1, "from_memory") + total(found, 1, "from_ranks") == SAMPLES
        assert total(found, 1, "from_ranks") > SAMPLES // 3
        assert (total(found, 0, "received_bytes") > 0) is (fill == "preload")


@pytest.mark.parametrize("fill", FILLS)
def test_each_rank_holds_its_share_and_bounded_buffers(fill: str, bench: Bench, run_folder: Path) -> None:
    passes = 6  # long enough that messages which are never done with would exceed the bound
    asked: dict[str, Any] = {"epochs": 3, "passes": passes, "compute": "none", "model": "none"}
    found = sound_ranks(cell_of(share="store", store_fill=fill, **asked), bench, run_folder)
    for facts in (one for epoch in range(3) for one in facts_of(found, epoch)):
        assert SAMPLES // RANKS - BATCH <= facts.held_samples <= SAMPLES // RANKS + BATCH
        assert facts.held_bytes == facts.held_samples * PIXELS
        assert facts.buffer_bytes <= 2 * (1 + RANKS) * BATCH * PIXELS
        assert facts.table_bytes == SAMPLES * (4 + 8 + 8)
    for epoch in (1, 2):
        facts_of_ranks = facts_of(found, epoch)
        assert all(one.sent_bytes > 0 and one.received_bytes > 0 for one in facts_of_ranks)
        assert total(found, epoch, "sent_bytes") == total(found, epoch, "received_bytes")
        assert total(found, epoch, "received_bytes") == total(found, epoch, "from_ranks") * PIXELS
        assert all(0 < one.waited_s < one.exchange_s for one in facts_of_ranks)
    assert all((one.preload_s is None) is (fill == "first-epoch") for one in facts_of(found, 0))


@pytest.mark.still_pages
@pytest.mark.parametrize("fill", FILLS)
def test_the_second_epoch_reads_nothing_from_a_store_that_is_cold(
    fill: str, bench: Bench, run_folder: Path
) -> None:
    cell = cell_of("hdf5", share="store", store_fill=fill, cache="cold", compute="none", model="none")
    found = sound_ranks(cell, bench, run_folder)
    first, second = found.records
    assert second.cache is not None
    assert first.cache is not None
    assert (first.cache.verdict, second.cache.verdict) == (CacheVerdict.VERIFIED, CacheVerdict.VERIFIED)
    assert (first.cache.applies_to, second.cache.applies_to) == (
        ("open", "open") if fill == "preload" else ("epoch", "open")
    )
    if fill == "first-epoch":
        assert first.cold_rates
        assert second.cold_rates == ()
        assert (second.cache.resident_frac_before, second.cache.resident_frac_after) == (0.0, 0.0)
    assert total(found, 1, "from_store") == 0
    if second.counters.device_read_bytes is None:
        pytest.skip("the kernel does not count reads here")
    assert second.counters.device_read_bytes < 0.1 * SAMPLES * PIXELS
    filled = (
        total(found, 0, "preload_device_bytes") if fill == "preload" else first.counters.device_read_bytes
    )
    assert filled is not None
    assert filled > 0.9 * SAMPLES * PIXELS


def late_count(setup: Setup) -> None:
    """Let rank 0 count pages half a second later than the others."""
    if not setup.membership.rank:

        def counted_late(files: list[Path]) -> Residency:
            time.sleep(0.5)
            return resident(files)

        pytest.MonkeyPatch().setattr("storebench.worker.epoch.resident", counted_late)


@pytest.mark.still_pages
def test_no_rank_reads_for_its_proof_before_all_have_counted(bench: Bench, run_folder: Path) -> None:
    asked: dict[str, Any] = {"share": "store", "store_fill": "first-epoch", "cache": "cold"}
    cell = cell_of("hdf5", **asked, compute="none", model="none")
    _, second = sound_ranks(cell, bench, run_folder, late_count).records
    assert second.cache is not None
    assert second.cache.resident_frac_after == 0.0


def test_a_rank_without_a_sample_still_sends(bench: Bench, run_folder: Path) -> None:
    cell = cell_of(share="store", limit=4, batch_size=1, passes=4, compute="none", model="none")
    found = sound_ranks(cell, bench, run_folder)
    assert [record.samples for record in found.records] == [16, 16]
    assert total(found, 1, "from_ranks") > 0


def test_image_files_of_any_size_are_exchanged_as_they_are(
    bench: Bench, run_folder: Path, tmp_path: Path
) -> None:
    backend = "lmdb+original?scale=dct"
    write_photos(tmp_path / "photos", each=7)
    folder = {"dataset": f"folder:{tmp_path / 'photos'}", "limit": None, "image_size": 40, "model": "tiny"}
    asked = folder | {"ranks": 2, "batch_size": 3}
    alone = sound_ranks(cell_of(backend, **asked), bench, run_folder)
    found = sound_ranks(cell_of(backend, share="store", **asked), bench, run_folder)
    assert found.losses.tobytes() == alone.losses.tobytes()
    assert [mine.digests for mine in found.records] == [theirs.digests for theirs in alone.records]
    assert total(found, 1, "from_ranks") > 0
    assert total(found, 1, "held_bytes") == found.records[1].payload_bytes


LATE_S = 0.02


def late_rank(setup: Setup) -> None:
    """Let rank 1 begin every step late, so that it sends late."""
    compute = setup.step.compute

    def late() -> None:
        time.sleep(LATE_S)
        compute()

    if setup.membership.rank == 1:
        setup.step.compute = late  # type: ignore[method-assign]


def test_waiting_for_another_rank_is_data_wait(bench: Bench, run_folder: Path) -> None:
    cell = cell_of(share="store", compute="none", model="none", passes=2, ranks=2)
    found = sound_ranks(cell, bench, run_folder, late_rank)
    job = found.records[1].job
    assert job is not None
    prompt, late = job.per_rank
    assert prompt.data_store is not None
    late_s = (found.records[1].steps - 4) * LATE_S
    assert prompt.data_wait_s > 0.8 * late_s
    assert prompt.data_store.waited_s > 0.8 * late_s
    assert late.data_store is not None
    assert late.data_store.waited_s < prompt.data_store.waited_s


STORE = ("--ranks", "2", "--threads", "1", "--share", "store")


def test_a_rank_killed_while_samples_are_exchanged_is_named(
    bench: Bench, temporary: Path, tmp_path: Path
) -> None:
    here = dataclasses.replace(bench, env={**bench.env, "TMPDIR": str(temporary)})
    words = ("run", "lmdb", *SMALL, *STORE, "--compute", "emulated:100", "--epochs", "100")
    places = ("--stores", here.stores, "--out", tmp_path / "run")
    with ThreadPoolExecutor(1) as others:
        command = others.submit(here.cli, *words, *places)
        victim = psutil.Process(wait_for(lambda: exchanging(temporary)))
        victim.kill()
        killed_at = time.monotonic()
        done = command.result()
        assert time.monotonic() - killed_at < NAMED_S
    assert done.returncode == 5, done.stderr
    failures = {record.failure or "" for record in read_records(tmp_path / "run")}
    [failure] = failures
    assert failure.startswith("rank 1 on node 0: it was killed by SIGKILL; see logs/")
    assert list(temporary.iterdir()) == []


def exchanging(temporary: Path) -> int | None:
    """Return the process id of rank 1 while it is in an epoch after the first."""
    for file in temporary.glob("**/progress-1"):
        position = Position.of(file.parent, 1)
        epoch = position.name.removeprefix("epoch ")
        if epoch.isdigit() and int(epoch) and position.batches:
            return position.pid
    return None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--share", "store"), "share is for jobs of several ranks: set ranks as well"),
        ((*STORE, "--workers", "1"), "share 'store' exchanges samples in the loop of each rank"),
        ((*STORE, "--cache", "limited", "--memory", "64 MiB"), "share 'store' has no limited cell"),
        ((*STORE, "--store-fill", "first-epoch", "--epochs", "1"), "set epochs to 2 or more"),
        ((*STORE, "--store-fill", "first-epoch", "--max-steps", "2"), "max_steps would leave samples out"),
        (("--ranks", "2", "--store-memory", "1 GiB"), "store_memory is for the data store of a job"),
    ],
)
def test_a_data_store_that_makes_no_sense_is_refused(
    words: tuple[str, ...], said: str, bench: Bench, tmp_path: Path
) -> None:
    done = bench.cli("run", "lmdb", *words, *SMALL, "--stores", tmp_path / "stores", "--dry-run")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert said in line


def test_a_data_store_that_does_not_fit_is_refused_before_it_is_read(bench: Bench, tmp_path: Path) -> None:
    words = ("run", "lmdb", *SMALL, *STORE, "--store-memory", "10 KiB")
    done = bench.cli(*words, "--stores", bench.stores, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "lmdb: the data store needs 0." in done.stderr.splitlines()[-1]
    assert "of memory on node 0, and store_memory leaves it 0.01 MiB" in done.stderr
    assert not (tmp_path / "run").exists()
