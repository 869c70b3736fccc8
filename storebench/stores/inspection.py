"""Inspect a file of any program: find its samples, read random ones, try settings, in a separate process."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from storebench.datasets.base import HF_PREFIX
from storebench.datasets.containers.base import Container
from storebench.datasets.containers.find import find_container
from storebench.errors import CorruptDataError
from storebench.probes.page_cache import resident
from storebench.settings.words import Split
from storebench.stores.random_reads import Found, Reads, SampleSet, measured
from storebench.system.isolated import run_isolated
from storebench.system.scratch import scratch_folder

__all__ = ["Inspection", "Reads", "SampleSet", "inspect"]

SAMPLES = 200  # random samples to read
BUDGET_S = 1.5  # about the time of all cold reads, and of all warm ones
LIMIT_S = 120.0
MEMORY_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Findings about one file."""

    path: Path
    kind: str
    file_bytes: int
    resident_frac: float | None  # in the page cache before it was inspected
    part: SampleSet | None  # its samples, or those with the most bytes; None without any


def inspect(text: str | Path, *, samples: int = SAMPLES) -> Inspection:
    """Return the layout of a file, or of the first one of several, and the cost of a random sample of it."""
    several = find_container(str(text).removeprefix(HF_PREFIX), Split.TRAIN)
    container = find_container(str(several.files[0]), Split.TRAIN)
    container.asked = several.asked
    path = container.files[0]
    try:
        return run_isolated(
            partial(_findings, container, samples),
            doing=f"reading it as {container.kind}",
            where=path,
            limit_s=LIMIT_S,
            memory_bytes=MEMORY_BYTES,
        )
    except OSError as error:
        raise CorruptDataError(f"it cannot be read ({error.strerror or error})", where=path) from error


def _findings(container: Container, samples: int) -> Inspection:
    path = container.files[0]
    status = path.stat()
    # A sparse file has holes, which are never resident.
    stored = min(status.st_size, 512 * status.st_blocks) or status.st_size
    frac = resident([path]).frac
    with scratch_folder("trials") as folder:
        found = _found(container, samples, folder)
        part = found.part if found else None
        if found and found.source.items and not found.part.unread:
            part = measured(found, BUDGET_S)
    return Inspection(
        path=path,
        kind=container.kind,
        file_bytes=stored,
        resident_frac=None if frac is None else min(1.0, frac * status.st_size / max(1, stored)),
        part=part,
    )


def _found(container: Container, samples: int, folder: Path) -> Found | None:
    # Each imports a library that is large or may be missing.
    if container.kind == "LMDB":
        from storebench.stores.lmdb_files import lmdb_samples

        return lmdb_samples(container.files[0], samples)
    if container.kind == "HDF5":
        from storebench.stores.hdf5_files import hdf5_samples

        return hdf5_samples(container, samples, folder)
    from storebench.stores.container_files import container_samples

    return container_samples(container, samples, folder)
