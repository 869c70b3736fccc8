"""The rules about the step tables of a run: each belongs to one record, and none is left without its record."""

import re
from collections.abc import Iterator
from pathlib import Path

from storebench.errors import CorruptDataError
from storebench.fileio.json_lines import rows_of
from storebench.report.validation.findings import Finding, Rule, finding
from storebench.results import Record
from storebench.runs.records import RECORDS_NAME, STEPS_NAME, SUPERSEDED_NAME
from storebench.runs.step_files import label_of, merged_names

_TABLE = re.compile(r"(?P<cell_id>[0-9a-f]+)-r(?P<replicate>\d+)-e(?P<epoch>\d+)(-a\d+)?")
"""Name of a table's file, without its suffix: the record for which it was written, and a number for further attempts."""


def check_owner(record: Record, path: Path, ids: frozenset[str]) -> Iterator[Finding]:
    """Find a step table that was written for another record than the one that names it.

    Parameters
    ----------
    path
        The file that holds the table.
    ids
        The ids of all cells that are validated. Cells of earlier releases have got other ids since, which are not among them.
    """
    name = record.steps_file or ""
    found = _TABLE.fullmatch(Path(name).stem)
    if found is None:
        return
    owner = (found["cell_id"], int(found["replicate"]), int(found["epoch"]))
    other_cell = owner[0] != record.cell.cell_id and owner[0] in ids
    if other_cell or owner[1:] != (record.replicate, record.epoch):
        yield finding(Rule.STEPS, record, "steps_file", f"{name} is the table of another record")
    label = label_of(path, name)
    if label is not None and label != owner:
        message = f"the table was written for cell {label[0]}, replicate {label[1]}, epoch {label[2]}, not for {name}"
        yield finding(Rule.STEPS, record, "steps_file", message)


def unnamed_tables(folder: Path, run_id: str) -> Iterator[Finding]:
    """Find tables in the merged file of a run that no record names: their records were taken out."""
    try:
        tables = merged_names(folder / STEPS_NAME)
    except CorruptDataError:
        return  # each record that names one of them is a finding
    rows = (row for name in (RECORDS_NAME, SUPERSEDED_NAME) for row in rows_of(folder / name))
    lost = sorted(tables.keys() - {str(row.get("steps_file")) for row in rows})
    if lost:
        named = lost[0] + (f" and {len(lost) - 1} more" if len(lost) > 1 else "")
        yield Finding(
            kind=Rule.RUN,
            cell=f"run {run_id}",
            cell_id="",
            run_id=run_id,
            figure=RECORDS_NAME,
            message=f"{STEPS_NAME} holds the steps of records that are not there ({named})",
        )
