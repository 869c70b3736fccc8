"""Write a report's files from results: tables, plots, the page and its Markdown twin."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.accelerators import Accelerator
from storebench.analysis.checks.records import RunFolders, read_results
from storebench.analysis.table import Table
from storebench.errors import from_os_error
from storebench.report.content import Content, content_of
from storebench.report.page import html, markdown
from storebench.report.plots.style import saved
from storebench.report.tables import to_csv
from storebench.system.whole_files import write_all


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """What a report says, and its files, the page first."""

    content: Content
    files: tuple[Path, ...] = ()


def write_report(
    results: RunFolders,
    out: Path,
    *,
    allow_invalid: bool = False,
    accelerators: Sequence[Accelerator] = (),
    plots: bool = False,
) -> Report:
    """Write the report of `results` into the folder `out`."""
    content = content_of(read_results(results, allow_invalid=allow_invalid), accelerators)
    return Report(content=content, files=write_content(content, out, plots=plots))


def write_content(content: Content, out: Path, *, plots: bool = False) -> tuple[Path, ...]:
    """Write all files of a report, or none: a report that was there then stays as it was, as other files always do.

    With `plots`, each plot of the page is an SVG and a PNG file as well.
    """
    made = dict(_made(content, plots=plots))
    try:
        return tuple(write_all(out, made))
    except OSError as error:
        raise from_os_error(error, error.filename or out) from error


def _made(content: Content, *, plots: bool) -> Iterator[tuple[str, str | bytes]]:
    """Yield the name and the content of every file, the page first."""
    drawn = {plot.name: plot.draw() for section in content.sections for plot in section.plots}
    images = {name: saved(ax, "svg") for name, ax in drawn.items()}
    yield "report.html", html(content, images)
    yield "report.md", markdown(content, plots=plots)
    for section in content.sections:
        kinds: dict[str, list[Table]] = {}
        for table in (*section.tables, *section.io, *section.more):
            kinds.setdefault(table.kind, []).append(table)
        for kind, tables in kinds.items():
            yield f"{kind}-{section.slug}.csv", to_csv(tables)
    for number, table in enumerate(content.beside):
        yield f"beside-{number}.csv", to_csv([table])
    for name, ax in drawn.items() if plots else ():
        yield f"{name}.svg", images[name]
        yield f"{name}.png", saved(ax, "png")
