"""Stores of seeded images for the benchmarks."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suite.drawn import LARGE_SAMPLES, SAMPLES, DrawnDataset, draw, skip_without_library
from benchmarks.suite.measurement import Measurement, measure
from storebench.datasets import DatasetSpec
from storebench.formats.registry import parse_backend
from storebench.stores.convert import convert
from storebench.stores.find import Store
from storebench.system.libc import keep_freed_memory

MEMORY_FOLDER = Path("/dev/shm")
_MEMORY_NEEDED = 256 << 20


@pytest.fixture(scope="session", autouse=True)
def steady_process() -> Iterator[None]:
    """Let torch compute in one thread, as a second core may or may not be free; keep freed memory."""
    import torch  # not above: the process that starts the others of pytest-xdist does not need it

    keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def thumbnails() -> DrawnDataset:
    return draw("cifar10", SAMPLES)


@pytest.fixture(scope="session")
def photographs() -> DrawnDataset:
    return draw("imagenet", LARGE_SAMPLES)


@pytest.fixture(scope="session")
def stores(thumbnails: DrawnDataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    """Give the store of the thumbnails that a backend reads, built once per session on a real filesystem."""
    return _builder(thumbnails, tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="session")
def large_stores(
    photographs: DrawnDataset, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Store]:
    """Give the same of the photographs: large enough that the pages which opening maps are below 1%."""
    return _builder(photographs, tmp_path_factory.mktemp("large-stores"))


def _builder(dataset: DrawnDataset, folder: Path) -> Callable[[str], Store]:
    spec = DatasetSpec(name=dataset.info.name, limit=len(dataset), synthetic=True)

    def build(backend: str) -> Store:
        with skip_without_library():
            return convert(dataset, spec, parse_backend(backend), folder)

    return build


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a folder in memory where there is one: what a device does in a moment is not the converter's doing."""
    stat = os.statvfs(MEMORY_FOLDER) if MEMORY_FOLDER.is_dir() else None
    if stat is None or stat.f_bavail * stat.f_frsize < _MEMORY_NEEDED:
        yield tmp_path_factory.mktemp("scratch")
        return
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER, prefix="storebench-bench-") as folder:
        yield Path(folder)


@pytest.fixture
def measured(benchmark: Any) -> Callable[[Measurement], None]:
    """Measure one cell."""
    return lambda measurement: measure(benchmark, measurement)
