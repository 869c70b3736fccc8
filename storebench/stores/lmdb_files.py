"""The samples in LMDB databases of other programs: random values of the keys whose values have most bytes."""

import itertools
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from storebench.datasets.containers.base import listed
from storebench.datasets.containers.lmdb import key_text, open_lmdb, reading
from storebench.errors import CorruptDataError
from storebench.stores.random_reads import (
    FileSamples,
    Prepare,
    SampleSet,
    Source,
    Trial,
    TriedSetting,
    cold_reads,
    drawn,
    spread,
)

MOST_SCANNED = 20_000  # first records of a database, fewer after `SCAN_S`: samples are drawn from these
SCAN_S = 1.0
COLD_S = 1.0  # for reading with read-ahead, and without
MAIN_FRAC = 0.9  # least share of all bytes that makes the records of one pattern of keys the samples

_NAME_RECORD_BYTES, _PAGE_HEADER_BYTES = 48, 16

KeyLength = tuple[bytes, int]  # a key, and the bytes of its value


def lmdb_samples(path: Path, samples: int) -> FileSamples | None:
    """Return the records of a database; nothing is written, and no lock file is made."""
    patterns: defaultdict[bytes, list[KeyLength]] = defaultdict(list)
    with reading(path), open_lmdb(path) as env:
        page_bytes, count = int(env.stat()["psize"]), env.stat()["entries"]
        deadline = time.perf_counter() + SCAN_S
        with env.begin(buffers=True) as transaction:  # views, so that no page of a value is read
            for key, value in itertools.islice(transaction.cursor(), MOST_SCANNED):
                patterns[re.sub(rb"\d+", b"#", bytes(key))].append((bytes(key), len(value)))
                if time.perf_counter() > deadline:
                    break
    records = list(itertools.chain.from_iterable(patterns.values()))
    if not records:
        return None
    if {length for _, length in records} == {_NAME_RECORD_BYTES}:
        what, hint = "named databases are not read", "Copy one into a file of its own."
        raise CorruptDataError(what, where=path, hint=hint)
    name, members, notes = "records", records, dict[str, str]()
    main = max(patterns, key=lambda pattern: _weight(patterns[pattern]))
    if len(patterns) > 1 and _weight(patterns[main]) >= MAIN_FRAC * _weight(records):
        name, members = key_text(main), patterns[main]
        notes["other records"] = listed([key_text(pattern) for pattern in patterns if pattern != main])
    lengths = spread([length for _, length in members])
    part = SampleSet(
        name=name,
        samples=round(len(members) / len(records) * count),
        exact=len(records) == count,
        layout=f"B+-tree of {page_bytes:,}-byte pages",
        sample_bytes=lengths,
        # The pages of a value: those of its own, or the leaf that it lies in.
        touched_bytes=-(-(_PAGE_HEADER_BYTES + lengths[1]) // page_bytes) * page_bytes,
    )
    keys = drawn([key for key, _ in members], samples)
    source = Source(path=path, open=partial(_reads, path), items=keys, maps=True)
    return FileSamples(part=part, source=source if keys else None, settings=_settings, notes=notes)


def _weight(records: Sequence[KeyLength]) -> int:
    return sum(length for _, length in records)


def _settings(source: Source, folder: Path) -> Iterator[TriedSetting | Trial]:  # noqa: ARG001 - nothing is copied
    def way(value: str, **options: bool) -> Source:
        return replace(source, value=value, open=partial(_reads, source.path, **options))

    on, off = (cold_reads(way("", readahead=readahead), COLD_S).median_s for readahead in (True, False))
    if on and off:
        gain = "as fast, larger than memory"  # each read finds the file evicted
        yield Trial(setting="readahead", now="on", tried="off", factor=on / off, gain=gain)
    yield TriedSetting(name="samples per transaction", now=way("1", each=True), tried=way("all"))


@contextmanager
def _reads(path: Path, *, readahead: bool = True, each: bool = False) -> Iterator[Prepare]:
    """Yield what prepares the read of a key, in one transaction or `each` in its own."""
    with reading(path), open_lmdb(path, readahead=readahead) as env, env.begin() as transaction:

        def read(key: bytes) -> bytes:
            with env.begin() if each else nullcontext(transaction) as reader:
                value: bytes | None = reader.get(key)
            if value is None:
                what = f"LMDB does not find the key {key_text(key)!r}, which it has listed"
                raise CorruptDataError(what, where=path)
            return value

        yield lambda key: partial(read, key)
