"""Draw the plots and fill the tables of docs/ from the reference results: ``make docs``.

A table of docs/results.md is filled if the comment above it says from what. "rates": runs, a query of their records,
the field of the rows, and the field of the columns with its values. "codecs": a run and a query of its records.
"""

import re
from collections.abc import Callable, Iterator

import pandas as pd
from matplotlib.axes import Axes

import storebench
from storebench.report.cells import CellSummary, summarise
from storebench.report.codecs import coded
from storebench.report.labels import backend_label, number
from storebench.report.panels import paired
from storebench.report.plots.style import saved
from storebench.report.tables import codec_table
from storebench.results import BACKEND_FIELDS
from tests.docs.doc_files import ROOT

REFERENCE = ROOT / "results" / "reference"
FIGURES = ROOT / "docs" / "figures"
RESULTS = ROOT / "docs" / "results.md"

_FILLED = re.compile(r"(<!-- (rates|codecs): (.+) -->\n\n\|.*\n\|.*\n)(?:\|.*\n)*")


WARM = "cache == 'warm'"
PHOTOGRAPHS = f"dataset == 'imagenet' and {WARM}"


def _of(*runs: str) -> pd.DataFrame:
    return pd.concat([storebench.load_results(REFERENCE / name) for name in runs])


def gpu() -> Axes:
    """Draw the roofline in memory of a machine with a GPU, and its networks as points."""
    results = _of("gpu", "gpu-small")
    return storebench.plot_roofline(results[results.cache != "cold"])


def results() -> Axes:
    """Draw the rates of stores larger than memory, at Linux's own read-ahead."""
    frame = _of("answer")
    limited = frame[(frame.cache == "limited") & (frame.readahead_kib == 128)]
    return storebench.plot_throughput(limited)


DRAWN: dict[str, Callable[[], Axes]] = {
    "results": results,
    "codecs": lambda: storebench.plot_codecs(_of("codecs").query(PHOTOGRAPHS)),
    "codecs-cifar10": lambda: storebench.plot_codecs(_of("codecs").query(f"dataset == 'cifar10' and {WARM}")),
    "roofline": lambda: storebench.plot_roofline(_of("roofline")),
    "gpu": gpu,
}
"""File name without its ending -> what draws it."""


def filled(text: str) -> str:
    """Return a document with the rows of its tables of rates as the reference results have them."""
    rows = {"rates": _rates, "codecs": _codecs}
    return _FILLED.sub(lambda found: found[1] + "".join(rows[found[2]](*found[3].split("; "))), text)


def _codecs(runs: str, query: str) -> Iterator[str]:
    for row in codec_table(coded(summarise(_of(runs).query(query)))).rows:
        yield f"| {' | '.join(row)} |\n"


def _rates(runs: str, query: str, row: str, column: str, values: str) -> Iterator[str]:
    cells = [cell for cell in summarise(_of(*runs.split()).query(query)) if not cell.is_null]
    base = None if column in BACKEND_FIELDS else "png"
    for name in dict.fromkeys(cell.fields[row] for cell in cells):
        texts = [
            _text([cell for cell in cells if str(cell.fields[column]) == value], row, name, base)
            for value in values.split()
        ]
        yield f"| {name if name == 'files' else backend_label(name)} | {' | '.join(texts)} |\n"


def _text(column: list[CellSummary], row: str, name: str, base: str | None) -> str:
    """Return the rate of the cell in a row, and how many times that of the base in its column it is."""
    cell = next((one for one in column if one.fields[row] == name), None)
    if cell is None:
        return ""
    below = next((one for one in column if one.backend == base), None)
    ratio = below and paired(cell.values("samples_per_s"), below.values("samples_per_s"))
    notes = [number(ratio.mid, 2)] if ratio and cell is not below else []
    notes += [cell.doubt] if cell.doubt else []
    rate = number(cell.median("samples_per_s"))
    return f"{rate} ({', '.join(notes)})" if notes else rate


def main() -> None:
    """Write every plot, and the tables."""
    RESULTS.write_text(filled(RESULTS.read_text(encoding="utf-8")), encoding="utf-8")
    FIGURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        path = FIGURES / f"{name}.svg"
        path.write_bytes(saved(draw(), "svg"))
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
