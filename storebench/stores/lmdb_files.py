"""The samples in LMDB databases of other programs: random values of the keys whose values have most bytes."""

import itertools
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from storebench.datasets.containers.base import listed
from storebench.datasets.containers.lmdb import key_text, open_lmdb, reading
from storebench.errors import CorruptDataError
from storebench.stores.inspection import Found, Prepare, SampleSet, Setting, Source, drawn

MOST_SCANNED = 20_000  # first records of a database, fewer after `SCAN_S`: samples are drawn from these
SCAN_S = 1.0
MAIN_FRAC = 0.9  # least share of all bytes that makes the records of one pattern of keys the samples

_NAME_RECORD_BYTES = 48


def lmdb_samples(path: Path, samples: int) -> Found | None:
    """Return the records of a database; nothing is written, and no lock file is made."""
    patterns = defaultdict[bytes, dict[bytes, int]](dict)  # the bytes of each value by its key
    with reading(path), open_lmdb(path) as env:
        page_bytes, count = int(env.stat()["psize"]), env.stat()["entries"]
        deadline = time.perf_counter() + SCAN_S
        with env.begin(buffers=True) as transaction:  # views, so that no page of a value is read
            for key, value in itertools.islice(transaction.cursor(), MOST_SCANNED):
                patterns[re.sub(rb"\d+", b"#", bytes(key))][bytes(key)] = len(value)
                if time.perf_counter() > deadline:
                    break
    records = {key: nbytes for members in patterns.values() for key, nbytes in members.items()}
    if not records:
        return None
    if set(records.values()) == {_NAME_RECORD_BYTES}:
        what, hint = "named databases are not read", "Copy one into a file of its own."
        raise CorruptDataError(what, where=path, hint=hint)
    name, members, others = "records", records, ""
    main = max(patterns, key=lambda pattern: sum(patterns[pattern].values()))
    if len(patterns) > 1 and sum(patterns[main].values()) >= MAIN_FRAC * sum(records.values()):
        name, members = key_text(main), patterns[main]
        others = listed([key_text(pattern) for pattern in patterns if pattern != main])
    part = SampleSet(
        name=name,
        samples=round(len(members) / len(records) * count),
        exact=len(records) == count,
        layout=f"B+-tree of {page_bytes:,}-byte pages",
        others=others,
    )
    keys = drawn(list(members), samples)
    source, apart = (
        Source(path=path, open=partial(_reads, path, readahead=readahead), items=keys, maps=True)
        for readahead in (True, False)
    )
    return Found(part, source, [Setting("readahead", "on", "off", apart)])


@contextmanager
def _reads(path: Path, *, readahead: bool) -> Iterator[Prepare]:
    with reading(path), open_lmdb(path, readahead=readahead) as env, env.begin() as transaction:

        def read(key: bytes) -> bytes:
            value: bytes | None = transaction.get(key)
            if value is None:
                what = f"LMDB does not find the key {key_text(key)!r}, which it has listed"
                raise CorruptDataError(what, where=path)
            return value

        yield lambda key: partial(read, key)
