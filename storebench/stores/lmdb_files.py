"""The samples in LMDB databases of other programs: random values by the patterns of their keys."""

import itertools
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from storebench.datasets.containers.base import listed
from storebench.datasets.containers.lmdb import key_text, open_lmdb, reading
from storebench.errors import CorruptDataError, UnknownNameError
from storebench.stores.random_reads import (
    Candidate,
    FileContent,
    Prepare,
    SampleSet,
    Setting,
    Source,
    Trial,
    cold_reads,
    drawn,
    spread,
)
from storebench.stores.trials import in_threads

MOST_SCANNED = 20_000  # first records of a database, fewer after `SCAN_S`: samples are drawn from these
SCAN_S = 1.0
COLD_S = 1.0  # for reading with read-ahead, and without

_MOST_DATABASES = 8
_NAME_RECORD_BYTES, _PAGE_HEADER_BYTES = 48, 16
_LEAST_SHARE, _MOST_KINDS_SHARE = 0.05, 0.9

KeyLength = tuple[bytes, int]  # a key, and the bytes of its value


def find_lmdb(path: Path, *, database: str | None, samples: int) -> FileContent:
    """Return the databases of a file; nothing is written, and no lock file is made."""
    candidates: list[Candidate] = []
    notes: dict[str, str] = {}
    with _open_lmdb(path) as env:
        page_bytes = int(env.stat()["psize"])
        names = _named_databases(env)
        if database is not None and database not in names:
            raise UnknownNameError.of("database", database, names, where=str(path))
        chosen = [database] if database is not None else names[:_MOST_DATABASES] or [""]
        for name in chosen:
            candidates += _lmdb_parts(path, env, name, page_bytes, samples, notes)
    if database is None and len(names) > _MOST_DATABASES:
        notes["named databases"] = f"more than {_MOST_DATABASES}, of which the first were inspected"
    return candidates, notes


def _named_databases(env: Any) -> list[str]:
    """Return the first named databases: records of the unnamed one that LMDB opens as such."""
    names = []
    with env.begin() as transaction:
        some = itertools.islice(transaction.cursor(), _MOST_DATABASES + 1)
        records = [(key, len(value)) for key, value in some]
    for key, length in records:
        if length == _NAME_RECORD_BYTES:
            try:
                env.open_db(key, create=False)
            except (lmdb.Error, ValueError):
                continue
            names.append(key.decode(errors="replace"))
    return names


def _lmdb_parts(
    path: Path, env: Any, name: str, page_bytes: int, samples: int, notes: dict[str, str]
) -> Iterator[Candidate]:
    handle = env.open_db(name.encode() or None, create=False)
    with env.begin(db=handle, buffers=True) as transaction:  # views, so that no page of a value is read
        count = transaction.stat(handle)["entries"]
        layout = f"B+-tree of {page_bytes:,}-byte pages"
        whole = SampleSet(name=name, samples=count, layout=layout, is_dataset=not name)
        if handle.flags(transaction)["dupsort"]:
            why = "databases with several values per key are not read"
            yield Candidate(part=replace(whole, layout="several values per key", unread=why))
            return
        deadline = time.perf_counter() + SCAN_S
        records: list[KeyLength] = []
        for key, value in itertools.islice(transaction.cursor(), MOST_SCANNED):
            records.append((bytes(key), len(value)))
            if time.perf_counter() > deadline:
                break

    kinds, others = _kinds(records)
    if others:
        notes["other records"] = listed(list(map(key_text, others)))
    for kind, members in kinds.items():
        part, lengths = whole, [length for _, length in members]
        if len(kinds) > 1 or others:
            share = len(members) / len(records)
            part = replace(whole, samples=round(share * count), exact=len(records) == count)
        if len(kinds) > 1:
            part = replace(part, name=f"{name}{'/' if name else ''}{kind}")
        # The pages of a value: those of its own, or the leaf that it lies in.
        pages = -(-(_PAGE_HEADER_BYTES + float(np.median(lengths))) // page_bytes) if lengths else 0
        part = replace(part, sample_bytes=spread(lengths), touched_bytes=pages * page_bytes)
        keys = drawn([key for key, _ in members], samples)
        source = Source(path=path, open=partial(_lmdb_reads, path, name), items=keys, maps=True)
        yield Candidate(part=part, source=source if keys else None, settings=partial(_settings, name))


def _settings(database: str, source: Source, folder: Path) -> Iterator[Setting | Trial]:  # noqa: ARG001 - nothing is copied
    def way(value: str, **options: bool) -> Source:
        return replace(source, value=value, open=partial(_lmdb_reads, source.path, database, **options))

    on, off = (cold_reads(way("", readahead=readahead), COLD_S).median_s for readahead in (True, False))
    if on and off:
        gain = "as fast, larger than memory"  # each read finds the file evicted
        yield Trial(setting="readahead", now="on", tried="off", factor=on / off, gain=gain)
    each = way("1", each=True)
    yield Setting(name="samples per transaction", now=each, tried=way("all"))
    yield from in_threads(each, cold=True, shared=True)


def _kinds(records: Sequence[KeyLength]) -> tuple[dict[str, list[KeyLength]], list[bytes]]:
    """Divide records by the pattern of their keys ("image-#"), if few patterns cover most; return the other keys, too."""
    patterns: defaultdict[bytes, list[KeyLength]] = defaultdict(list)
    for record in records:
        patterns[re.sub(rb"\d+", b"#", record[0])].append(record)
    least = max(2.0, _LEAST_SHARE * len(records))
    kinds = {key_text(pattern): members for pattern, members in patterns.items() if len(members) >= least}
    if sum(map(len, kinds.values())) < _MOST_KINDS_SHARE * len(records) or not kinds:
        return {"": list(records)}, []
    return kinds, [members[0][0] for members in patterns.values() if len(members) < least]


@contextmanager
def _open_lmdb(path: Path, *, readahead: bool = True) -> Iterator[Any]:
    with reading(path), open_lmdb(path, readahead=readahead, max_dbs=_MOST_DATABASES + 2) as env:
        yield env


@contextmanager
def _lmdb_reads(
    path: Path, database: str, *, readahead: bool = True, each: bool = False
) -> Iterator[Prepare]:
    """Yield what prepares the read of a key, in one transaction or `each` in its own."""
    with _open_lmdb(path, readahead=readahead) as env:
        handle = env.open_db(database.encode(), create=False) if database else None
        with env.begin(db=handle) as transaction:

            def read(key: bytes) -> bytes:
                with env.begin(db=handle) if each else nullcontext(transaction) as own:
                    value: bytes | None = own.get(key)
                if value is None:
                    what = f"LMDB does not find the key {key_text(key)!r}, which it has listed"
                    raise CorruptDataError(what, where=path)
                return value

            yield lambda key: partial(read, key)
