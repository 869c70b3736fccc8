"""Records of ``storebench bench`` as one side of a check."""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path

from storebench.check.sides import PAIRING_NAME, CellData, Replicate, Side, Where
from storebench.errors import DataNotFoundError
from storebench.records import read_records
from storebench.results import CacheVerdict, Cell, Record, Status


def side_of_records(path: Path) -> Side:
    """Read a run's folder or a file of records."""
    try:
        records = read_records(path)
    except DataNotFoundError:
        records = []  # a run that was killed before its first record: nothing was measured
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(record.cell.cell_id, []).append(record)
    return Side(
        source=str(path),
        kind="records",
        cells={cell_id: _cell(found) for cell_id, found in grouped.items()},
        pairing=_pairing(path),
    )


def _pairing(path: Path) -> str:
    try:
        about = json.loads((path / PAIRING_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return str(about["pairing"])


def label_of(cell: Cell) -> str:
    """Return a cell in words, for people and for a policy's patterns."""
    parts = [
        cell.dataset,
        cell.backend,
        cell.cache,
        f"{cell.loader}-{cell.workers}",
        f"batch-{cell.batch_size}",
    ]
    compute = cell.compute if cell.compute == "none" else f"{cell.model}-{cell.compute}"
    return "/".join([*parts, compute, *([cell.device] if cell.device != "cpu" else [])])


def _cell(records: list[Record]) -> CellData:
    first = records[0]
    usable = [record for record in records if record.status is Status.OK and record.samples_per_s > 0]
    failed = next((record for record in records if record not in usable), None)
    environments = {record.environment.key: record.environment for record in usable if record.environment}
    environment = next(iter(environments.values())) if len(environments) == 1 else None
    store = next((record.store for record in records if record.store), None)
    rows: dict[tuple[str, int], list[Record]] = {}
    for record in usable:
        rows.setdefault((record.run_id, record.replicate), []).append(record)
    replicates = tuple(_replicate(number, epochs) for number, (_, epochs) in enumerate(_by_round(rows)))
    calibrated = replicates and all(one.relative is not None for one in replicates)
    return CellData(
        cell_id=first.cell.cell_id,
        label=label_of(first.cell),
        calibration=_calibration(first.cell) if calibrated else "",
        samples_of=store.samples_digest if store else "",
        environment=Where(key=environment.key, match=environment.match) if environment else Where(),
        replicates=replicates,
        failure="" if failed is None else failed.failure or "no step was timed",
        rerun=first.cell.cell_id,
    )


def _by_round(
    rows: dict[tuple[str, int], list[Record]],
) -> Iterable[tuple[tuple[str, int], list[Record]]]:
    return sorted(rows.items(), key=lambda item: (item[0][1], item[0][0]))


def _replicate(number: int, epochs: list[Record]) -> Replicate:
    """Return one replicate: medians over its epochs."""
    relative = [value for record in epochs if (value := _relative(record)) is not None]
    counted = [_counters(record) for record in epochs]
    names = set.intersection(*(set(one) for one in counted))
    return Replicate(
        number=epochs[0].replicate if epochs else number,
        seconds=statistics.median(1 / record.samples_per_s for record in epochs),
        relative=statistics.median(relative) if len(relative) == len(epochs) else None,
        counters={name: statistics.median(one[name] for one in counted) for name in sorted(names)},
    )


def _calibration(cell: Cell) -> str:
    if cell.compute == "real":
        return "matrix product"
    return "plain read" if cell.cache == "cold" else "gather"


def _relative(record: Record) -> float | None:
    """Return the cost of a sample over that of the ceiling of the same process; null where none was measured."""
    if record.cell.compute == "real":
        products = record.ceilings.matrix_products_per_s
        return None if products is None else products / record.samples_per_s
    if record.cell.cache == "cold":
        rate, store = record.ceilings.device_sequential_bytes_per_s, record.store
        if rate is None or store is None or not store.count:
            return None
        return rate * store.count / store.payload_bytes / record.samples_per_s
    gather = record.ceilings.gather_samples_per_s
    return None if gather is None else gather / record.samples_per_s


def _counters(record: Record) -> dict[str, float]:
    found: dict[str, float | None] = {
        "samples_served": record.coverage.served if record.coverage else record.samples,
        "payload_bytes": record.payload_bytes,
        "bytes_on_disk": record.store.bytes_on_disk if record.store else None,
        "read_calls": record.counters.read_calls,
        "major_faults": record.counters.major_faults,
    }
    if record.cache and record.cache.requested == "cold" and record.cache.verdict is CacheVerdict.VERIFIED:
        found["device_read_bytes"] = record.counters.device_read_bytes
    return {name: value for name, value in found.items() if value is not None}
