"""Find the data sets of an HDF5 file without opening all of them, and describe each."""

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storebench.stores.inspection.candidate import drawn

MOST_OBJECTS = 8192
"""Approximate number of group members to open; beyond it, each opened member represents several."""

WALK_S = 2.0

_MORE_S = 8.0  # until a first data set is found
_LEAST_MEMBERS = 16
_MOST_NAMES = 200_000
_MOST_DEPTH = 32


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """One data set of an open file.

    Attributes
    ----------
    name
        Path in the file, without the leading slash.
    shape
        Its shape; empty for a scalar.
    kind
        Its type in words: numpy's name, "variable-length uint8", "opaque".
    item_bytes
        Bytes of an element; None if its length varies.
    stands_for
        Number of data sets that it represents, itself included.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    item_bytes: int | None
    stands_for: float = 1.0

    @property
    def leaf(self) -> str:
        """The last component of its name."""
        return self.name.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """Its name without the last component."""
        return self.name.rpartition("/")[0]

    @property
    def alike(self) -> tuple[int, int, str]:
        """The properties that data sets of the same kind share: the depth in the file, the number of axes, the type."""
        return self.name.count("/"), len(self.shape), self.kind


@dataclass(kw_only=True)
class Walk:
    """The data sets that a walk found.

    Attributes
    ----------
    found
        Them, in the order of the walk.
    exact
        Whether every member of every group was opened.
    unknown
        Number of data sets whose type numpy does not know.
    unvisited
        Number of groups that were not visited for lack of time.
    elsewhere
        Names of the members that are links to other files, which are not followed.
    """

    found: list[DataSet] = field(default_factory=list)
    exact: bool = True
    unknown: int = 0
    unvisited: int = 0
    elsewhere: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _GroupVisit:
    """A group to visit, and the number of groups that it represents."""

    name: str
    stands_for: float
    depth: int


@dataclass(frozen=True, kw_only=True)
class _Members:
    names: list[str]
    count: int
    elsewhere: list[str]


def walk(file: Any) -> Walk:
    """Visit the groups of an open file by hard links only, for about `WALK_S` seconds.

    Soft and external links are not followed: what they name is in the file anyway, or in another one.
    """
    walked = Walk()
    deadline = time.perf_counter() + WALK_S
    left = MOST_OBJECTS
    seen = {_address(file)}
    waiting: deque[_GroupVisit] = deque([_GroupVisit(name="", stands_for=1.0, depth=0)])
    visited: Counter[int] = Counter()
    while waiting:
        place = waiting.popleft()
        late_s = time.perf_counter() - deadline
        if late_s > (0 if walked.found else _MORE_S):
            _estimate_unvisited(walked, visited, [place, *waiting])
            break
        members = _hard_links(file[place.name or "/"])
        names = sorted(drawn(members.names, max(_LEAST_MEMBERS, left // (len(waiting) + 1))))
        left -= len(names)
        walked.elsewhere += [_path(place, name) for name in members.elsewhere]
        data_sets: list[DataSet] = []
        groups: list[str] = []
        opened = 0
        for name in names:
            path = _path(place, name)
            item = file[path]
            if isinstance(item, h5py.Dataset):
                data_sets += _described(walked, path, item)
            elif isinstance(item, h5py.Group) and place.depth < _MOST_DEPTH and _address(item) not in seen:
                seen.add(_address(item))
                groups.append(path)
            opened += 1
            if opened >= _LEAST_MEMBERS and time.perf_counter() > deadline:
                break
        stands_for = place.stands_for * members.count / max(1, opened)
        walked.exact &= members.count == opened
        visited[place.depth] += 1
        walked.found += [replace(data, stands_for=stands_for) for data in data_sets]
        groups = drawn(groups, len(groups))  # so that those visited in time are a random selection
        waiting += [_GroupVisit(name=path, stands_for=stands_for, depth=place.depth + 1) for path in groups]
    return walked


def _path(place: _GroupVisit, name: str) -> str:
    return f"{place.name}/{name}" if place.name else name


def _estimate_unvisited(walked: Walk, visited: Counter[int], places: Sequence[_GroupVisit]) -> None:
    """Let the data sets of visited groups stand for those of groups as deep that were not visited."""
    left = Counter(place.depth for place in places)
    walked.unvisited = len(places)
    walked.exact = False
    walked.found = [
        replace(data, stands_for=data.stands_for * (1 + left[depth] / max(1, visited[depth])))
        for data in walked.found
        for depth in [data.name.count("/")]
    ]


def _hard_links(group: Any) -> _Members:
    """Return the names of a group's members, at most `_MOST_NAMES` of them, and their number; and its links to other files."""
    names: list[str] = []
    elsewhere: list[str] = []

    def note(name: bytes, info: Any) -> bool | None:
        if info.type in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_EXTERNAL):
            to = names if info.type == h5py.h5l.TYPE_HARD else elsewhere
            to.append(name.decode("utf-8", "surrogateescape"))
        return True if len(names) >= _MOST_NAMES else None

    group.id.links.iterate(note, info=True)
    count = len(names) if len(names) < _MOST_NAMES else max(len(names), group.id.get_num_objs())
    return _Members(names=names, count=count, elsewhere=elsewhere)


def _address(item: Any) -> Any:
    info = h5py.h5o.get_info(item.id)
    return info.addr


def _described(walked: Walk, name: str, data: Any) -> Iterator[DataSet]:
    try:
        kind, item_bytes = _type_of(data.dtype)
    except TypeError:
        walked.unknown += 1
        return
    if data.shape is not None:
        yield DataSet(name=name, shape=data.shape, kind=kind, item_bytes=item_bytes)


def _type_of(dtype: Any) -> tuple[str, int | None]:
    """Return a type in words, and the bytes of an element; None if its length varies."""
    base = h5py.check_vlen_dtype(dtype)
    if base is not None:
        return f"variable-length {'text' if base is str else np.dtype(base)}", None
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return ("variable-length text", None) if text.length is None else ("fixed-length text", text.length)
    if h5py.check_ref_dtype(dtype) is not None:
        return "references", 8
    if dtype.fields is not None:
        records = f"records ({', '.join(dtype.names)})"
        return (f"variable-length {records}", None) if _varies(dtype) else (records, dtype.itemsize)
    if dtype.kind == "V":
        return "opaque", dtype.itemsize
    return str(np.dtype(dtype)), dtype.itemsize


def _varies(dtype: Any) -> bool:
    """Return whether a part of a record has a variable length, however deep it is nested."""
    base = dtype.base
    if base.fields is not None:
        return any(_varies(inner) for inner, *_ in base.fields.values())
    return base.kind == "O" and h5py.check_ref_dtype(base) is None


def open_hdf5(path: Path) -> Any:
    """Open a file for reading, without locks: nothing is written, and read-only file systems have no locks."""
    return h5py.File(path, "r", locking=False)
