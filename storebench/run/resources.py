"""What a cell needs around its process: rights, memory groups and devices; and what killed commands left behind."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from storebench.codecs import any_size
from storebench.datasets.catalog import any_image_size
from storebench.errors import UsageError
from storebench.filesystem import nearest_folder
from storebench.probes.cgroup import MemoryGroup, ThrottledGroup, find_controller
from storebench.probes.loop_mount import own_namespace, why_not
from storebench.probes.machine import IN_MEMORY, disk_number, mount_of
from storebench.probes.page_cache import unreachable
from storebench.record.manifest import Manifest
from storebench.record.schema import Cell
from storebench.run.matrix import MODEL_CROPS
from storebench.run.scenario import Scenario
from storebench.settings.words import BOUNDED_STATES, LOCAL, CacheState, TrainerData
from storebench.stores.copies import StoreImage
from storebench.system.scratch import sweep as sweep_folders
from storebench.system.scratch import sweep_segments, user_cache_folder
from storebench.units import format_bytes, number_of


def sweep(stores: Path | None = None) -> None:
    """Remove everything that killed processes of this user left, and end the processes that they had started."""
    sweep_folders()
    cache = user_cache_folder()
    if cache is not None:
        sweep_folders(cache)
    if stores is not None:
        for place in (stores, *stores.glob("*/")):
            sweep_folders(place)
    sweep_segments()


@dataclass(frozen=True, kw_only=True)
class Permitted:
    """Cells that may run here, and the refusals of those that may not, of optional matrices or in one of the places."""

    cells: list[Cell]
    refused: dict[Cell, UsageError]

    def lines(self) -> list[str]:
        """Return one line for each reason why cells are left out."""
        return [
            f"{number_of(count, 'cell')} left out: {reason}"
            for reason, count in Counter(error.what for error in self.refused.values()).items()
        ]


def permitted(scenario: Scenario, cells: Sequence[Cell], stores: Path) -> Permitted:
    """Return the cells that may run; raise the refusal of one that is not optional, whose state no place holds."""
    refused = refusals(cells, stores)
    optional = scenario.optional_cells() if refused else set()
    held = {replace(cell, place=LOCAL) for cell in cells if cell not in refused}
    there = (cell for cell in refused if not cell.place.kind and Path(cell.place.folder).is_dir())
    optional |= {cell for cell in there if replace(cell, place=LOCAL) in held}
    for cell, reason in refused.items():
        if cell not in optional or len(refused) == len(set(cells)):
            raise reason
    return Permitted(cells=[cell for cell in cells if cell not in refused], refused=refused)


def refusals(cells: Iterable[Cell], stores: Path) -> dict[Cell, UsageError]:
    """Return the reason why each cell cannot run here; cells that can run are not included."""
    listed, folder = list(cells), nearest_folder(stores.resolve())
    refused: dict[Cell, UsageError] = {}
    own_device = [cell for cell in listed if cell.readahead_kib is not None]
    if own_device and (reason := why_not(folder)):
        error = UsageError(
            f"read-ahead cannot be set here: {reason}",
            hint="It needs root and a separate loop device; 'storebench doctor' checks it.",
        )
        refused |= dict.fromkeys(own_device, error)
    bounded = [
        cell
        for cell in listed
        if cell.cache in BOUNDED_STATES and cell.readahead_kib is None and not cell.place.folder
    ]
    if bounded and (fstype := mount_of(folder).fstype) in IN_MEMORY:
        error = UsageError(
            f"no store can be cold here, nor its cache limited: {fstype} keeps files in memory",
            where=stores,
            hint="Name --stores on a disk, or leave cold and limited out of --cache.",
        )
        refused |= dict.fromkeys(bounded, error)
    for cell in listed:
        if not cell.place.folder:
            continue
        if not Path(cell.place.folder).is_dir():
            hint = "Mount the share, or make the folder."
            refused[cell] = UsageError("there is no such folder", where=cell.place.folder, hint=hint)
        elif cell.cache is not CacheState.ANY and (
            trial := unreachable(Path(cell.place.folder)).get(cell.cache)
        ):
            what = f"no cell can be {cell.cache} at {cell.place}: {trial}"
            refused[cell] = UsageError(what, hint="Set cache to 'any'.")
    limited = [cell for cell in listed if cell.memory_bytes is not None]
    throttled = [cell for cell in listed if cell.tier is not None]
    for held, kind in ((limited, MemoryGroup), (throttled, ThrottledGroup)):
        try:
            if held:
                find_controller(kind)
        except UsageError as error:
            refused |= dict.fromkeys(held, error)
    on_folder = [cell for cell in throttled if cell.readahead_kib is None]
    if on_folder and disk_number(folder) is None:
        fstype = mount_of(folder).fstype
        no_disk = UsageError(f"reads cannot be limited here: {fstype} is on no block device", where=stores)
        refused |= dict.fromkeys(on_folder, no_disk)
    return {cell: refused[cell] for cell in listed if cell in refused}


def check_size(cell: Cell, store_bytes: int) -> None:
    """Refuse a limit that a store fits into."""
    if cell.memory_bytes is not None and cell.memory_bytes >= store_bytes:
        size = f"{store_bytes / 2**20:,.0f} MiB"
        raise UsageError(
            f"a limit of {format_bytes(cell.memory_bytes)} holds the whole store, which has {size}",
            where=cell.backend.name,
            hint="Ask for less memory or a larger dataset, or use cache 'warm'.",
        )


def check_parts(cell: Cell, manifest: Manifest) -> None:
    """Refuse trainers whose parts of a store are too small to train on some samples and hold out others."""
    shares = 1 if cell.trainer_data is TrainerData.REPLICATED else cell.trainers
    if cell.trainers > 1 and manifest.count < 2 * shares:
        raise UsageError(
            f"{cell.trainers} trainers cannot share {number_of(manifest.count, 'sample')}",
            where=cell.backend.name,
            hint="Each trainer needs two: use fewer trainers or more samples.",
        )


def check_network(cell: Cell, manifest: Manifest) -> None:
    """Refuse a network that crops more than the images of a store have."""
    crop, shape = MODEL_CROPS.get(cell.model), manifest.dataset.image_shape
    whole = cell.data.image_size is not None or any_size(manifest.codec)
    if crop is not None and not whole and min(shape[:2]) < crop:
        raise UsageError(
            f"{cell.model} needs images of {crop} x {crop}, and these are {shape[1]} x {shape[0]}",
            where=cell.data.name,
            hint="Name another network with --model"
            + (f", or a size with --image-size, such as {crop}." if any_image_size(cell.data.name) else "."),
        )


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The resources of one cell's process."""

    group: MemoryGroup | None = None
    tier: ThrottledGroup | None = None
    image: Path | None = None

    def command(self, command: list[str]) -> list[str]:
        return command if self.image is None else own_namespace(command)


@contextmanager
def surroundings(cell: Cell, image: StoreImage | None) -> Iterator[Surroundings]:
    """Provide the resources of `cell`, and release them when its process has ended."""
    with contextlib.ExitStack() as removing:
        group = tier = None
        if cell.memory_bytes is not None:
            group = MemoryGroup.create(cell.memory_bytes)
            removing.callback(group.remove)
        if cell.tier is not None:
            tier = ThrottledGroup.create()
            removing.callback(tier.remove)
        yield Surroundings(group=group, tier=tier, image=None if image is None else image.image)
