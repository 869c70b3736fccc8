"""The samples in LMDB and LevelDB databases of other programs: random values by the patterns of their keys."""

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from storebench.errors import CorruptDataError, CorruptStoreError, UnknownNameError, UsageError
from storebench.formats.leveldb.snapshot import Snapshot
from storebench.formats.lmdb.pages import (
    MAX_DEPTH,
    NO_PAGE,
    PageFile,
    Tree,
    current_meta,
    leaves,
    sub_databases,
)
from storebench.formats.registry import get_format
from storebench.stores.random_reads import (
    SEED,
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
"""Records of a larger LevelDB are not counted: their number is estimated."""

SCAN_S = 1.0

_MOST_PAGES_OF_LEVEL = 256
_MOST_DRAWN = 2000
_MOST_DATABASES = 8
_MOST_OTHERS = 3
_DUPLICATES, _SUB_DATABASE = 0x04, 0x02
_LEAST_SHARE, _MOST_KINDS_SHARE = 0.05, 0.9
_MOST_NAMES_LEAVES = 4096
_MOST_LOG_BYTES = 256 << 20
_TABLES = (".ldb", ".sst")
_OTHER_PROGRAMS = ("IDENTITY", "OPTIONS-*")


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One record of LMDB: its key, and the place and length of its value in bytes."""

    key: bytes
    offset: int
    length: int


def find_lmdb(path: Path, *, database: str | None, samples: int) -> FileContent:
    """Return the databases of a file; nothing is written, and no lock file is made."""
    with PageFile(path) as file:
        needed = (file.meta.last_page + 1) * file.meta.page_bytes
        if file.size < needed:
            raise CorruptStoreError(f"the file has {file.size} bytes, its pages need {needed}", where=path)
        candidates: list[Candidate] = []
        notes: dict[str, str] = {}
        try:
            trees = _trees(file, database)
            for name, tree in list(trees.items())[:_MOST_DATABASES]:
                candidates += _lmdb_parts(file, name, tree, samples, notes)
        except CorruptStoreError as error:
            if current_meta(file.fd, path).transaction == file.meta.transaction:
                raise
            raise CorruptStoreError(
                "the file is being written to", where=path, hint="Inspect it when that is done."
            ) from error
    if len(trees) > _MOST_DATABASES:
        notes["named databases"] = f"{len(trees)}, of which the first {_MOST_DATABASES} were inspected"
    return FileContent(candidates=candidates, notes=notes)


def _trees(file: PageFile, database: str | None) -> Mapping[str, Tree]:
    """Return the databases to inspect by name."""
    main = file.meta.main
    named: dict[str, Tree] = {}
    if main.leaf_pages <= _MOST_NAMES_LEAVES and not main.flags:
        for nodes in leaves(file, main):
            named |= {key.decode(errors="replace"): tree for key, tree in sub_databases(nodes)}
    if database is None:
        return named or {"": main}
    if database not in named:
        raise UnknownNameError.of("database", database, named, where=str(file.path))
    return {database: named[database]}


def _lmdb_parts(
    file: PageFile, name: str, tree: Tree, samples: int, notes: dict[str, str]
) -> Iterator[Candidate]:
    if tree.flags & _DUPLICATES:
        yield Candidate(
            part=SampleSet(
                name=name,
                samples=tree.entries,
                layout="several values per key",
                sample_bytes=None,
                touched_bytes=None,
                unread="databases with several values per key are not read",
            )
        )
        return
    entries, complete = _some_entries(file, tree)
    kinds, others = _kinds(entries)
    if others:
        shown = ", ".join(map(_text, others[:_MOST_OTHERS]))
        more = len(others) - _MOST_OTHERS
        notes["other records"] = f"{shown} and {more} more" if more > 0 else shown
    page_bytes = file.meta.page_bytes
    for kind, members in kinds.items():
        whole = len(kinds) == 1 and not others
        offsets = np.array([entry.offset for entry in members], np.int64)
        lengths = np.array([entry.length for entry in members], np.int64)
        pages = -(-(offsets + lengths) // page_bytes) - offsets // page_bytes
        part = SampleSet(
            name=name if len(kinds) == 1 else f"{name}{'/' if name else ''}{kind}",
            samples=tree.entries if whole else round(len(members) / len(entries) * tree.entries),
            exact=whole or complete,
            layout=f"B+-tree of {page_bytes:,}-byte pages",
            sample_bytes=spread(lengths),
            touched_bytes=float(np.median(pages)) * page_bytes if len(members) else 0.0,
        )
        keys = drawn([entry.key for entry in members], samples)
        source = None
        if keys:
            get_format("lmdb")  # its error says how to install a missing library
            opening = partial(_open_lmdb, file.path, name)
            source = Source(paths=(file.path,), open=opening, items=keys, maps=True)
        yield Candidate(part=part, source=source)


def _some_entries(file: PageFile, tree: Tree) -> tuple[list[_Entry], bool]:
    """Return entries drawn at random from random leaves, and whether they are all."""
    if not tree.entries and tree.root == NO_PAGE:
        return [], True
    if not 1 <= tree.depth <= MAX_DEPTH:
        raise CorruptStoreError(f"a tree of {tree.depth} levels", where=file.path)
    level = file.check_numbers(np.array([tree.root], np.uint64), "the meta page")
    complete = True
    random_ = np.random.default_rng(SEED)
    for _ in range(tree.depth - 1):
        level = file.children(file.branch(np.sort(level)))
        if len(level) > _MOST_PAGES_OF_LEVEL:
            complete = False
            level = random_.choice(level, _MOST_PAGES_OF_LEVEL, replace=False)
    nodes = file.leaf(np.sort(level))
    if complete and (len(level) != tree.leaf_pages or len(nodes) != tree.entries):
        raise CorruptStoreError("the tree has more or fewer entries than its record says", where=file.path)
    places = np.flatnonzero(nodes.flags & (_SUB_DATABASE | _DUPLICATES) == 0)
    if len(places) > _MOST_DRAWN:
        complete = False
        places = np.sort(random_.choice(places, _MOST_DRAWN, replace=False))
    offsets, lengths, _ = file.values(nodes)
    return [
        _Entry(key=nodes.at(place)[0], offset=int(offsets[place]), length=int(lengths[place]))
        for place in places.tolist()
    ], complete


def _kinds(entries: list[_Entry]) -> tuple[dict[str, list[_Entry]], list[bytes]]:
    """Divide entries by the pattern of their keys ("image-#", "label-#"), and return the few that fit none."""
    patterns: defaultdict[bytes, list[_Entry]] = defaultdict(list)
    for entry in entries:
        patterns[re.sub(rb"\d+", b"#", entry.key)].append(entry)
    least = max(2.0, _LEAST_SHARE * len(entries))
    kinds = {_text(pattern): members for pattern, members in patterns.items() if len(members) >= least}
    if sum(map(len, kinds.values())) < _MOST_KINDS_SHARE * len(entries) or not kinds:
        return {"": entries}, []
    others = [members[0].key for members in patterns.values() if len(members) < least]
    return kinds, others


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


@contextmanager
def _open_lmdb(path: Path, database: str) -> Iterator[Prepare]:
    import lmdb

    try:
        env: Any = lmdb.open(
            os.fsencode(path),
            subdir=False,
            readonly=True,
            lock=False,
            create=False,
            max_dbs=1,
            max_spare_txns=1,
        )
    except lmdb.Error as error:
        raise CorruptDataError(f"LMDB cannot open it ({error})", where=path) from error
    try:
        handle = env.open_db(database.encode(), create=False) if database else None
        with env.begin(db=handle) as transaction:
            yield partial(_get, "LMDB", path, transaction.get)
    except lmdb.Error as error:
        raise CorruptDataError(f"LMDB cannot read it ({error})", where=path) from error
    finally:
        env.close()


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
    """Yield the database of a folder; its samples can be read inside the with statement."""
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
        yield _leveldb_content(folder, snapshot.folder, samples)
    finally:
        snapshot.remove()


def _leveldb_content(folder: Path, snapshot: Path, samples: int) -> FileContent:
    with _open_leveldb(folder, snapshot) as database:
        records, count, exact = _scanned(database)
    lengths = [length for _, length in records]
    part = SampleSet(
        name="",
        samples=count,
        exact=exact,
        layout="sorted tables",
        sample_bytes=spread(lengths),
        touched_bytes=paged(spread(lengths)[1]) if lengths else 0.0,
    )
    keys = drawn([key for key, _ in records], samples)
    # A log becomes a table of the snapshot when the database is opened.
    tables = tuple(path.resolve() for path in sorted(snapshot.iterdir()) if _is_table(path))
    source = None
    if keys and tables:
        source = Source(paths=tables, open=partial(_leveldb_reads, folder, snapshot), items=keys, maps=True)
    return FileContent(candidates=[Candidate(part=part, source=source)])


def _scanned(database: Any) -> tuple[list[tuple[bytes, int]], int, bool]:
    """Return the first records as (key, bytes of the value), the number of all, and whether that was counted."""
    deadline = time.perf_counter() + SCAN_S
    records: list[tuple[bytes, int]] = []
    with database.iterator(fill_cache=False) as iterator:
        for key, value in iterator:
            records.append((key, len(value)))
            if len(records) >= MOST_SCANNED or time.perf_counter() > deadline:
                break
        else:
            return records, len(records), True
    first, last = records[0][0], next(database.iterator(reverse=True, include_value=False))
    scanned = database.approximate_size(first, records[-1][0])
    total = database.approximate_size(first, last + b"\0")
    count = round(len(records) * total / scanned) if scanned else len(records)
    return records, max(count, len(records)), False


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
