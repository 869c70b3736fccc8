"""LevelDB: random values of a database, read in a private snapshot because the library writes to what it opens."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError, UsageError
from storebench.formats.leveldb.snapshot import Snapshot
from storebench.formats.registry import get_format
from storebench.stores.inspection.candidate import Candidate, FileContent, drawn, paged, spread
from storebench.stores.inspection.findings import SampleSet
from storebench.stores.inspection.measure import Prepare, SampleSource

CURRENT = "CURRENT"

MOST_SCANNED = 20_000
"""Records of a larger database are not counted: their number is estimated."""

SCAN_S = 1.0

_MOST_LOG_BYTES = 256 << 20
_KEY_BYTES = 16
_TABLES = (".ldb", ".sst")
_OTHER_PROGRAMS = ("IDENTITY", "OPTIONS-*")


def is_leveldb(folder: Path) -> bool:
    """Return whether a folder holds a LevelDB, or a database that looks like one."""
    current = folder / CURRENT
    if not current.is_file():
        return False
    with current.open("rb") as file:
        start = file.read(9)
    return start == b"MANIFEST-" or (not start and any(folder.glob("MANIFEST-*")))


def files_of(folder: Path) -> list[Path]:
    """Return the files with the records of a database: tables and logs."""
    return [
        path for path in sorted(folder.iterdir()) if path.is_file() and (_is_table(path) or _is_log(path))
    ]


@contextmanager
def find_leveldb(folder: Path, *, samples: int) -> Iterator[FileContent]:
    """Yield the database of a folder; its samples can be read inside the with statement.

    Parameters
    ----------
    folder
        The database. Tables are linked into a temporary folder, logs are copied; nothing is written here.
    samples
        Number of random values to read.

    Raises
    ------
    CorruptDataError
        LevelDB cannot read it, or another program wrote it.
    UsageError
        Its log is too large to be copied.
    MissingDependencyError
        LevelDB's library is not installed.
    """
    get_format("leveldb")  # its error says how to install a missing library
    _check(folder)
    snapshot = Snapshot("leveldb", folder, linked=_is_table, copied=_is_needed, symbolic=True)
    try:
        yield _found(folder, snapshot.folder, samples)
    finally:
        snapshot.remove()


def _check(folder: Path) -> None:
    others = [path.name for pattern in _OTHER_PROGRAMS for path in folder.glob(pattern)]
    if others:
        raise CorruptDataError(f"this is a RocksDB ({others[0]}), which is not read here", where=folder)
    log_bytes = sum(path.stat().st_size for path in files_of(folder) if _is_log(path))
    if log_bytes > _MOST_LOG_BYTES:
        raise UsageError(
            f"its log has {log_bytes / 1e6:,.0f} MB, which LevelDB would first write into tables",
            where=folder,
            hint="Open it once with the program that wrote it.",
        )


def _found(folder: Path, snapshot: Path, samples: int) -> FileContent:
    with _opened(folder, snapshot) as database:
        drawn_ = _draw(database, samples)
    lengths = [length for _, length in drawn_.records]
    part = SampleSet(
        name="",
        samples=drawn_.count,
        exact=drawn_.exact,
        layout="sorted tables",
        sample_bytes=spread(lengths),
        looked_at=None if len(lengths) == drawn_.count else len(lengths),
        touched_bytes=paged(spread(lengths)[1]) if lengths else 0.0,
    )
    keys = drawn([key for key, _ in drawn_.records], samples)
    # A log becomes a table of the snapshot when the database is opened.
    tables = tuple(path.resolve() for path in sorted(snapshot.iterdir()) if _is_table(path))
    if not keys or not tables:
        return FileContent(candidates=[Candidate(part=part, source=None)], notes={})
    source = SampleSource(paths=tables, open=partial(_reads, folder, snapshot), items=keys, maps=True)
    return FileContent(candidates=[Candidate(part=part, source=source)], notes={})


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """Records of a database as (key, bytes of the value), and the number of all of them."""

    records: list[tuple[bytes, int]]
    count: int
    exact: bool


def _draw(database: Any, samples: int) -> _Draw:
    deadline = time.perf_counter() + SCAN_S
    records: list[tuple[bytes, int]] = []
    with database.iterator(fill_cache=False) as iterator:
        for key, value in iterator:
            records.append((key, len(value)))
            if len(records) >= MOST_SCANNED or time.perf_counter() > deadline:
                break
        else:
            return _Draw(records=records, count=len(records), exact=True)
    first, last = records[0][0], next(database.iterator(reverse=True, include_value=False))
    end = last + b"\0"
    scanned = database.approximate_size(first, records[-1][0])
    total = database.approximate_size(first, end)
    count = round(len(records) * total / scanned) if scanned else len(records)
    keys = dict(
        _at(database, first, end, place / max(1, samples) * total) for place in range(max(1, samples))
    )
    return _Draw(records=list(keys.items()), count=max(count, len(records)), exact=False)


def _at(database: Any, first: bytes, end: bytes, wanted: float) -> tuple[bytes, int]:
    """Return key and length of the record that begins so many bytes behind the first one, roughly."""
    shared = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, end, strict=False))
    )
    prefix = first[:shared]
    low = int.from_bytes(first[len(prefix) :][:_KEY_BYTES].ljust(_KEY_BYTES, b"\0"), "big")
    high = int.from_bytes(end[len(prefix) :][:_KEY_BYTES].ljust(_KEY_BYTES, b"\xff"), "big")
    while high - low > 1:
        middle = (low + high) // 2
        if database.approximate_size(first, _key(prefix, middle)) <= wanted:
            low = middle
        else:
            high = middle
    with database.iterator(start=_key(prefix, low), fill_cache=False) as iterator:
        record = next(iterator, None)
    if record is None:
        with database.iterator(reverse=True, fill_cache=False) as iterator:
            record = next(iterator)
    key, value = record
    return key, len(value)


def _key(prefix: bytes, number: int) -> bytes:
    return prefix + number.to_bytes(_KEY_BYTES, "big")


@contextmanager
def _opened(folder: Path, snapshot: Path) -> Iterator[Any]:
    import plyvel

    try:
        # The smallest cache of blocks, because a random read of a large database finds nothing in it; and memory for
        # any log, so that it becomes one table.
        database = plyvel.DB(
            os.fsencode(snapshot),
            create_if_missing=False,
            lru_cache_size=1,
            write_buffer_size=2 * _MOST_LOG_BYTES,
        )
    except plyvel.Error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        text = " ".join(text.replace(f"{snapshot}/", "").split())
        raise CorruptDataError(f"LevelDB cannot open it ({text})", where=folder) from error
    try:
        yield database
    except plyvel.Error as error:
        raise CorruptDataError(f"LevelDB cannot read it ({error})", where=folder) from error
    finally:
        database.close()


@contextmanager
def _reads(folder: Path, snapshot: Path) -> Iterator[Prepare]:
    with _opened(folder, snapshot) as database:
        yield partial(_prepared, folder, database.get)


def _prepared(folder: Path, get: Callable[[bytes], bytes | None], key: bytes) -> Callable[[], bytes]:
    def read() -> bytes:
        value = get(key)
        if value is None:
            raise CorruptDataError(
                f"LevelDB does not find the key {key!r}, which it has listed", where=folder
            )
        return value

    return read


def _is_table(path: Path) -> bool:
    return path.suffix in _TABLES


def _is_log(path: Path) -> bool:
    return path.suffix == ".log"


def _is_needed(path: Path) -> bool:
    return _is_log(path) or path.name == CURRENT or path.name.startswith("MANIFEST-")
