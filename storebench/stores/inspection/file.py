"""Inspect a file of any program: find its parts, read random samples of the largest, in a separate process."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from storebench.errors import CorruptDataError, DataNotFoundError, UsageError
from storebench.formats.lmdb.index import data_file
from storebench.formats.lmdb.pages import is_lmdb
from storebench.formats.registry import get_format
from storebench.probes.page_cache import resident
from storebench.stores.inspection.candidate import Candidate, FileContent, paged, spread
from storebench.stores.inspection.findings import Inspection, SampleSet
from storebench.stores.inspection.leveldb_folder import CURRENT, files_of, find_leveldb, is_leveldb
from storebench.stores.inspection.lmdb_file import find_lmdb
from storebench.stores.inspection.measure import measure
from storebench.stores.inspection.values import contents_of
from storebench.system.isolated import IsolatedError, run_isolated
from storebench.system.scratch import sweep
from storebench.units import format_bytes

SAMPLES = 200
"""Random samples to read per part."""

BUDGET_S = 1.5
"""About the time of all cold reads, and of all warm ones."""

LIMIT_S = 120.0
MEMORY_BYTES = 2 << 30

_MOST_MEASURED = 3
_MOST_PARTS = 64
_HEAP_BYTES = (
    4096  # HDF5 keeps values of varying length in collections of at least so many, and reads a whole one
)
_COSTLY_TIMES = 4


def inspect(path: Path, *, database: str | None = None, samples: int = SAMPLES) -> Inspection:
    """Return the layout of a file and the cost of a random sample of it. Nothing is written to it.

    All of it happens in a separate process, because a library may crash on a damaged file. The file is evicted
    from the page cache, unless `samples` is 0.

    Parameters
    ----------
    path
        An HDF5 file, an LMDB data file, a folder that holds one (``data.mdb``, ``data.h5``), or the folder of a LevelDB.
    database
        A named database of LMDB.
    samples
        Random samples to read per part, of the few largest parts; 0 reads none.

    Raises
    ------
    DataNotFoundError
        There is no such file.
    CorruptDataError
        It is of no known kind, or its library cannot read it.
    CorruptStoreError
        It is an LMDB file, but damaged.
    UsageError
        There is no such database.
    MissingDependencyError
        The library that it needs is not installed.
    """
    try:
        place, kind = _kind_of(path)
    except PermissionError as error:
        raise DataNotFoundError("no permission to read it", where=error.filename or path) from error
    if kind != "LMDB" and database is not None:
        raise UsageError(f"{kind} has no named databases", where=place, hint="Leave out --database.")
    work = partial(_guarded, place, kind, database, samples)
    try:
        return run_isolated(work, limit_s=LIMIT_S, memory_bytes=MEMORY_BYTES)
    except IsolatedError as error:
        raise CorruptDataError(
            f"reading it as {kind} {error}",
            where=place,
            hint="The file is probably damaged: check it with the program that wrote it.",
        ) from None
    finally:
        if kind == "LevelDB":
            sweep()  # its snapshot, if the process was killed


def _kind_of(path: Path) -> tuple[Path, str]:
    """Return the file or folder to inspect, and its kind."""
    if path.name == CURRENT and is_leveldb(path.parent):
        path = path.parent
    if is_leveldb(path):
        return path, "LevelDB"
    file = data_file(path)
    if path.is_dir() and not file.exists():
        file = path / "data.h5"
    if not file.is_file():
        raise DataNotFoundError(
            "no file to inspect",
            where=path,
            hint="Name an LMDB or HDF5 file, the folder that holds it, or the folder of a LevelDB.",
        )
    if is_lmdb(file):
        return file, "LMDB"
    get_format("hdf5")  # its error says how to install a missing library
    import h5py

    if h5py.is_hdf5(file):
        return file, "HDF5"
    raise CorruptDataError("neither an LMDB database, a LevelDB nor an HDF5 file", where=file)


def _guarded(path: Path, kind: str, database: str | None, samples: int) -> Inspection:
    """Return the findings; an error of the kernel while reading is the one line for a file that cannot be read."""
    try:
        return _inspect(path, kind, database, samples)
    except OSError as error:
        raise CorruptDataError(f"it cannot be read ({error.strerror or error})", where=path) from error
    except MemoryError as error:
        more = format_bytes(MEMORY_BYTES)
        raise CorruptDataError(
            f"reading it as {kind} takes more than {more} of memory", where=path
        ) from error


def _inspect(path: Path, kind: str, database: str | None, samples: int) -> Inspection:
    files = files_of(path) if kind == "LevelDB" else [path]
    apparent, stored = (sum(sizes) for sizes in zip((0, 0), *map(_sizes, files), strict=True))
    frac = resident(files).frac if files else None
    frac = None if frac is None else min(1.0, frac * apparent / max(1, stored))
    with _found(path, kind, database, samples) as content:
        ranked = sorted(content.candidates, key=lambda candidate: candidate.part.weight, reverse=True)
        measured = [candidate for candidate in ranked if candidate.source is not None][:_MOST_MEASURED]
        budget_s = BUDGET_S / max(1, len(measured))
        # What was read to find the parts is evicted first, with the rest of the file.
        parts = [
            _measured(kind, candidate, budget_s) if candidate in measured else candidate.part
            for candidate in ranked
        ]
    notes = dict(content.notes)
    if len(parts) > _MOST_PARTS:
        notes["parts"] = f"{len(parts)}, of which the {_MOST_PARTS} largest are listed"
    parts.sort(key=lambda part: part.weight, reverse=True)
    return Inspection(
        path=path,
        kind=kind,
        file_bytes=stored,
        resident_frac=frac,
        parts=tuple(parts[:_MOST_PARTS]),
        notes=notes,
    )


def _sizes(file: Path) -> tuple[int, int]:
    """Return the size of a file, and what of it is on the disk: a sparse file has holes."""
    status = file.stat()
    return status.st_size, min(status.st_size, 512 * status.st_blocks) or status.st_size


def _found(path: Path, kind: str, database: str | None, samples: int) -> AbstractContextManager[FileContent]:
    if kind == "LevelDB":
        return find_leveldb(path, samples=samples)
    if kind == "LMDB":
        return nullcontext(find_lmdb(path, database=database, samples=samples))
    from storebench.stores.inspection.hdf5_file import find_hdf5

    return nullcontext(find_hdf5(path, samples=samples))


def _measured(kind: str, candidate: Candidate, budget_s: float) -> SampleSet:
    assert candidate.source is not None
    part, reads = candidate.part, measure(candidate.source, budget_s=budget_s)
    sizes, touched, looked_at = part.sample_bytes, part.touched_bytes, part.looked_at
    if sizes is None:
        sizes = spread(reads.sizes)
        looked_at = len(reads.sizes) if len(reads.sizes) < part.samples else None
        touched = candidate.beside_bytes + paged(max(_HEAP_BYTES, sizes[1]))
    part = replace(
        part,
        content=part.content or contents_of(reads.values),
        sample_bytes=sizes,
        looked_at=looked_at,
        touched_bytes=touched,
        cold=reads.cold,
        warm=reads.warm,
    )
    if candidate.decompress is not None:
        part = replace(part, decompress_s=_at_most(candidate.decompress(), reads.warm.median_s))
    return replace(part, advice=_read_ahead_advice(part)) if kind == "LMDB" else part


def _at_most(seconds: float | None, whole_s: float | None) -> float | None:
    """Return the time of a part of a read, which is a difference and may exceed the whole by noise."""
    return seconds if seconds is None or whole_s is None else min(seconds, whole_s)


def _read_ahead_advice(part: SampleSet) -> str | None:
    """Return advice to turn off the kernel's read-ahead if it dominates a cold read."""
    read = part.cold.read_bytes if part.cold else None
    if not read or not part.touched_bytes or read < _COSTLY_TIMES * part.touched_bytes:
        return None
    return (
        f"the kernel reads {read / part.touched_bytes:.0f} times the bytes that a cold sample needs; "
        "lmdb.open(..., readahead=False) stops that, and pays if the file is larger than memory"
    )
