"""Ceilings measured on the real device and in real memory."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storebench.probes import page_cache
from storebench.probes.device_rate import KEYS, device_rates
from storebench.probes.gather import gather_rate

pytestmark = pytest.mark.still_pages

LIMIT_S = 0.15


def test_the_device_is_read_at_random_and_in_a_row_within_the_time(big_file: Path) -> None:
    started = time.perf_counter()
    rates = device_rates([big_file], 3072, limit_s=LIMIT_S)
    assert time.perf_counter() - started < 3 * LIMIT_S + 1
    if rates.reasons:
        pytest.skip(next(iter(rates.reasons.values())))
    one, sixteen, row = (getattr(rates, key) for key in KEYS)
    assert 0 < one < row, "4 KiB at a time is slower than 4 MiB at a time"
    assert sixteen > 0.5 * one


def test_it_neither_fills_nor_empties_the_page_cache(big_file: Path) -> None:
    page_cache.evict([big_file])
    device_rates([big_file], 3072, limit_s=0.05)
    assert page_cache.resident([big_file]).pages_resident == 0
    page_cache.warm([big_file])
    device_rates([big_file], 3072, limit_s=0.05)
    assert (page_cache.resident([big_file]).frac or 0) >= 0.99


def test_what_counts_is_what_the_device_delivered(big_file: Path, own_read_bytes: Callable[[], int]) -> None:
    before = own_read_bytes()
    started = time.perf_counter()
    rates = device_rates([big_file], 100_000, limit_s=LIMIT_S)
    took_s = time.perf_counter() - started
    delivered = own_read_bytes() - before
    if rates.reasons:
        pytest.skip(next(iter(rates.reasons.values())))
    claimed = LIMIT_S * sum(getattr(rates, key) for key in KEYS)
    assert claimed <= 1.1 * delivered
    assert delivered / took_s <= max(getattr(rates, key) for key in KEYS)


def test_many_small_files_make_one_store(disk: Path) -> None:
    files = [disk / f"small{number}" for number in range(1200)]
    for number, path in enumerate(files):
        path.write_bytes(os.urandom(number % 7 * 1000))
    page_cache.evict(files)
    rates = device_rates(files, 3072, limit_s=LIMIT_S)
    assert rates.reasons == {} or "O_DIRECT" in next(iter(rates.reasons.values()))
    if not rates.reasons:
        assert rates.device_random_16_bytes_per_s


def test_tmpfs_and_empty_stores_have_no_rate_and_say_why(shm: Path, disk: Path) -> None:
    in_memory = device_rates([shm], 4096, limit_s=0.02)
    assert [getattr(in_memory, key) for key in KEYS] == [None, None, None]
    assert all("O_DIRECT" in in_memory.reasons[key] for key in KEYS)
    empty = disk / "empty"
    empty.touch()
    for files in ([], [empty]):
        assert set(device_rates(files, 4096).reasons.values()) == {"the files are empty"}


def test_the_memory_rate_is_a_ceiling_for_the_gather_rate_and_for_fancy_indexing() -> None:
    rate = gather_rate((32, 32, 3), 64, max_bytes=32 << 20, limit_s=0.2)
    assert rate.memory_bytes_per_s >= rate.samples_per_s * 3072
    array = np.ones(((32 << 20) // 3072, 32, 32, 3), np.uint8)
    out = np.empty((64, 32, 32, 3), np.uint8)
    order = np.random.default_rng(1).integers(0, len(array), (500, 64))
    best = math.inf
    for _ in range(5):
        started = time.perf_counter()
        for indices in order:
            out[:] = array[indices]
        best = min(best, time.perf_counter() - started)
    assert rate.memory_bytes_per_s / 3072 > 0.6 * order.size / best


def test_the_gather_rate_keeps_to_its_memory_and_time() -> None:
    started = time.perf_counter()
    rate = gather_rate((256, 256, 3), 8, count=3, limit_s=0.05)
    assert rate.samples_per_s > 0
    assert time.perf_counter() - started < 1
