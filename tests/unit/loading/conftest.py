"""Small stores of every kind, and a look at whether anything was left behind."""

import gc
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest
import torch

from storebench.datasets import DatasetSpec, open_dataset
from storebench.formats import registry
from storebench.formats.registry import FormatEntry, get_format, parse_backend, store_name_of
from storebench.loading.augment import Augment
from storebench.loading.batch import EpochPlan, LoadJob
from storebench.loading.loader import get_loader
from storebench.loading.order import epoch_order, split_batches
from storebench.stores.convert import convert
from storebench.testing.stores import COUNT, SmallStore, build_small_store
from tests.support.loading_tools import MakeJob, MakePlan
from tests.support.photo_folders import write_photos


@pytest.fixture(scope="session")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SmallStore]:
    """Build the store that a backend reads, once."""
    built: dict[str, SmallStore] = {}

    def store_of(text: str) -> SmallStore:
        name = store_name_of(parse_backend(text))
        if name not in built:
            store_format, codec = name.split("+")
            folder = tmp_path_factory.mktemp(name)
            built[name] = build_small_store(get_format(store_format), codec, folder)
        return built[name]

    return store_of


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store photographs of several kinds and sizes as they are."""
    folder = tmp_path_factory.mktemp("photos")
    spec = DatasetSpec(name=f"folder:{write_photos(folder / 'files')}")
    return convert(open_dataset(spec), spec, parse_backend("lmdb+original"), folder).path


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the readers that misbehave."""
    monkeypatch.setitem(registry.BUILTIN, "odd", FormatEntry(target="tests.support.planted_plugin:OddFormat"))
    yield
    get_format.cache_clear()


@pytest.fixture
def make_job(store_of: Callable[[str], SmallStore]) -> MakeJob:
    """Say which backend, by name, and what to do to the images."""

    def make_job(text: str = "lmdb", store: Path | None = None, augment: Augment | None = None) -> LoadJob:
        backend = parse_backend(text)
        folder = store or store_of(text).path
        return LoadJob(store=folder, backend=backend, augment=augment or Augment(), seed=5)

    return make_job


@pytest.fixture
def make_plan() -> MakePlan:
    """Shuffle the small stores' samples into batches."""

    def make_plan(epoch: int = 0, batch_size: int = 10, max_steps: int | None = None) -> EpochPlan:
        order = epoch_order(COUNT, seed=5, epoch=epoch)
        return EpochPlan(epoch=epoch, batches=split_batches(order, batch_size, max_steps))

    return make_plan


@pytest.fixture(scope="session")
def _started(store_of: Callable[[str], SmallStore]) -> None:
    """Let the libraries open what they keep for the life of a process."""
    job = LoadJob(store=store_of("lmdb").path, backend=parse_backend("lmdb"))
    plan = EpochPlan(epoch=0, batches=[np.arange(3)])
    gpu = torch.cuda.is_available()
    resource_tracker.ensure_running()  # spawned workers start it
    for name in ("processes", "threads", "ring"):
        with get_loader(name)(job, workers=1, pin=gpu) as loader:
            loader.open()
            for batch in loader.epoch(plan):
                batch.pixels.to("cuda" if gpu else "cpu")
    gc.collect()
    gc.freeze()  # what is alive now need not be looked through before and after each test


@pytest.fixture
def nothing_left(_started: None) -> Iterator[None]:
    """Hold a test to leaving no process, thread, descriptor, mapping or shared memory behind."""
    before = _belongings()
    yield
    deadline = time.monotonic() + 10
    while (more := _more(_belongings(), before)) and time.monotonic() < deadline:
        time.sleep(0.05)  # the DataLoader's queues end their threads in their own time
    assert not more


def _belongings() -> Counter[str]:
    gc.collect()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return Counter(
        [f"process {child.pid}" for child in multiprocessing.active_children()]
        + [f"thread {thread.name}" for thread in threading.enumerate()]
        + [f"descriptor of {_opened(descriptor)}" for descriptor in os.listdir("/proc/self/fd")]  # noqa: PTH208
        + ["shared memory"] * sum("memfd:" in line or "/dev/shm" in line for line in maps)
    )


def _opened(descriptor: str) -> str:
    """Return what a file descriptor of this process refers to; pipes and sockets without their inode numbers."""
    try:
        return str(Path("/proc/self/fd", descriptor).readlink()).partition(":[")[0]
    except OSError:  # the list's own, which is closed by now
        return "the list"


def _more(after: Counter[str], before: Counter[str]) -> Counter[str]:
    """Return what was not there before; what an earlier test left may have ended meanwhile."""
    return after - before
