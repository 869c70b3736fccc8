"""Labels that distinguish sets of samples of one name: how they were drawn, and the place where they were read."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from storebench.report.states import EpochRow
from storebench.results import DATA_FIELDS

DATASET_COLUMNS = tuple(DATA_FIELDS)
"""Fields of a cell that determine its samples."""

_PLACE_WORDS = {
    "filesystem": "on {}",
    "storage_device": "device {}",
    "machine_readahead_kib": "read-ahead {} KiB",
    "environment_key": "machine {}",
}
_SAMPLE_WORDS = {
    "dataset": "from {}",
    "size": "grown to {}",
    "limit": "the first {}",
    "data_seed": "data seed {}",
    "synthetic": "synthetic: {}",
    "image_size": "at {} pixels a side",
    "skip_unreadable": "unreadable files left out: {}",
}
"""Column -> the words by which it distinguishes samples, or the place where they were read."""

Key = tuple[Any, ...]


def data_key(row: EpochRow) -> Key:
    """Return a key of the machine and of the fields that determine the samples."""
    return (row["environment_key"], *(row[name] for name in DATASET_COLUMNS))


def distinctions(rows: Iterable[EpochRow]) -> dict[Key, str]:
    """Return for each `data_key` the words that distinguish it from others of the same name, or "".

    The fewest words that do: first how the samples were drawn, then the file system, the device, its read-ahead,
    and where all these are equal the machine's key.
    """
    sources = {data_key(row): row for row in rows}
    samples = _distinguished(sources, _name, _SAMPLE_WORDS)
    places = _distinguished(sources, lambda _: "", _PLACE_WORDS, by="environment_key")
    return {key: ", ".join(word for word in (samples[key], places[key]) if word) for key in sources}


def _name(row: EpochRow) -> Key:
    """Return the name of a dataset and the machine that read it."""
    count = min((number for number in (row["size"], row["limit"]) if number), default=None)
    return (Path(row["dataset"]).name, row["split"], count, row["environment_key"])


def _distinguished(
    sources: Mapping[Key, EpochRow], name: Any, words: Mapping[str, str], *, by: str | None = None
) -> dict[Key, str]:
    """Return for each key the words of the first columns that distinguish it; `by` is the column to be distinguished."""
    groups: dict[Any, list[Key]] = {}
    for key, row in sources.items():
        groups.setdefault(name(row), []).append(key)
    words_of: dict[Key, str] = {}
    for keys in groups.values():
        kinds = {key: sources[key][by] if by else key for key in keys}
        columns = _needed([sources[key] for key in keys], list(kinds.values()), list(words))
        for key in keys:
            values = {column: sources[key][column] for column in columns}
            words_of[key] = ", ".join(words[c].format(v) for c, v in values.items() if v is not None)
    return words_of


def _needed(rows: Sequence[EpochRow], kinds: Sequence[Any], columns: Sequence[str]) -> list[str]:
    """Return the fewest of the columns, in order, whose values distinguish rows of different kinds."""
    chosen: list[str] = []
    wanted = len(set(kinds))
    for column in columns:
        if _groups(rows, kinds, chosen) == wanted:
            break
        if len({row[column] for row in rows}) > 1:
            chosen.append(column)
    return chosen


def _groups(rows: Sequence[EpochRow], kinds: Sequence[Any], columns: Sequence[str]) -> int:
    """Return the number of kinds whose values in these columns no other kind has."""
    values = {(kind, tuple(row[column] for column in columns)) for row, kind in zip(rows, kinds, strict=True)}
    shared = Counter(value for _, value in values)
    return sum(1 for _, value in values if shared[value] == 1)
