"""Planted results: records whose figures are chosen, so that what a report says of them can be checked."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from storebench.record.figures import with_cold_rates
from storebench.record.lines import STEPS_DIR, append_records
from storebench.record.schema import (
    CELL_FIELDS,
    CacheFacts,
    CacheVerdict,
    Ceilings,
    Cell,
    ColdRate,
    Counters,
    Coverage,
    Digests,
    Environment,
    JobFacts,
    LinkKind,
    Loss,
    Percentiles,
    Portion,
    RankFacts,
    Record,
    StoreFacts,
)
from storebench.record.steps import IO_COLUMNS
from storebench.settings.words import ComputeKind

FORMATS = {
    "png": ("files", "png", "pillow"),
    "files+raw": ("files", "raw", "pillow"),
    "jpeg": ("files", "jpeg", "pillow"),
    "hdf5": ("hdf5", "raw", "library"),
    "memory:python": ("memory", "raw", "python"),
    "memory:native": ("memory", "raw", "native"),
    "leveldb": ("leveldb", "raw", "get"),
    "lmdb": ("lmdb", "raw", "get"),
    "lmdb:direct": ("lmdb", "raw", "direct"),
    "lmdb:shared": ("lmdb", "raw", "shared"),
    "lmdb+png": ("lmdb", "png", "get"),
    "lmdb+jpeg": ("lmdb", "jpeg", "get"),
    "lmdb+qoi": ("lmdb", "qoi", "get"),
    "lmdb+webp": ("lmdb", "webp", "get"),
    "lmdb+jpeg:100": ("lmdb", "jpeg:100", "get"),
    "lmdb+webp:80": ("lmdb", "webp:80", "get"),
    "hdf5+png": ("hdf5", "png", "library"),
    "original": ("files", "original", "get"),
    "lmdb+original": ("lmdb", "original", "get"),
    "hdf5+original": ("hdf5", "original", "get"),
    "container": ("container", "original", "random"),
    "webdataset:stream": ("webdataset", "jpeg", "stream"),
    "null": ("null", "raw", "null"),
}
SCALED = "?scale=dct"
DECODERS = (":opencv", ":simplejpeg")
"""How the backend of another decoder ends."""

ENVIRONMENT = Environment(
    key="e1",
    match={"cpu_model": "Planted CPU", "cpu_count": 2, "kernel": "6.8"},
    notes={"load": 0.1},
)
COPY_BYTES_PER_S = 400_000.0 * 196_608
SHAPES = {"imagenet": (256, 256, 3), "cifar10": (32, 32, 3), "mnist": (28, 28, 1)}
PAYLOAD = {
    "raw": 196_608,
    "png": 100_000,
    "jpeg": 20_000,
    "original": 130_000,
    "qoi": 140_000,
    "webp": 90_000,
    "webp:80": 13_000,
    "jpeg:100": 150_000,
}
LOSSY = ("jpeg", "original", "webp:80", "jpeg:100")


def full_name(backend: str, options: tuple[tuple[str, str], ...]) -> str:
    """Return the name of a backend with its options, by which the harness tells it from others of its format."""
    given = ",".join(f"{name}={value}" for name, value in options)
    return f"{backend}?{given}" if given and "?" not in backend else backend


def make_cell(backend: str = "lmdb", **changes: Any) -> Cell:
    body = backend.removesuffix(SCALED)
    decoder = next((decoder for decoder in DECODERS if body.endswith(decoder)), "")
    container, codec, reader = FORMATS[body.removesuffix(decoder)]
    options = [("decoder", decoder[1:])] if decoder else []
    fields: dict[str, Any] = {
        "codec_options": (*options, *([("scale", "dct")] if backend.endswith(SCALED) else [])),
        "dataset": "imagenet",
        "size": 4000,
        "backend": full_name(backend, changes.get("reader_options", ())),
        "format": container,
        "codec": codec,
        "reader": reader,
        "batch_size": 32,
        "model": "caffenet",
        "cache": "warm",
    }
    return Cell.of_fields(**(fields | changes))


def without_figures(compute: str = "real", **changes: Any) -> Record:
    """Return the record of an epoch as it is before its figures are computed."""
    return Record(
        storebench_version="0",
        run_id="r",
        cell=make_cell(**changes),
        replicate=0,
        epoch=0,
        started_utc="now",
        au_kind=ComputeKind(compute),
    )


def expect(record: Record, **figures: Any) -> None:
    for name, value in figures.items():
        assert getattr(record, name) == pytest.approx(value), name


def make_record(
    backend: str = "lmdb",
    *,
    replicate: int = 0,
    epoch: int = 0,
    run_id: str = "run-a",
    steps: int = 100,
    wait_ms: float = 4.0,
    h2d_ms: float = 0.0,
    compute_ms: float = 10.0,
    overhead_ms: float = 0.0,
    fetch_ms: float = 3.0,
    decode_ms: float | None = None,
    prep_ms: float = 1.0,
    handoff_ms: float = 0.0,
    build_s: float = 10.0,
    bytes_on_disk: int = 800_000_000,
    origin: str = "real",
    amplification: float = 1.0,
    **changes: Any,
) -> Record:
    """Return a consistent record whose steps all took what is planted, in milliseconds a step.

    Fields of the cell and of the record go through `changes`. By default, encoded samples take a short time to decode.
    """
    cell = make_cell(backend, **{name: changes.pop(name) for name in set(CELL_FIELDS) & set(changes)})
    if decode_ms is None:
        decode_ms = 0.0 if cell.backend.codec == "raw" else 0.02
    samples = steps * cell.batch_size
    step_s = (wait_ms + h2d_ms + compute_ms + overhead_ms) / 1000
    timed_s = steps * step_s
    busy_s = timed_s - steps * overhead_ms / 1000
    payload = samples * PAYLOAD[cell.backend.codec]
    wait_ns = round(wait_ms * 1e6)
    resident = {"cold": 0.0, "warm": 1.0}.get(cell.cache)
    in_memory = cell.backend.format in {"memory", "null"}
    read = round(payload * amplification) if cell.cache in ("cold", "any") and not in_memory else 0
    fields: dict[str, Any] = {
        "storebench_version": "0.1",
        "run_id": run_id,
        "cell": cell,
        "replicate": replicate,
        "epoch": epoch,
        "started_utc": "2026-01-02T03:04:05Z",
        "samples": samples,
        "steps": steps,
        "epoch_s": timed_s,
        "timed_samples": samples,
        "timed_steps": steps,
        "timed_s": timed_s,
        "samples_per_s": samples / timed_s,
        "payload_bytes": payload,
        "payload_bytes_per_s": payload / timed_s,
        "data_wait_s": steps * wait_ms / 1000,
        "h2d_s": steps * h2d_ms / 1000,
        "compute_s": steps * compute_ms / 1000,
        "overhead_s": steps * overhead_ms / 1000,
        "data_wait_frac": steps * wait_ms / 1000 / busy_s,
        "accelerator_util_frac": None
        if cell.compute.kind is ComputeKind.NONE
        else steps * compute_ms / 1000 / timed_s,
        "au_kind": cell.compute.kind,
        "fetch_s": steps * fetch_ms / 1000,
        "decode_s": steps * decode_ms / 1000,
        "prep_s": steps * prep_ms / 1000,
        "handover_s": steps * handoff_ms / 1000,
        "data_wait_ns": Percentiles(p50=wait_ns, p95=wait_ns, p99=wait_ns, max=wait_ns),
        "time_to_first_batch_s": wait_ms / 1000,
        "digests": Digests(order="", loss=f"loss-{epoch}"),
        "coverage": Coverage(
            expected=samples,
            served=samples,
            unique=samples,
            duplicates=0,
            missing=0,
        ),
        "loss": Loss(first=6.9, last=5.0),
        "store": StoreFacts(
            count=4000,
            image_shape=SHAPES.get(cell.data.name, (256, 256, 3)),
            payload_bytes=4000 * PAYLOAD[cell.backend.codec],
            file_bytes=bytes_on_disk,
            bytes_on_disk=bytes_on_disk,
            build_s=build_s,
            samples_digest="aa",
            lossless=cell.backend.codec not in LOSSY,
            origin=origin,
            source="photographs",
            derived_frac=0.95 if origin == "derived" else 0.0,
        ),
        "cache": CacheFacts(
            requested=cell.cache,
            method="fadvise+cachestat",
            resident_frac_before=resident,
            resident_frac_after=1.0,
            verdict=CacheVerdict.UNVERIFIED if resident is None else CacheVerdict.VERIFIED,
            applies_to="open" if in_memory else "epoch",
        ),
        "counters": Counters(
            device_read_bytes=read, major_faults=10, minor_faults=100, read_amplification=read / payload
        ),
        "ceilings": Ceilings(gather_samples_per_s=48_000.0, memory_bytes_per_s=COPY_BYTES_PER_S),
        "environment": ENVIRONMENT,
    }
    record = Record(**(fields | changes))
    if "digests" not in changes and record.digests is not None and record.store is not None:
        order = f"{cell.batch_size} {cell.max_steps} {cell.passes} {cell.seed} {epoch} {record.replicate}"
        record = dataclasses.replace(record, digests=dataclasses.replace(record.digests, order=order))
    wanted = cell.cache == "limited" and not in_memory and "portion" not in changes
    return dataclasses.replace(record, portion=portion_of(record)) if wanted else record


def portion_of(record: Record, *, share: float = 0.25, slower: float = 1.0, **changes: Any) -> Portion:
    """Return the first steps of a record as its steady portion; `slower` stretches its wait and its fetch."""
    part = max(1, round(record.steps * share)) / record.steps
    extra = part * record.data_wait_s * (slower - 1)
    seconds = part * record.timed_s + extra
    samples = round(record.timed_samples * part)
    fields: dict[str, Any] = {
        "first_step": 0,
        "steps": round(record.steps * part),
        "samples": samples,
        "seconds": seconds,
        "samples_per_s": samples / seconds,
        "payload_bytes": round(record.payload_bytes * part),
        "data_wait_s": part * record.data_wait_s + extra,
        "fetch_s": part * record.fetch_s + extra,
        "drift": 1.0,
    }
    fields |= {name: part * getattr(record, name) for name in ("h2d_s", "compute_s", "decode_s", "prep_s")}
    return Portion(**(fields | {"handover_s": part * record.handover_s} | changes))


def cold_start(record: Record, **rates: tuple[float, float, float]) -> Record:
    """Return a record with rates from a cold start: "at_2" is the rate, the resident and the excess share at 2%."""
    cold_rates = tuple(
        ColdRate(
            read_frac=int(name.removeprefix("at_")) / 100,
            samples_per_s=rate,
            resident_frac=resident,
            excess_frac=excess,
        )
        for name, (rate, resident, excess) in rates.items()
    )
    return dataclasses.replace(record, cold_rates=cold_rates)


def replicates(backend: str, waits_ms: list[float], **changes: Any) -> list[Record]:
    """Return one record a wait: the replicates of one cell."""
    return [make_record(backend, replicate=i, wait_ms=wait, **changes) for i, wait in enumerate(waits_ms)]


def with_job(
    record: Record, *, exposed_ms: float | None = None, slowest_ms: float = 0.0, **changes: Any
) -> Record:
    """Return the record of a job whose ranks did the same work: 8 MB of gradients over a link of 1 GB/s and 0.1 ms.

    Exposed communication and the wait for the slowest rank are milliseconds per step; the first may be None.
    """
    ranks, size, rate, latency_s = record.cell.ranks, 8_000_000, 1e9, 1e-4
    bound_s = 2 * (ranks - 1) * (size / ranks / rate + latency_s)
    wait_s = record.timed_steps * slowest_ms / 1000
    each = RankFacts(
        samples=record.timed_samples // ranks,
        seconds=record.timed_s,
        samples_per_s=record.samples_per_s / ranks,
        data_wait_s=record.data_wait_s,
        compute_s=record.compute_s,
        wait_for_slowest_s=wait_s,
    )
    fields: dict[str, Any] = {
        "ranks": ranks,
        "sync": record.cell.sync,
        "global_batch_size": ranks * record.cell.batch_size,
        "per_rank": (each,) * ranks,
        "samples_per_s_min": each.samples_per_s,
        "samples_per_s_median": each.samples_per_s,
        "samples_per_s_max": each.samples_per_s,
        "skew": 0.0,
        "samples_per_s_until_first_end": record.samples_per_s,
        "wait_for_slowest_s": wait_s,
        "unique_samples": record.samples,
        "total_samples": record.samples,
        "barrier_s": 2e-4,
        "gradient_bytes": size,
        "exposed_communication_s": None if exposed_ms is None else exposed_ms / 1000,
        "step_without_sync_s": 0.01,
        "exposed_pairs": 20,
        "link": LinkKind.LOOPBACK,
        "link_bytes_per_s": rate,
        "link_latency_s": latency_s,
        "ring_bound_s": bound_s,
        "exposed_over_bound": None if exposed_ms is None else exposed_ms / 1000 / bound_s,
    }
    return dataclasses.replace(record, job=JobFacts(**(fields | changes)))


def steps_table(record: Record, *, wait_ns: Any = None) -> pd.DataFrame:
    """Return the per-step rows that fit a record, as the harness writes them."""
    steps = record.steps
    wait = np.full(steps, round(record.data_wait_s / steps * 1e9)) if wait_ns is None else np.asarray(wait_ns)
    each = {
        name: round(getattr(record, f"{name}_s") / steps * 1e9)
        for name in ("h2d", "compute", "fetch", "decode", "prep")
    }
    length = wait + each["h2d"] + each["compute"]
    start = np.cumsum(length) - length
    return pd.DataFrame(
        {
            "step": np.arange(steps, dtype=np.int64),
            "warmup": np.zeros(steps, bool),
            "samples": np.full(steps, record.cell.batch_size, np.int64),
            "payload_bytes": np.full(steps, record.payload_bytes // steps, np.int64),
            "start_ns": start,
            "data_wait_ns": wait,
            "h2d_ns": np.full(steps, each["h2d"]),
            "compute_ns": np.full(steps, each["compute"]),
            "paused_ns": np.zeros(steps, np.int64),
            "worker": np.full(steps, -1, np.int64),
            "fetch_start_ns": start,
            "fetch_ns": np.full(steps, each["fetch"]),
            "decode_ns": np.full(steps, each["decode"]),
            "prep_ns": np.full(steps, each["prep"]),
            "ready_ns": start + wait,
            **{name: np.full(steps, (getattr(record.counters, name) or 0) // steps) for name in IO_COLUMNS},
            "queue_depth": np.zeros(steps, np.int64),
            "loss": np.linspace(6.9, 5.0, steps).astype(np.float32),
        }
    )


def write_run(folder: Path, records: list[Record], *, with_steps: bool = False) -> Path:
    """Write a run's folder as the harness leaves it."""
    (folder / STEPS_DIR).mkdir(parents=True)
    for number, record in enumerate(records):
        named = record
        if with_steps and record.steps:
            name = f"{STEPS_DIR}/{number:05d}.parquet"
            steps = steps_table(record)
            steps.to_parquet(folder / name)
            columns = {str(name): column.to_numpy() for name, column in steps.items()}
            named = dataclasses.replace(with_cold_rates(record, columns), steps_file=name)
        append_records(folder, [named])
    return folder


PAPER_WAITS_MS = {
    "png": 110.0, "hdf5": 12.0, "memory:python": 2.0, "memory:native": 1.0, "leveldb": 8.0, "lmdb": 5.0,
}  # fmt: skip


def paper_records(cache: str = "warm", rounds: int = 5, **changes: Any) -> list[Record]:
    """Return the paper's six backends and null on one dataset, over some rounds with a little spread."""
    records = []
    for number in range(rounds):
        spread = 1 + 0.01 * (number - (rounds - 1) / 2)
        records.append(
            make_record("null", replicate=number, cache=cache, wait_ms=0.1, fetch_ms=0, prep_ms=0, **changes)
        )
        for backend, wait in PAPER_WAITS_MS.items():
            wait_ms = wait * spread * (0.6 if cache == "warm" else 1)
            decode = (
                80.0 * spread
                if backend == "png" and cache == "cold"
                else 60.0 * spread
                if backend == "png"
                else 0.0
            )
            parts = {"fetch_ms": wait_ms - decode - 0.5, "decode_ms": decode, "prep_ms": 0.5}
            records.append(
                make_record(backend, replicate=number, cache=cache, wait_ms=wait_ms, **(parts | changes))
            )
    return records
