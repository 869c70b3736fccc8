"""LMDB: its databases, the kinds of their keys, and random values. The pages of values are not walked."""

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

from storebench.arrays import Integers
from storebench.errors import CorruptDataError, CorruptStoreError, UnknownNameError
from storebench.formats.lmdb.index import FileIdentity, open_index
from storebench.formats.lmdb.pages import MAX_DEPTH, NO_PAGE, Nodes, PageFile, Tree, leaves, sub_databases
from storebench.formats.registry import get_format
from storebench.stores.inspection.candidate import SEED, Candidate, FileContent, drawn, spread
from storebench.stores.inspection.findings import SampleSet
from storebench.stores.inspection.measure import Prepare, SampleSource

MOST_LEAVES = 4096
"""A tree of at most so many leaf pages is checked as a whole; of a larger one, a random selection is read."""

_MOST_PAGES_OF_LEVEL = 256
_MOST_DRAWN = 2000
_MOST_DATABASES = 8
_MOST_OTHERS = 3
_DUPLICATES = 0x04
_SUB_DATABASE = 0x02
_LEAST_SHARE, _MOST_KINDS_SHARE = 0.05, 0.9


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One record: its key, and the place and length of its value in bytes."""

    key: bytes
    offset: int
    length: int


def find_lmdb(path: Path, *, database: str | None, samples: int) -> FileContent:
    """Return the databases of a file; nothing is written, and no lock file is made.

    Parameters
    ----------
    path
        The data file.
    database
        A named database; None for the unnamed one, or all named ones if there are any.
    samples
        Number of random values to read per part.

    Raises
    ------
    CorruptStoreError
        The file is damaged, or is being written to.
    UnknownNameError
        There is no such database.
    """
    with PageFile(path) as file:
        before = FileIdentity.of(file)
        try:
            return _found(file, database, samples)
        except CorruptStoreError as error:
            if FileIdentity.of(file) == before:
                raise
            raise CorruptStoreError(
                "the file is being written to", where=path, hint="Inspect it when that is done."
            ) from error


def _found(file: PageFile, database: str | None, samples: int) -> FileContent:
    needed = (file.meta.last_page + 1) * file.meta.page_bytes
    if file.size < needed:
        raise CorruptStoreError(f"the file has {file.size} bytes, its pages need {needed}", where=file.path)
    candidates: list[Candidate] = []
    notes: dict[str, str] = {}
    trees = _trees(file, database)
    for name, tree in list(trees.items())[:_MOST_DATABASES]:
        candidates += _candidates(file, name, tree, samples, notes)
    if len(trees) > _MOST_DATABASES:
        notes["named databases"] = f"{len(trees)}, of which the first {_MOST_DATABASES} were inspected"
    return FileContent(candidates=candidates, notes=notes)


def _trees(file: PageFile, database: str | None) -> Mapping[str, Tree]:
    """Return the databases to inspect by name."""
    main = file.meta.main
    named: dict[str, Tree] = {}
    if main.leaf_pages <= MOST_LEAVES and not main.flags:
        for nodes in leaves(file, main):
            named |= {key.decode(errors="replace"): tree for key, tree in sub_databases(nodes)}
    if database is None:
        return named or {"": main}
    if database not in named:
        raise UnknownNameError.of("database", database, named, where=str(file.path))
    return {database: named[database]}


def _candidates(
    file: PageFile, name: str, tree: Tree, samples: int, notes: dict[str, str]
) -> Iterator[Candidate]:
    if tree.flags & _DUPLICATES:
        part = SampleSet(
            name=name,
            samples=tree.entries,
            layout="several values per key",
            sample_bytes=None,
            touched_bytes=None,
            unread="databases with several values per key are not read",
        )
        yield Candidate(part=part, source=None)
        return
    if tree.leaf_pages <= MOST_LEAVES and not tree.flags:
        _check_all(file, name, notes)
    entries, complete = _some_entries(file, tree)
    kinds, others = _kinds(entries)
    if others:
        shown = ", ".join(map(_text, others[:_MOST_OTHERS]))
        more = len(others) - _MOST_OTHERS
        notes["other records"] = f"{shown} and {more} more" if more > 0 else shown
    for kind, members in kinds.items():
        share = len(members) / max(1, len(entries))
        whole = len(kinds) == 1 and not others
        yield Candidate(
            part=_part(
                file,
                name if len(kinds) == 1 else f"{name}{'/' if name else ''}{kind}",
                members,
                samples=tree.entries if whole else round(share * tree.entries),
                exact=whole or complete,
            ),
            source=_source(file.path, name, members, samples),
        )


def _check_all(file: PageFile, name: str, notes: dict[str, str]) -> None:
    """Walk a tree of moderate size as a whole, which finds damage anywhere in it, and note what the walk found."""
    start = time.perf_counter()
    index = open_index(file.path, database=name or None, cache=False)
    prefix = f"{name}: " if name else ""
    notes[f"{prefix}page index"] = (
        f"built in {time.perf_counter() - start:.2f} s, {index.nbytes / 1e6:.1f} MB"
    )
    if index.numbered:
        notes[f"{prefix}keys"] = (
            f"the first {index.numbered:,} of {len(index):,} are their own positions in eight digits"
        )


def _part(file: PageFile, name: str, members: list[_Entry], *, samples: int, exact: bool) -> SampleSet:
    page_bytes = file.meta.page_bytes
    offsets = np.array([entry.offset for entry in members], np.int64)
    lengths = np.array([entry.length for entry in members], np.int64)
    pages = -(-(offsets + lengths) // page_bytes) - offsets // page_bytes
    return SampleSet(
        name=name,
        samples=samples,
        exact=exact,
        layout=f"B+-tree of {page_bytes:,}-byte pages",
        sample_bytes=spread(lengths),
        looked_at=None if len(members) == samples else len(members),
        touched_bytes=float(np.median(pages)) * page_bytes if len(members) else 0.0,
    )


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
    if complete and len(level) != tree.leaf_pages:
        raise CorruptStoreError("the tree has more or fewer pages than its record says", where=file.path)
    nodes = file.leaf(np.sort(level))
    if complete and len(nodes) != tree.entries:
        raise CorruptStoreError("the tree has more or fewer entries than its record says", where=file.path)
    places = np.flatnonzero(nodes.flags & (_SUB_DATABASE | _DUPLICATES) == 0)
    if len(places) > _MOST_DRAWN:
        complete = False
        places = np.sort(random_.choice(places, _MOST_DRAWN, replace=False))
    return _entries(file, nodes, places), complete


def _entries(file: PageFile, nodes: Nodes, places: Integers) -> list[_Entry]:
    offsets, lengths, _ = file.values(nodes)
    return [
        _Entry(key=nodes.at(place)[0], offset=int(offsets[place]), length=int(lengths[place]))
        for place in places.tolist()
    ]


def _kinds(entries: list[_Entry]) -> tuple[dict[str, list[_Entry]], list[bytes]]:
    """Divide entries by the pattern of their keys ("image-#", "label-#"), and return the few that fit none.

    If no few patterns cover most of the keys, all entries are of one kind.
    """
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


def _source(path: Path, database: str, members: list[_Entry], samples: int) -> SampleSource | None:
    keys = drawn([entry.key for entry in members], samples)
    if not keys:
        return None
    get_format("lmdb")  # its error says how to install a missing library
    return SampleSource(paths=(path,), open=partial(_opened, path, database), items=keys, maps=True)


@contextmanager
def _opened(path: Path, database: str) -> Iterator[Prepare]:
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
            yield partial(_prepared, path, transaction.get)
    except lmdb.Error as error:
        raise CorruptDataError(f"LMDB cannot read it ({error})", where=path) from error
    finally:
        env.close()


def _prepared(path: Path, get: Callable[[bytes], bytes | None], key: bytes) -> Callable[[], bytes]:
    def read() -> bytes:
        value = get(key)
        if value is None:
            raise CorruptDataError(
                f"LMDB does not find the key {_text(key)!r}, which is in its tree", where=path
            )
        return value

    return read
