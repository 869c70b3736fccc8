"""Training on a GPU: what a step copies, computes and times, and what a run's records say of it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storebench.loading.batch import LoadedBatch
from storebench.settings.words import Compute
from storebench.training.compute import CpuStep, CudaStep, make_step
from storebench.training.models import MODELS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPE = (32, 32, 3)


def batch_of(count: int, seed: int) -> LoadedBatch:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    pixels = torch.from_numpy(rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8)).pin_memory()
    return LoadedBatch(pixels=pixels, labels=labels, indices=labels)


def step_on(device: str) -> CpuStep:
    torch.manual_seed(5)
    spec = dataclasses.replace(MODELS["cifar10_quick"], lr=0.01)
    step = make_step(Compute("real"), spec, SHAPE, 10, device)
    assert isinstance(step, CpuStep)
    return step


def test_a_gpu_learns_what_a_cpu_learns() -> None:
    """Convolutions on a GPU keep 10 bits of the mantissa, so losses agree to about a thousandth."""
    losses = {}
    for device in ("cpu", "cuda"):
        step = step_on(device)
        for seed in range(8):
            step.copy(batch_of(64, seed))
            step.compute()
        losses[device] = step.losses()
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=0.01)
    assert len(set(losses["cuda"])) == 8


def test_a_step_waits_for_the_gpu_and_times_its_copy() -> None:
    step = step_on("cuda")
    assert isinstance(step, CudaStep)
    took = {}
    for count in (64, 16_384):
        batch = batch_of(count, 1)
        for _ in range(3):
            step.copy(batch)
            step.compute()
            assert torch.cuda.current_stream().query()
        took[count] = step.h2d_ns()
    assert 0 < took[64] < took[16_384]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_records_of_a_gpu(workers: int, tmp_path: Path) -> None:
    """They name the GPU, time the copy by its clock, and hold up in `validate`."""
    out = tmp_path / "run"
    words = [
        "run",
        "lmdb",
        "null",
        "--dataset",
        "cifar10",
        "--synthetic",
        "--limit",
        "512",
        "--batch-size",
        "32",
        "--threads",
        "1",
    ]
    words += ["--model", "cifar10_quick", "--device", "cuda", "--workers", str(workers)]
    done = storebench(*words, "--stores", str(tmp_path / "stores"), "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    records: list[dict[str, Any]] = json.loads(done.stdout)
    assert {record["cell"]["backend"] for record in records} == {"lmdb", "null"}
    for record in records:
        assert record["environment"]["match"]["accelerator"] == torch.cuda.get_device_name()
        assert 0 < record["h2d_s"] < record["compute_s"]
    checked = storebench("validate", str(out))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def storebench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "storebench", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "COLUMNS": "200"},
    )
