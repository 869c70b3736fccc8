"""The rules about the step tables of a run: each belongs to one record, and none is left without its record."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError
from storebench.fileio.json_lines import rows_of
from storebench.report.validation.findings import Finding, Rule, finding, of_run
from storebench.results import Record
from storebench.runs.records import RECORDS_NAME, STEPS_NAME, SUPERSEDED_NAME
from storebench.runs.steps import merged_labels, merged_names

_TABLE = re.compile(r"(?P<cell_id>[0-9a-f]+)-r(?P<replicate>\d+)-e(?P<epoch>\d+)(-a\d+)?")
"""Name of a table's file, without its suffix: the record for which it was written, and a number for further attempts."""


def check_owners(folder: Path, records: Sequence[Record], ids: frozenset[str]) -> Iterator[Finding]:
    """Find step tables that were written for another record than the one that names them.

    Parameters
    ----------
    folder
        The folder of the records, whether it is a run's or not.
    records
        Records of this folder that name a table.
    ids
        The ids of all cells that are validated. Cells of earlier releases have got other ids since, which are not among them.
    """
    try:
        labels = merged_labels(folder / STEPS_NAME)
    except CorruptDataError:
        return  # each record that names one of its tables is a finding, because no table is found in it
    for record in records:
        name = record.steps_file or ""
        found = _TABLE.fullmatch(Path(name).stem)
        if found is None:
            continue
        owner = (found["cell_id"], int(found["replicate"]), int(found["epoch"]))
        other_cell = owner[0] != record.cell.cell_id and owner[0] in ids
        if other_cell or owner[1:] != (record.replicate, record.epoch):
            yield finding(Rule.STEPS, record, "steps_file", f"{name} is the table of another record")
        label = labels.get(name, [owner])
        if label != [owner]:
            rows = f"the rows of {name}"
            message = (
                f"{rows} were written for another record"
                if label
                else f"{rows} do not say for which record they were written"
            )
            yield finding(Rule.STEPS, record, "steps_file", message)


def unnamed_tables(folder: Path, about: dict[str, Any]) -> Iterator[Finding]:
    """Find tables in the merged file of a run that no record names: their records were taken out."""
    try:
        tables = merged_names(folder / STEPS_NAME)
    except CorruptDataError:
        return  # each record that names one of them is a finding
    try:
        files = (RECORDS_NAME, SUPERSEDED_NAME)
        rows = [row for name in files for row in rows_of(folder / name)]
    except CorruptDataError as error:
        yield of_run(about, str(error.where), error.what)
        return
    lost = sorted(tables.keys() - {str(row.get("steps_file")) for row in rows})
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        message = f"{STEPS_NAME} holds the steps of records that are not there ({lost[0]}{more})"
        yield of_run(about, RECORDS_NAME, message)
