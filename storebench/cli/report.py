"""``storebench report``: tables and plots from results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from storebench.cli.common import exit_codes, say

if TYPE_CHECKING:
    from storebench.report.tables import Table


def report(
    results: Annotated[
        list[Path], typer.Argument(help="Folders that 'storebench bench' wrote, or record files.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("report"),
) -> None:
    """Make tables and plots from results."""
    with exit_codes():
        from storebench.report.build import write_report

        written = write_report(results, out)
        for table in written.tables:
            show(table)
        for path in written.files:
            if path.suffix == ".png":
                say(f"plot: {path}")


def show(table: "Table") -> None:
    """Print a table to standard output."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(title=Text(table.caption), title_justify="left", title_style="bold")
    for number, head in enumerate(table.head):
        drawn.add_column(head, justify="left" if number == 0 else "right")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console = Console()
    # Where nobody watches, lines must not be folded at 80 columns.
    console.width = console.width if console.is_terminal else 160
    console.print(drawn)
