"""``storebench report``: tables and plots from results."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench.cli.common import exit_codes, put, put_json, put_text, say, writes_into
from storebench.cli.options import ResultsArgument, accelerator_option

if TYPE_CHECKING:
    from storebench.report.build import Report
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
        from storebench.report.tables import MOST_TABLES
        from storebench.units import number_of

        writes_into(out)
        written = write_report(results, out, allow_invalid=allow_invalid, accelerators=named)
        if as_json:
            put_json(as_dict(written))
            return
        put(*written.incomplete)
        noted: set[str] = set()
        for table in written.tables[:MOST_TABLES]:
            put_text(drawn(table))
            put(*(f"- {note}" for note in table.notes if note not in noted))
            noted.update(table.notes)
        put(*written.incomplete, written.answer)
        if named:
            put(*written.feeding)
            _say_what_is_missing(written.feeding)
        if len(written.tables) > MOST_TABLES:
            say(f"{len(written.tables) - MOST_TABLES} more tables are in {out}")
        for count, kind in ((written.failed, "failed"), (written.invalid, "did not validate")):
            if count:
                say(f"warning: {number_of(count, 'cell')} {kind}")
        for path in written.files:
            if path.suffix in (".html", ".png"):
                say(f"{'page' if path.suffix == '.html' else 'plot'}: {path}")


def _say_what_is_missing(feeding: Sequence[str]) -> None:
    """Say why nothing is known about an accelerator where no cell only loads."""
    if not feeding:
        say("--accelerator: no cell only loads, so nothing is known about it; run cells with compute none")


def print_summary(run: Path) -> None:
    """Print the tables of a finished run, what limits its cells, the advice and, last, the answer."""
    from storebench.report.summary import summarise_results
    from storebench.report.tables import MOST_TABLES
    from storebench.runs.records import RECORDS_NAME
    from storebench.units import number_of

    summary = summarise_results(run / RECORDS_NAME)  # not the folder, which may hold other runs
    put(*summary.incomplete)
    for table in summary.tables[:MOST_TABLES]:
        put_text(drawn(table))
    if len(summary.tables) > MOST_TABLES:
        say(f"{len(summary.tables) - MOST_TABLES} more tables are in the report")
    for title, lines in (("What limits each cell:", summary.limits), ("Advice:", summary.advice)):
        if lines:
            put(title, *(f"- {line}" for line in lines), "")
    put(*filter(None, (summary.disturbed, *summary.incomplete, summary.answer)))
    if summary.findings:
        say(f"attention: {number_of(summary.findings, 'finding')}; 'storebench validate {run}' lists them")


def as_dict(written: "Report") -> dict[str, Any]:
    """Return a report as plain JSON values."""
    tables = [
        {"caption": table.caption, "rows": [dict(zip(table.raw_head, row, strict=True)) for row in table.raw]}
        for table in written.tables
    ]
    return {
        "answer": written.answer,
        "incomplete": list(written.incomplete),
        "feeding": list(written.feeding),
        "failed_cells": written.failed,
        "invalid_cells": written.invalid,
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
