"""What stores ask of a storage system and what they get: bytes, requests, amplification and waits, by number of readers."""

from collections.abc import Callable, Sequence
from typing import Any

from storebench.report.cells import CellSummary, backend_rank, key_without, varying_fields
from storebench.report.labels import (
    backend_label,
    condition_label,
    dataset_label,
    duration,
    number,
    setting_label,
)
from storebench.report.tables import REQUESTS_NOTE, Table
from storebench.settings.words import ComputeKind
from storebench.units import number_of

TOO_SHORT = "too short: too few steps in the requested state; use --size {size}."
FAILED = "failed: 'storebench validate' and the log of the run say why."
UNSOUND = "invalid: the figures do not validate; 'storebench validate' says why."


def _median(metric: str, factor: float = 1.0) -> Callable[[CellSummary], float | None]:
    def figure(cell: CellSummary) -> float | None:
        value = cell.median(metric)
        return None if value is None else value * factor

    return figure


FIGURES: tuple[tuple[str, Callable[[CellSummary], float | None], Callable[[Any], str]], ...] = (
    ("MiB/s of payload", _median("payload_bytes_per_s", 2.0**-20), number),
    ("requests/s", lambda cell: cell.requests_per_s, number),
    ("read amplification", _median("read_amplification"), number),
    ("p50 of a batch's wait", _median("data_wait_p50_ns", 1e-9), duration),
    ("p99 of a batch's wait", _median("data_wait_p99_ns", 1e-9), duration),
)
"""Head, figure and text of each column or row."""


def storage_tables(cells: Sequence[CellSummary]) -> list[Table]:
    """Return a table for each dataset and state in which stores were only loaded; none if a cell computes."""
    if any(cell.cell.compute.kind is not ComputeKind.NONE for cell in cells):
        return []
    groups: dict[tuple[Any, ...], list[CellSummary]] = {}
    for cell in cells:
        if not cell.is_null:
            groups.setdefault(key_without(cell, "backend", "workers"), []).append(cell)
    varying = varying_fields(group[0] for group in groups.values())
    labels = [
        setting_label(group[0], varying, without=("cache", "workers")).split(", ")
        for group in groups.values()
    ]
    apart = [[word for word in own if not all(word in other for other in labels)] for own in labels]
    return [_table(group, words) for group, words in zip(groups.values(), apart, strict=True)]


def _table(cells: Sequence[CellSummary], apart: Sequence[str]) -> Table:
    """Return a row per store, or per store and figure with a column per number of readers if several were measured."""
    counts = sorted({cell.cell.workers for cell in cells})
    stores = sorted({cell.backend for cell in cells}, key=backend_rank)
    by = {(cell.backend, cell.cell.workers): cell for cell in cells}
    readers = [number_of(count, "worker") if count else "no workers" for count in counts]
    caption = ", ".join([dataset_label(cells[0]), condition_label(cells[0]), *apart])
    if len(counts) == 1:
        head = ["store", *(name for name, _, _ in FIGURES)]
        rows = [
            (backend_label(store), *(_shown(by[store, counts[0]], n) for n in range(len(FIGURES))))
            for store in stores
        ]
        caption += f", {readers[0]}"
    else:
        head = ["store", "figure", *readers]
        rows = [
            (
                backend_label(store) if n == 0 else "",
                name,
                *(_shown(by.get((store, count)), n) for count in counts),
            )
            for store in stores
            for n, (name, _, _) in enumerate(FIGURES)
        ]
    missing = {_missing(cell) for cell in cells}
    more = 2 * max((int(cell.fact("store_count") or 0) for cell in cells), default=0)
    words = {"failed": FAILED, "invalid": UNSOUND, "too short": TOO_SHORT.format(size=more)}
    notes = (REQUESTS_NOTE, *(text for word, text in words.items() if word in missing))
    return Table(caption=caption, head=tuple(head), rows=tuple(rows), notes=notes)


def _shown(cell: CellSummary | None, figure: int) -> str:
    if cell is None:
        return ""
    _, value, text = FIGURES[figure]
    missing = _missing(cell)
    if missing:
        return missing if figure == 0 else ""
    return text(value(cell))


def _missing(cell: CellSummary) -> str:
    """Return the short word for the reason why a cell has no figures; "" if it has."""
    if not cell.usable:
        return "failed"
    if cell.invalid:
        return "invalid"
    return "" if cell.median("payload_bytes_per_s") else "too short"
