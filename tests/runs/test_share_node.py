"""One reader per node: the same training as with one reader per rank, requests by one rank only, and its failure."""

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.formats.reads.planned import Turns
from storebench.loading.batch import EpochPlan, LoadedBatch
from storebench.ranks import node_loader
from storebench.ranks.node_loader import Line
from storebench.record.lines import read_records
from storebench.worker.setup import Setup
from tests.support.harness_tools import SAMPLES, SMALL, Bench, cell_job, wait_for
from tests.support.rank_cells import NAMED_S, RankRun, ranked_cell, run_ranks, sound_ranks

RANKS = 3
"""200 samples of MNIST are 6 steps of 33 and one of 2, so the last rank has none in the last step."""

PAYLOAD = 28 * 28
SHARED = ("--ranks", "2", "--threads", "1", "--share", "node")


def small(backend: str, **matrix: Any) -> Any:
    return ranked_cell(backend, **({"limit": SAMPLES} | matrix))


IN_LOOP: dict[str, Any] = {"workers": 0}
BY_THREAD: dict[str, Any] = {"workers": 1, "loader": "threads"}


def requested(found: RankRun) -> list[int | None]:
    return [rank.requested_bytes for rank in found.job.per_rank]


def test_losses_are_bit_identical_to_those_of_a_reader_per_rank(bench: Bench, run_folder: Path) -> None:
    alone = run_ranks(small("lmdb:direct"), bench, run_folder)
    shared = sound_ranks(small("lmdb:direct", share="node"), bench, run_folder)
    assert shared.losses.tobytes() == alone.losses.tobytes()
    assert shared.record.digests == alone.record.digests
    assert shared.record.coverage is not None
    assert shared.record.coverage.unique == SAMPLES
    assert shared.record.coverage.timed_checked >= 64
    whole = alone.record.payload_bytes
    assert requested(shared) == [whole, 0, 0]
    assert None not in requested(alone)
    assert min(one or 0 for one in requested(alone)) > 0
    assert (shared.record.payload_bytes, sum(one or 0 for one in requested(alone))) == (whole, whole)


def test_each_node_has_a_reader_of_its_own(bench: Bench, run_folder: Path) -> None:
    alone = run_ranks(small("lmdb", ranks=4, batch_size=9), bench, run_folder)
    shared = sound_ranks(small("lmdb", ranks=4, batch_size=9, share="node"), bench, run_folder, nodes=2)
    assert shared.losses.tobytes() == alone.losses.tobytes()
    assert shared.record.digests == alone.record.digests
    assert shared.job.nodes == 2
    sizes = [rank.samples * PAYLOAD for rank in shared.job.per_rank]
    assert requested(shared) == [sizes[0] + sizes[1], 0, sizes[2] + sizes[3], 0]
    assert shared.record.reader_notes["share"] == "one reader for 2 ranks"


def test_ranks_that_get_the_pieces_of_each_other_fail_the_job(
    bench: Bench, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Line.send
    held: list[tuple[Line, Any]] = []

    def swapped(self: Line, message: Any) -> None:
        if not isinstance(message, node_loader._Piece):
            send(self, message)
            return
        held.append((self, message))
        if len(held) == RANKS - 1:
            (first, one), (second, other) = held
            held.clear()
            full = len(one.indices) == len(other.indices)
            send(first, other if full else one)
            send(second, one if full else other)

    monkeypatch.setattr(Line, "send", swapped)
    found = run_ranks(small("lmdb", share="node"), bench, run_folder)
    assert found.record.coverage is not None
    assert found.record.coverage.complete, "each sample was served once, to the wrong rank"
    assert "rank 1 was not served the samples of its plan" in (found.record.failure or "")


def test_ranks_without_a_sample_in_the_middle_of_an_epoch_are_served(bench: Bench, run_folder: Path) -> None:
    cell = small("lmdb", share="node", compute="none", model="none", passes=4)
    found = sound_ranks(cell, bench, run_folder)
    assert (found.job.total_samples, found.job.duplicates) == (4 * SAMPLES, 0)
    by_rank = found.steps["samples"].reshape(-1, RANKS)
    assert by_rank[6::7].tolist() == [[1, 1, 0]] * 4


LATE_S = 0.020


def late_guest(setup: Setup) -> None:
    """Let the last rank take its time over every batch."""
    serve = setup.loader.epoch

    def late(plan: EpochPlan) -> Iterator[LoadedBatch]:
        for batch in serve(plan):
            yield batch
            time.sleep(LATE_S)

    if setup.membership.rank == RANKS - 1:
        setup.loader.epoch = late  # type: ignore[method-assign]


@pytest.mark.parametrize("way", [IN_LOOP, BY_THREAD], ids=["in the loop", "by a thread"])
def test_no_batch_is_overwritten_before_every_rank_has_used_it(
    way: dict[str, Any], bench: Bench, run_folder: Path
) -> None:
    """The reader and the other ranks wait for room: the reader is at most two batches ahead."""
    cell = small("lmdb", share="node", compute="none", model="none", passes=2, **way)
    found = sound_ranks(cell, bench, run_folder, late_guest)
    waits = np.array([rank.data_wait_s for rank in found.job.per_rank])
    late_s = (found.record.steps - 2) * LATE_S
    assert (waits > 0.5 * late_s).all()


@pytest.mark.still_pages
def test_a_cold_store_is_read_by_one_rank(bench: Bench, run_folder: Path) -> None:
    cell = small("lmdb:direct", share="node", cache="cold", compute="none", model="none")
    found = sound_ranks(cell, bench, run_folder)
    first, *others = (rank.device_read_bytes for rank in found.job.per_rank)
    if first is None:
        pytest.skip("the kernel does not count reads here")
    assert first >= 0.9 * found.record.payload_bytes
    assert all(one is not None and one < 0.1 * first for one in others)
    assert found.record.cold_rates


@pytest.mark.parametrize("fault", ["kill", "bug"])
def test_a_reader_that_dies_ends_the_job_with_its_name(
    fault: str, bench: Bench, temporary: Path, tmp_path: Path
) -> None:
    env = {**bench.env, "TMPDIR": str(temporary), "PLANTED_RANK_FAULT": f"0:{fault}"}
    faulty = dataclasses.replace(bench, env=env)
    words = ("planted:faulty-rank", *SMALL, *SHARED, "--stores", tmp_path / "stores")
    done = faulty.cli("run", *words, "--out", tmp_path / "run")
    ended = time.time()
    [begun] = (tmp_path / "stores").glob("*/begun-*")
    assert ended - begun.stat().st_mtime < NAMED_S
    assert done.returncode == 5
    [record] = read_records(tmp_path / "run")
    said = {"kill": "it was killed by SIGKILL", "bug": "unexpected error: ZeroDivisionError"}[fault]
    assert (record.failure or "").startswith(f"rank 0 on node 0: {said}")
    assert list(temporary.iterdir()) == []


HELD_S = 0.3


def begun_by(run: Path, rank: int) -> Path:
    """Return the file that exists once the timed epoch of a rank has begun."""
    return run / f"begun-{rank}"


def telling(setup: Setup) -> None:
    """Create a file when the timed epoch of a rank begins."""
    serve = setup.loader.epoch

    def told(plan: EpochPlan) -> Iterator[LoadedBatch]:
        begun_by(setup.job.run, setup.membership.rank).touch()
        yield from serve(plan)

    setup.loader.epoch = told  # type: ignore[method-assign]


def hold_turn(turns: Turns, begun: Sequence[Path], held: threading.Event) -> None:
    """Hold a turn until a moment after the epoch has begun on every rank."""
    with turns.one():
        held.set()
        wait_for(lambda: all(file.exists() for file in begun))
        time.sleep(HELD_S)


@pytest.mark.still_pages
@pytest.mark.parametrize("share", ["none", "node"])
def test_readers_of_ranks_wait_for_their_turn(share: str, bench: Bench, run_folder: Path) -> None:
    backend = "lmdb:direct?readers_at_a_time=1"
    cell = small(backend, share=share, cache="cold", compute="none", model="none", ranks=2)
    store = cell_job(cell, bench.stores, run_folder).store
    turns, held = Turns(store / "data.mdb", 1), threading.Event()
    begun = [begun_by(run_folder, rank) for rank in range(2)]
    holder = threading.Thread(target=hold_turn, args=(turns, begun, held))
    holder.start()
    try:
        wait_for(held.is_set)
        found = sound_ranks(cell, bench, run_folder, telling)
    finally:
        for file in begun:
            file.touch()
        holder.join()
        turns.close()
    waits = found.steps["data_wait_ns"].reshape(-1, 2)[0] / 1e9
    assert (waits > 0.8 * HELD_S).all()
