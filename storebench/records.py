"""Records on disk: the folder that a run writes, and reading and writing what is in it.

A run's folder::

    RUN/
      run.json         run id, the resolved scenario, the versions
      records.jsonl    one record a line, appended and fsynced one at a time
      steps/           one Parquet file a record: a row for each step
      logs/            what a failed cell printed

Nothing in it is ever overwritten. What a record is stands in `storebench.results`.
"""

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError, DataNotFoundError, SchemaVersionError
from storebench.reading import read_small_file
from storebench.results import SCHEMA_VERSION, Record

RECORDS_NAME = "records.jsonl"
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
    line = json.dumps(record_to_dict(record), sort_keys=True) + "\n"
    path = run / RECORDS_NAME
    with path.open("ab") as file:
        if file.tell() and not _ends_with_newline(path):
            file.write(b"\n")  # a killed run left half a line: end it, so that only that line is lost
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_records(path: Path | str) -> list[Record]:
    """Read the records of a run's folder, of a ``records.jsonl`` or of a ``--json`` array.

    A half-written line (a killed run) is dropped; a line that is whole JSON but
    not a record is an error.

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
    parsed = (
        _parse_array(text, source) if text.lstrip().startswith("[") else map(_parse_line, text.split("\n"))
    )
    records = [
        record_from_dict(one, where=f"{source}:{number}")
        for number, one in enumerate(parsed, start=1)
        if isinstance(one, dict)
    ]
    if not records:
        raise DataNotFoundError(
            "the file holds no whole record", where=source, hint="Run the scenario again."
        )
    return records


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
