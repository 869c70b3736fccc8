"""Tables of results: rows of text and of raw values, as Markdown and CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from storebench.plain_text import csv_cell, markdown
from storebench.report.cells import CellSummary
from storebench.report.decisions import Decision
from storebench.report.facts import Facts
from storebench.report.frame import PLACE_COLUMNS
from storebench.report.intervals import Estimate
from storebench.report.panels import Panel
from storebench.report.texts.caveats import caveats
from storebench.report.texts.labels import (
    BRACKETS,
    SIMULTANEOUS,
    SINGLE,
    backend_label,
    dataset_label,
    duration,
    number,
    panel_label,
    percent,
    size,
    with_family,
    with_interval,
)
from storebench.report.texts.notes import cache_notes
from storebench.report.texts.verdicts import decision_words, told_ratio, verdict_notes
from storebench.results import COLD_SHARES
from storebench.settings.words import CacheState
from storebench.units import number_of

MOST_TABLES = 40
"""Tables of one dataset on the page or the terminal; a matrix of hundreds of settings is read from the CSV files."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table for people (`rows`) and for programs (`raw`).

    Attributes
    ----------
    caption
        Content and conditions of the table, including caveats.
    head, rows
        Column titles and cells, as text.
    raw_head, raw
        Column names with units, and values; missing ones are None.
    marks
        For each row why it must not be read like the others ("FAILED: ..."), or "".
    notes
        Sentences that belong beside the table, such as what its cache state means.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    raw_head: tuple[str, ...]
    raw: tuple[tuple[Any, ...], ...]
    marks: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())

    def to_markdown(self) -> str:
        """Return the table as Markdown, its caption above."""
        lines = [self.head, ("---", *("---:" for _ in self.head[1:])), *self.rows]
        body = "\n".join("| " + " | ".join(map(markdown, line)) + " |" for line in lines)
        notes = "".join(f"- {markdown(note)}\n" for note in self.notes)
        return f"**{markdown(self.caption)}**\n\n{body}\n" + (f"\n{notes}" if notes else "")


def to_csv(tables: Sequence[Table]) -> str:
    """Return the raw values of tables of one kind as comma-separated text with one header; None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(tables[0].raw_head)
    for table in tables:
        writer.writerows(map(_csv_value, line) for line in table.raw)
    return text.getvalue()


def _csv_value(value: Any) -> Any:
    if value is None:
        return ""
    return csv_cell(value) if isinstance(value, str) else value


RAW_HEAD = (
    "setting", "cache", "workers", "backend", "samples_per_s", "samples_per_s_lo", "samples_per_s_hi",
    "time_ratio", "time_ratio_lo", "time_ratio_hi", "data_wait_frac", "verdict", "bytes_on_disk", "build_s",
    "replicates", "cache_verdict", "status", "cell_id",
    "state", "upper_bound", "whole_samples_per_s", "base", "compared", "cpu_s_per_sample", "cores_used",
    "compute_inflation", "compute_inflation_lo", "compute_inflation_hi", "memory_bytes", "readahead_kib",
    "filesystem", "storage_device", "environment_key", "unsteady_replicates",
    *(f"cold_{share:.0%}_samples_per_s".replace("%", "_percent") for share in COLD_SHARES),
)  # fmt: skip

_WITHIN = "Within this run"


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """One cell of a table with the decisions about it."""

    cell: CellSummary
    panel: Panel
    facts: Facts

    @property
    def against(self) -> Decision | None:
        """The decision on this cell against the panel's base; None for the base itself and for the null cell."""
        base = self.panel.base
        if base is None or base is self.cell or self.cell.is_null:
            return None
        return self.facts.decisions.between(self.cell, base)

    @property
    def inflation(self) -> Estimate | None:
        """The network's computing time beside this cell, as a multiple of that with nothing to load; None if not measured."""
        decision = self.facts.decisions.inflation(self.cell)
        return decision.ratio if decision else None

    @property
    def bound(self) -> str:
        """The limit of the cell in words; "" if it is unknown."""
        verdict = self.facts.verdicts.get(self.cell.key)
        return str(verdict.bound) if verdict else ""

    @property
    def is_base(self) -> bool:
        """Whether the others are compared with this cell."""
        return self.cell is self.panel.base


def _speed(entry: _Listed) -> str:
    if entry.cell.is_null:
        return "the ceiling"
    if entry.is_base:
        return "1.00"
    return "no ratio" if entry.against is None else told_ratio(entry.against) or "no ratio"


def _compared(entry: _Listed) -> str:
    if entry.is_base:
        return "base"
    return "not compared" if entry.against is None else decision_words(entry.against)


def _rate(entry: _Listed) -> str:
    text = with_interval(entry.cell.interval("samples_per_s"))
    if not text:
        return no_rate(entry.cell)
    return f"at most {text}" if entry.cell.at_most else text


def no_rate(cell: CellSummary) -> str:
    """Return in a few words why a cell has no rate."""
    if not cell.usable:
        return "failed"
    return "not steady" if cell.whole_only else "too short"


def _kept(entry: _Listed, text: str) -> str:
    # The null cell borrows another backend's store and has none itself.
    return "" if entry.cell.is_null else text


_COLUMNS: tuple[tuple[str, Callable[[_Listed], str]], ...] = (
    ("samples/s", _rate),
    ("whole epoch", lambda entry: with_interval(entry.cell.interval("whole_samples_per_s"))),
    ("times as fast as {base}", _speed),
    ("verdict", _compared),
    ("data wait", lambda entry: percent(entry.cell.median("data_wait_frac"))),
    ("CPU per sample", lambda entry: duration(entry.cell.median("whole_cpu_s_per_sample"))),
    ("cores", lambda entry: number(entry.cell.median("whole_cores_used"), 2)),
    ("compute inflation", lambda entry: with_interval(entry.inflation)),
    ("limit", lambda entry: entry.bound.removesuffix("-bound")),
    ("size on disk", lambda entry: _kept(entry, size(entry.cell.fact("bytes_on_disk")))),
    ("build", lambda entry: _kept(entry, duration(entry.cell.fact("build_s")))),
)
"""Head of a column, and its text for one cell; a column that is empty for every cell of a table is left out."""

_FAMILIES = {"times as fast as {base}": SIMULTANEOUS, "compute inflation": SIMULTANEOUS}
"""Head of a column -> the family of its intervals; those of all others are single."""

_ALWAYS = ("samples/s", "data wait", "limit", "size on disk", "build")
_STORE = ("size on disk", "build")
_RATES = ("samples/s", "whole epoch")


def panel_table(panel: Panel, facts: Facts) -> Table:
    """Return the table of one panel: every backend under the same conditions.

    Parameters
    ----------
    panel
        The cells to list.
    facts
        The facts of the dataset: every ratio and verdict of the table is one of its decisions, and the caption names the fields
        of a setting that differ between its cells.
    """
    setting = panel_label(panel, facts.varying)
    caption_sentences = [
        f"{dataset_label(panel.first)}: {setting}",
        *caveats(panel.cells, setting),
        *_unsteady(panel),
        _WITHIN,
    ]
    caption = ". ".join(caption_sentences)
    listed = [_Listed(cell=cell, panel=panel, facts=facts) for cell in panel.listed]
    compared = [entry.against for entry in listed if entry.against is not None]
    shown = [(head, text) for head, text in _COLUMNS if _is_shown(head, text, panel, listed)]
    base = backend_label(panel.base.backend) if panel.base else ""
    rows = tuple(_row(entry, shown) for entry in listed)
    heads = (
        with_family(head.format(base=base), (row[place] for row in rows), _FAMILIES.get(head, SINGLE))
        for place, (head, _) in enumerate(shown, start=1)
    )
    return Table(
        caption=caption,
        head=("backend", *heads),
        rows=rows,
        raw_head=RAW_HEAD,
        raw=tuple(_raw(entry, setting) for entry in listed),
        marks=tuple(mark(cell) for cell in panel.listed),
        notes=(*verdict_notes(facts.decisions, compared), *cache_notes(panel.cells)),
    )


_WARMED = 0.1
"""A rate is no cold one if the resident share of the store exceeded the requested one by more."""

_COLD_NOTE = (
    "A rate with a resident share beside it is no cold one: more of the store was in memory than had been requested, by more than"
    " a tenth, because of read-ahead or because samples share pages."
)


def cold_table(panel: Panel, facts: Facts) -> Table | None:
    """Return the rates of a panel's cells by the share of the store that was read from a cold start; None if there are none."""
    cells = [cell for cell in panel.cells if cell.cold_start]
    shares = [share for share in COLD_SHARES if any(cell.cold_rate(share) for cell in cells)]
    if not shares:
        return None
    setting = panel_label(panel, facts.varying)
    return Table(
        caption=f"{dataset_label(panel.first)}: {setting}. Samples/s until a share of the store was read",
        head=("backend", *(f"{share:.0%}" for share in shares)),
        rows=tuple((named(cell), *(_cold_rate(cell, share) for share in shares)) for cell in cells),
        raw_head=RAW_HEAD,
        raw=(),
        marks=tuple(mark(cell) for cell in cells),
        notes=(_COLD_NOTE,),
    )


def _cold_rate(cell: CellSummary, share: float) -> str:
    rate = cell.cold_rate(share)
    if rate is None:
        return "not reached" if cell.cold_rate(min(COLD_SHARES)) else "within one batch"
    samples_per_s, resident, excess = rate
    if excess is None or resident is None:
        return f"{number(samples_per_s)} (not counted)"
    return number(samples_per_s) + (f" ({percent(resident)} resident)" if excess > _WARMED else "")


def _unsteady(panel: Panel) -> list[str]:
    """Return a sentence for the caption that names backends whose rates were still changing; empty if there are none."""
    names = [backend_label(cell.backend) for cell in panel.measured if cell.unsteady]
    return [f"Rates not shown to be steady, which rank nothing: {', '.join(names)}"] if names else []


def _is_shown(head: str, text: Callable[[_Listed], str], panel: Panel, listed: Sequence[_Listed]) -> bool:
    if head == "whole epoch":
        return panel.first.cell.cache == CacheState.LIMITED
    compared = [entry for entry in listed if not entry.cell.is_null and entry.cell.usable]
    return head in _ALWAYS or any(text(entry) for entry in compared)


def dataset_tables(facts: Facts) -> list[Table]:
    """Return the tables of each panel for the cells of one dataset, in the order of importance; the first explains intervals."""
    listed = sorted(facts.panels, key=lambda panel: panel is not facts.main)
    made = ((panel_table(panel, facts), cold_table(panel, facts)) for panel in listed)
    tables = [table for pair in made for table in pair if table is not None]
    return [
        replace(table, notes=(BRACKETS, *table.notes)) if table is tables[0] else table for table in tables
    ]


def mark(cell: CellSummary) -> str:
    """Return the reason why a cell must not be read like the others, or ""."""
    if cell.failure:
        return f"FAILED: {cell.failure}"
    if cell.invalid:
        return f"INVALID: {cell.invalid}"
    if cell.cell.cache != CacheState.ANY and any(row["cache_verdict"] != "verified" for row in cell.usable):
        return "cache state not verified"
    return ""


def remark(cell: CellSummary) -> str:
    """Return the note beside a cell's name: its mark, and how many replicates were not steady; "" if there is nothing to note."""
    moving, of = cell.unsteady_replicates
    unsteady = f"{moving} of {number_of(of, 'replicate')} not steady" if moving else ""
    return "; ".join(filter(None, (mark(cell), unsteady)))


def named(cell: CellSummary) -> str:
    """Return a cell's backend in words, with the remark on its figures."""
    note = remark(cell)
    return backend_label(cell.backend) + (f" ({note})" if note else "")


def _row(entry: _Listed, shown: Sequence[tuple[str, Callable[[_Listed], str]]]) -> tuple[str, ...]:
    texts = (text(entry) if entry.cell.usable or head in _STORE else _lacking(head) for head, text in shown)
    return (named(entry.cell), *texts)


def _lacking(head: str) -> str:
    """Return the text of a column for a cell of which every replicate failed."""
    return "failed" if head in _RATES else "no ratio" if head in _FAMILIES else ""


def _raw(entry: _Listed, setting: str) -> tuple[Any, ...]:
    cell, base = entry.cell, entry.panel.base
    slower = entry.against.inverted().ratio if entry.against else None
    return (
        setting,
        cell.cell.cache,
        cell.cell.workers,
        cell.backend,
        *ends(cell.interval("samples_per_s")),
        *((1.0, 1.0, 1.0) if entry.is_base else ends(slower)),
        cell.median("data_wait_frac"),
        entry.bound,
        None if cell.is_null else cell.fact("bytes_on_disk"),
        None if cell.is_null else cell.fact("build_s"),
        len(cell.values("whole_samples_per_s")),
        cell.rows[0]["cache_verdict"],
        "failed" if cell.failure else "ok",
        cell.cell.cell_id,
        cell.state,
        cell.at_most,
        cell.median("whole_samples_per_s"),
        base.backend if base else "",
        _compared(entry),
        cell.median("whole_cpu_s_per_sample"),
        cell.median("whole_cores_used"),
        *ends(entry.inflation),
        cell.cell.memory_bytes,
        cell.cell.readahead_kib,
        *(cell.fact(name) for name in PLACE_COLUMNS),
        cell.unsteady_replicates[0],
        *((cell.cold_rate(share) or (None,))[0] for share in COLD_SHARES),
    )


def ends(interval: Estimate | None) -> tuple[float | None, float | None, float | None]:
    """Return a figure and the ends of its interval; None for unknown ones."""
    return (interval.mid, interval.lo, interval.hi) if interval else (None, None, None)
