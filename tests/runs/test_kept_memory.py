"""Training on a CPU keeps the memory that it frees, so only its first step pays for new pages."""

import platform
from pathlib import Path

import pytest

from tests.support.harness_tools import Bench

STEPS = 12
TRAIN = ("--dataset", "cifar10", "--synthetic", "--limit", "1200", "--model", "cifar10_quick")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can keep freed memory")
def test_training_steps_fault_in_no_new_pages(bench: Bench, tmp_path: Path) -> None:
    done, records = bench.run(
        *("lmdb", *TRAIN, "--workers", "0", "--cache", "warm", "--replicates", "1"), out=tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    [record] = records
    assert record["steps"] == STEPS
    # The activations and gradients of a step have 9,000 pages, which only the first step takes from the kernel.
    assert record["counters"]["minor_faults"] / STEPS < 3_000
    assert record["reader_notes"]["freed_memory"] == "kept"


@pytest.mark.parametrize("compute", ["none", "emulated:0.01"])
def test_what_trains_no_network_keeps_no_memory(compute: str, bench: Bench, tmp_path: Path) -> None:
    work = (*TRAIN[:-2], "--model", "none", "--compute", compute)
    done, [record] = bench.run(
        *("lmdb", *work, "--workers", "0", "--cache", "warm", "--replicates", "1"), out=tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    assert record["status"] == "ok", record["failure"]
    assert "freed_memory" not in record["reader_notes"]
