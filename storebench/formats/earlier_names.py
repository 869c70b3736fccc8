"""Backends as earlier releases named them: records and runs of those releases count as the same cells.

A release may rename a reader's options, and may turn an option into a reader of its own. A cell's identity is made of
those names, so they are brought up to date when a record or a run is read; files stay as they are. A person who
writes a backend may use the old names of options, too (`storebench.formats.options.Option.alias`).
"""

from collections.abc import Mapping
from typing import Any

from storebench.formats.lmdb.ladder import LmdbDirectOptions
from storebench.formats.options import Options
from storebench.formats.reads.policy import ReadPolicy
from storebench.results import CELL_FIELDS, Cell

_OPTIONS: Mapping[tuple[str, str], type[Options]] = {
    ("lmdb", "direct"): LmdbDirectOptions,
    ("hdf5", "direct"): ReadPolicy,
}
"""(format, reader) -> the options that had their aliases as names."""

_SHARED = "lmm"
"""The option of lmdb:direct that is now the reader lmdb:shared."""

_Pairs = list[tuple[str, str]]


def renamed_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a cell with its backend as this release names it.

    Parameters
    ----------
    cell
        The flat fields of a cell as JSON has them. Values that no cell can have are returned as they are.
    """
    named = dict(cell)
    words = [named.get(name) for name in ("format", "reader", "backend")]
    options = named.get("reader_options")
    if not all(isinstance(word, str) for word in words) or not options or not _are_pairs(options):
        return named
    container, reader, backend = map(str, words)
    reader, pairs = _renamed(container, reader, [(name, value) for name, value in options])
    named |= {"reader": reader, "reader_options": [list(pair) for pair in pairs]}
    return named | {"backend": renamed_backend(backend)}


def renamed_cell_and_id(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a cell and its ``cell_id``; the id is computed again if the backend has another name now.

    Parameters
    ----------
    cell
        The flat fields of a cell and its ``cell_id``, as JSON has them.
    """
    named = renamed_cell(cell)
    if named.get("backend") == cell.get("backend"):
        return dict(cell)
    try:
        identity = Cell.of_fields(
            **{name: value for name, value in named.items() if name in CELL_FIELDS}
        ).cell_id
    except TypeError:
        return dict(cell)  # it lacks a field, so it is not a cell of any release
    return named | {"cell_id": identity}


def renamed_backend(text: str) -> str:
    """Return a backend's name as this release writes it; return any other text unchanged."""
    body, mark, tail = text.partition("?")
    container, _, reader = body.partition(":")
    pairs = [pair.partition("=") for pair in tail.split(",")]
    if not mark or not all(separator for _, separator, _ in pairs):
        return text
    name, options = _renamed(container.partition("+")[0], reader, [(key, value) for key, _, value in pairs])
    body = f"{container}:{name}" if name else container
    return f"{body}?{','.join(f'{key}={value}' for key, value in options)}" if options else body


def _renamed(container: str, reader: str, given: _Pairs) -> tuple[str, _Pairs]:
    """Return a reader's name and its options with current names, the options sorted by name."""
    options_type = _OPTIONS.get((container, reader))
    if options_type is None:
        return reader, given
    pairs = [(name, value) for name, value in given if name != _SHARED]
    if (_SHARED, "on") in given:
        reader = "shared"
    names = {row.alias: row.name for row in options_type.rows().values() if row.alias}
    return reader, sorted((names.get(name, name), value) for name, value in pairs)


def _are_pairs(options: object) -> bool:
    return isinstance(options, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(word, str) for word in pair)
        for pair in options
    )
