"""Planned reads: the same samples as unplanned ones, few bytes too many, no page faults, bounded look-ahead."""

import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storebench.errors import CorruptStoreError
from storebench.formats.base import Reader
from storebench.formats.reads import direct_file, planned
from storebench.formats.reads.direct_file import SMALL_BYTES, DirectFile, merge
from storebench.formats.reads.planned import Turns
from storebench.formats.registry import get_format
from storebench.formats.windows import Windows
from storebench.probes.page_cache import evict
from storebench.probes.page_count import PAGE_BYTES, resident
from storebench.system.kernel import load_kernel
from storebench.system.scratch import sweep
from storebench.testing.stores import SmallStore, build_small_store, sliced
from tests.support.thinning import examples

needs_kernel = pytest.mark.skipif(load_kernel() is None, reason="the kernel is not built")

SMALL, LARGE = (32, 32, 3), (120, 100, 3)
OPTIONS: list[dict[str, str]] = [
    {},
    {"merged": "off"},
    {"explicit": "off"},
    {"index": "off"},
    {"index": "off", "keep_leaf": "on"},
    {"readers_at_a_time": "2"},
    {"window_mib": "4"},
]


@pytest.fixture(scope="module", params=[SMALL, LARGE], ids=["small", "large"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    folder = tmp_path_factory.mktemp("direct") / "store"
    folder.mkdir()
    count = 3000 if request.param is SMALL else 600
    return build_small_store(get_format("lmdb"), "raw", folder, count=count, shape=request.param)


def opened(store: SmallStore, **options: str) -> Reader:
    return store.format.reader(store.path, store.manifest, "direct", options)


def batches_of(count: int, size: int = 64, seed: int = 1) -> list[np.ndarray]:
    order = np.random.default_rng(seed).permutation(count)
    return [order[at : at + size] for at in range(0, count, size)]


def assert_serves(reader: Reader, store: SmallStore, batch: np.ndarray) -> None:
    out = np.full((len(batch) + 1, *reader.image_shape), 7, np.uint8)
    assert reader.fetch_into(batch, out) == (len(batch) * out[0].size, 0)
    assert np.array_equal(out[:-1], store.pixels[batch])
    assert (out[-1] == 7).all(), "wrote beyond the batch"


def assert_serves_windows(reader: Reader, store: SmallStore, batch: np.ndarray) -> None:
    height, width, channels = reader.image_shape
    places = np.random.default_rng(0).integers(0, (height - 19, width - 24, 2), (len(batch), 3))
    windows = Windows(places=places, height=20, width=25)
    out = np.full((len(batch) + 1, 20, 25, channels), 7, np.uint8)
    assert reader.fetch_windows(batch, windows, out) == (store.pixels[batch].nbytes, 0)
    assert np.array_equal(out[:-1], sliced(store.pixels[batch], windows))
    assert (out[-1] == 7).all(), "wrote beyond the batch"


def make_cold(store: SmallStore) -> None:
    evict(store.format.data_files(store.path))
    if resident(store.format.data_files(store.path)).pages_resident != 0:
        pytest.skip("this filesystem's pages cannot be evicted")


def device_bytes() -> int:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes:")))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 40_000)), min_size=1, max_size=60),
    st.integers(0, 100_000),
)
def test_merged_pieces_cover_all_samples_and_cross_no_wider_gap(
    samples: list[tuple[int, int]], gap: int
) -> None:
    offsets, lengths = (np.array(column, np.int64) for column in zip(*samples, strict=True))
    pieces = merge(offsets, lengths, gap)
    assert ((pieces.starts % PAGE_BYTES == 0) & (pieces.stops % PAGE_BYTES == 0)).all()
    assert (pieces.starts[1:] > pieces.stops[:-1] + gap).all()
    wanted = np.zeros((int(pieces.stops.max()) >> 12) + 1, np.bool_)
    for offset, length in samples:
        wanted[offset >> 12 : (offset + length - 1 >> 12) + 1] = True
    read = np.zeros_like(wanted)
    for start, stop in pieces.pairs():
        read[start >> 12 : stop >> 12] = True
        inside = np.flatnonzero(wanted[start >> 12 : stop >> 12])
        assert inside[0] == 0
        assert inside[-1] == (stop - start >> 12) - 1
        assert (np.diff(inside) - 1 <= gap >> 12).all()
    assert (read >= wanted).all()


@pytest.mark.parametrize("state", ["cold", "warm"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(map("=".join, options.items())))
def test_every_switch_serves_the_same_samples_in_the_asked_order(
    store: SmallStore, options: dict[str, str], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "window_mib" in options:
        monkeypatch.setattr(planned, "SWEEP_BYTES", 0)
    plan = batches_of(len(store.labels))[:20]
    for served in (assert_serves, assert_serves_windows):
        if state == "cold":
            make_cold(store)
        with opened(store, **options) as reader:
            for _ in range(2):  # an epoch, and another one with what the first one left behind
                reader.plan(plan)
                for batch in plan:
                    served(reader, store, batch)
            assert reader.notes()


@examples(40)
@given(st.data())
def test_calls_that_depart_from_the_plan_are_answered_rightly(store: SmallStore, data: st.DataObject) -> None:
    count = len(store.labels)
    indices = st.lists(st.integers(0, count - 1), max_size=50).map(lambda some: np.array(some, np.int64))
    plan = data.draw(st.lists(indices, max_size=6))
    asked = data.draw(st.lists(st.sampled_from(plan) | indices if plan else indices, max_size=8))
    with pytest.MonkeyPatch.context() as patch, opened(store) as reader:
        patch.setattr(planned, "SWEEP_BYTES", data.draw(st.sampled_from([0, 256 << 20])))
        reader.plan(plan)
        for batch in asked:
            assert_serves(reader, store, batch.copy())


@pytest.mark.still_pages
@pytest.mark.parametrize("announced", [True, False])
def test_a_cold_tenth_reads_what_it_asked_for_without_major_faults(
    store: SmallStore, announced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "GAP_BYTES", 0)
    plan = batches_of(len(store.labels))[:5]
    out = np.ones((64, *store.pixels.shape[1:]), np.uint8)
    with opened(store) as reader:
        make_cold(store)
        before, faults = device_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        if announced:
            reader.plan(plan)
        done = sum(reader.fetch_into(batch, out).payload_bytes for batch in plan)
        read = device_bytes() - before
        if not read:
            pytest.skip("no block device under this folder")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_majflt == faults
        pages = -(-(store.pixels[0].nbytes + 16) // PAGE_BYTES) * PAGE_BYTES
        assert read <= done * pages / store.pixels[0].nbytes + (64 << 10)
        assert "0 resident" in reader.notes()["windows"]


def asked_bytes(reader: Reader) -> int:
    """Return how much a reader has asked for ahead."""
    return int(reader.notes()["asked"].split()[2])


def test_the_look_ahead_is_bounded_by_the_window(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = build_small_store(get_format("lmdb"), "raw", tmp_path / "store", count=800, shape=LARGE)
    plan = batches_of(800)
    with opened(store, window_mib="8") as reader:
        make_cold(store)
        reader.plan(plan)
        deadline = time.monotonic() + 60
        while asked_bytes(reader) < 4 << 20:
            assert time.monotonic() < deadline, "it does not read ahead"
            time.sleep(0.01)
        time.sleep(0.2)  # time enough to go too far
        assert asked_bytes(reader) <= 14 << 20
        for batch in plan:
            assert_serves(reader, store, batch)


@pytest.mark.parametrize("explicit", ["on", "off"])
def test_a_store_that_is_written_to_meanwhile_is_an_error(tmp_path: Path, explicit: str) -> None:
    (tmp_path / "store").mkdir()
    store = build_small_store(get_format("lmdb"), "raw", tmp_path / "store")
    with opened(store, explicit=explicit) as reader:
        assert_serves(reader, store, np.arange(5))
        assert reader.reads.maps_pages == (explicit == "on")  # type: ignore[attr-defined]
        with lmdb.open(str(store.path), map_size=1 << 30) as env, env.begin(write=True) as txn:
            txn.put(b"00000003", b"other")
        with pytest.raises(CorruptStoreError, match="written to"):
            reader.fetch(np.arange(5))
    with pytest.raises(CorruptStoreError, match="sample 3 has 5 bytes"):
        opened(store)


WALKED = {"index": "off", "explicit": "off", "merged": "off"}


@pytest.mark.parametrize(("options", "served", "size"), [({}, 0, 8192), ({}, 5, 0), (WALKED, 0, 8192)])
def test_a_file_that_shrinks_meanwhile_is_an_error_and_not_a_dead_process(
    tmp_path: Path, options: dict[str, str], served: int, size: int
) -> None:
    (tmp_path / "store").mkdir()
    store = build_small_store(get_format("lmdb"), "raw", tmp_path / "store")
    with opened(store, **options) as reader:
        reader.fetch(np.arange(served))
        os.truncate(store.path / "data.mdb", size)
        with pytest.raises(CorruptStoreError, match=r"data\.mdb"):
            reader.fetch(np.arange(5))


def test_a_reader_of_cold_samples_lets_all_pages_be_evicted(store: SmallStore) -> None:
    """Until it has found everything resident, nothing of the file is mapped; pages that are mapped stay."""
    if store.manifest.dataset.image_bytes < SMALL_BYTES:
        pytest.skip("small samples are copied from the mapping")
    make_cold(store)
    with opened(store) as reader:
        evict(store.format.data_files(store.path))  # opening read the labels and what the kernel read ahead
        batch = np.arange(0, store.manifest.count, 50)
        reader.plan([batch])
        assert_serves(reader, store, batch)
        evict(store.format.data_files(store.path))
        assert resident(store.format.data_files(store.path)).pages_resident == 0


@pytest.mark.still_pages
def test_partly_resident_ranges_are_asked_for_only_where_they_are_missing(store: SmallStore) -> None:
    with opened(store) as reader:
        make_cold(store)
        batches = batches_of(len(store.labels))
        out = np.empty((64, *store.pixels.shape[1:]), np.uint8)
        for batch in batches[:-1]:
            reader.fetch_into(batch, out)
        before = int(reader.notes()["asked"].split()[0])
        mixed = np.concatenate([batches[0][:30], batches[-1]])
        assert_serves(reader, store, mixed)
        assert int(reader.notes()["asked"].split()[0]) - before <= len(batches[-1])


@pytest.fixture
def some_file(tmp_path: Path) -> Iterator[DirectFile]:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100 + b"end")
    file = DirectFile(path)
    yield file
    file.close()


def test_the_last_bytes_of_a_file_are_read_like_all_others(some_file: DirectFile) -> None:
    rows = np.empty((1, 5), np.uint8)
    for copy in (some_file.copy_rows, some_file.read_rows):
        copy(np.array([some_file.size - 5]), rows)
        assert rows.tobytes() == b"\xfe\xffend"
    with pytest.raises(CorruptStoreError, match="ends within"):
        some_file.read_rows(np.array([some_file.size - 4]), rows)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_kernel), False])
@pytest.mark.parametrize("size", [1, 5000])
def test_rows_are_the_same_with_and_without_the_kernel(
    size: int, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(direct_file, "load_kernel", lambda: None)
    content = np.random.default_rng(size).integers(0, 256, 3 * SMALL_BYTES + 5, np.uint8)
    (tmp_path / "file").write_bytes(content.tobytes())
    offsets = np.array([7, 0, 2 * SMALL_BYTES + 5 - size % 7, 7])
    rows = np.full((5, size), 9, np.uint8)
    with contextlib.closing(DirectFile(tmp_path / "file")) as file:
        file.copy_rows(offsets, rows[:4])
        assert [row.tobytes() for row in rows[:4]] == [content[at : at + size].tobytes() for at in offsets]
        assert (rows[4] == 9).all(), "it wrote beyond the rows"
        if compiled:
            with pytest.raises(IndexError):
                file.copy_rows(np.array([len(content) - size + 1]), rows[:1])


def test_turns_let_no_more_in_than_they_say(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.touch()
    inside, most, lock = 0, 0, threading.Lock()

    def take_turns() -> None:
        nonlocal inside, most
        turns = Turns(path, 2)
        for _ in range(5):
            with turns.one():
                with lock:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.002)
                with lock:
                    inside -= 1
        turns.close()

    threads = [threading.Thread(target=take_turns) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2


def test_locks_of_a_killed_process_go_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "store"
    path.touch()
    go_on, begun = os.pipe(), os.pipe()
    if not (pid := os.fork()):
        turns = Turns(path, 2)  # noqa: F841 - it holds its lock
        os.write(begun[1], b" ")
        os.read(go_on[0], 1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.read(begun[0], 1)
    assert sweep() == [], "their process lives"
    os.write(go_on[1], b" ")
    os.waitpid(pid, 0)
    assert len(sweep()) == 1
    assert list(tmp_path.iterdir()) == [path]
    for handle in (*go_on, *begun):
        os.close(handle)
