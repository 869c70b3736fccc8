"""Planted records of a storage roofline: loaders of a known supply rate, and accelerators of a known ingestion rate."""

from collections.abc import Sequence
from typing import Any

from storebench.record.schema import Record
from tests.support.planted import make_record

BATCH = 32
SPREAD = (0.99, 1.0, 1.01)
"""Rates of the replicates over the planted one."""


def loader_records(backend: str, supply: float, **changes: Any) -> list[Record]:
    """Return the replicates of a cell that only loads, at `supply` samples per second.

    Without workers, the producer's fetch is all of the loop's wait; workers share it.
    """
    records = []
    for replicate, part in enumerate(changes.pop("spread", SPREAD)):
        wait_ms = 1000 * BATCH / (supply * part)
        workers = changes.get("workers", 0)
        fields: dict[str, Any] = {
            "wait_ms": wait_ms,
            "compute_ms": 0.0,
            "fetch_ms": wait_ms * max(1, workers),
            "prep_ms": 0.0,
            "compute": "none",
            "model": "none",
            "batch_size": BATCH,
            "cache": "warm",
        }
        records.append(make_record(backend, replicate=replicate, **(fields | changes)))
    return records


def point_records(backend: str, sleep_ms: float, delivered: float, **changes: Any) -> list[Record]:
    """Return the replicates of a cell with emulated compute that trains `delivered` samples per second."""
    records = []
    for replicate, part in enumerate(changes.pop("spread", SPREAD)):
        # The wait has the replicates' spread: the accelerator is steady.
        wait_ms = max(0.0, 1000 * BATCH / delivered - sleep_ms) * part
        fields: dict[str, Any] = {
            "wait_ms": wait_ms,
            "compute_ms": sleep_ms,
            "fetch_ms": wait_ms,
            "prep_ms": 0.0,
            "compute": f"emulated:{sleep_ms:g}",
            "model": "none",
            "batch_size": BATCH,
            "cache": "warm",
            "warmup_steps": 2,
        }
        records.append(make_record(backend, replicate=replicate, **(fields | changes)))
    return records


SLEEPS_MS = (320.0, 100.0, 32.0, 10.0, 3.2)
"""Accelerators of 100 to 10,000 samples per second."""


def curve_records(
    backend: str, supply: float, *, workers: int = 2, sleeps_ms: Sequence[float] = SLEEPS_MS, **changes: Any
) -> list[Record]:
    """Return a loader and points that lie exactly on its curve."""
    records = loader_records(backend, supply, workers=workers, **changes)
    for sleep_ms in sleeps_ms:
        step_ms, batch_ms = sleep_ms, 1000 * BATCH / supply
        step_ms = max(step_ms, batch_ms) if workers else step_ms + batch_ms
        fetch_ms = batch_ms * max(1, workers)
        records += point_records(
            backend, sleep_ms, 1000 * BATCH / step_ms, workers=workers, fetch_ms=fetch_ms, **changes
        )
    return records
