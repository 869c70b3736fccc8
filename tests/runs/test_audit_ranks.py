"""The audit of jobs of ranks: torchrun starts them, and one report is about all."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
rank, ranks, kind = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
data = TensorDataset(torch.arange(601), torch.arange(601) % 7)
class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(torch.arange(600)[:, None], torch.arange(600) % 7)
if kind == "stream":
    loader = DataLoader(Stream(), 32)
elif kind == "no sampler":
    loader = DataLoader(data, 32, shuffle=True)
else:
    loader = DataLoader(data, 32, sampler=DistributedSampler(data, ranks, rank))
for epoch in range(2):
    if kind == "sound":
        loader.sampler.set_epoch(epoch)
    for batch in loader:
        pass
"""


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("no sampler", "ranks overlap"),
        pytest.param("sound", "", marks=pytest.mark.full),
        pytest.param("no set_epoch", "same order", marks=pytest.mark.full),
        pytest.param("stream", "ranks overlap", marks=pytest.mark.full),
    ],
)
def test_all_ranks_are_audited_together(tmp_path: Path, kind: str, fault: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        *["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "storebench", "audit"],
    ]
    done = subprocess.run([*command, script, kind], capture_output=True, text=True, check=False)
    assert (fault or "storebench audit: sound") in done.stderr
    assert done.stderr.count("storebench audit:") == 1
    assert (done.returncode == 0) == (not fault)
