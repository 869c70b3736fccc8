"""Planted sides of a check: run folders whose figures are chosen."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from storebench.record.lines import PAIRING_NAME, append_records
from storebench.record.schema import (
    CacheFacts,
    CacheVerdict,
    Cell,
    Counters,
    Coverage,
    Environment,
    Record,
    Status,
    StoreFacts,
)

COSTS = {"lmdb": 1e-6, "hdf5": 2e-6, "png": 3e-6}
"""Backend -> seconds per sample."""


def record(
    backend: str,
    replicate: int,
    seconds: float,
    *,
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
        timed_s=1000 * seconds,
        samples_per_s=1 / seconds,
        payload_bytes=3_072_000,
        store=store,
        cache=facts,
        coverage=Coverage(expected=1000, served=1000, unique=1000, duplicates=0, missing=0),
        counters=Counters(read_calls=1000, major_faults=0, device_read_bytes=1_024_000),
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
    seconds: Mapping[str, float] = COSTS,
    *,
    replicates: int = 6,
    noise: float = 0.01,
    seed: int = 0,
    change: Callable[[Record], Record | None] = lambda one: one,
    **more: Any,
) -> Path:
    """Write a run with a chosen time per sample for each backend; `change` edits or drops LMDB's records."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(replicates):
        for backend, cost in seconds.items():
            one = record(backend, number, cost * float(np.exp(rng.normal(0, noise))), **more)
            changed = change(one) if backend == "lmdb" else one
            write_run(folder, [changed] if changed else [])
    return folder


def paired(
    place: Path, change: Callable[[Record], Record | None] = lambda one: one, **more: Any
) -> tuple[Path, Path]:
    """Write two runs of one pairing; `change` edits or drops the contender's records of LMDB."""
    sides = (
        run_of(place / "baseline", **more),
        run_of(place / "contender", **({"seed": 1} | more), change=change),
    )
    for folder in sides:
        (folder / PAIRING_NAME).write_text('{"pairing": "same"}', encoding="utf-8")
    return sides


def slower(factor: float) -> Callable[[Record], Record]:
    return lambda one: dataclasses.replace(one, samples_per_s=one.samples_per_s / factor)


def with_(**changes: Any) -> Callable[[Record], Record]:
    return lambda one: dataclasses.replace(one, **changes)
