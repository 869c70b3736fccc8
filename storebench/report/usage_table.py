"""How each format of a dataset was written and read, and what its expert would change."""

from collections.abc import Iterable, Iterator, Sequence

from storebench.errors import StorebenchError
from storebench.formats.registry import get_format
from storebench.report.cells import CellSummary
from storebench.report.tables import Table
from storebench.report.texts.labels import backend_label

USAGE_TITLE = "How each format was written and read"

_HEAD = ("backends", "work", "done", "what an expert would change")
_EXPERT = "An expert would "


def usage_table(cells: Sequence[CellSummary]) -> Table | None:
    """Return one row per way of writing or reading among the cells of a dataset; None if no format describes its own.

    A figure of a format is that of this use of it. Backends that are written or read in the same way share a row.
    """
    ways: dict[tuple[str, ...], dict[str, None]] = {}
    for cell in cells:
        if not cell.is_null:
            for way in _ways(cell):
                ways.setdefault(way, {})[backend_label(cell.backend)] = None
    if not ways:
        return None
    rows = tuple((", ".join(names), *way) for way, names in ways.items())
    return Table(
        caption=f"{USAGE_TITLE}: figures of a format are those of this use of it",
        head=_HEAD,
        rows=rows,
        raw_head=_HEAD,
        raw=rows,
        marks=("",) * len(rows),
        wordy=True,
    )


def _ways(cell: CellSummary) -> Iterator[tuple[str, ...]]:
    """Yield (work, how it was done, what an expert would change) for the writing and the reading of a backend."""
    try:
        format_ = get_format(cell.cell.backend.format)
        info, reader = format_.info, format_.readers().get(cell.cell.backend.reader)
    except StorebenchError:
        return  # a plugin's format that is not installed here
    parts: Iterable[tuple[str, str, str]] = [("written", info.usage or "", info.expert_would)]
    if reader is not None:
        parts = [*parts, ("read", reader.usage or "", reader.expert_would)]
    yield from ((work, str(usage), _change(text)) for work, usage, text in parts if usage)


def _change(text: str) -> str:
    """Return what an expert would change without the words that its column's head says already: "Change nothing"."""
    advice = text.removeprefix(_EXPERT).removesuffix(".")
    return advice[:1].upper() + advice[1:]
