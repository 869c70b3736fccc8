"""Plan a run without running it: cells, stores, bytes and a rough estimate of the time."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storebench.datasets import DatasetSpec, open_dataset
from storebench.datasets.listing import listings_in
from storebench.formats.registry import parse_backend, store_name_of
from storebench.progress import Progress, silent
from storebench.results import Cell
from storebench.scenario import Scenario
from storebench.settings.words import ComputeKind
from storebench.stores.find import store_path
from storebench.surroundings import permitted

PROCESS_START_S = 3.0
"""Start of a process with torch (1 to 2 s for its import), its checks and its evaluation, on 2 cores."""

RANK_START_S = 2.0
"""The same for each rank of several, which share the cores while they import torch; and for what starts them."""

ENCODE_BYTES_PER_S = {"raw": 200e6, "png": 15e6, "jpeg": 60e6, "original": 120e6}
"""Pixels converted per second on 2 cores."""

STEP_S = {"lenet": 0.024, "cifar10_quick": 0.036, "caffenet": 0.8, "resnet50": 4.0, "tiny": 0.01, "none": 0.0}
"""One training step on 2 cores, at batches of the size used here (CaffeNet: 32)."""

STEP_BATCH = {"lenet": 64, "cifar10_quick": 100, "caffenet": 32, "resnet50": 32, "tiny": 64, "none": 64}
READ_BYTES_PER_S = {"raw": 400e6, "png": 60e6, "jpeg": 100e6, "original": 60e6}
AGAIN_BYTES_PER_S = {"raw": 1500e6, "png": 60e6, "jpeg": 100e6, "original": 60e6}
"""The same for samples that the page cache holds since an earlier pass; no check replays them."""


@dataclass(frozen=True, kw_only=True)
class PlannedStore:
    """A store that the run reads, and whether it exists."""

    name: str
    count: int
    pixel_bytes: int
    exists: bool


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run.

    Attributes
    ----------
    read_bytes, estimate_s
        Bytes to read and seconds in the rounds that every cell runs.
    most_s
        Seconds if the run adds as many rounds as its scenario allows; `estimate_s` where their number is fixed.
    notes
        Cells that cannot exist, and cells that this machine does not permit.
    """

    cells: list[Cell]
    stores: list[PlannedStore]
    convert_bytes: int
    read_bytes: int
    estimate_s: float
    most_s: float
    notes: list[str] = field(default_factory=list)
    estimate_note: str = "a rough guess, from the rates of a 2-core machine"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {**dataclasses.asdict(self), "cells": [cell.fields() for cell in self.cells]}


def plan_run(
    scenario: Scenario, cells: Sequence[Cell], stores: Path, *, sides: int = 1, progress: Progress = silent
) -> RunPlan:
    """Return the stores, bytes and time that running `cells` would take; cells that are not permitted here are left out.

    Parameters
    ----------
    sides
        2 if another revision runs beside the working tree (`bench --against`); it builds its own stores.
    progress
        See `storebench.datasets.open_dataset`.

    Raises
    ------
    UsageError
        A cell that is not optional needs rights that this process lacks.
    """
    allowed = permitted(scenario, cells, stores)
    cells = allowed.cells
    planned: dict[str, PlannedStore] = {}
    convert_bytes, read_bytes, convert_s, round_s = 0, 0, 0.0, 0.0
    counts: dict[DatasetSpec, tuple[int, int]] = {}
    for cell in cells:
        spec, backend = cell.data, cell.backend
        if spec not in counts:
            info = open_dataset(spec, listings=listings_in(stores), progress=progress).info
            counts[spec] = (info.count, info.image_bytes)
        count, image_bytes = counts[spec]
        path = store_path(stores, spec, parse_backend(store_name_of(backend)))
        name = f"{spec.store_id}/{store_name_of(backend)}"
        if name not in planned:
            pixels = count * image_bytes
            planned[name] = PlannedStore(name=name, count=count, pixel_bytes=pixels, exists=path.is_dir())
            # Whether the other revision's store exists is unknown.
            to_convert = pixels * (sides - path.is_dir())
            convert_bytes += to_convert
            convert_s += to_convert / ENCODE_BYTES_PER_S[cell.backend.codec]
        once = min(count, (cell.max_steps or count) * cell.batch_size * cell.ranks) * cell.epochs * sides
        again = once * ((cell.passes or 1) - 1)
        read_bytes += (once + again) * image_bytes * scenario.least_replicates
        round_s += again * (image_bytes / AGAIN_BYTES_PER_S[cell.backend.codec] + _compute_s(cell))
        round_s += _start_s(cell) * sides + once * _sample_s(cell, image_bytes)
    return RunPlan(
        cells=list(cells),
        stores=list(planned.values()),
        convert_bytes=convert_bytes,
        read_bytes=read_bytes,
        estimate_s=convert_s + scenario.least_replicates * round_s,
        most_s=convert_s + _most_s(scenario, round_s),
        notes=[*scenario.impossible(), *allowed.lines()],
    )


def _most_s(scenario: Scenario, round_s: float) -> float:
    """Return the seconds of all rounds, if each that may be added is: within the budget, unless the first take longer."""
    least_s, most_s = scenario.least_replicates * round_s, scenario.most_replicates * round_s
    budget_s = None if scenario.stopping is None else scenario.stopping.budget_s
    return most_s if budget_s is None else max(least_s, min(most_s, budget_s))


def _sample_s(cell: Cell, image_bytes: int) -> float:
    """Return the seconds for one sample: reading it (twice, because of its check) and computing on it."""
    return 2 * image_bytes / READ_BYTES_PER_S[cell.backend.codec] + _compute_s(cell)


def _start_s(cell: Cell) -> float:
    """Return the seconds for starting the processes of a replicate."""
    return PROCESS_START_S + (RANK_START_S * (1 + cell.ranks) if cell.ranks > 1 else 0.0)


def _compute_s(cell: Cell) -> float:
    if cell.compute.kind is ComputeKind.EMULATED:
        return cell.compute.milliseconds / 1000 / (cell.batch_size * cell.ranks)
    return STEP_S[cell.model] / STEP_BATCH[cell.model] if cell.compute.kind is ComputeKind.REAL else 0.0
