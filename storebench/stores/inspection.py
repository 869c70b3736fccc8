"""Inspect a file of any program: find its samples, read random ones of the largest parts, in a separate process."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from storebench.datasets.base import HF_PREFIX
from storebench.datasets.containers.find import INDEX, find_container, is_container, kind_of, known_kinds
from storebench.errors import CorruptDataError, DataNotFoundError, UsageError
from storebench.formats.registry import get_format
from storebench.probes.page_cache import resident
from storebench.settings.words import Split
from storebench.stores.random_reads import Reads, SampleSet, Trial, measured
from storebench.stores.trials import tried
from storebench.system.isolated import run_isolated
from storebench.system.scratch import scratch_folder

__all__ = ["Inspection", "Reads", "SampleSet", "inspect"]

SAMPLES = 200  # random samples to read per part
BUDGET_S = 1.5  # about the time of all cold reads, and of all warm ones
LIMIT_S = 120.0
MEMORY_BYTES = 2 << 30
_FORMATS = {"LMDB": "lmdb", "HDF5": "hdf5"}  # kind of file -> format whose library reads it


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Findings about one file; the parts with the most bytes come first."""

    path: Path
    kind: str
    file_bytes: int
    resident_frac: float | None  # in the page cache before it was inspected
    parts: tuple[SampleSet, ...]
    notes: dict[str, str] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()
    """Other values of settings, for the part with the most bytes."""

    @property
    def main(self) -> SampleSet | None:
        """The part with the most bytes among those that were read, or among all of them; None without parts."""
        read = [part for part in self.parts if part.warm is not None and part.warm.samples]
        return max(read or self.parts, key=lambda part: part.weight, default=None)


def inspect(path: Path, *, database: str | None = None, samples: int = SAMPLES) -> Inspection:
    """Return the layout of a file or folder and the cost of a random sample of it. Nothing is written to it."""
    try:
        place, kind = _kind_of(path)
    except PermissionError as error:
        raise DataNotFoundError("no permission to read it", where=error.filename or path) from error
    if kind != "LMDB" and database is not None:
        raise UsageError(f"{kind} has no named databases", where=place, hint="Leave out --database.")
    work = partial(_findings, place, kind, database, samples)
    doing = f"reading it as {kind}"
    try:
        return run_isolated(work, doing=doing, where=place, limit_s=LIMIT_S, memory_bytes=MEMORY_BYTES)
    except OSError as error:
        raise CorruptDataError(f"it cannot be read ({error.strerror or error})", where=place) from error


def _kind_of(path: Path) -> tuple[Path, str]:
    within = ("data.mdb", "data.h5", INDEX) if path.is_dir() else ("",)
    file = next((file for file in map(path.joinpath, within) if file.is_file()), path)
    text = str(path).removeprefix(HF_PREFIX)
    if not file.is_file() and is_container(text):
        file = find_container(text, Split.TRAIN).files[0]
    if not file.is_file():
        hint = "Name a file, or the pattern or folder of a container."
        raise DataNotFoundError("no file to inspect", where=path, hint=hint)
    kind = kind_of(file)
    if kind is None or not kind.target:
        what = f"not {known_kinds()} by its content" if kind is None else kind.words
        raise CorruptDataError(what, where=file, hint=kind.hint if kind else None)
    if kind.words in _FORMATS:
        get_format(_FORMATS[kind.words])  # its error says how to install a missing library
    return file, kind.words


def _findings(path: Path, kind: str, database: str | None, samples: int) -> Inspection:
    status = path.stat()
    # A sparse file has holes, which are never resident.
    stored = min(status.st_size, 512 * status.st_blocks) or status.st_size
    frac = resident([path]).frac
    # Each imports a library that is large or may be missing.
    if kind == "LMDB":
        from storebench.stores.lmdb_files import find_lmdb

        candidates, notes = find_lmdb(path, database=database, samples=samples)
    elif kind == "HDF5":
        from storebench.stores.hdf5_files import find_hdf5

        candidates, notes = find_hdf5(path, samples=samples)
    else:
        from storebench.stores.container_files import find_samples

        candidates, notes = find_samples(path, samples=samples)
    ranked = sorted(candidates, key=lambda candidate: candidate.part.weight, reverse=True)
    chosen = [candidate for candidate in ranked if candidate.source is not None][:3]
    # What was read to find the parts is evicted first, with the rest of the file.
    parts = [
        measured(candidate, budget_s=BUDGET_S / len(chosen)) if candidate in chosen else candidate.part
        for candidate in ranked
    ]
    trials: list[Trial] = []
    if chosen and chosen[0].settings is not None and chosen[0].source is not None:
        with scratch_folder("trials") as folder:
            trials = tried(chosen[0].settings(chosen[0].source, folder))
    parts.sort(key=lambda part: part.weight, reverse=True)
    return Inspection(
        path=path,
        kind=kind,
        file_bytes=stored,
        resident_frac=None if frac is None else min(1.0, frac * status.st_size / max(1, stored)),
        parts=tuple(parts),
        notes=notes,
        trials=tuple(trials),
    )
