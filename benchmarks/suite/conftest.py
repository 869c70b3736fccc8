"""Stores of seeded images for the benchmarks, the environment's key in their JSON, and planted slow-downs."""

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suite.drawn import LARGE_SAMPLES, SAMPLES, DrawnDataset, draw, skip_without_library
from storebench.check.sides.benchmarks import FAILED_KEY, SKIPPED_KEY
from storebench.datasets import DatasetSpec
from storebench.formats.registry import parse_backend
from storebench.probes.environment import environment
from storebench.stores.convert import convert
from storebench.stores.find import Store
from storebench.testing.benchmarks import Measurement, measure, settle_allocator

PLANT_ENV = "STOREBENCH_PLANT"
"""``CELL_ID=FACTOR[,CELL_ID=FACTOR]``: makes those cells slower, for the gate's own test."""

MEMORY_FOLDER = Path("/dev/shm")
_MEMORY_NEEDED = 256 << 20


@pytest.fixture(scope="session", autouse=True)
def steady_process() -> Iterator[None]:
    """Let torch compute in one thread, as a second core may or may not be free; keep freed memory."""
    import torch  # not above: the process that starts the others of pytest-xdist does not need it

    settle_allocator()
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
    """Measure one cell; a slow-down planted for it by the environment comes on top of its target."""

    def run(measurement: Measurement) -> None:
        factor = _planted().get(measurement.cell_id, 1.0)
        if factor > 1:
            slow = _slowed(measurement.target, factor)
            measurement = dataclasses.replace(measurement, target=slow)
        measure(benchmark, measurement)

    return run


def _planted() -> dict[str, float]:
    pairs = [word.rpartition("=") for word in os.environ.get(PLANT_ENV, "").split(",") if word]
    return {cell: float(factor) for cell, _, factor in pairs}


def _slowed(target: Callable[[], int], factor: float) -> Callable[[], int]:
    def slow() -> int:
        started = time.perf_counter()
        served = target()
        until = started + factor * (time.perf_counter() - started)
        while time.perf_counter() < until:
            pass
        return served

    return slow


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """Replace what varies from run to run by storebench's environment."""
    found = environment(Path(tempfile.gettempdir()))
    return {"storebench_environment": {"key": found.key, "match": found.match}}


_failed: dict[str, str] = {}
_skipped: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember benchmarks that raised: pytest-benchmark's JSON only leaves them out."""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        _failed[report.nodeid] = crash.message.splitlines()[0] if crash else f"failed in {report.when}"
    elif report.skipped and isinstance(report.longrepr, tuple):
        _skipped[report.nodeid] = str(report.longrepr[2]).removeprefix("Skipped: ")


def pytest_benchmark_update_json(config: pytest.Config, benchmarks: Any, output_json: dict[str, Any]) -> None:
    """Say in the JSON which benchmarks raised or were skipped: pytest-benchmark only leaves them out."""
    output_json[FAILED_KEY] = dict(_failed)
    output_json[SKIPPED_KEY] = dict(_skipped)
    output_json["commit_info"].pop("author_time", None)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Keep pytest-benchmark from adding its own."""
