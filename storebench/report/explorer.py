"""The matrix of every store in every setting: a table for the terminal, and all of its ratios for the page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from storebench.analysis.comparison import Verdict
from storebench.analysis.labels import (
    backend_label,
    condition_label,
    dataset_label,
    number,
    rate_words,
    setting_label,
)
from storebench.analysis.panels import Panel, rate_ratio
from storebench.analysis.summary import CellSummary, LoopWork, backend_rank, varying_fields, work_key, work_of
from storebench.analysis.table import Table
from storebench.settings.words import LOCAL
from storebench.units import number_of

_WORKS = {LoopWork.TRAINING: "training", LoopWork.EMULATED: "emulated training"}


@dataclass(frozen=True, kw_only=True, eq=False)
class ExplorerColumn:
    """One setting: its words, and the panels that were measured in it, which differ in their length at most."""

    dataset: str
    state: str
    work: str
    workers: str
    words: tuple[str, ...]
    """All but the dataset, as a head of a column; two columns differ in them."""
    panels: tuple[Panel, ...]


def columns(panels: Iterable[Panel]) -> list[ExplorerColumn]:
    """Return one column per setting; panels of different stores share one if their work is the same."""
    groups: dict[tuple[Any, ...], list[list[Panel]]] = {}
    for panel in panels:
        first = panel.first
        same = groups.setdefault((*_heading(panel), work_key(first), first.cell.memory_bytes), [])
        names = {cell.backend for cell in panel.cells}
        free = (g for g in same if names.isdisjoint(cell.backend for other in g for cell in other.cells))
        if (group := next(free, None)) is not None:
            group.append(panel)
        else:
            same.append([panel])
    kept = [group for same in groups.values() for group in same]
    varying = varying_fields(group[0].first for group in kept)
    heads = [_heading(group[0]) for group in kept]
    words = [setting_label(group[0].speaker, varying).split(", ") for group in kept]
    place_names = {LOCAL: str(LOCAL)} if "place" in varying else {}
    titles = {head[0] for head in heads}
    made = []
    for group, (dataset, *head), own_words in zip(kept, heads, words, strict=True):
        alike = [others for other, others in zip(heads, words, strict=True) if other == (dataset, *head)]
        more = [word for word in own_words if not all(word in others for others in alike)]
        short = dataset.partition(",")[0]
        unique = sum(title.partition(",")[0] == short for title in titles) == 1
        made.append(
            ExplorerColumn(
                dataset=short if unique else dataset,
                state=head[0],
                work=head[1],
                workers=str(group[0].first.cell.workers),
                words=tuple(
                    filter(None, (*head, ", ".join(more), place_names.get(group[0].first.cell.place)))
                ),
                panels=tuple(group),
            )
        )
    return made


def _heading(panel: Panel) -> tuple[str, ...]:
    cell = panel.first.cell
    return (
        dataset_label(panel.first),
        condition_label(panel.speaker),
        _WORKS.get(work_of(cell), "loading"),
        number_of(cell.workers, "worker") if cell.workers else "",
        number_of(cell.ranks, "rank") if cell.ranks > 1 else "",
    )


# More settings than this are rows, with the ratios alone.
_MOST_COLUMNS = 4

_SIGNS = "+ faster, - slower, = within 10%, ? undecided"


def matrix(panels: Sequence[Panel]) -> Table:
    """Return stores by settings: the rate of each store in each setting, and in brackets times the base.

    With many settings, these are the rows, and each store but the base is shown by its ratio.
    """
    by_setting = columns(panels)
    several = len({column.dataset for column in by_setting}) > 1
    settings = [", ".join([c.dataset] * several + [*c.words]) or "no workers" for c in by_setting]
    many = len(by_setting) > _MOST_COLUMNS
    shown = [
        {cell.backend: _rate_words(panel, cell, short=many) for panel in c.panels for cell in panel.measured}
        for c in by_setting
    ]
    names = sorted({name for cells in shown for name in cells}, key=backend_rank)
    lines = [("setting" if many else "store", *map(backend_label, names))]
    lines += [
        (setting, *(cells.get(name, "") for name in names))
        for setting, cells in zip(settings, shown, strict=True)
    ]
    head, *rows = lines if many else zip(*lines, strict=True)
    caption = "Images/s of every store, and times the base"
    caption = "Images/s of the base; others as multiples of it" if many else caption
    return Table(caption=f"{caption}: {_SIGNS}", head=head, rows=tuple(rows))


def _rate_words(panel: Panel, cell: CellSummary, *, short: bool) -> str:
    rate, ratio = number(cell.median("samples_per_s")), panel.ratio(cell)
    if ratio is None or ratio.mid is None:
        return f"{rate}/s" if short else rate
    sign = {Verdict.FASTER: "+", Verdict.SLOWER: "-", Verdict.EQUAL: "="}.get(ratio.verdict, "?")
    times = f"{number(ratio.mid, 2)}{sign}"
    return times if short else f"{rate} ({times})"


def explored(panels: Sequence[Panel], anchors: Sequence[str]) -> list[dict[str, Any]]:
    """Return the columns of the page's matrix: rates of all stores, and the ratio of each to each other."""
    places = dict(zip(panels, anchors, strict=True))
    return [
        {
            "dataset": column.dataset,
            "state": column.state,
            "work": column.work,
            "workers": column.workers,
            "words": column.words,
            "base": next((panel.base.backend for panel in column.panels if panel.base), ""),
            "stores": {
                cell.backend: {
                    "text": rate_words(cell),
                    "rate": cell.median("samples_per_s") if cell in panel.measured else None,
                    "anchor": places[panel],
                    "ratios": _ratios(cell, panel),
                }
                for panel in column.panels
                for cell in panel.cells
            },
        }
        for column in columns(panels)
    ]


def _ratios(cell: CellSummary, panel: Panel) -> dict[str, tuple[float, str]]:
    return {
        base.backend: (float(f"{ratio.mid:.4g}"), str(ratio.verdict))
        for base in panel.measured
        if base is not cell and (ratio := rate_ratio(cell, base)) is not None and ratio.mid is not None
    }
