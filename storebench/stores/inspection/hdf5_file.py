"""HDF5: which of its data sets hold samples, one by one or many alike, and random reads of them."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from storebench.stores.inspection.candidate import Candidate, FileContent, drawn, spread
from storebench.stores.inspection.findings import SampleSet
from storebench.stores.inspection.hdf5_layout import (
    blob_spans,
    describe_blob,
    describe_collection,
    describe_rows,
    reference_bytes,
    unreadable,
)
from storebench.stores.inspection.hdf5_reads import SampleLocation, decompress_seconds, h5_errors, open_reads
from storebench.stores.inspection.hdf5_walk import WALK_S, DataSet, open_hdf5, walk
from storebench.stores.inspection.measure import SampleSource

MANY = 16
"""So many alike data sets are samples, one per data set; fewer are looked at one by one."""

LEAST_ITEM_BYTES = 17
"""Shorter elements of a data set with one axis are numbers, such as labels and offsets."""

MOST_SAMPLE_BYTES = 64 << 20
"""Larger samples are not read."""

_ROWS_OF_COLLECTION = 4
_FEW_NAMES = 8
_MOST_OTHERS = 6


def find_hdf5(path: Path, *, samples: int) -> FileContent:
    """Return the data sets of a file that hold samples, and a note on the others.

    Parameters
    ----------
    path
        The file.
    samples
        Number of random samples to read per part.

    Raises
    ------
    CorruptDataError
        HDF5 cannot read it.
    """
    with h5_errors(path), open_hdf5(path) as file:
        walked = walk(file)
        finder = _Finder(path, file, walked.found, samples)
        for alike in _alike(walked.found):
            if len(alike) > 1 and sum(data.stands_for for data in alike) >= MANY:
                finder.add_many(alike, exact=walked.exact)
            else:
                for data in alike:
                    finder.add(data)
    notes = {}
    if finder.others:
        notes["other data sets"] = _listed(finder.others)
    if walked.elsewhere:
        notes["in other files"] = (
            f"{_some(walked.elsewhere)}; links to other files are not followed: inspect those files"
        )
    if walked.unknown:
        notes["unknown types"] = f"{walked.unknown} data sets have a type that numpy does not know"
    if walked.unvisited:
        notes["groups"] = (
            f"{walked.unvisited} were not visited within {WALK_S:.0f} s; they count as the others on average"
        )
    return FileContent(candidates=finder.candidates, notes=notes)


class _Finder:
    """Sort the data sets of an open file into parts and others."""

    def __init__(self, path: Path, file: Any, data_sets: Sequence[DataSet], samples: int) -> None:
        self.candidates: list[Candidate] = []
        self.others: list[DataSet] = []
        self._path = path
        self._file = file
        self._found = data_sets
        self._samples = samples

    def add(self, data: DataSet) -> None:
        """Add a data set whose first axis counts samples; without one, or of single numbers, it is none of them."""
        if not data.shape or 0 in data.shape:
            self.others.append(data)
        elif data.item_bytes is not None and _sample_bytes(data, rows=True) < LEAST_ITEM_BYTES:
            self._add_blob(data)
        else:
            opened = self._file[data.name]
            rows = drawn(range(data.shape[0]), self._samples)
            items = [SampleLocation(name=data.name, start=row) for row in rows]
            referenced_bytes = reference_bytes(opened) if data.item_bytes is None else 0.0
            self._add(describe_rows(self._path, data, opened), opened, items, beside_bytes=referenced_bytes)

    def _add_blob(self, data: DataSet) -> None:
        """Add a data set of bytes that another one beside it divides into samples."""
        opened = self._file[data.name]
        for other in self._found if data.item_bytes == 1 and len(data.shape) == 1 else ():
            if other.folder != data.folder or other.name == data.name or not _may_be_offsets(other):
                continue
            spans = blob_spans(opened, self._file[other.name], self._samples)
            if spans is not None:
                items = [
                    SampleLocation(name=data.name, start=start, stop=stop)
                    for start, stop in spans.items[: self._samples]
                    if stop - start <= MOST_SAMPLE_BYTES
                ]
                self._add(describe_blob(self._path, data, other, opened, spans.sizes), opened, items)
                return
        self.others.append(data)

    def add_many(self, alike: Sequence[DataSet], *, exact: bool) -> None:
        """Add many alike data sets as one part: each is a sample, or, with four axes or more, a run of samples."""
        if _are_numbers(alike):
            self.others.append(replace(alike[0], name=_pattern(alike)))
            return
        rows = len(alike[0].shape) >= _ROWS_OF_COLLECTION
        some = [data for data in drawn(alike, max(MANY, self._samples)) if 0 not in data.shape]
        if not some:
            self.others.append(replace(alike[0], name=_pattern(alike)))
            return
        members = [(data, self._file[data.name]) for data in some[:MANY]]
        count = sum((data.shape[0] if rows else 1) * data.stands_for for data in alike)
        part = describe_collection(_pattern(alike), members, rows=rows)
        if part.sample_bytes is not None:  # the size of each is known from its shape
            known = [data for data in alike if 0 not in data.shape]
            whole = exact and all(data.stands_for == 1 for data in known)
            sizes = [_sample_bytes(data, rows=rows) for data in known]
            part = replace(part, sample_bytes=spread(sizes), looked_at=None if whole else len(sizes))
        part = replace(part, samples=round(count), exact=exact)
        items = [
            SampleLocation(name=data.name, start=drawn(range(data.shape[0]), 1)[0] if rows else None)
            for data in some[: self._samples]
            if _sample_bytes(data, rows=rows) <= MOST_SAMPLE_BYTES
        ]
        self._add(part, members[0][1], items)

    def _add(
        self, part: SampleSet, opened: Any, items: Sequence[SampleLocation], *, beside_bytes: float = 0.0
    ) -> None:
        why = unreadable(opened) or _too_large(part.sample_bytes)
        source = None
        if items and not why:
            source = SampleSource(
                paths=(self._path,), open=partial(open_reads, self._path), items=items, maps=False
            )
        candidate = Candidate(
            part=replace(part, unread=why),
            source=source,
            beside_bytes=beside_bytes,
            # Values of varying length are never compressed, only the references to them.
            decompress=partial(decompress_seconds, self._path, items) if part.sample_bytes else None,
        )
        self.candidates.append(candidate)


def _alike(data_sets: Sequence[DataSet]) -> Iterator[list[DataSet]]:
    """Yield groups of data sets that differ in name only."""
    groups: defaultdict[object, list[DataSet]] = defaultdict(list)
    for data in data_sets:
        groups[data.alike].append(data)
    for members in groups.values():
        leaves = Counter(data.leaf for data in members)
        # Few names, many times each: a group per sample, such as 0001/image and 0001/mask. Many names are images, which
        # may have the same names in each class.
        if 1 < len(leaves) <= _FEW_NAMES and len(leaves) * MANY <= len(members):
            for leaf in leaves:
                yield [data for data in members if data.leaf == leaf]
        else:
            yield members


def _may_be_offsets(data: DataSet) -> bool:
    return len(data.shape) == 1 and data.kind in ("int32", "int64", "uint32", "uint64")


def _are_numbers(alike: Sequence[DataSet]) -> bool:
    """Return whether data sets are single numbers, or the columns of a table, and not samples."""
    if alike[0].item_bytes is None:
        return False
    if max(_sample_bytes(data, rows=False) for data in alike) < LEAST_ITEM_BYTES:
        return True
    lengths = {data.shape for data in alike}
    return len(alike[0].shape) == 1 and 1 < alike[0].item_bytes < LEAST_ITEM_BYTES and len(lengths) == 1


def _sample_bytes(data: DataSet, *, rows: bool) -> int:
    return math.prod(data.shape[1:] if rows else data.shape) * (data.item_bytes or 0)


def _pattern(alike: Sequence[DataSet]) -> str:
    """Return the common pattern of names, with a star for each component that differs."""
    columns = zip(*(data.name.split("/") for data in alike), strict=True)
    return "/".join(parts[0] if len(set(parts)) == 1 else "*" for parts in columns)


def _too_large(sizes: tuple[int, int, int] | None) -> str:
    if sizes is None or sizes[1] <= MOST_SAMPLE_BYTES:
        return ""
    return f"a sample has {sizes[1] / 1e6:,.0f} MB; samples of up to {MOST_SAMPLE_BYTES >> 20} MiB are read"


def _listed(others: Sequence[DataSet]) -> str:
    return _some([f"{data.name} ({'x'.join(map(str, data.shape)) or 'one'} {data.kind})" for data in others])


def _some(words: Sequence[str]) -> str:
    more = len(words) - _MOST_OTHERS
    return ", ".join(words[:_MOST_OTHERS]) + (f" and {more} more" if more > 0 else "")
