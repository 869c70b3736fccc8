"""The precision of the ratios that a run's page will rest on: the intervals are those of the page's own decisions.

A run that adds rounds until its ratios are precise enough asks this after each round (`storebench.rounds`).
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from storebench import stats
from storebench.report.cells import CellSummary, summarise
from storebench.report.decisions import Decision, Decisions, DoubtKind
from storebench.report.facts import derive
from storebench.report.frame import to_frame
from storebench.report.panels import Panel
from storebench.results import Record
from storebench.rounds import PairPrecision, PanelPrecision
from storebench.runs.records import RECORDS_NAME


def run_precision(folder: Path, records: Sequence[Record]) -> list[PanelPrecision]:
    """Return the precision of the ratios that matter in the records of a run, for each panel that has any.

    Parameters
    ----------
    folder
        The run's folder.
    records
        All of its records.
    """
    if not records:
        return []
    table = to_frame((record, folder / RECORDS_NAME) for record in records)
    return page_precision(summarise(table))


def page_precision(cells: Sequence[CellSummary]) -> list[PanelPrecision]:
    """Return the precision of the ratios that matter, for each panel that has any."""
    facts = derive(cells)
    panel_pairs = ((panel, tuple(_pairs(panel, facts.decisions))) for panel in facts.ordered)
    return [
        PanelPrecision(cell_ids=tuple(cell.cell.cell_id for cell in panel.listed), pairs=pairs)
        for panel, pairs in panel_pairs
        if pairs
    ]


def _pairs(panel: Panel, decisions: Decisions) -> Iterator[PairPrecision]:
    """Yield the ratios that matter: of each store to the panel's base and, where a page asks for it, to the fastest.

    Arrays in memory are a yardstick and no way to store images, so their ratios are worth no further round.
    """
    fastest = max(panel.stored, key=lambda cell: cell.median("samples_per_s") or 0.0, default=None)
    seen: set[frozenset[str]] = set()
    for side in filter(None, (panel.base, fastest)):
        for cell in panel.stored:
            pair = frozenset((cell.cell.cell_id, side.cell.cell_id))
            decision = None if cell is side or pair in seen else decisions.between(cell, side)
            if decision is not None:
                seen.add(pair)
                yield _precision(decision)


def _precision(decision: Decision) -> PairPrecision:
    low, high = decision.ratio.lo, decision.ratio.hi
    width = None if low is None or high is None else stats.half_width_frac(low, high)
    return PairPrecision(
        cell_ids=(decision.base.cell.cell_id, decision.cell.cell.cell_id),
        half_width_frac=width if width is not None and math.isfinite(width) else None,
        decidable=_decidable(decision),
    )


def _decidable(decision: Decision) -> bool:
    """Return whether more rounds can decide a comparison: a rate that is at most too high can still prove its cell slower."""
    doubt = decision.doubt
    if doubt is None:
        return True
    slower = decision.cell if decision.ratio.mid < 1 else decision.base
    return doubt.kind is DoubtKind.CUT_OFF and doubt.cells == (slower,)
