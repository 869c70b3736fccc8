"""Figures of the same stores side by side: in several places of one run, and on several machines."""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from storebench.analysis.comparison import Ratio, Verdict, unpaired
from storebench.analysis.frame import COLUMNS, Round
from storebench.analysis.labels import backend_label, dataset_label, place_words, setting_label
from storebench.analysis.panels import base_rank, paired, rate_ratio
from storebench.analysis.summary import CellSummary, key_without
from storebench.analysis.table import Column, Table, make_table
from storebench.settings.words import LOCAL, CacheState
from storebench.units import Better

_NOTE = (
    "Times the place on the left, paired by round: an epoch has the same samples in the same order everywhere, so a"
    " cold start reads the same share of the store. A read has the bytes of an image, past the page cache."
)

_READS_NOTE = (
    "Times the place on the left, paired by round: random reads of the same samples by the file's own library, without"
    " decoding. Warm reads repeat the cold ones."
)

# Of each figure: metric, the counter that it is divided by, factor, and the better direction.
_FIGURES: dict[str, tuple[str, str, float, Better | None]] = {
    "images/s": ("samples_per_s", "", 1.0, Better.HIGHER),
    "MiB/s": ("payload_bytes_per_s", "", 2.0**-20, Better.HIGHER),
    "device requests/s": ("block_device_reads", "epoch_s", 1.0, None),
    "read p50, µs": ("read_1_p50_s", "", 1e6, Better.LOWER),
    "read p99, µs": ("read_1_p99_s", "", 1e6, Better.LOWER),
    "first batch, ms": ("time_to_first_batch_s", "", 1e3, Better.LOWER),
    "opens/s": ("open_16_per_s", "", 1.0, Better.HIGHER),
}

# Two names, and in each column a figure, its ratio to another, and the verdict.
Row = tuple[str, str, Sequence[tuple[float | None, Ratio | None, str]]]

# The values of each figure, by round.
Figures = Mapping[str, Mapping[Round, float]]

# The cells of each store, by their column.
Stores = dict[str, dict[str, CellSummary]]


def beside(caption: str, of: str, names: Sequence[str], rows: Sequence[Row], *notes: str) -> Table:
    """Return a table with a column per name; parts that no row has are left out."""
    columns = [Column[Row]("store", "store", lambda row: row[0])]
    has_figures = any(part[0] for row in rows for part in row[2])
    for number, name in enumerate(names):
        heads = {
            name: name,
            f"{name}, times": "times" if has_figures else name,
            f"{name}, verdict": "verdict",
        }
        for part, (title, head) in enumerate(heads.items()):

            def value(row: Row, number: int = number, part: int = part) -> Any:
                return row[2][number][part]

            columns += [Column(head, title, value, interval=part == 1)] if any(map(value, rows)) else []
    columns.insert(
        1 if has_figures else len(columns), Column(of, of, lambda row: row[1])
    )  # settings are long
    return make_table("beside", caption, columns, rows, notes=notes)


def _grouped(
    cells: Iterable[CellSummary],
    key: Callable[[CellSummary], Hashable],
    column: Callable[[CellSummary], str],
    order: Callable[[CellSummary], Any],
) -> Iterator[tuple[str, list[str], Stores]]:
    """Yield each setting that has several columns, in words, with these and its cells."""
    settings: dict[Hashable, Stores] = {}
    for cell in cells:
        if cell.counted and not cell.is_null:
            settings.setdefault(key(cell), {}).setdefault(cell.backend, {})[column(cell)] = cell
    for stores in settings.values():
        every = {name: cell for on in stores.values() for name, cell in on.items()}
        names = sorted(every, key=lambda name: order(every[name]))
        cell = every[names[0]]
        words = dataclasses.replace(cell, place="", cell=dataclasses.replace(cell.cell, place=LOCAL))
        if len(names) > 1:
            yield f"{dataset_label(words)}: {setting_label(words)}", names, stores


def _figures(stores: Stores, columns: Sequence[str]) -> Iterator[Row]:
    """Yield a row per figure of each store, compared with the first column."""
    for backend, on in stores.items():
        sound = all(not cell.at_most and cell.doubt in ("", "cold start") for cell in on.values())
        of = [
            {name: _values(on[column], *figure) for name, figure in _FIGURES.items() if column in on}
            for column in columns
        ]
        yield from _rows(backend_label(backend), of, sound=sound)


def _rows(store: str, columns: Iterable[Figures], *, sound: bool = True) -> Iterator[Row]:
    """Yield a row per figure of a store, compared with the first column round by round, where rounds are shared."""
    for name, (*_, better) in _FIGURES.items():
        parts = list[tuple[float | None, Ratio | None, str]]()
        first, *others = (column.get(name, {}) for column in columns)
        for values in (first, *others):
            ratio = None if values is first else paired(values, first, better or Better.HIGHER)
            verdict = str(ratio.verdict if sound else Verdict.UNDECIDED) if ratio and better else ""
            if values and first and not first.keys() & values.keys():
                ratio, verdict = unpaired([*first.values()], [*values.values()]), "different machines"
            parts.append((statistics.median(values.values()) if values else None, ratio, verdict))
        if first or any(others):
            yield store, name, parts


def _values(cell: CellSummary, metric: str, per: str, factor: float, _: Better | None) -> dict[Round, float]:
    """Return a figure by round; single requests count in the round of their measurement, which others repeat."""
    if metric in COLUMNS:
        values = cell.rounds_per(metric, per) if per else cell.values(metric)
    else:
        singles = [(row.record.ceilings.single_requests, row.round) for row in reversed(cell.counted)]
        first = {single[metric]: key for single, key in singles if metric in single}
        values = {key: value for value, key in first.items()}
    return {key: value * factor for key, value in values.items()}


def place_tables(cells: Iterable[CellSummary], given: Sequence[str]) -> list[Table]:
    """Return a table for each setting that was measured in several places: the local disk, then those in `given`."""

    def where(cell: CellSummary) -> str:
        place = cell.cell.place
        return place_words(place) if place.kind else f"{place} ({cell.fact('filesystem')})"

    def order(cell: CellSummary) -> tuple[bool, int]:
        return cell.cell.place != LOCAL, given.index(cell.cell.place)

    groups = _grouped(
        cells, lambda cell: (cell.machine, *key_without(cell, "backend", "place")[1:]), where, order
    )
    return [
        beside(f"{words}. Places", "figure", names, [*_figures(on, names)], _NOTE)
        for words, names, on in groups
    ]


def file_tables(kind: str, measured: Mapping[CacheState, Mapping[str, Figures]]) -> list[Table]:
    """Return a table for each cache state in which a file was read in several places."""
    return [
        beside(f"{kind}, {state}. Places", "figure", [*on], [*_rows(kind, on.values())], _READS_NOTE)
        for state, on in measured.items()
        if len(on) > 1
    ]


def alike(cell: CellSummary) -> tuple[Any, ...]:
    """Return a setting on any machine, where a folder of images may have another path."""
    return *(Path(str(value)).name for value in cell.dataset_key[1:]), cell.fact("store_count"), cell.setting


def machine_tables(cells: Sequence[CellSummary]) -> tuple[str, list[Table]]:
    """Return the ranks of stores that change between machines, and the tables; "" and none unless there are several."""
    machine = attrgetter("machine")
    machines = sorted(set(map(machine, cells)))
    rates, within, changed = list[Table](), list[Row](), list[str]()
    for setting, names, stores in _grouped(cells, alike, machine, machine):
        rates.append(beside(f"{setting}. Different machines", "figure", names, [*_figures(stores, names)]))
        ranked = sorted(stores, key=lambda name: min(map(base_rank, stores[name].values())))
        for bottom, top in itertools.combinations(ranked, 2):
            sides = [(stores[top].get(name), stores[bottom].get(name)) for name in machines]
            ratios = [rate_ratio(cell, base) if cell and base else None for cell, base in sides]
            parts = [(None, ratio, str(ratio.verdict) if ratio else "") for ratio in ratios]
            row = f"{backend_label(top)} over {backend_label(bottom)}", setting, parts
            if {Verdict.FASTER, Verdict.SLOWER} <= {ratio.verdict for ratio in ratios if ratio}:
                within.insert(len(changed), row)
                changed.append(row[0])
            elif bottom == ranked[0]:
                within.append(row)
    if not rates:
        return "", []
    names = list(dict.fromkeys(changed))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    told = f"Ranks change: {names[0]}{more}. " if names else "No decided rank changes. "
    ratios_within = beside("Ratios within each machine, changed ranks first", "setting", machines, within)
    return told, [ratios_within, _differences(cells), *rates]


def _differences(cells: Iterable[CellSummary]) -> Table:
    """Return the facts in which the machines differ."""
    machines = {row.machine: row.environment for cell in cells for row in cell.rows if row.environment}
    facts = [{**known.match, "host": known.notes.get("host")} for known in machines.values()]
    frame = pd.json_normalize(facts, sep=", ").astype(str).T
    lines = tuple(line for line in frame.itertuples(name=None) if len({*line[1:]}) > 1)
    head = ("fact", *machines)
    return Table(caption="What differs", head=head, rows=lines, raw_head=head, raw=lines)
