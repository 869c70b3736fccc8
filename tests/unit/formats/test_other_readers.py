"""files:threads, memory:shared and lmdb:shared beyond what the contract asks of every reader."""

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.errors import CorruptStoreError, OutputError, UsageError
from storebench.formats.reads.shared_pixels import SharedPixels, store_tag
from storebench.formats.registry import get_format, open_reader
from storebench.system.scratch import SEGMENT_PREFIX, SEGMENTS, sweep_segments
from storebench.testing.stores import COUNT, SHAPE, SmallStore, build_small_store

USER = f"{SEGMENT_PREFIX}-{os.getuid()}"


def small(tmp_path: Path, name: str, codec: str, **options: Any) -> SmallStore:
    (tmp_path / "store").mkdir()
    return build_small_store(get_format(name), codec, tmp_path / "store", **options)


@pytest.mark.parametrize(("codec", "threads"), [("png", "1"), ("raw", "2"), ("jpeg", "5")])
def test_threads_decode_into_the_right_rows(tmp_path: Path, codec: str, threads: str) -> None:
    store = small(tmp_path, "files", codec)
    order = np.random.default_rng(0).permutation(COUNT)
    out = np.full((COUNT + 1, *SHAPE), 9, np.uint8)
    with open_reader(store.path, "threads", threads=threads, ahead="3") as reader:
        reader.plan([order[:30], order[30:31], order[31:31], order[31:]])
        decode_ns = []
        for part in (slice(0, 30), slice(30, 31), slice(31, 31), slice(31, COUNT)):
            start = time.perf_counter_ns()
            done = reader.fetch_into(order[part], out[part] if part.stop < COUNT else out[31:])
            assert done.decode_ns <= time.perf_counter_ns() - start
            assert done.payload_bytes == store.pixels[order[part]].nbytes
            decode_ns.append(done.decode_ns)
        assert [ns > 0 for ns in decode_ns] == [True, True, False, True]
        assert reader.payload_codec == "raw"
    assert np.array_equal(out[:-1], store.pixels[order])
    assert (out[-1] == 9).all()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("storebench-files")]


def test_an_error_in_a_thread_names_the_file(tmp_path: Path) -> None:
    store = small(tmp_path, "files", "png")
    (victim,) = store.path.rglob("00000005.png")
    victim.write_bytes(victim.read_bytes()[:50])
    with (
        open_reader(store.path, "threads") as reader,
        pytest.raises(CorruptStoreError, match=r"00000005\.png"),
    ):
        reader.fetch(np.arange(10))


@pytest.mark.parametrize(("name", "codec"), [("memory", "png"), ("lmdb", "raw"), ("lmdb", "png")])
def test_one_copy_serves_all_and_goes_with_the_last_reader(tmp_path: Path, name: str, codec: str) -> None:
    store = small(tmp_path, name, codec, count=300)
    tag = ("lmm-" if name == "lmdb" else "") + store_tag(store.path, store.manifest)
    segment = SEGMENTS / f"{USER}-{tag}"
    assert not segment.exists()
    first, second = open_reader(store.path, "shared"), open_reader(store.path, "shared")
    assert segment.stat().st_mode & 0o077 == 0
    notes = [reader.notes()["shared memory"] for reader in (first, second)]
    assert notes == ["filled by this reader", "was there already"]
    first.close()
    max(store.path.glob("data.*")).unlink()
    order = np.random.default_rng(0).permutation(300)
    out = np.empty((300, *SHAPE), np.uint8)
    second.fetch_into(order, out)
    assert np.array_equal(out, store.pixels[order])
    assert np.array_equal(second.labels, store.labels)
    assert segment.exists()
    second.close()
    assert not segment.exists()


OPENERS, TIMES = 8, 10


def _open_together(identity: str, path: Path, everyone: Barrier) -> None:
    def fill(pixels: np.ndarray) -> None:
        with path.open("a") as log:
            log.write("filled\n")
        time.sleep(0.02)
        pixels[...] = np.arange(len(pixels))[:, None, None, None]

    for _ in range(TIMES):
        everyone.wait()
        shared = SharedPixels(identity, (200, 4, 4, 1), fill)
        assert (shared.array == np.arange(200)[:, None, None, None]).all()
        everyone.wait()
        shared.close()


def test_processes_that_open_together_fill_it_once(tmp_path: Path) -> None:
    """Whoever waited for the others to let go of it would wait until they close."""
    context = multiprocessing.get_context("fork")
    identity, log = f"test{os.getpid()}", tmp_path / "log"
    everyone = context.Barrier(OPENERS, timeout=60)
    openers = [context.Process(target=_open_together, args=(identity, log, everyone)) for _ in range(OPENERS)]
    with (SEGMENTS / f"{USER}-{identity}").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)  # until all of them have found it empty and in use
        for opener in openers:
            opener.start()
        time.sleep(0.5)
        fcntl.flock(held, fcntl.LOCK_UN)  # closing would not do: they have inherited it
    for opener in openers:
        opener.join(60)
        opener.kill()
    assert [opener.exitcode for opener in openers] == [0] * OPENERS
    assert log.read_text() == TIMES * "filled\n"
    assert not (SEGMENTS / f"{USER}-{identity}").exists()


@pytest.mark.parametrize("when", ["filling", "filled"])
def test_the_memory_of_a_killed_process_is_found_and_removed(when: str) -> None:
    identity = f"killed{os.getpid()}"
    program = f"""
import os, signal, time
from storebench.formats.reads.shared_pixels import SharedPixels
def fill(pixels):
    pixels[...] = 1
    if {when == "filling"}:
        print("ready", flush=True); time.sleep(60)
shared = SharedPixels({identity!r}, (10, 4, 4, 1), fill)
print("ready", flush=True); time.sleep(60)
"""
    segment = SEGMENTS / f"{USER}-{identity}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        sweep_segments()
        assert segment.exists()
        process.send_signal(signal.SIGKILL)
    if when == "filled":
        SharedPixels(f"other{os.getpid()}", (1, 1, 1, 1), lambda pixels: None).close()
        assert not segment.exists()
    shared = SharedPixels(identity, (10, 4, 4, 1), lambda pixels: pixels.fill(2))
    assert (shared.array == 2).all()
    shared.close()
    assert not segment.exists()


def test_a_failed_fill_leaves_no_segment() -> None:
    def fail(pixels: np.ndarray) -> None:
        raise CorruptStoreError("no")

    with pytest.raises(CorruptStoreError):
        SharedPixels(f"failed{os.getpid()}", (10, 4, 4, 1), fail)
    assert not (SEGMENTS / f"{USER}-failed{os.getpid()}").exists()


def test_too_little_shared_memory_is_said_before_anything_is_written() -> None:
    with pytest.raises((UsageError, OutputError), match="shared memory"):
        SharedPixels(f"huge{os.getpid()}", (1 << 40, 64, 64, 3), lambda pixels: None)
    assert not (SEGMENTS / f"{USER}-huge{os.getpid()}").exists()
