"""Records on disk: the files of a run's folder, reading and writing them, and figures that no record can have."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError, DataNotFoundError, SchemaVersionError
from storebench.record.schema import SCHEMA_VERSION, Cell, Record
from storebench.system.json_lines import MOST_BYTES, append_lines, numbered_rows
from storebench.system.json_text import brief, complaint
from storebench.system.reading import read_small_file

# No count and no number of bytes is that large.
MOST_NUMBER = 1 << 63

_MOST_SECONDS = 1e9
_MOST_ROUNDS = 1 << 20

# Fields of a record that may be negative, including their parts.
_SIGNED = ("overhead_s", "counters", "loss", "job.exposed_communication_s", "job.exposed_over_bound")

_AT_LEAST_ONE = (
    "store.image_shape",
    "cell.batch_size",
    "cell.epochs",
    "cell.ranks",
    "cell.trainers",
    "job.ranks",
    "job.nodes",
)


def _impossible(value: Any, path: str = "") -> str:
    """Return the first field with an impossible figure, and what is wrong with it; "" if there is none."""
    if isinstance(value, int | float):
        wrong = "" if isinstance(value, bool) else _wrong(path, value)
        return f"{path}: {wrong}" if wrong else ""
    if isinstance(value, tuple):
        parts = [(path, item) for item in value]
    elif dataclasses.is_dataclass(value):
        fields = value.fields() if isinstance(value, Cell) else vars(value)
        parts = [(f"{path}.{name}" if path else name, item) for name, item in fields.items()]
    else:
        return ""
    return next((wrong for name, item in parts if (wrong := _impossible(item, name))), "")


def _wrong(path: str, value: float) -> str:
    part, name = path.partition(".")[0], path.rpartition(".")[2]
    # A training may diverge.
    if part != "loss" and not -MOST_NUMBER < value < MOST_NUMBER:
        return f"{value} is not a finite number" if isinstance(value, float) else "the number is too large"
    lasts = name == "seconds" or (name.endswith("_s") and not name.endswith(("_per_s", "mb_s")))
    if lasts and abs(value) > _MOST_SECONDS:
        return f"{value} is not a duration"
    if path in _AT_LEAST_ONE and value < 1:
        return f"{value} is less than 1"
    if path in {"replicate", "epoch", "cell.epochs"} and value > _MOST_ROUNDS:
        return f"{value} is too large"
    if value < 0 and part not in _SIGNED and path not in _SIGNED:
        return f"{value} is negative"
    return ""


RECORDS_NAME = "records.jsonl"
SUPERSEDED_NAME = "superseded.jsonl"
RUN_NAME = "run.json"

# The file that pairs the folders of both sides of a comparison with a revision.
PAIRING_NAME = "against.json"

STEPS_DIR = "steps"
LOGS_DIR = "logs"

# Folder of measurements that one cell makes and the others of the run use.
PROBES_DIR = "probes"

# Most bytes of a `run.json`; 100,000 cells take about 100 MB.
MOST_RUN_BYTES = 256 * 2**20


@functools.cache
def _adapter() -> Any:
    # pydantic costs a quarter of a second to import; --help must not pay it.
    from pydantic import TypeAdapter

    return TypeAdapter(Record)


def record_to_dict(record: Record) -> dict[str, Any]:
    """Return a record as plain JSON values, as in ``records.jsonl``."""
    return {**dataclasses.asdict(record), "cell": record.cell.fields()}


def record_from_dict(raw: dict[str, Any], *, where: str) -> Record:
    """Build a record from JSON values and check every field."""
    import pydantic

    version = raw.get("schema_version")
    if version != SCHEMA_VERSION:
        raise SchemaVersionError(
            f"a record of schema version {brief(version)}, this storebench reads {SCHEMA_VERSION}",
            where=where,
            hint="Run the scenario again, or use the storebench that wrote it.",
        )
    try:
        record: Record = _adapter().validate_python(raw, strict=False)
    except pydantic.ValidationError as error:
        raise CorruptDataError(f"not a record: {complaint(error)}", where=where) from None
    if problem := _impossible(record):
        raise CorruptDataError(f"not a record: {problem}", where=where)
    return record


def append_records(run: Path, records: Sequence[Record]) -> None:
    """Append the records of a replicate to a run's folder: one write and one sync, all of them or none."""
    append_lines(run / RECORDS_NAME, [record_to_dict(record) for record in records])


def read_records(path: Path | str, *, parts: bool = False) -> list[Record]:
    """Read the records of a run's folder, or of a ``records.jsonl``."""
    source = Path(path)
    source = source / RECORDS_NAME if source.is_dir() else source
    if not source.is_file():
        raise DataNotFoundError(
            "no records here" if Path(path).exists() else "no such file or folder",
            where=path,
            hint="Name a folder that 'storebench run' or 'storebench bench' wrote.",
        )
    records = []
    for where, raw in raw_records(source):
        if isinstance(raw, CorruptDataError):
            raise raw
        records.append(record_from_dict(raw, where=where))
    if not parts:
        records = without_half_replicate(records)
    if not records:
        raise DataNotFoundError(
            "the file does not hold a complete record", where=source, hint="Run the scenario again."
        )
    return records


def without_half_replicate(records: list[Record]) -> list[Record]:
    """Return the records of a file without those of an incomplete replicate at its end."""
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


def raw_records(file: Path) -> Iterator[tuple[str, dict[str, Any] | CorruptDataError]]:
    """Yield the position of each line of a file with its JSON object, or with the reason why it has none."""
    yield from numbered_rows(file, read_small_file(file, most_bytes=MOST_BYTES))
