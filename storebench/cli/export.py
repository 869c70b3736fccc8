"""``storebench export``: all records as one flat table, for other programs."""

import dataclasses
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench.cli.common import exit_codes, say
from storebench.cli.options import ResultsArgument
from storebench.cli.streams import write_out
from storebench.plain_text import csv_cell, plain

if TYPE_CHECKING:
    import pandas as pd


def export(
    results: ResultsArgument,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write a CSV file. [default: CSV on standard output]")
    ] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Write a Parquet file.")] = None,
) -> None:
    """Write all records as one flat table, CSV or Parquet.

    There is one row per record (one epoch of one replicate of one cell) and one column per figure, with its unit in its
    name: the table that 'storebench.load_results' returns. Lists are JSON. What was not measured is empty.
    """
    with exit_codes():
        from storebench.fileio.whole_files import write_whole
        from storebench.report.analysis import load_results
        from storebench.units import number_of

        table = _flat(load_results(results))
        if csv is not None:
            write_whole(csv, _csv(table))
        if parquet is not None:
            write_whole(parquet, _parquet(table))
        if csv is None and parquet is None:
            write_out(_csv(table))
        size = f"{number_of(len(table), 'record')}, {number_of(len(table.columns), 'column')}"
        for path in filter(None, (csv, parquet)):
            say(f"{path}: {size}")


def _flat(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the table with text in the place of lists and mappings: JSON."""
    return table.assign(**{name: table[name].map(_text, na_action="ignore") for name in _texts(table)})


def _texts(table: "pd.DataFrame") -> list[str]:
    from pandas.api.types import is_numeric_dtype

    return [name for name in table.columns if not is_numeric_dtype(table[name])]


def _text(value: Any) -> str:
    return plain(value) if isinstance(value, str) else json.dumps(value, default=dataclasses.asdict)


def _csv(table: "pd.DataFrame") -> str:
    """Return the table as CSV in which no text is a formula to a spreadsheet."""
    inert = table.assign(**{name: table[name].map(csv_cell, na_action="ignore") for name in _texts(table)})
    return inert.to_csv(index=False, lineterminator="\n")


def _parquet(table: "pd.DataFrame") -> bytes:
    """Return the table as a Parquet file; columns of nothing but missing texts are texts, too."""
    content = io.BytesIO()
    table.astype(dict.fromkeys(_texts(table), "string")).to_parquet(content, index=False)
    return content.getvalue()
