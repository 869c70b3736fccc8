"""The model behind docs/ranks.md: each bound binds where it should."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scaling_io import Place, Way, cluster_seconds, seconds
from storebench.record.schema import Ceilings, Record
from tests.support.planted import ENVIRONMENT, make_record, write_run

PLACE = Place(cores=2, device_bytes_per_s=1e9, sample_bytes=1e5, store_bytes=4e8)
WAY = Way(rate=1000.0, cpu_s=1e-4, amplification=1.0, load_s=0.0)


@pytest.mark.parametrize(
    ("way", "processes", "rate"),
    [
        (WAY, 4, 4_000),  # nothing binds yet
        (WAY, 16, 10_000),  # the device
        (dataclasses.replace(WAY, amplification=8.0), 4, 1_250),  # the device, reading eight times too much
        (dataclasses.replace(WAY, cpu_s=1e-3), 4, 2_000),  # two cores
    ],
)
def test_one_machine_is_bound_by_its_processes_its_device_or_its_cores(
    way: Way, processes: int, rate: float
) -> None:
    assert seconds(way, PLACE, processes, 1_000) == pytest.approx(1_000 / rate)


def test_what_is_loaded_first_is_loaded_once_and_then_free_of_the_device() -> None:
    way = dataclasses.replace(WAY, rate=10_000.0, load_s=0.5)
    assert seconds(way, PLACE, 2, 10_000) == pytest.approx(0.5 + 0.5)
    # 64 machines pull 64 stores through 6.4 GB/s: 4 s, and then 64 times 20,000 samples per second.
    assert cluster_seconds(way, PLACE, 64, 1_280_000, 6.4e9) == pytest.approx(4.0 + 1.0)


def test_many_machines_meet_at_the_shared_filesystem() -> None:
    assert cluster_seconds(WAY, PLACE, 64, 100_000, 1e10) == pytest.approx(1.0)
    assert cluster_seconds(WAY, PLACE, 2, 100_000, 1e12) == pytest.approx(100_000 / 16_000)


def scaled(rates: dict[int, float], *, compute: str = "none", device: float | None = 1e9) -> list[Record]:
    """Plant a cold cell of LMDB of so many samples per second for each number of reader processes, on two idle cores."""
    records = []
    for processes, rate in rates.items():
        wait_ms = 32_000 / rate
        made = make_record(
            "lmdb", cache="cold", workers=processes, compute=compute, wait_ms=wait_ms, compute_ms=0
        )
        counters = dataclasses.replace(made.counters, cpu_user_s=0.0, cpu_system_s=0.0)
        ceilings = Ceilings(device_random_16_bytes_per_s=device)
        machine = dataclasses.replace(ENVIRONMENT, match=ENVIRONMENT.match | {"cores": 2})
        records.append(dataclasses.replace(made, counters=counters, ceilings=ceilings, environment=machine))
    return records


@pytest.mark.parametrize(
    ("records", "options", "code", "says"),
    [
        (scaled({1: 100, 2: 180, 4: 250}), (), 0, "the model is off by a factor of 1.6 at worst"),
        (
            scaled({1: 100, 4: 190}),
            (),
            4,
            "no estimate for 64 machines: on one machine the model is off by a factor of 2.1",
        ),
        (scaled({1: 100}), (), 4, "so the model's error is unknown. Measure both: workers = [1, 2, 4, 8]."),
        (
            scaled({1: 100, 2: 190}, compute="emulated:20"),
            (),
            2,
            "no cold cell of reader processes that computes nothing",
        ),
        (
            scaled({1: 100, 2: 190}, device=None),
            (),
            2,
            "the records hold no rate of the device at 16 reads at a time",
        ),
        (scaled({1: 100}), ("--machines", "0"), 2, "must be positive"),
    ],
)
def test_nothing_is_estimated_beyond_a_factor_of_two(
    records: list[Record], options: tuple[str, ...], code: int, says: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", records)
    command = [sys.executable, "-m", "benchmarks.scaling_io", str(run), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done
    assert ("times the slowest" in done.stdout) is (code == 0)
