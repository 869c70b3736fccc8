"""Tables of results: rows of text and of raw values, as Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storebench.report.cells import CellSummary, Panel, panels, time_ratio
from storebench.report.decisions import Decisions
from storebench.report.labels import (
    backend_label,
    caveats,
    dataset_label,
    duration,
    percent,
    setting_label,
    size,
    varying_fields,
    with_interval,
)
from storebench.report.main_panel import main_panel
from storebench.report.verdict import judge_all


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table for people (`rows`) and for programs (`raw`).

    Attributes
    ----------
    caption
        What it shows and under which conditions; caveats are part of it.
    head, rows
        Column titles and cells, as text.
    raw_head, raw
        Column names with units, and values; null is None.
    marks
        For each row why it must not be read like the others ("FAILED: ..."), or "".
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    raw_head: tuple[str, ...]
    raw: tuple[tuple[Any, ...], ...]
    marks: tuple[str, ...] = field(default=())

    def to_markdown(self) -> str:
        """Return the table as Markdown, its caption above."""
        lines = [self.head, tuple("---" if n == 0 else "---:" for n in range(len(self.head))), *self.rows]
        body = "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        return f"**{self.caption}**\n\n{body}\n"

    def to_latex(self) -> str:
        """Return the table as a LaTeX ``table`` with booktabs rules."""
        lines = [" & ".join(_latex(cell) for cell in line) + r" \\" for line in (self.head, *self.rows)]
        return "\n".join(
            [
                r"\begin{table}",
                rf"\caption{{{_latex(self.caption)}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )


_LATEX = {**{c: f"\\{c}" for c in "&%$#_{}"}, "µ": r"$\mu$", "~": r"\textasciitilde{}"}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text.replace("\\", "/"))


def to_csv(tables: Sequence[Table]) -> str:
    """Return the raw values of tables of one kind as comma-separated text with one head; null is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(tables[0].raw_head)
    for table in tables:
        writer.writerows(["" if value is None else value for value in line] for line in table.raw)
    return text.getvalue()


HEAD = ("backend", "samples/s", "time / fastest", "data wait", "limit", "size on disk", "build")
RAW_HEAD = (
    "setting", "cache", "workers", "backend", "samples_per_s", "samples_per_s_lo", "samples_per_s_hi",
    "time_ratio", "time_ratio_lo", "time_ratio_hi", "data_wait_frac", "verdict", "bytes_on_disk", "build_s",
    "replicates", "cache_verdict", "status", "cell_id",
)  # fmt: skip


def panel_table(
    panel: Panel, varying: Collection[str] = (), bounds: Mapping[tuple[str, str], str] | None = None
) -> Table:
    """Return the table of one panel: every backend under the same conditions.

    Parameters
    ----------
    panel
        The cells to list.
    varying
        Fields of the setting that differ between the dataset's cells: the caption names them.
    bounds
        What limits each cell, by its key.
    """
    first = panel.first.cell
    setting = setting_label(first, varying)
    caption = ". ".join([f"{dataset_label(first)}: {setting}", *caveats(panel.cells)])
    listed = [*panel.cells] + ([panel.null] if panel.null else [])
    bounds = bounds or {}
    return Table(
        caption=caption,
        head=HEAD,
        rows=tuple(_row(cell, panel, bounds.get(cell.key, "")) for cell in listed),
        raw_head=RAW_HEAD,
        raw=tuple(_raw(cell, panel, setting, bounds.get(cell.key, "")) for cell in listed),
        marks=tuple(mark(cell) for cell in listed),
    )


def dataset_tables(cells: Sequence[CellSummary], decisions: Decisions | None = None) -> list[Table]:
    """Return one table a panel for the cells of one dataset, the one that speaks for all first."""
    found = panels(cells)
    bounds = {key: str(verdict.bound) for key, verdict in judge_all(cells, decisions).items()}
    varying = varying_fields(cells)
    main = main_panel(found)
    ordered = sorted(found, key=lambda panel: panel is not main)
    return [panel_table(panel, varying, bounds) for panel in ordered]


def mark(cell: CellSummary) -> str:
    """Return why a cell must not be read like the others, or ""."""
    if cell.failure:
        return f"FAILED: {cell.failure}"
    if cell.invalid:
        return f"INVALID: {cell.invalid}"
    if cell.cell.cache != "any" and any(row["cache_verdict"] != "verified" for row in cell.usable):
        return "cache state not verified"
    return ""


def _row(cell: CellSummary, panel: Panel, bound: str) -> tuple[str, ...]:
    name = backend_label(cell.backend)
    note = mark(cell)
    if note:
        name = f"{name} ({note})"
    if not cell.usable:
        return (name, "", "", "", "", size(cell.fact("bytes_on_disk")), duration(cell.fact("build_s")))
    fastest = panel.fastest
    ratio = None if fastest is None or cell.is_null else time_ratio(cell, fastest)
    return (
        name,
        with_interval(cell.interval("samples_per_s")),
        "the ceiling" if cell.is_null else "1.00" if cell is fastest else with_interval(ratio),
        percent(cell.median("data_wait_frac")),
        bound.removesuffix("-bound"),
        # The null cell borrows another backend's store and keeps nothing itself.
        "" if cell.is_null else size(cell.fact("bytes_on_disk")),
        "" if cell.is_null else duration(cell.fact("build_s")),
    )


def _raw(cell: CellSummary, panel: Panel, setting: str, bound: str) -> tuple[Any, ...]:
    rate = cell.interval("samples_per_s")
    ratio = time_ratio(cell, panel.fastest) if panel.fastest else None
    return (
        setting,
        cell.cell.cache,
        cell.cell.workers,
        cell.backend,
        *((rate.mid, rate.lo, rate.hi) if rate else (None, None, None)),
        *((ratio.mid, ratio.lo, ratio.hi) if ratio else (None, None, None)),
        cell.median("data_wait_frac"),
        bound,
        None if cell.is_null else cell.fact("bytes_on_disk"),
        None if cell.is_null else cell.fact("build_s"),
        rate.n if rate else 0,
        cell.rows[0]["cache_verdict"],
        "failed" if cell.failure else "ok",
        cell.cell.cell_id,
    )
