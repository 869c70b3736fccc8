"""Records of conversions: the time to convert one store into another, one line each in a run's folder."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.fileio.json_lines import Row, replace_lines, rows_of
from storebench.results import DATA_FIELDS, Cell, Status
from storebench.runs.records import SUPERSEDED_NAME
from storebench.settings.words import Split

CONVERSIONS_NAME = "conversions.jsonl"
CONVERSIONS_SCHEMA_VERSION = 1
_MOST = 1 << 62

SAMPLES_OF = tuple(DATA_FIELDS)
"""Fields, with the same names as in a cell, that determine which samples were converted."""


@dataclass(frozen=True, kw_only=True)
class ConversionRecord:
    """One conversion of one store into another, in its own process."""

    schema_version: int = CONVERSIONS_SCHEMA_VERSION
    storebench_version: str
    run_id: str
    replicate: int
    dataset: str
    split: Split = Split.TRAIN
    size: int | None = None
    limit: int | None = None
    data_seed: int = 0
    synthetic: bool | None = None
    image_size: int | None = None
    skip_unreadable: bool = False
    source: str
    target: str
    started_utc: str
    status: Status = Status.OK
    failure: str | None = None
    samples: int = 0
    seconds: float = 0.0
    make_s: float = 0.0
    write_s: float = 0.0
    sync_s: float = 0.0
    processes: int = 1
    source_bytes: int = 0
    file_bytes: int = 0
    bytes_on_disk: int = 0
    source_resident_frac: float | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of this conversion among those of its run."""
        samples = (getattr(self, name) for name in SAMPLES_OF)
        return self.replicate, self.source, self.target, *samples


def read_conversions(run: Path) -> list[ConversionRecord]:
    """Return the conversions in a run's folder; empty if none was measured. Incomplete records are left out."""
    try:
        return [record for row in rows_of(run / CONVERSIONS_NAME) if (record := _of_row(row)) is not None]
    except OSError:
        return []


@functools.cache
def _adapter() -> Any:
    # pydantic costs a quarter of a second to import; --help must not pay it.
    from pydantic import TypeAdapter

    return TypeAdapter(ConversionRecord)


def _of_row(row: Row) -> ConversionRecord | None:
    import pydantic

    if row.get("schema_version") != CONVERSIONS_SCHEMA_VERSION:
        return None
    try:
        record: ConversionRecord = _adapter().validate_python(row)
    except pydantic.ValidationError:
        return None
    numbers = (value for value in vars(record).values() if isinstance(value, int | float))
    return record if all(0 <= number < _MOST for number in numbers) else None


def append_conversion(run: Path, record: ConversionRecord) -> None:
    """Append a record to a run's folder, synced; a failed record of the same conversion moves to ``superseded.jsonl``."""

    def is_old(row: Row) -> bool:
        old = _of_row(row)
        return old is not None and old.status is Status.FAILED and old.key == record.key

    replace_lines(run / CONVERSIONS_NAME, run / SUPERSEDED_NAME, is_old, [dataclasses.asdict(record)])


def seconds_by_source(records: Iterable[ConversionRecord], cell: Cell) -> dict[str, Sequence[float]]:
    """Return the seconds of every conversion into the store of a cell, by source store."""
    fields = cell.fields()
    by_source: dict[str, list[float]] = {}
    for record in records:
        same_samples = all(getattr(record, name) == fields[name] for name in SAMPLES_OF)
        if (
            same_samples
            and record.status is Status.OK
            and record.target == f"{cell.backend.format}+{cell.backend.codec}"
        ):
            by_source.setdefault(record.source, []).append(record.seconds)
    return {source: tuple(seconds) for source, seconds in by_source.items()}
