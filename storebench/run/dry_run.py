"""Plan a run without running it: its cells, its stores, and their bytes, from a few samples that are probed."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Any

from storebench.codecs import any_size
from storebench.datasets import open_dataset
from storebench.datasets.listing import listings_in
from storebench.errors import DiskFullError, UsageError
from storebench.filesystem import nearest_folder
from storebench.formats.registry import parse_backend, store_name_of
from storebench.record.schema import Cell
from storebench.run.matrix import MODEL_CROPS
from storebench.run.resources import check_size, permitted
from storebench.run.scenario import Scenario
from storebench.stores.find import store_path
from storebench.stores.sample_costs import sample_costs
from storebench.system.progress import Progress, silent
from storebench.units import rounded_bytes

# Most bytes of a store's files, as a multiple of its payloads, unless these are tiny.
OVERHEAD_MOST = 2.0


@dataclass(frozen=True, kw_only=True)
class PlannedStore:
    """A store that the run reads, and whether it exists."""

    name: str
    count: int
    store_bytes: int
    exists: bool


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run. How long it takes is known only after its first round."""

    cells: list[Cell]  # The cells that will run.
    refused: dict[Cell, UsageError]  # Those of optional matrices that may not.
    stores: list[PlannedStore]
    write_bytes: int
    fetch_bytes: int
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        lists = {"cells": [cell.fields() for cell in self.cells], "stores": list(map(vars, self.stores))}
        sizes = {"write_bytes": self.write_bytes, "fetch_bytes": self.fetch_bytes}
        return lists | sizes | {"notes": self.notes}


def plan_run(
    scenario: Scenario, cells: Sequence[Cell], stores: Path, *, progress: Progress = silent
) -> RunPlan:
    """Return the stores and bytes that running `cells` would take; cells that are not permitted here are left out."""
    allowed = permitted(scenario, cells, stores)
    opened = functools.cache(functools.partial(open_dataset, listings=listings_in(stores), progress=progress))
    sample_bytes: dict[tuple[object, ...], float] = {}
    planned: dict[str, PlannedStore] = {}
    write_bytes = fetch_bytes = 0
    fewer = scenario.fewer_replicates
    for cell in allowed.cells:
        dataset, side, backend = opened(cell.data), image_side(cell), cell.backend
        count = dataset.info.count
        kept = (cell.data, backend.codec, backend.codec_options, side)
        if kept not in sample_bytes:
            sample_bytes[kept] = sample_costs(dataset, backend, side).payload_bytes
        payload_bytes = sample_bytes[kept]
        name = f"{cell.data.store_id}/{store_name_of(cell.backend)}"
        if name not in planned:
            planned[name] = PlannedStore(
                name=name,
                count=count,
                store_bytes=round(count * payload_bytes),
                exists=store_path(stores, cell.data, parse_backend(store_name_of(cell.backend))).is_dir(),
            )
            write_bytes += planned[name].store_bytes * (not planned[name].exists)
        store = planned[name]
        if not store.exists and (cell.memory_bytes or 0) >= OVERHEAD_MOST * store.store_bytes:
            check_size(cell, store.store_bytes)
        served = min(count, (cell.max_steps or count) * cell.batch_size * cell.ranks) * (cell.passes or 1)
        epochs = cell.epochs * fewer.get(cell, scenario.replicates)
        fetch_bytes += round(served * payload_bytes) * epochs
    return RunPlan(
        cells=allowed.cells,
        refused=allowed.refused,
        stores=list(planned.values()),
        write_bytes=write_bytes,
        fetch_bytes=fetch_bytes,
        notes=[
            *scenario.impossible(),
            *allowed.lines(),
            *(
                f"{data.name} has {count:,} samples here, fewer than the limit of {data.limit:,}"
                for data, count in {cell.data: opened(cell.data).info.count for cell in allowed.cells}.items()
                if data.limit is not None and data.limit > count
            ),
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


def image_side(cell: Cell) -> int | None:
    """Return the side of the squares that image files become; None for that of the dataset's other stores."""
    return cell.data.image_size or (MODEL_CROPS.get(cell.model) if any_size(cell.backend.codec) else None)
