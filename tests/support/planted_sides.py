"""Planted sides of a check: pytest-benchmark files and run folders whose figures are chosen."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from storebench.check.sides.benchmarks import EXTRA_VERSION, FAILED_KEY
from storebench.results import (
    CacheFacts,
    CacheVerdict,
    Ceilings,
    Cell,
    Counters,
    Environment,
    Record,
    Status,
    StoreFacts,
)
from storebench.runs.records import append_records

HERE: dict[str, Any] = {"key": "here", "match": {"cpu": "planted", "kernel": "6.8"}}
ELSEWHERE = {"key": "elsewhere", "match": {"cpu": "another", "kernel": "6.8"}}
CELLS = tuple(f"read/{name}/warm" for name in ("lmdb", "hdf5", "png", "leveldb", "memory"))
COUNTERS = {
    "samples_served": 1024,
    "read_calls": 1024,
    "bytes_on_disk": 4_000_000,
    "payload_bytes": 3_145_728,
}

Factors = Mapping[str, float]


def session(
    number: int,
    *,
    cells: tuple[str, ...] = CELLS,
    slower: Factors | None = None,
    noise: float = 0.02,
    seed: int = 0,
    machine: Mapping[str, Any] | None = HERE,
    scale: float = 1.0,
    counters: Mapping[str, Mapping[str, float]] | None = None,
    change: Callable[[dict[str, Any]], None] = lambda _extra: None,
    rounds: int = 8,
    shape: Callable[[str, list[float]], list[float]] = lambda _cell, seconds: seconds,
) -> dict[str, Any]:
    """Return one session's JSON.

    `slower` multiplies a cell's time; `scale` multiplies every time and every calibration (a
    slower machine); `change` edits each benchmark's extra_info; `shape` edits the seconds of a cell's rounds.
    """
    rng = np.random.default_rng((seed, number))
    benchmarks = []
    for position, cell in enumerate(cells):
        own = np.exp(rng.normal(0, noise))  # what differs from process to process
        beside = 1e-3 * scale * np.exp(rng.normal(0, 0.01, rounds))
        factor = (slower or {}).get(cell, 1.0) * own * (position + 1)
        extra = {
            "schema_version": EXTRA_VERSION,
            "cell_id": cell,
            "samples": 1024,
            "samples_of": "f00d",
            "calibration": "memory",
            "calibration_s": beside.tolist(),
            "counters": {**COUNTERS, **(counters or {}).get(cell, {})},
        }
        change(extra)
        data = shape(cell, (beside * factor).tolist())
        node = f"benchmarks/suite/test_read.py::test[{cell}]"
        benchmarks.append({"fullname": node, "name": cell, "extra_info": extra, "stats": {"data": data}})
    info = {} if machine is None else {"storebench_environment": machine}
    return {"machine_info": info, "benchmarks": benchmarks, FAILED_KEY: {}}


def write_sessions(folder: Path, count: int = 5, **planted: Any) -> Path:
    """Write a folder of sessions and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"session-{number}.json").write_text(json.dumps(session(number, **planted)))
    return folder


def record(
    backend: str,
    replicate: int,
    seconds: float,
    *,
    gather: float | None = 1e6,
    key: str = "here",
    **changes: Any,
) -> Record:
    """Return a record of a warm cell that computed nothing: `seconds` per sample."""
    fields = {"cache": "warm", "compute": "none", "model": "none"} | changes.pop("cell", {})
    cell = Cell.of_fields(
        dataset="cifar10",
        backend=backend,
        format=backend,
        codec="raw",
        reader="get",
        batch_size=64,
        **fields,
    )
    facts = CacheFacts(
        requested=cell.cache,
        method="fadvise+cachestat",
        resident_frac_before=1.0,
        resident_frac_after=1.0,
        verdict=CacheVerdict.VERIFIED,
    )
    store = StoreFacts(
        count=1000,
        image_shape=(32, 32, 3),
        payload_bytes=3_072_000,
        file_bytes=3_100_000,
        bytes_on_disk=4_000_000,
        build_s=1.0,
        samples_digest="f00d",
        lossless=True,
        origin="synthetic",
        source="planted",
        derived_frac=1.0,
    )
    planted = Record(
        storebench_version="0.1",
        run_id="planted",
        cell=cell,
        replicate=replicate,
        epoch=0,
        started_utc="2026-01-01T00:00:00Z",
        samples=1000,
        timed_samples=1000,
        samples_per_s=1 / seconds,
        payload_bytes=3_072_000,
        store=store,
        cache=facts,
        counters=Counters(read_calls=1000, major_faults=0, device_read_bytes=3_072_000),
        ceilings=Ceilings(gather_samples_per_s=gather, device_random_1_bytes_per_s=1e8),
        environment=Environment(key=key, match={"kernel": key}, notes={}),
    )
    return dataclasses.replace(planted, **changes)


def failed(one: Record, why: str) -> Record:
    return dataclasses.replace(one, status=Status.FAILED, failure=why, samples_per_s=0.0)


def write_run(folder: Path, records: list[Record]) -> Path:
    """Write a run's folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in records:
        append_records(folder, [one])
    return folder


def run_of(
    folder: Path,
    seconds: Mapping[str, float],
    *,
    replicates: int = 5,
    noise: float = 0.01,
    seed: int = 0,
    **more: Any,
) -> Path:
    """Write a run with a chosen time per sample for each backend."""
    rng = np.random.default_rng(seed)
    return write_run(
        folder,
        [
            record(backend, number, cost * float(np.exp(rng.normal(0, noise))), **more)
            for number in range(replicates)
            for backend, cost in seconds.items()
        ],
    )
