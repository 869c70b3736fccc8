"""The samples and the machine, as far as the choice of what to measure depends on them; found out within a second."""

import dataclasses
import shutil
import timeit
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from storebench.codecs.decoders import DECODERS, DEFAULT_DECODER, is_installed
from storebench.datasets import DatasetSpec, open_dataset
from storebench.datasets.base import LEAST_IMAGE_SIZE
from storebench.datasets.files import Originals
from storebench.datasets.images import SIDE, probed_headers
from storebench.datasets.listing import listings_in
from storebench.errors import StorebenchError, UsageError
from storebench.filesystem import nearest_folder
from storebench.formats.registry import parse_backend
from storebench.probes.cgroup import memory_limit_bytes
from storebench.probes.machine import IN_MEMORY, memory_bytes, mount_of, usable_cores
from storebench.stores.costs import sample_costs
from storebench.system.progress import Progress, silent
from storebench.units import number_of

# With fewer, a batch and an epoch are too short to be timed.
FEWEST_SAMPLES = 64

# Samples that are measured of a large dataset.
ENOUGH_SAMPLES = 2_000

# Side of the images that most networks take.
NETWORK_SIDE = 224

# JPEGs of the smallest squares from which a network still crops its own.
SHRUNK = "lmdb+jpeg"

# Share of memory that the page cache may take beside a training process.
FITS_FRAC = 0.7

LOOK_S = 0.5
_COPIED_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a dataset; `are_files` if they are image files, which can be stored as they are."""

    count: int
    are_files: bool
    side: int | None
    """Side of the squares that every store serves; None for images of one size, which keep it."""
    raw_bytes: int
    file_bytes: float
    """Mean bytes of the image files; of a few PNGs where the samples are no files."""
    shrunk_bytes: float = 0.0
    """Mean bytes of a few JPEGs of squares of `crop_side`; 0 where the samples are no larger files."""
    read_s: float
    """Seconds in one thread to make a sample of such a file."""
    kind: str = ""
    """Format of the image files, such as "JPEG"; "" for several, and where the samples are no files."""
    container: str = ""
    """The backend that reads them where they are; "" if they are in no container, or cannot be."""
    container_note: str = ""
    """Why a container cannot be read where it is."""
    container_bytes: int = 0
    """Bytes of its files."""
    short_side: int = 0
    """Shorter side of the image files, the median of a few; 0 where the samples are no files."""

    @property
    def crop_side(self) -> int:
        """Side of squares from which a network still crops its own: 256 pixels for 224."""
        return (self.side or 0) * 8 // 7

    @property
    def total_bytes(self) -> int:
        return round(self.count * self.file_bytes)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The cores and the memory that this process may use, and the file system of the stores."""

    cores: int
    memory_bytes: int
    free_bytes: int
    evicts: bool
    """Whether that file system keeps files outside memory, so that there is a cold state."""
    copied_bytes_per_s: float
    """Rate at which one core copies memory."""
    decoders: tuple[str, ...] = ()
    """Installed decoders beside the default."""

    def fits(self, size: float) -> bool:
        """Whether this many bytes stay in the page cache."""
        return size <= FITS_FRAC * self.memory_bytes


def look_at(spec: DatasetSpec, stores: Path, progress: Progress = silent) -> Samples:
    """Return the facts about samples that the choice depends on; refuse fewer than `FEWEST_SAMPLES`."""
    dataset = open_dataset(spec, listings=listings_in(stores), progress=progress)
    if len(dataset) < FEWEST_SAMPLES:
        verb = "is" if len(dataset) == 1 else "are"
        raise UsageError(
            f"{number_of(len(dataset), 'image')} {verb} too few to time anything; at least {FEWEST_SAMPLES} are needed",
            where=spec.name,
            hint=f"Name a folder with more images, or repeat these with --size {ENOUGH_SAMPLES}.",
        )
    files, side = dataset.original_info, spec.image_size
    height, width, _ = dataset.info.image_shape if files is None else files.image_shape
    headers = (
        () if files is None else probed_headers(lambda index, _: dataset.original(index)[0], len(dataset))
    )
    kinds = {header.kind for header in headers}
    shorter = int(median(min(header.width, header.height) for header in headers)) if headers else 0
    if side is None and files is not None and (height != width or height >= SIDE):
        # That of a network, or of the images where they are smaller; small squares of one size keep theirs.
        side = max(LEAST_IMAGE_SIZE, min(NETWORK_SIDE, shorter))
    container, container_note, container_bytes = "", "", 0
    if spec.container is not None:
        from storebench.formats.peers.container import backend_in_place  # imports large libraries

        try:
            container, container_bytes = backend_in_place(
                dataset if files is None else Originals(dataset),
                may_stream=spec.size is None and not spec.skip_unreadable,
            )
        except StorebenchError as error:
            container_note = f"the container as it is is left out: {error.what}"
    base = parse_backend("files+png" if files is None else "files+original")
    costs = sample_costs(dataset, base, side, limit_s=LOOK_S)
    samples = Samples(
        count=len(dataset),
        are_files=files is not None,
        side=side,
        raw_bytes=dataset.info.image_bytes if side is None else side * side * 3,
        file_bytes=costs.payload_bytes,
        read_s=costs.decode_s,
        kind=kinds.pop() if len(kinds) == 1 else "",
        container=container,
        container_note=container_note,
        container_bytes=container_bytes,
        short_side=shorter,
    )
    if not 0 < samples.crop_side < shorter:
        return samples
    squares = open_dataset(
        dataclasses.replace(spec, image_size=samples.crop_side), listings=listings_in(stores)
    )
    return dataclasses.replace(
        samples, shrunk_bytes=sample_costs(squares, parse_backend(SHRUNK)).payload_bytes
    )


def machine_for(stores: Path) -> Machine:
    """Return the facts about this machine that the choice depends on."""
    folder = nearest_folder(stores)
    limits = [size for size in (memory_bytes("MemTotal"), memory_limit_bytes()) if size]
    block = np.ones(_COPIED_BYTES, np.uint8)
    copy_s = min(timeit.repeat(block.copy, number=1, repeat=5))
    return Machine(
        cores=usable_cores(),
        memory_bytes=min(limits, default=0),
        copied_bytes_per_s=_COPIED_BYTES / copy_s,
        free_bytes=shutil.disk_usage(folder).free,
        evicts=mount_of(folder).fstype not in IN_MEMORY,
        decoders=tuple(
            name for name, able in DECODERS.items() if name != DEFAULT_DECODER and is_installed(able)
        ),
    )
