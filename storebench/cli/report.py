"""``storebench report``: tables and plots from results."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench.cli.common import exit_codes, put, put_json, put_text, say, writes_into
from storebench.cli.options import ResultsArgument, accelerator_option

if TYPE_CHECKING:
    from storebench.accelerators import Accelerator
    from storebench.report.build import Report
    from storebench.report.content import Content
    from storebench.report.tables import Table


def report(
    results: ResultsArgument,
    out: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("report"),
    allow_invalid: Annotated[
        bool, typer.Option("--allow-invalid", help="Report results that do not validate, and mark them.")
    ] = False,
    accelerators: Annotated[
        list[str] | None,
        accelerator_option("Mark this accelerator on the roofline, and say which stores feed it"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer, the tables and the files as one JSON object.")
    ] = False,
) -> None:
    """Write tables, plots and a page from results."""
    with exit_codes():
        from storebench.accelerators import find_accelerator

        named = [find_accelerator(name) for name in accelerators or ()]
        from storebench.report.build import write_report

        writes_into(out)
        written = write_report(results, out, allow_invalid=allow_invalid, accelerators=named)
        if as_json:
            put_json(as_dict(written))
            return
        put_content(written.content)
        say(f"page: {written.files[0]}")


def put_content(content: "Content", *, most_tables: int = 1) -> None:
    """Print the matrix or the first tables of a report and, last, its answer."""
    from storebench.units import number_of

    put(*content.incomplete)
    tables = [content.matrix] if content.matrix is not None else content.tables[:most_tables]
    for table in tables:
        put_text(drawn(table))
    put(*content.caveats, *content.incomplete, content.answer.sentence)
    put(*filter(None, (content.answer.conditions, *content.answer.changes)))
    if content.accelerators:
        put(*content.feeding)
        if not content.feeding:
            say(
                "--accelerator: no cell only loads, so nothing is known about it; run cells with compute none"
            )
    for count, kind in (
        (len(content.failed), "failed"),
        (sum(bool(c.invalid) for c in content.cells), "did not validate"),
    ):
        if count:
            say(f"warning: {number_of(count, 'cell')} {kind}")


def print_summary(run: Path, named: Sequence["Accelerator"] = ()) -> None:
    """Print the tables of a finished run and, last, the answer."""
    from storebench.report.build import summarise_results
    from storebench.report.tables import MOST_TABLES
    from storebench.runs.records import RECORDS_NAME
    from storebench.units import number_of

    content = summarise_results(run / RECORDS_NAME, named)  # not the folder, which may hold other runs
    put_content(content, most_tables=MOST_TABLES)
    if content.findings:
        findings = number_of(len(content.findings), "finding")
        say(f"attention: {findings}; 'storebench validate {run}' lists them")


def as_dict(written: "Report") -> dict[str, Any]:
    """Return a report as plain JSON values."""
    content = written.content
    tables = [
        {"caption": table.caption, "rows": [dict(zip(table.raw_head, row, strict=True)) for row in table.raw]}
        for table in content.tables
    ]
    return {
        "answer": content.answer.sentence,
        "conditions": content.answer.conditions,
        "changes": list(content.answer.changes),
        "incomplete": list(content.incomplete),
        "feeding": content.feeding,
        "failed_cells": len(content.failed),
        "invalid_cells": sum(bool(cell.invalid) for cell in content.cells),
        "tables": tables,
        "files": [str(path) for path in written.files],
    }


def drawn(table: "Table") -> str:
    """Return a table as printable text, coloured on a terminal."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    from storebench.plain_text import plain

    lines = RichTable(title=Text(plain(table.caption)), title_justify="left", title_style="bold")
    for number, head in enumerate(table.head):
        lines.add_column(Text(plain(head)), justify="left" if number == 0 else "right")
    for row in table.rows:
        lines.add_row(*(Text(plain(cell)) for cell in row))
    console = Console()
    # Lines of a log must not be wrapped at 80 columns.
    console.width = console.width if console.is_terminal else 160
    with console.capture() as captured:
        console.print(lines)
    return captured.get()
