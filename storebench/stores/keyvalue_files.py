"""The samples in LMDB and LevelDB databases of other programs: random values by the patterns of their keys."""

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from storebench.errors import CorruptDataError, CorruptStoreError, UnknownNameError, UsageError
from storebench.formats.leveldb.snapshot import Snapshot
from storebench.formats.registry import get_format
from storebench.stores.random_reads import (
    Candidate,
    FileContent,
    Prepare,
    SampleSet,
    Source,
    drawn,
    paged,
    spread,
)

CURRENT = "CURRENT"

MOST_SCANNED = 20_000
"""The first records of a database, to which no more are added after `SCAN_S`: samples are drawn from these."""

SCAN_S = 1.0

_MOST_DATABASES = 8
_MOST_OTHERS = 3
_NAME_RECORD_BYTES, _PAGE_HEADER_BYTES = 48, 16
_LEAST_SHARE, _MOST_KINDS_SHARE = 0.05, 0.9
_MOST_LOG_BYTES = 256 << 20
_TABLES = (".ldb", ".sst")
_OTHER_PROGRAMS = ("IDENTITY", "OPTIONS-*")

KeyLength = tuple[bytes, int]
"""A key, and the bytes of its value."""


def find_lmdb(path: Path, *, database: str | None, samples: int) -> FileContent:
    """Return the databases of a file; nothing is written, and no lock file is made."""
    get_format("lmdb")  # its error says how to install a missing library
    candidates: list[Candidate] = []
    notes: dict[str, str] = {}
    with _open_lmdb(path) as env:
        info, page_bytes = env.info(), int(env.stat()["psize"])
        size, needed = path.stat().st_size, (info["last_pgno"] + 1) * page_bytes
        if size < needed:
            raise CorruptStoreError(f"the file has {size} bytes, its pages need {needed}", where=path)
        names = _named_databases(env)
        if database is not None and database not in names:
            raise UnknownNameError.of("database", database, names, where=str(path))
        chosen = [database] if database is not None else names[:_MOST_DATABASES] or [""]
        for name in chosen:
            candidates += _lmdb_parts(path, env, name, page_bytes, samples, notes)
    if database is None and len(names) > _MOST_DATABASES:
        notes["named databases"] = f"more than {_MOST_DATABASES}, of which the first were inspected"
    return FileContent(candidates=candidates, notes=notes)


def _named_databases(env: Any) -> list[str]:
    """Return the first named databases: records of the unnamed one that LMDB opens as such."""
    import lmdb

    names = []
    with env.begin() as transaction:
        records = [(key, len(value)) for key, value in _first(transaction.cursor(), _MOST_DATABASES + 1)]
    for key, length in records:
        if length == _NAME_RECORD_BYTES:
            try:
                env.open_db(key, create=False)
            except (lmdb.Error, ValueError):
                continue
            names.append(key.decode(errors="replace"))
    return names


def _first(records: Iterable[Any], count: int) -> list[Any]:
    return [record for record, _ in zip(records, range(count), strict=False)]


def _lmdb_parts(
    path: Path, env: Any, name: str, page_bytes: int, samples: int, notes: dict[str, str]
) -> Iterator[Candidate]:
    handle = env.open_db(name.encode() or None, create=False)
    with env.begin(db=handle, buffers=True) as transaction:  # views, so that no page of a value is read
        count = transaction.stat(handle)["entries"]
        whole = SampleSet(
            name=name,
            samples=count,
            layout=f"B+-tree of {page_bytes:,}-byte pages",
            sample_bytes=None,
            touched_bytes=None,
        )
        if handle.flags(transaction)["dupsort"]:
            why = "databases with several values per key are not read"
            yield Candidate(part=replace(whole, layout="several values per key", unread=why))
            return
        records, _ = _scanned(transaction.cursor())

    def touched(length: float) -> float:
        """Return the bytes of the pages of a value: those of its own, or the leaf that it lies in."""
        return -(-(_PAGE_HEADER_BYTES + length) // page_bytes) * page_bytes

    source = Source(paths=(path,), open=partial(_lmdb_reads, path, name), items=(), maps=True)
    yield from _parts(whole, source, records, touched, samples, notes)


def _scanned(records: Iterable[tuple[bytes, bytes]]) -> tuple[list[KeyLength], bool]:
    """Return the first records, and whether they are all."""
    deadline = time.perf_counter() + SCAN_S
    found: list[KeyLength] = []
    for key, value in records:
        found.append((bytes(key), len(value)))
        if len(found) >= MOST_SCANNED or time.perf_counter() > deadline:
            return found, False
    return found, True


def _parts(
    whole: SampleSet,
    source: Source,
    records: Sequence[KeyLength],
    touched: Callable[[float], float],
    samples: int,
    notes: dict[str, str],
) -> Iterator[Candidate]:
    """Yield one part per pattern of keys; `whole` counts all records, and of `source` only the items are missing."""
    kinds, others = _kinds(records)
    if others:
        shown = ", ".join(map(_text, others[:_MOST_OTHERS]))
        more = len(others) - _MOST_OTHERS
        notes["other records"] = f"{shown} and {more} more" if more > 0 else shown
    for kind, members in kinds.items():
        part, lengths = whole, [length for _, length in members]
        if len(kinds) > 1 or others:
            count = round(len(members) / len(records) * whole.samples)
            part = replace(whole, samples=count, exact=whole.exact and len(records) == whole.samples)
        if len(kinds) > 1:
            part = replace(part, name=f"{whole.name}{'/' if whole.name else ''}{kind}")
        middle = float(np.median(lengths)) if lengths else 0.0
        part = replace(part, sample_bytes=spread(lengths), touched_bytes=touched(middle) if middle else 0.0)
        keys = drawn([key for key, _ in members], samples)
        yield Candidate(part=part, source=replace(source, items=keys) if keys and source.paths else None)


def _kinds(records: Sequence[KeyLength]) -> tuple[dict[str, list[KeyLength]], list[bytes]]:
    """Divide records by the pattern of their keys ("image-#", "label-#"), and return the few keys that fit none.

    If no few patterns cover most of the keys, all records are of one kind.
    """
    patterns: defaultdict[bytes, list[KeyLength]] = defaultdict(list)
    for record in records:
        patterns[re.sub(rb"\d+", b"#", record[0])].append(record)
    least = max(2.0, _LEAST_SHARE * len(records))
    kinds = {_text(pattern): members for pattern, members in patterns.items() if len(members) >= least}
    if sum(map(len, kinds.values())) < _MOST_KINDS_SHARE * len(records) or not kinds:
        return {"": list(records)}, []
    return kinds, [members[0][0] for members in patterns.values() if len(members) < least]


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


@contextmanager
def _open_lmdb(path: Path) -> Iterator[Any]:
    import lmdb

    try:
        env = lmdb.open(
            os.fsencode(path),
            subdir=False,
            readonly=True,
            lock=False,
            create=False,
            max_dbs=_MOST_DATABASES + 2,
            max_spare_txns=1,
        )
    except lmdb.Error as error:
        raise CorruptDataError(f"LMDB cannot open it ({error})", where=path) from error
    try:
        yield env
    except lmdb.Error as error:
        raise CorruptDataError(f"LMDB cannot read it ({error})", where=path) from error
    finally:
        env.close()


@contextmanager
def _lmdb_reads(path: Path, database: str) -> Iterator[Prepare]:
    with _open_lmdb(path) as env:
        handle = env.open_db(database.encode(), create=False) if database else None
        with env.begin(db=handle) as transaction:
            yield partial(_get, "LMDB", path, transaction.get)


def _get(library: str, path: Path, get: Callable[[bytes], bytes | None], key: bytes) -> Callable[[], bytes]:
    def read() -> bytes:
        value = get(key)
        if value is None:
            raise CorruptDataError(
                f"{library} does not find the key {_text(key)!r}, which it has listed", where=path
            )
        return value

    return read


def is_leveldb(folder: Path) -> bool:
    """Return whether a folder holds a LevelDB, or a database that looks like one."""
    current = folder / CURRENT
    if not current.is_file():
        return False
    with current.open("rb") as file:
        start = file.read(9)
    return start == b"MANIFEST-" or (not start and any(folder.glob("MANIFEST-*")))


def leveldb_files(folder: Path) -> list[Path]:
    """Return the files with the records of a database: tables and logs."""
    return [path for path in sorted(folder.iterdir()) if path.suffix in (*_TABLES, ".log") and path.is_file()]


@contextmanager
def find_leveldb(folder: Path, *, samples: int) -> Iterator[FileContent]:
    """Yield the database of a folder; its samples can be read inside the with statement.

    The library writes to what it opens, so tables are linked into a temporary folder, and logs are copied.
    """
    get_format("leveldb")  # its error says how to install a missing library
    others = [path.name for pattern in _OTHER_PROGRAMS for path in folder.glob(pattern)]
    if others:
        raise CorruptDataError(f"this is a RocksDB ({others[0]}), which is not read here", where=folder)
    log_bytes = sum(path.stat().st_size for path in leveldb_files(folder) if path.suffix == ".log")
    if log_bytes > _MOST_LOG_BYTES:
        raise UsageError(
            f"its log has {log_bytes / 1e6:,.0f} MB, which LevelDB would first write into tables",
            where=folder,
            hint="Open it once with the program that wrote it.",
        )
    snapshot = Snapshot("leveldb", folder, linked=_is_table, copied=_is_needed, symbolic=True)
    try:
        with _open_leveldb(folder, snapshot.folder) as database:
            with database.iterator(fill_cache=False) as iterator:
                records, exact = _scanned(iterator)
            count = len(records) if exact else _estimated(database, records)
        # A log becomes a table of the snapshot when the database is opened.
        tables = tuple(path.resolve() for path in sorted(snapshot.folder.iterdir()) if _is_table(path))
        opening = partial(_leveldb_reads, folder, snapshot.folder)
        source = Source(paths=tables, open=opening, items=(), maps=True)
        whole = SampleSet(
            name="",
            samples=count,
            exact=exact,
            layout="sorted tables",
            sample_bytes=None,
            touched_bytes=None,
        )
        notes: dict[str, str] = {}
        yield FileContent(candidates=list(_parts(whole, source, records, paged, samples, notes)), notes=notes)
    finally:
        snapshot.remove()


def _estimated(database: Any, records: Sequence[KeyLength]) -> int:
    """Return about how many records a database has, by the bytes of the first ones and of all."""
    first, last = records[0][0], next(database.iterator(reverse=True, include_value=False))
    scanned = database.approximate_size(first, records[-1][0])
    total = database.approximate_size(first, last + b"\0")
    return max(round(len(records) * total / scanned) if scanned else 0, len(records))


@contextmanager
def _open_leveldb(folder: Path, snapshot: Path) -> Iterator[Any]:
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
def _leveldb_reads(folder: Path, snapshot: Path) -> Iterator[Prepare]:
    with _open_leveldb(folder, snapshot) as database:
        yield partial(_get, "LevelDB", folder, database.get)


def _is_table(path: Path) -> bool:
    return path.suffix in _TABLES


def _is_needed(path: Path) -> bool:
    return path.suffix == ".log" or path.name == CURRENT or path.name.startswith("MANIFEST-")
