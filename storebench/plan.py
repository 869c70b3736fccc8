"""Plan a run without running it: cells, stores, bytes and an estimate of the time, from a few samples that are probed."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import disk_usage
from typing import Any

from storebench.codecs import any_size
from storebench.datasets import Dataset, DatasetSpec, open_dataset
from storebench.datasets.listing import listings_in
from storebench.errors import DiskFullError
from storebench.filesystem import nearest_folder
from storebench.formats.registry import parse_backend, store_name_of, traits_of
from storebench.matrix import MODEL_CROPS
from storebench.progress import Progress, silent
from storebench.results import Cell
from storebench.rounds import FEWEST_REPLICATES
from storebench.scenario import Scenario
from storebench.settings.words import ComputeKind
from storebench.stores.costs import SampleCosts, sample_costs
from storebench.stores.find import store_path
from storebench.surroundings import check_size, permitted
from storebench.units import rounded_bytes

PROCESS_START_S = 1.5
"""Start of a process with torch, its checks and its evaluation, on 2 cores. One that is forked, as in a round of several, takes half of it."""

RANK_START_S = 2.0
"""The same for each rank of several, which share the cores while they import torch; and for what starts them."""

DEVICE_ROUND_S = 4.0
"""Seconds per round for the rates of memory and device in a run of few rounds; one of many rounds takes less. The device
is measured once in twenty rounds, some 6 s for each sample size."""

STEP_S = {"lenet": 0.024, "cifar10_quick": 0.036, "caffenet": 0.8, "resnet50": 4.0, "tiny": 0.01, "none": 0.0}
"""One training step on 2 cores, at batches of the size used here (CaffeNet: 32)."""

GPU_SAMPLE_S = {"lenet": 34e-6, "cifar10_quick": 27e-6, "caffenet": 130e-6, "resnet50": 610e-6, "tiny": 30e-6}
"""Training on one sample on an NVIDIA H100, in batches of 64 or 100 (`make bench-gpu`); the tiny network is a guess."""

STEP_BATCH = {"lenet": 64, "cifar10_quick": 100, "caffenet": 32, "resnet50": 32, "tiny": 64, "none": 64}

WRITE_BYTES_PER_S = 300e6
"""Payload written and synced."""

READ_BYTES_PER_S = 400e6
"""Payload read from a device."""

CACHED_BYTES_PER_S = 1500e6
"""Payload read once more, which the page cache holds."""

PIXELS_BYTES_PER_S = 2e9
"""Decoded pixels copied into a batch and handed to the loop, or digested."""

FILE_S = 100e-6
"""Creating one file."""

POOL_FROM_S = 1.0
"""Encoding for longer is shared out among processes."""

OVERHEAD_MOST = 2.0
"""Files of a store have at most so many times the bytes of its payloads, unless these are tiny."""

ASSUMED_OFF = 3.0
"""The figures above come from one machine with 2 cores and an SSD. Another one may be faster or slower by this factor."""


@dataclass(frozen=True, kw_only=True)
class EstimatedSeconds:
    """An estimated duration: the part measured on this machine from a few samples, and the assumed part."""

    measured: float = 0.0
    assumed: float = 0.0

    def __add__(self, other: "EstimatedSeconds") -> "EstimatedSeconds":
        """Return the sum of both durations."""
        return EstimatedSeconds(measured=self.measured + other.measured, assumed=self.assumed + other.assumed)

    def __mul__(self, times: float) -> "EstimatedSeconds":
        """Return a multiple of this duration."""
        return EstimatedSeconds(measured=self.measured * times, assumed=self.assumed * times)

    @property
    def total(self) -> float:
        """Measured and assumed seconds together."""
        return self.measured + self.assumed

    @property
    def ends(self) -> tuple[float, float]:
        """The duration if the assumed part is `ASSUMED_OFF` times as fast, and as slow."""
        return self.measured + self.assumed / ASSUMED_OFF, self.measured + self.assumed * ASSUMED_OFF


@dataclass(frozen=True, kw_only=True)
class PlannedStore:
    """A store that the run reads, and whether it exists."""

    name: str
    count: int
    pixel_bytes: int
    store_bytes: int
    exists: bool


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run."""

    cells: list[Cell]
    stores: list[PlannedStore]
    convert_bytes: int
    write_bytes: int
    read_bytes: int
    fetch_bytes: int
    estimate_s: float
    most_s: float
    least_s: float
    largest_s: float
    assumed_frac: float
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {**dataclasses.asdict(self), "cells": [cell.fields() for cell in self.cells]}


def plan_run(
    scenario: Scenario, cells: Sequence[Cell], stores: Path, *, sides: int = 1, progress: Progress = silent
) -> RunPlan:
    """Return the stores, bytes and time that running `cells` would take; cells that are not permitted here are left out."""
    allowed = permitted(scenario, cells, stores)
    probe = _Probe(stores, progress)
    planned: dict[str, PlannedStore] = {}
    convert_bytes, write_bytes, convert_s = 0, 0, EstimatedSeconds()
    read_bytes, fetch_bytes, round_s = 0, 0, EstimatedSeconds(assumed=_device_s(scenario, allowed.cells))
    fewer = scenario.fewer_replicates
    for cell in allowed.cells:
        count, image_bytes, costs = probe.count(cell), probe.image_bytes(cell), probe.costs(cell)
        name = f"{cell.data.store_id}/{store_name_of(cell.backend)}"
        if name not in planned:
            store = PlannedStore(
                name=name,
                count=count,
                pixel_bytes=count * image_bytes,
                store_bytes=round(count * costs.payload_bytes),
                exists=store_path(stores, cell.data, parse_backend(store_name_of(cell.backend))).is_dir(),
            )
            planned[name] = store
            # Whether the other revision's store exists is unknown.
            builds = sides - store.exists
            convert_bytes += store.pixel_bytes * builds
            write_bytes += store.store_bytes * builds
            convert_s += _convert_seconds(cell, store, costs) * builds
        store = planned[name]
        if not store.exists and (cell.memory_bytes or 0) >= OVERHEAD_MOST * store.store_bytes:
            check_size(cell, store.store_bytes)
        once = min(count, (cell.max_steps or count) * cell.batch_size * cell.ranks) * cell.epochs * sides
        again = once * ((cell.passes or 1) - 1)
        replicates = fewer.get(cell, scenario.least_replicates)
        read_bytes += (once + again) * image_bytes * replicates
        fetch_bytes += round((once + again) * costs.payload_bytes) * replicates
        replays = 0.0 if traits_of(cell.backend).ready_made else _replays(scenario, replicates)
        cell_s = EstimatedSeconds(assumed=_start_s(cell)) * sides
        cell_s += _sample_seconds(cell, costs, image_bytes, READ_BYTES_PER_S) * once
        from_memory = _sample_seconds(cell, costs, image_bytes, CACHED_BYTES_PER_S)
        cell_s += from_memory * (again + replays * once)
        cell_s += _compute_seconds(cell) * (once + again)
        round_s += cell_s * (replicates / scenario.least_replicates)  # the mean over the rounds
    rounds_s = round_s * scenario.least_replicates
    if scenario.stopping is None and rounds_s.total:
        rounds_s = rounds_s * (_most_s(scenario, round_s.total) / rounds_s.total)
    estimate = convert_s + rounds_s
    least_s = (
        convert_s.ends[0] + _most_s(scenario, round_s.ends[0])
        if scenario.stopping is None
        else estimate.ends[0]
    )
    return RunPlan(
        cells=list(allowed.cells),
        stores=list(planned.values()),
        convert_bytes=convert_bytes,
        write_bytes=write_bytes,
        read_bytes=read_bytes,
        fetch_bytes=fetch_bytes,
        estimate_s=estimate.total,
        most_s=convert_s.total + _most_s(scenario, round_s.total),
        least_s=least_s,
        largest_s=convert_s.ends[1] + _most_s(scenario, round_s.ends[1]),
        assumed_frac=estimate.assumed / estimate.total if estimate.total else 0.0,
        notes=[
            *scenario.impossible(),
            *allowed.lines(),
            *_large_limits({cell.data: probe.count(cell) for cell in allowed.cells}),
            *_unknown_steps(allowed.cells),
        ],
    )


def require_space(plan: RunPlan, stores: Path) -> None:
    """Raise `DiskFullError` if the disk does not hold what a run will write."""
    free = disk_usage(nearest_folder(stores)).free
    if plan.write_bytes > free:
        raise DiskFullError(
            f"the stores take about {rounded_bytes(plan.write_bytes)}, and {rounded_bytes(free)} are free",
            where=stores,
            hint="Free some space, use fewer samples, or name a folder on another disk with --stores.",
        )


class _Probe:
    """The datasets of a plan, each opened once, and the costs of their samples, each measured once."""

    def __init__(self, stores: Path, progress: Progress) -> None:
        self._stores = stores
        self._progress = progress
        self._opened: dict[DatasetSpec, Dataset] = {}
        self._costs: dict[tuple[object, ...], SampleCosts] = {}

    def count(self, cell: Cell) -> int:
        """Return the number of samples of a cell's dataset."""
        return self._dataset(cell).info.count

    def image_bytes(self, cell: Cell) -> int:
        """Return the bytes of a sample that the cell's loader hands to the loop."""
        side = image_side(cell)
        return self._dataset(cell).info.image_bytes if side is None else side * side * 3

    def costs(self, cell: Cell) -> SampleCosts:
        """Return the costs of a sample of a cell."""
        backend, side = cell.backend, image_side(cell)
        key = (cell.data, backend.codec, backend.codec_options, side)
        if key not in self._costs:
            self._costs[key] = sample_costs(self._dataset(cell), backend, side)
        return self._costs[key]

    def _dataset(self, cell: Cell) -> Dataset:
        if cell.data not in self._opened:
            self._opened[cell.data] = open_dataset(
                cell.data, listings=listings_in(self._stores), progress=self._progress
            )
        return self._opened[cell.data]


def image_side(cell: Cell) -> int | None:
    """Return the side of the squares that image files of any size become; None for that of the dataset's other stores."""
    return cell.data.image_size or (MODEL_CROPS.get(cell.model) if any_size(cell.backend.codec) else None)


def _convert_seconds(cell: Cell, store: PlannedStore, costs: SampleCosts) -> EstimatedSeconds:
    """Return the seconds that building a store takes: encoding, writing, and reading it back."""
    cores, encode_s = usable_cores(), store.count * costs.encode_s
    made_s = encode_s / cores if encode_s > POOL_FROM_S else encode_s
    # Image files are decoded once, the others when they are read back.
    checked_s = store.count * costs.decode_s / cores
    files_s = store.count * FILE_S if cell.backend.format == "files" else 0.0
    moved_s = store.store_bytes / WRITE_BYTES_PER_S + store.pixel_bytes / PIXELS_BYTES_PER_S
    return EstimatedSeconds(measured=made_s + checked_s, assumed=files_s + moved_s)


def _sample_seconds(cell: Cell, costs: SampleCosts, image_bytes: int, bytes_per_s: float) -> EstimatedSeconds:
    """Return the seconds for loading one sample, if its payload comes at `bytes_per_s`."""
    parallel = max(1, min(cell.workers * cell.ranks, usable_cores()))
    moved_s = image_bytes / PIXELS_BYTES_PER_S / parallel + costs.payload_bytes / bytes_per_s
    # Raw pixels are copied, which is counted already; what decoding single samples takes beside that is calls.
    decode_s = 0.0 if cell.backend.codec == "raw" else costs.decode_s
    return EstimatedSeconds(measured=decode_s / parallel, assumed=moved_s)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _replays(scenario: Scenario, replicates: int) -> float:
    """Return the share of a cell's replicates whose epochs are replayed to check every sample."""
    return sum(scenario.checks_pixels(replicate) for replicate in range(replicates)) / replicates


def _device_s(scenario: Scenario, cells: Sequence[Cell]) -> float:
    """Return the seconds per round for the rates of the device."""
    loading = any(
        cell.compute.kind is ComputeKind.NONE and not traits_of(cell.backend).ready_made for cell in cells
    )
    return DEVICE_ROUND_S if loading and scenario.ceilings else 0.0


def _most_s(scenario: Scenario, round_s: float) -> float:
    """Return the seconds of as many rounds as the scenario permits: within the budget, unless the first take longer."""
    first = scenario.least_replicates
    if scenario.stopping is None:
        first = min(first, FEWEST_REPLICATES)
    least_s, most_s = first * round_s, scenario.most_replicates * round_s
    budget_s = scenario.budget_s
    return most_s if budget_s is None else max(least_s, min(most_s, budget_s))


def _start_s(cell: Cell) -> float:
    """Return the seconds for starting the processes of a replicate."""
    return PROCESS_START_S + (RANK_START_S * (1 + cell.ranks) if cell.ranks > 1 else 0.0)


def _compute_seconds(cell: Cell) -> EstimatedSeconds:
    """Return the compute seconds per sample; they are known for an emulated step."""
    if cell.compute.kind is ComputeKind.EMULATED:
        return EstimatedSeconds(measured=cell.compute.milliseconds / 1000 / (cell.batch_size * cell.ranks))
    if cell.compute.kind is not ComputeKind.REAL:
        return EstimatedSeconds()
    on_cpu_s = STEP_S[cell.model] / STEP_BATCH[cell.model]
    return EstimatedSeconds(assumed=on_cpu_s if cell.device == "cpu" else GPU_SAMPLE_S[cell.model])


def _large_limits(counts: Mapping[DatasetSpec, int]) -> list[str]:
    """Return a line for each dataset that is smaller than its limit."""
    return [
        f"{data.name} has {count:,} samples here, fewer than the limit of {data.limit:,}"
        for data, count in counts.items()
        if data.limit is not None and data.limit > count
    ]


def _unknown_steps(cells: Sequence[Cell]) -> list[str]:
    """Return a line if cells train on a device of unknown speed."""
    training = (cell for cell in cells if cell.compute.kind is ComputeKind.REAL)
    devices = sorted({cell.device for cell in training if cell.device != "cpu"})
    if not devices:
        return []
    return [
        f"how long a training step takes on {', '.join(devices)} is unknown: that of an NVIDIA H100 is assumed"
    ]
