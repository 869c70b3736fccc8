"""Write a report's files from results: tables, plots, the page."""

from dataclasses import dataclass
from pathlib import Path

from storebench.errors import from_os_error
from storebench.report.analysis import Paths, load_results
from storebench.report.cells import by_dataset, summarise
from storebench.report.labels import dataset_slug
from storebench.report.plots.steptime import plot_step_time
from storebench.report.plots.style import save
from storebench.report.tables import Table, dataset_tables


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was written.

    Attributes
    ----------
    tables
        The tables of every dataset, in order.
    files
        Every file, the page first.
    """

    tables: tuple[Table, ...]
    files: tuple[Path, ...]


def write_report(results: Paths, out: Path) -> Report:
    """Write the report of `results` into the folder `out`."""
    groups = by_dataset(summarise(load_results(results)))
    tables: list[Table] = []
    files: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for cells in groups.values():
            slug = dataset_slug(cells[0].cell)
            found = dataset_tables(cells)
            for number, table in enumerate(found):
                stem = f"table-{slug}" + (f"-{number + 1}" if len(found) > 1 else "")
                for suffix, text in (
                    (".md", table.to_markdown()),
                    (".csv", table.to_csv()),
                    (".tex", table.to_latex()),
                ):
                    (out / f"{stem}{suffix}").write_text(text, encoding="utf-8")
                    files.append(out / f"{stem}{suffix}")
            tables += found
            files += save(plot_step_time(cells), out / f"step-time-{slug}")
    except OSError as error:
        raise from_os_error(error, out) from error
    return Report(tables=tuple(tables), files=tuple(files))
