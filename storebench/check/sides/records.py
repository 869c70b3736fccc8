"""Records of ``storebench bench`` as one side of a check."""

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from storebench.check.calibration import LimitingWork
from storebench.check.sides.model import (
    FEWEST_FOR_TAIL,
    CellData,
    MachineAndStorage,
    Replicate,
    Side,
    read_pairing,
    slowest_tenth,
)
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.results import CacheVerdict, Cell, Record, Status
from storebench.runs.records import read_records
from storebench.runs.steps import find_table, read_arrow
from storebench.settings.words import BOUNDED_STATES, ComputeKind, Fill, Share
from storebench.worker.figures import epoch_record

_EPOCHS_TAIL = "slowest tenth of the epochs"
_MEAN = "geometric mean of the epochs"
_LONGEST = ("open_s", "time_to_first_batch_s", "warmup_s")
_STEPS_FOR_P95, _STEPS_FOR_P99 = 20, 100


def side_of_records(path: Path) -> Side:
    """Read a run's folder or a file of records."""
    try:
        records = read_records(path)
    except DataNotFoundError:
        records = []  # a run that was killed before its first record measured nothing
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(record.cell.cell_id, []).append(record)
    about = read_pairing(path)
    return Side(
        source=str(path),
        kind="records",
        cells={
            cell_id: _cell(
                cell_records,
                about.get("code", {}).get("digest", ""),
                path if path.is_dir() else path.parent,
            )
            for cell_id, cell_records in grouped.items()
        },
        pairing=str(about.get("pairing", "")),
    )


def _code_failure(records: Sequence[Record], wanted: str) -> str:
    """Return why records were not made by one code, or ""; records of earlier releases name no code."""
    digests = {record.code.digest for record in records if record.code}
    plugins = {record.code.plugin.rpartition(" ")[2] for record in records if record.code}
    other = sorted(digests - {wanted}) if wanted else []
    if other:
        return f"it ran other code than its side: digest {other[0]}, not {wanted}"
    return "its records are of different code" if len(digests) > 1 or len(plugins) > 1 else ""


def label_of(cell: Cell) -> str:
    """Return a readable label of a cell, also used for a policy's patterns."""
    parts = [
        cell.data.name,
        cell.backend.name,
        cell.cache,
        f"{cell.loader}-{cell.workers}",
        f"batch-{cell.batch_size}",
    ]
    drained = cell.compute.kind is ComputeKind.NONE
    compute = cell.compute if drained else f"{cell.model}-{cell.compute}"
    parts += [compute, *([cell.device] if cell.device != "cpu" else [])]
    parts += [f"ranks-{cell.ranks}-{cell.sync}"] if cell.ranks > 1 else []
    parts += [f"share-{cell.share}"] if cell.share is not Share.NONE else []
    parts += [f"fill-{cell.store_fill}"] if cell.store_fill is not Fill.PRELOAD else []
    apart = f"trainers-{cell.trainers}-{cell.trainer_data}-every-{cell.tournament_steps}"
    return "/".join([*parts, *([apart] if cell.trainers > 1 else [])])


def _cell(records: list[Record], code: str, run: Path) -> CellData:
    first = records[0]
    usable = [record for record in records if record.status is Status.OK and record.samples_per_s > 0]
    failed = next((record for record in records if record not in usable), None)
    environments = {record.environment.key: record.environment for record in usable if record.environment}
    environment = next(iter(environments.values())) if len(environments) == 1 else None
    store = next((record.store for record in records if record.store), None)
    rows: dict[tuple[str, int], list[Record]] = {}
    for record in usable:
        rows.setdefault((record.run_id, record.replicate), []).append(record)
    rounds = [rows[key] for key in sorted(rows, key=lambda key: (key[1], key[0]))]
    replicates = tuple(map(_replicate, rounds))
    calibrated = replicates and all(replicate.relative is not None for replicate in replicates)
    tail_of = _tail_of(usable)
    if not tail_of and replicates and min(map(len, rows.values())) >= FEWEST_FOR_TAIL:
        tail_of = _EPOCHS_TAIL
    if tail_of:
        replicates = tuple(
            dataclasses.replace(replicate, tail_s=_tail_s(epochs, tail_of))
            for replicate, epochs in zip(replicates, rounds, strict=True)
        )
    return CellData(
        cell_id=first.cell.cell_id,
        label=label_of(first.cell),
        calibration=_calibration(first.cell) if calibrated else "",
        samples_of=store.samples_digest if store else "",
        environment=MachineAndStorage(key=environment.key, match=environment.match)
        if environment
        else MachineAndStorage(),
        replicates=replicates,
        failure=_failure(failed)
        or _code_failure(usable, code)
        or _cache_failure(usable)
        or _proof_failure(usable),
        disagreement=next(filter(None, (_disagreement(record, run) for record in usable)), ""),
        round_s=statistics.fmean(_round_s(epochs) for epochs in rounds) if rounds else 0.0,
        rerun=first.cell.cell_id,
        figure=_MEAN if any(len(epochs) > 2 for epochs in rounds) else "mean",  # equal for one epoch
        tail_of=tail_of,
        samples=store.count if store else None,
        asked=json.loads(json.dumps(first.cell.fields())),
    )


_RECOMPUTED = (
    "samples",
    "timed_samples",
    "timed_s",
    "samples_per_s",
    "epoch_s",
    "data_wait_s",
    "time_to_first_batch_s",
)


def _disagreement(record: Record, run: Path) -> str:
    """Return where a record says something else than its step table, or ""; the code that ran is not asked."""
    if record.steps_file is None:
        return "a record names no step table" if record.steps else ""
    try:
        path = find_table(run, record.steps_file)
        if path is None:
            return f"its step table {record.steps_file} is not there"
        columns = read_arrow(path, record.steps_file)
        table = {name: columns.column(name).to_numpy(zero_copy_only=False) for name in columns.column_names}
        right = epoch_record(record, table)
    except (CorruptDataError, KeyError, ValueError) as error:
        return f"its step table {record.steps_file} cannot be read: {error}"
    for name in _RECOMPUTED:
        recorded, own = getattr(record, name), getattr(right, name)
        if not math.isclose(recorded, own, rel_tol=1e-6, abs_tol=1e-9):
            return f"{name} is {recorded:.6g} in a record of replicate {record.replicate}, but its steps give {own:.6g}"
    if record.data_wait_ns != right.data_wait_ns:
        return f"data_wait_ns of replicate {record.replicate} is not that of its steps"
    return ""


def _round_s(epochs: Sequence[Record]) -> float:
    return epochs[0].conditions.wall_s if epochs[0].conditions else 0.0


def _failure(failed: Record | None) -> str:
    return "" if failed is None else failed.failure or "no step was timed"


def _cache_failure(records: Sequence[Record]) -> str:
    """Return why a cell was not shown to be in its requested cache state, or ""."""
    for record in records:
        facts = record.cache
        if record.cell.cache in BOUNDED_STATES and (
            facts is None or facts.verdict is not CacheVerdict.VERIFIED
        ):
            why = facts.reason if facts else "it was not checked"
            return f"the cache was not verified to be {record.cell.cache}: {why}"
    return ""


def _proof_failure(records: Sequence[Record]) -> str:
    """Return why it was not shown that a cell served the dataset's samples, or ""; earlier releases kept none."""
    for record in records:
        if record.code is None or record.cell.backend.is_null:
            continue
        if record.coverage is None or not record.coverage.timed_checked:
            return "no sample of its timed batches was compared with the dataset"
    return ""


def _tail_of(records: Sequence[Record]) -> str:
    """Return the percentile of the steps for which there are enough steps, or ""."""
    steps = min((record.timed_steps for record in records if record.data_wait_ns), default=0)
    if not all(record.data_wait_ns for record in records) or steps < _STEPS_FOR_P95:
        return ""
    return "p99 of the steps" if steps >= _STEPS_FOR_P99 else "p95 of the steps"


def _tail_s(epochs: Sequence[Record], tail_of: str) -> float:
    """Return the tail of a replicate: the slowest tenth of many epochs, or the median of few."""
    if tail_of == _EPOCHS_TAIL:
        return slowest_tenth([1 / record.samples_per_s for record in epochs])
    slow = [_slow_step_s(record, tail_of) for record in epochs]
    return slowest_tenth(slow) if len(slow) >= FEWEST_FOR_TAIL else statistics.median(slow)


def _slow_step_s(record: Record, tail_of: str) -> float:
    """Return the seconds of a step whose wait for its batch is the given percentile."""
    assert record.data_wait_ns is not None
    wait_ns = record.data_wait_ns.p99 if tail_of.startswith("p99") else record.data_wait_ns.p95
    return (record.timed_s - record.data_wait_s) / record.timed_steps + wait_ns / 1e9


def _replicate(epochs: Sequence[Record]) -> Replicate:
    """Return one replicate: its mean cost, medians of its counters, and its longest durations before the timed steps.

    The cost is a geometric mean over the epochs: a median of three or four would not show that one of them was slow, and
    an arithmetic mean would not show that all but a long first one were.
    """
    relative = [value for record in epochs if (value := _relative(record)) is not None]
    machine = [value for record in epochs if (value := _ceiling_s(record)) is not None]
    counted = [_counters(record) for record in epochs]
    names = set.intersection(*(set(counters) for counters in counted))
    return Replicate(
        number=epochs[0].replicate,
        seconds=statistics.geometric_mean(1 / record.samples_per_s for record in epochs),
        relative=statistics.geometric_mean(relative) if len(relative) == len(epochs) else None,
        counters={
            # Readers open only before the first epoch, and any epoch may begin late.
            name: (max if name in _LONGEST else statistics.median)(counters[name] for counters in counted)
            for name in sorted(names)
        },
        machine_s=statistics.median(machine) if len(machine) == len(epochs) else None,
    )


def _calibration(cell: Cell) -> str:
    """Return the kind of work of the ceiling in a cell's own process; "" if there is none."""
    if cell.compute.kind is ComputeKind.REAL:
        return LimitingWork.MATRIX_PRODUCT
    if cell.cache in BOUNDED_STATES:
        return LimitingWork.DEVICE
    # No ceiling of a record decodes, so encoded images have no calibration.
    return LimitingWork.MEMORY if cell.backend.codec == "raw" else ""


def _ceiling_s(record: Record) -> float | None:
    """Return the seconds per unit of the ceiling that calibrates a cell; None if it was not measured."""
    ceilings = record.ceilings
    rates = {
        LimitingWork.MATRIX_PRODUCT: ceilings.matrix_products_per_s,
        LimitingWork.DEVICE: ceilings.device_random_1_bytes_per_s,
        LimitingWork.MEMORY: ceilings.gather_samples_per_s,
    }
    kind = _calibration(record.cell)
    rate = rates[LimitingWork(kind)] if kind else None
    return 1 / rate if rate else None


def _relative(record: Record) -> float | None:
    """Return the cost of a sample over that of the ceiling in the same process; None if none was measured."""
    ceiling_s = _ceiling_s(record)
    if ceiling_s is None:
        return None
    units = 1.0
    if _calibration(record.cell) == LimitingWork.DEVICE:
        if record.store is None or not record.store.count or not record.store.payload_bytes:
            return None
        units = record.store.payload_bytes / record.store.count
    return 1 / record.samples_per_s / (units * ceiling_s)


def _counters(record: Record) -> dict[str, float]:
    counters: dict[str, float | None] = {
        "samples_served": record.coverage.served if record.coverage else record.samples,
        "payload_bytes": record.payload_bytes,
        "bytes_on_disk": record.store.bytes_on_disk if record.store else None,
        "read_calls": record.counters.read_calls,
        "major_faults": record.counters.major_faults,
        "open_s": record.open_s,
        "time_to_first_batch_s": record.time_to_first_batch_s,
        # With workers it includes the steps whose batches were made ahead, and their number varies.
        "warmup_s": None if record.cell.workers else max(0.0, record.epoch_s - record.timed_s),
        "cpu_s_per_sample": record.cpu_s_per_sample,
    }
    cache = record.cache
    if cache and cache.requested in BOUNDED_STATES and cache.verdict is CacheVerdict.VERIFIED:
        counters["device_read_bytes"] = record.counters.device_read_bytes
    return {name: value for name, value in counters.items() if value is not None}
