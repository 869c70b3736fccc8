"""Counters of real processes on the real kernel; each script runs alone, so that counts can be exact."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.probes.counters import CounterProbe
from storebench.probes.machine import counts_reads

Python = Callable[..., str]

BEGIN = """
import dataclasses, json, mmap, os, subprocess, sys, threading, time
from storebench.probes.counters import CounterProbe
from storebench.probes.page_cache import evict
path = sys.argv[1]
probe = CounterProbe([os.getpid()], path)
def show(counters):
    print(json.dumps(dataclasses.asdict(counters)))
"""
ATTEMPTS = 3  # others may use the disk while we look at its counter

pytestmark = pytest.mark.still_pages


def counters_of(python: Python, script: str, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(python(BEGIN + script, path))
    return found


READ_COLD = """
evict([path])
fd = os.open(path, os.O_RDONLY)
probe.start()
for offset in range(0, 64 << 20, 1 << 20):
    os.pread(fd, 1 << 20, offset)
show(probe.stop(32 << 20))
"""


def test_a_cold_read_shows_its_bytes_for_process_and_device(python: Python, big_file: Path) -> None:
    size = big_file.stat().st_size
    for _ in range(ATTEMPTS):
        found = counters_of(python, READ_COLD, big_file)
        assert found["device_read_bytes"] == pytest.approx(size, rel=0.1)
        assert found["read_amplification"] == found["device_read_bytes"] / (32 << 20)
        if found["block_device_read_bytes"] == pytest.approx(found["device_read_bytes"], rel=0.1):
            return
    pytest.fail(f"the block device counted {found['block_device_read_bytes']} bytes")


MAP_COLD = """
evict([path])
file = open(path, "rb")
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
probe.start()
sum(mapped[at] for at in range(0, len(mapped), 4096))
show(probe.stop(64 << 20))
"""


def test_bytes_of_page_faults_are_counted_and_are_no_read_calls(python: Python, big_file: Path) -> None:
    found = counters_of(python, MAP_COLD, big_file)
    assert found["device_read_bytes"] == pytest.approx(big_file.stat().st_size, rel=0.1)
    assert found["major_faults"] >= 1
    assert found["read_calls"] == 0


READ_CALLS = """
fd = os.open(path, os.O_RDONLY)
os.pread(fd, 10, 0)
probe.start()
for _ in range({count}):
    os.pread(fd, 10, 0)
show(probe.stop())
"""


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_read_calls_are_exact_and_leave_out_those_of_the_probe(
    python: Python, big_file: Path, count: int
) -> None:
    found = counters_of(python, READ_CALLS.format(count=count), big_file)
    assert found["read_calls"] == count
    assert found["device_read_bytes"] == 0, "a warm read costs the device nothing, and that is a true 0"


WORKER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print("ready", flush=True)
sys.stdin.readline()
for offset in range(0, 64 << 20, 1 << 20):
    os.pread(fd, 1 << 20, offset)
total = sum(i * i for i in range(3_000_000))
print("done", flush=True)
sys.stdin.readline()
"""

WITH_WORKER = f"""
evict([path])
pipe = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}, path], **pipe)
worker.stdout.readline()
probe = CounterProbe([os.getpid(), worker.pid], path)
probe.start()
print("go", file=worker.stdin, flush=True)
worker.stdout.readline()
alive = probe.stop()
print("end", file=worker.stdin, flush=True)
worker.wait()
print(json.dumps([dataclasses.asdict(alive), dataclasses.asdict(probe.stop())]))
"""


def test_a_worker_counts_while_it_lives(python: Python, big_file: Path) -> None:
    alive, reaped = json.loads(python(BEGIN + WITH_WORKER, big_file))
    assert alive["device_read_bytes"] == pytest.approx(big_file.stat().st_size, rel=0.1)
    assert 64 <= alive["read_calls"] < 200
    assert alive["cpu_user_s"] > 0.05
    assert alive["minor_faults"] > 0
    assert reaped["minor_faults"] is None
    assert alive["peak_rss_bytes"] > 10 << 20
    assert "peak_rss_bytes" not in alive["reasons"]
    assert reaped["peak_rss_bytes"] is None, "its peak went with it"
    assert reaped["reasons"]["peak_rss_bytes"]


def test_cpu_seconds_are_those_of_the_time_between(tmp_path: Path) -> None:
    time.sleep(0.01)
    probe = CounterProbe([os.getpid()], tmp_path)
    probe.start()
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        pass
    found = probe.stop()
    assert found.cpu_s is not None
    assert 0.15 < found.cpu_s < 0.6


PEAK = """
probe.start()
block = bytearray(100 << 20)
for at in range(0, len(block), 4096):
    block[at] = 1
del block
first = probe.stop()
probe.start()
print(json.dumps([first.peak_rss_bytes, probe.stop().peak_rss_bytes]))
"""


def test_peak_memory_is_that_of_the_time_between(python: Python, big_file: Path) -> None:
    with_block, without = json.loads(python(BEGIN + PEAK, big_file))
    assert with_block > 100 << 20
    assert without < with_block - (80 << 20), "the peak is taken anew at each start"


def test_a_filesystem_without_a_block_device_is_null_and_named(shm: Path) -> None:
    probe = CounterProbe([os.getpid()], shm)
    probe.start()
    found = probe.stop(1)
    assert found.block_device_read_bytes is None
    assert found.reasons["block_device_read_bytes"] == "tmpfs on /dev/shm has no block device of its own"


@pytest.mark.parametrize(
    ("fstype", "counts"),
    [("ext4", True), ("fuse.sshfs", False)],
)
def test_reads_through_a_user_space_filesystem_are_not_attributed(fstype: str, counts: bool) -> None:
    assert counts_reads(fstype) is counts
