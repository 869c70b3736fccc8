"""Write the page of all shared results: ``python -m tests.docs.machines FOLDER SITE`` (``make site``)."""

import base64
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks import history
from storebench.analysis.checks.records import read_results
from storebench.analysis.labels import machine_words
from storebench.analysis.panels import ordered, panels
from storebench.analysis.summary import CellSummary
from storebench.record.shared import SUFFIX
from storebench.report.explorer import explored
from storebench.report.page import explorer, templates
from storebench.report.plots.style import saved

TEMPLATE = Path(__file__).with_suffix(".html.j2")

# What the page shows first; more of all settings would fit no screen.
FIRST = {"dataset": "ImageNet", "state": "in memory", "work": "loading"}


def columns_of(file: Path) -> tuple[list[dict[str, Any]], list[CellSummary]]:
    """Return the settings of a shared file as columns of the matrix, and their cells."""
    listed = ordered(panels(read_results(file).cells))
    machines = {str(number): machine_words(panel.first) for number, panel in enumerate(listed)}
    columns = explored(listed, list(machines))
    for column in columns:
        column["machine"] = machines[next(iter(column["stores"].values()))["anchor"]]
        column |= {"run": file.name.removesuffix(SUFFIX), "file": f"machines/{file.name}"}
    return columns, [cell for panel in listed for cell in panel.cells]


def write_page(folder: Path, site: Path) -> Path:
    """Write the page and copies of the shared files that it links into the folder of a site."""
    columns: list[dict[str, Any]] = []
    cells: list[CellSummary] = []
    (site / "machines").mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        of_file = columns_of(file)
        columns += of_file[0]
        cells += of_file[1]
        shutil.copy(file, site / "machines")
    columns.sort(key=lambda column: column["machine"])
    alike = [sum(column[name] == value for name, value in FIRST.items()) for column in columns]
    first = FIRST | {"sort": alike.index(max(alike)) + 1, "down": "1"}
    template = templates("html").from_string(TEMPLATE.read_text(encoding="utf-8"))
    page = site / "all.html"
    plots = history.plots() if history.HISTORY.is_file() else []
    pictures = [f"data:image/svg+xml;base64,{base64.b64encode(saved(ax, 'svg')).decode()}" for ax in plots]
    text = template.render(**explorer(columns, cells), first=urlencode(first), history=pictures)
    page.write_text(text, encoding="utf-8")
    return page


if __name__ == "__main__":
    print(write_page(Path(sys.argv[1]), Path(sys.argv[2])))
