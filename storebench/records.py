"""Records on disk: the folder that a run writes, and reading and writing what is in it.

A run's folder::

    RUN/
      run.json          run id, the resolved scenario, the versions
      records.jsonl     one record per line; all records of a replicate are appended as one block and synced
      superseded.jsonl  records that were replaced: of failed replicates that ran again, or parts of replicates
      steps/            one Parquet file per record: a row for each step
      logs/             what a failed cell printed

A step table gets its name before the record that names it is written. Records
and step tables are never overwritten: a record that is replaced moves to
`superseded.jsonl`, and its step table stays. What a record is stands in
`storebench.results`.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError, DataNotFoundError, SchemaVersionError
from storebench.json_lines import append_lines
from storebench.reading import read_small_file
from storebench.results import SCHEMA_VERSION, Cell, Record

RECORDS_NAME = "records.jsonl"
SUPERSEDED_NAME = "superseded.jsonl"
RUN_NAME = "run.json"
STEPS_DIR = "steps"
LOGS_DIR = "logs"

MOST_RUN_BYTES = 256 * 2**20
"""What a ``run.json`` may have: 100,000 cells make some 100 MB."""


@functools.cache
def _adapter() -> Any:
    # pydantic costs a quarter of a second to import; --help must not pay it.
    from pydantic import TypeAdapter

    return TypeAdapter(Record)


def record_to_dict(record: Record) -> dict[str, Any]:
    """Return a record as plain JSON values, as it stands in ``records.jsonl``."""
    return dataclasses.asdict(record)


def record_from_dict(raw: dict[str, Any], *, where: str) -> Record:
    """Build a record from JSON values and check every field.

    Raises
    ------
    SchemaVersionError
        Another version of the schema.
    CorruptDataError
        A field is missing, misspelt or of the wrong type; the message names it.
    """
    import pydantic

    version = raw.get("schema_version")
    if version != SCHEMA_VERSION:
        raise SchemaVersionError(
            f"a record of schema version {version}, this storebench reads {SCHEMA_VERSION}",
            where=where,
            hint="Run the scenario again, or use the storebench that wrote it.",
        )
    try:
        record: Record = _adapter().validate_python(raw, strict=False)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise CorruptDataError(f"not a record: {name}: {first['msg']}", where=where) from None
    return record


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a record, as docs/schema.md prints it."""
    schema: dict[str, Any] = _adapter().json_schema()
    return schema


def append_record(run: Path, record: Record) -> None:
    """Append a record to a run's folder and sync it to disk before returning."""
    append_records(run, [record])


def append_records(run: Path, records: Sequence[Record]) -> None:
    """Append the records of a replicate to a run's folder: one write and one sync, all of them or none.

    Raises
    ------
    DiskFullError, OutputError
        They cannot be written; the file is as it was.
    """
    append_lines(run / RECORDS_NAME, [record_to_dict(record) for record in records])


def read_records(path: Path | str, *, parts: bool = False) -> list[Record]:
    """Read the records of a run's folder, of a ``records.jsonl`` or of a ``--json`` array.

    A half-written line (a killed run) is dropped; a line that is whole JSON but
    not a record is an error.

    Parameters
    ----------
    parts
        Also return the records of a half-written replicate with which a ``records.jsonl`` ends.

    Raises
    ------
    DataNotFoundError
        There are no records there.
    """
    source = Path(path)
    source = source / RECORDS_NAME if source.is_dir() else source
    if not source.is_file():
        raise DataNotFoundError(
            "no records here", where=path, hint="Name a folder that 'storebench bench' wrote."
        )
    text = source.read_text(encoding="utf-8", errors="replace")
    is_array = text.lstrip().startswith("[")
    parsed = _parse_array(text, source) if is_array else map(_parse_line, text.split("\n"))
    records = [
        record_from_dict(one, where=f"{source}:{number}")
        for number, one in enumerate(parsed, start=1)
        if isinstance(one, dict)
    ]
    if not parts and not is_array:
        records = without_half_replicate(records)
    if not records:
        raise DataNotFoundError(
            "the file holds no whole record", where=source, hint="Run the scenario again."
        )
    return records


def without_half_replicate(records: list[Record]) -> list[Record]:
    """Return the records of a file without those of a half-written replicate at its end.

    A kill or a power cut may leave a part of the block that a replicate is written as.
    """
    if not records:
        return records
    last = _replicate_of(records[-1])
    epochs = {record.epoch for record in records if _replicate_of(record) == last}
    if len(epochs) >= records[-1].cell.epochs:
        return records
    end = len(records)
    while end and _replicate_of(records[end - 1]) == last:
        end -= 1
    return records[:end]


def _replicate_of(record: Record) -> tuple[str, int, Cell]:
    return record.run_id, record.replicate, record.cell


def run_looks(run: Path) -> int:
    """Return how many times the rounds of a run may have been looked at: 1, and 1 for each time rounds were added."""
    try:
        about = json.loads(read_small_file(run / RUN_NAME, most_bytes=MOST_RUN_BYTES))
        return 1 + len(about.get("extended_utc", ()))
    except (OSError, ValueError, AttributeError, TypeError, CorruptDataError):
        return 1  # records that were moved out of their run's folder, or given as an array


def _parse_line(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _parse_array(text: str, source: Path) -> list[Any]:
    try:
        parsed: list[Any] = json.loads(text)
    except ValueError as error:
        raise CorruptDataError(f"not a JSON array ({error})", where=source) from None
    return parsed
