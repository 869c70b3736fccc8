"""Draw the plots and fill the tables of docs/ from the reference results: ``make docs``.

A table of docs/results.md is filled if the comment above it says from what. "rates": runs, a query of their records,
the field of the rows, the field of the columns with its values, and the row to compare with if that is not PNG files.
"codecs": a run and a query of its records.
"""

import re
from collections.abc import Callable, Iterator

import pandas as pd
from matplotlib.axes import Axes

import storebench
from storebench.analysis.codec_frontier import coded
from storebench.analysis.comparison import Estimate, Ratio
from storebench.analysis.labels import backend_label, number
from storebench.analysis.panels import paired
from storebench.analysis.summary import CellSummary, summarise
from storebench.record.schema import BACKEND_FIELDS
from storebench.report.plots.style import finish, name_rows, new_axes, plain_numbers, saved, styled, whiskers
from storebench.report.tables import codec_table
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


def peers() -> Axes:
    """Draw the rate of each container over LMDB's, raw pixels and JPEGs; markers of own orders are hollow."""
    series = (
        ("cifar10", "raw pixels, CIFAR-10", "#0072b2", "o"),
        ("imagenet", "JPEGs, decoded, ImageNet", "#d55e00", "s"),
    )
    frame = _of("peers")
    ratios: dict[str, dict[str, tuple[CellSummary, Ratio]]] = {}
    for dataset, *_ in series:
        cells = summarise(frame[frame.dataset == dataset])
        lmdb = next(cell for cell in cells if cell.cell.backend.format == "lmdb")
        for cell in cells:
            ratio = paired(cell.values("samples_per_s"), lmdb.values("samples_per_s"))
            if ratio and cell is not lmdb:
                ratios.setdefault(_container(cell), {})[dataset] = cell, ratio
    names = sorted(ratios, key=lambda name: -max(ratio.mid or 0 for _, ratio in ratios[name].values()))
    with styled():
        ax = new_axes(0.8 + 0.3 * len(names), None)
        for (dataset, label, colour, marker), shift in zip(series, (-0.14, 0.14), strict=True):
            for row, name in enumerate(names):
                if dataset not in ratios[name]:
                    continue
                cell, ratio = ratios[name][dataset]
                mid = Estimate(mid=ratio.mid or 0.0, low=ratio.low, high=ratio.high)
                ax.errorbar(
                    mid.mid,
                    row + shift,
                    xerr=whiskers([mid]),
                    color=colour,
                    marker=marker,
                    fillstyle="none" if cell.cell.backend.native_order else "full",
                )
            ax.plot([], [], color=colour, marker=marker, linestyle="none", label=label)
        ax.plot([], [], color="black", marker="o", fillstyle="none", linestyle="none", label="own order")
        ax.axvline(1, color="black", linewidth=1, label="LMDB")
        ax.set_xscale("log")
        mids = [ratio.mid for found in ratios.values() for _, ratio in found.values() if ratio.mid]
        ax.set_xlim(min(mids) / 2, 2 * max(mids))
        name_rows(ax, names)
        plain_numbers(ax.xaxis)
        ax.set_xlabel("times LMDB's samples/s")
        finish(ax, "Which container hands over images as fast as LMDB?")
    return ax


def _container(cell: CellSummary) -> str:
    """Return a container's name, with its reader if that is not the default or has an order of its own."""
    label = backend_label(cell.backend)
    return label.replace("+JPEG", "").replace("+RAW", "").replace("JPEG files", "files")


DRAWN: dict[str, Callable[[], Axes]] = {
    "results": results,
    "codecs": lambda: storebench.plot_codecs(_of("codecs").query(PHOTOGRAPHS)),
    "roofline": lambda: storebench.plot_roofline(_of("roofline")),
    "gpu": gpu,
    "peers": peers,
}
"""File name without its ending -> what draws it."""


def filled(text: str) -> str:
    """Return a document with the rows of its tables of rates as the reference results have them."""
    rows = {"rates": _rates, "codecs": _codecs}
    return _FILLED.sub(lambda found: found[1] + "".join(rows[found[2]](*found[3].split("; "))), text)


def _codecs(runs: str, query: str) -> Iterator[str]:
    for row in codec_table(coded(summarise(_of(runs).query(query)))).rows:
        yield f"| {' | '.join(row)} |\n"


def _rates(runs: str, query: str, row: str, column: str, values: str, compared: str = "png") -> Iterator[str]:
    cells = [cell for cell in summarise(_of(*runs.split()).query(query)) if not cell.is_null]
    base = None if column in BACKEND_FIELDS else compared
    for name in dict.fromkeys(cell.fields[row] for cell in cells):
        texts = [
            _text([cell for cell in cells if str(cell.fields[column]) == value], row, name, base)
            for value in values.split()
        ]
        label = name if name == "files" else backend_label(name)
        native = any(cell.cell.backend.native_order for cell in cells if cell.fields[row] == name)
        mark = " (own order)" if native and "own order" not in label else ""
        yield f"| {label}{mark} | {' | '.join(texts)} |\n"


def _text(column: list[CellSummary], row: str, name: str, base: str | None) -> str:
    """Return the rate of the cell in a row, and how many times that of the base in its column it is."""
    cell = next((one for one in column if one.fields[row] == name), None)
    if cell is None:
        return ""
    below = next((one for one in column if base in (one.backend, one.fields[row])), None)
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
