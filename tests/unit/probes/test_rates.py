"""Ceilings measured on the real device and in real memory."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from storebench.probes.rates import (
    DEPTHS,
    KEYS,
    LARGE_BYTES,
    WAYS,
    device_rates,
    gather_rate,
    once,
    opened_direct,
    opens,
    read_direct,
)
from storebench.record.schema import Ceilings
from tests.support.disks import FILE_BYTES

pytestmark = pytest.mark.still_pages

LIMIT_S = 0.15


def test_the_device_is_read_at_random_and_in_a_row_within_the_time(big_file: Path) -> None:
    rates = device_rates([big_file], 3072, limit_s=LIMIT_S)
    if rates.reasons:
        pytest.skip(next(iter(rates.reasons.values())))
    *each, best = (getattr(rates, key) for key in KEYS)
    assert all(rate > 0 for rate in each)
    assert best == max(each)
    assert rates.device_random_1_bytes_per_s < rates.device_sequential_bytes_per_s, "4 KiB against 4 MiB"
    assert "one read at a time, threads" in rates.device_method
    assert big_file.name in rates.device_method
    single = rates.single_requests
    assert single.keys() == {f"read_{depth}_{p}_s" for depth in DEPTHS for p in ("p50", "p99")}
    for depth in DEPTHS:
        assert 0 < single[f"read_{depth}_p50_s"] <= single[f"read_{depth}_p99_s"] < LIMIT_S + 1


def test_a_file_system_without_a_device_has_times_of_reads_but_no_rate() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "file")
        path.write_bytes(bytes(LARGE_BYTES))
        found = device_rates([path], 4096, limit_s=0.02)
    if "do not work" in str(found.reasons):
        pytest.skip("tmpfs refuses O_DIRECT here")
    assert found.device_random_1_bytes_per_s is None
    assert found.reasons.keys() == set(KEYS)
    assert found.single_requests["read_1_p50_s"] > 0


def test_files_are_opened_so_many_per_second(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / str(number)).touch()
    files = sorted(tmp_path.iterdir())
    rates = opens(files)
    assert rates.keys() == {"open_1_per_s", "open_16_per_s"}
    assert all(100 < rate < 1e7 for rate in rates.values())
    assert not opens(files[:99])


def test_each_request_is_read_once_unless_there_is_a_time_limit(big_file: Path) -> None:
    size = 64 << 10
    with opened_direct([str(big_file)]) as (fd,):
        requests = [(fd, number * size) for number in range(37)]
        once = read_direct(requests, size, 8)
        assert once.bytes == 37 * size
        short = read_direct(requests[:3], size, 8, limit_s=0.05)
        assert short.bytes > 37 * size, "from the first request again"
        assert short.seconds >= 0.05
        end = [(fd, FILE_BYTES - 4096), (fd, 0)]
        assert read_direct(end, size, 2).bytes == 4096 + size
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_direct([(9999, 0)] * 4, size, 4)


def test_rates_are_measured_once_per_name(tmp_path: Path) -> None:
    kept = tmp_path / "run" / "gather.json"

    def rate(name: str) -> Ceilings:
        return once(kept, name, Ceilings, lambda: gather_rate((8, 8, 3), 4, count=100, limit_s=0.02))

    first = rate("a")
    assert rate("b") != first
    assert rate("a") == first
    kept.write_text("torn by a ki")
    assert rate("a") != first


@pytest.mark.parametrize("shuffle", [True, False])
def test_samples_are_gathered_in_the_order_of_the_cell(
    shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, memory is read ahead: a reader of small samples would exceed the rate of shuffled ones."""
    seen: list[int] = []
    monkeypatch.setitem(WAYS, "numpy.take", lambda array, indices, out: seen.extend(indices))
    gather_rate((4, 4, 1), 8, count=64, limit_s=0.01, shuffle=shuffle)
    assert sorted(seen[:64]) == list(range(64))
    assert (seen[:64] == list(range(64))) is not shuffle


def test_the_scratch_file_leaves_nothing_behind(disk: Path) -> None:
    folder = disk / "empty-stores"
    folder.mkdir()
    (folder / "sample").write_bytes(os.urandom(5000))
    rates = device_rates([folder / "sample"], 5000, limit_s=0.02, scratch=folder)
    assert [path.name for path in folder.iterdir()] == ["sample"]
    assert rates.reasons or "scratch file" in rates.device_method


def test_tmpfs_and_empty_stores_have_no_rate_and_say_why(shm: Path, disk: Path) -> None:
    in_memory = device_rates([shm], 4096, limit_s=0.02)
    assert [getattr(in_memory, key) for key in KEYS] == [None] * len(KEYS)
    assert device_rates([shm], 4096, limit_s=0.02, scratch=shm.parent).reasons == in_memory.reasons
    assert all("O_DIRECT" in in_memory.reasons[key] for key in KEYS)
    empty = disk / "empty"
    empty.touch()
    for files in ([], [empty]):
        assert set(device_rates(files, 4096).reasons.values()) == {"the files are empty"}


def test_the_memory_rate_is_a_ceiling_for_gathering() -> None:
    rate = gather_rate((32, 32, 3), 64, max_bytes=32 << 20, limit_s=0.2)
    assert rate.copy_ceiling_samples_per_s >= rate.gather_samples_per_s
    assert rate.memory_bytes_per_s == rate.copy_ceiling_samples_per_s * 3072
    assert rate.copy_method in WAYS


@pytest.mark.parametrize("shape", [(28, 28, 1), (256, 256, 3)])
def test_every_way_gathers_the_samples_that_were_asked_for(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (20, *shape), np.uint8)
    indices = rng.permutation(20)[:7]
    for way in WAYS.values():
        out = np.zeros((7, *shape), np.uint8)
        way(array, indices, out)
        np.testing.assert_array_equal(out, array[indices])
