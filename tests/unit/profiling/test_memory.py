"""Memory that a loop, its workers or its dataset take: does it grow, and where?"""

import ctypes
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import storebench
from storebench.profiling.memory import MemoryReport, MemoryWatch

MIB = 1 << 20


class Images(Dataset[Any]):
    """Images of 300 KB, maybe kept, beside a list of Python objects that is looked at."""

    def __init__(self, *, caches: bool = False, objects: int = 0) -> None:
        self.caches, self.cache = caches, list[torch.Tensor]()
        self.objects = [[number] for number in range(objects)]

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        for value in self.objects if index < 4 else ():
            assert value
        image = torch.ones(300_000, dtype=torch.uint8)
        if self.caches:
            self.cache.append(image)
        return image


def looked_at(loader: Iterable[Any], keep: Callable[[Any], object], *, looks: int = 40) -> MemoryReport:
    """Return what is said of a loop after a number of samples of its memory, as many as a busy machine takes.

    Samples are taken often, so that short loops are judged, and images that are no longer used are given back.
    """
    m_mmap_threshold = -3
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 17)
    watch = MemoryWatch(every_s=0.02, share=0.0)
    for step, batch in enumerate(loader):
        watch.note(batch, is_first=not step)
        keep(batch)
        del batch
        time.sleep(0.01)
        if step % 40 == 39 and len((report := watch.report()).samples) >= looks:
            watch.ended.set()
            return report
    raise AssertionError("there is always another batch")


GROWING = {
    "a cache in a worker": ("workers", DataLoader, {"caches": True}, 1),
    "a cache without workers": ("own", DataLoader, {"caches": True}, 0),
    "kept batches": ("own", DataLoader, {}, 0),
    "kept batches of a worker": ("shared", DataLoader, {}, 1),
    "nothing": ("", DataLoader, {}, 0),
    "nothing in workers": ("", DataLoader, {}, 2),
}


@pytest.mark.parametrize("name", GROWING)
def test_growth_is_found_where_it_is(name: str) -> None:
    part, kind, options, workers = GROWING[name]
    kept: list[Any] = []
    keep = kept.append if "kept" in name else id
    report = looked_at(kind(Images(**options), batch_size=4, num_workers=workers), keep)
    assert (report.growth.part if report.growth else "") == part
    if report.growth is not None:
        assert 0 < report.growth.low <= report.growth.mid <= report.growth.high
        assert report.growth.mid > 60 * MIB  # of 114 that are made
        assert report.growth.full_step > report.samples[-1].step
        assert report.advice


def test_a_list_that_workers_touch_is_copied() -> None:
    loader = DataLoader(Images(objects=1_500_000), batch_size=4, num_workers=1, persistent_workers=True)
    report = looked_at(loader, id, looks=8)
    assert report.sizes["copied by workers"] > 96 * MIB
    assert report.sizes["in all"] > report.sizes["this process alone"]


def test_a_profile_tells_which_processes_hold_memory() -> None:
    profiled = storebench.profile(DataLoader(Images(), batch_size=4, num_workers=2), show=False)
    for _ in profiled:
        report = profiled.report().memory
        if report is not None and report.sizes:
            break
        time.sleep(0.1)
    assert report.sizes["peak"] >= report.sizes["in all"] > report.sizes["each worker alone"] > 0
    assert not report.sizes["copied by workers"]
