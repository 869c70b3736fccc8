"""The two sides of a check: run folders of ``storebench bench``, as the cost and counters of each replicate."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pydantic

from storebench.analysis.checks.records import read_results
from storebench.analysis.labels import backend_label, setting_word
from storebench.errors import CorruptDataError, DataNotFoundError, IntegrityError, NotComparableError
from storebench.record.lines import PAIRING_NAME, RECORDS_NAME
from storebench.record.schema import CacheVerdict, Cell, CodeFacts, Environment, Record
from storebench.record.steps import step_columns, timed_rows
from storebench.run.replicates import enough, unsound
from storebench.settings.loop_fields import AXES, SETTINGS
from storebench.settings.words import BOUNDED_STATES, ComputeKind
from storebench.system.json_text import parse_json
from storebench.system.reading import read_small_file

# The axes that every label has.
_LABELLED = ("compute", "cache", "loader", "workers", "batch_size")

_LENGTHS = ("passes", "warmup_steps", "max_steps", "epochs")

# A slower rate is no measurement, and its inverse might not be finite.
_SLOWEST_PER_S = 1e-9


@dataclass(frozen=True, kw_only=True)
class CellData:
    """What one side knows of a cell."""

    cell: Cell
    seconds: Mapping[int, float]
    """Seconds per sample of each replicate; equal numbers of interleaved sides ran next to each other."""
    quickest: Mapping[int, float]
    """Seconds per sample of each replicate's quickest batch, which other work on the machine hardly changes."""
    counters: Sequence[Mapping[str, float]]
    """The counters of each replicate."""
    environment: Environment | None
    """None where it is unknown, or differs between the replicates."""
    samples: tuple[str, int] | None
    """Digest and number of the samples."""
    failure: str
    """Why the cell could not be measured as asked; "" if it was."""
    left_out: frozenset[int] = frozenset()
    """Numbers of the replicates that do not count, because they did not hold their state."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """All cells of a baseline or contender; `pairing` is equal for two sides that ran interleaved, and otherwise ""."""

    cells: Mapping[str, CellData]
    pairing: str = ""
    ended: frozenset[str] = frozenset()
    """Ids of the cells for which the budget had no time."""


class Pairing(pydantic.BaseModel):
    """What ``bench --against`` writes into a side's folder; `same` if both sides are the same code.

    `ended` are the ids of the cells for which the budget had no time.
    """

    pairing: str = ""
    same: bool = False
    ended: tuple[str, ...] = ()
    code: CodeFacts = CodeFacts(digest="")


def read_side(path: Path, *, baseline: bool) -> Side:
    """Read one side; a baseline without records is not comparable, and a contender without records is a failure."""
    try:
        # A folder may hold other runs.
        read = read_results(path / RECORDS_NAME if path.is_dir() else path).records
    except DataNotFoundError as error:
        if baseline:
            hint = "Name a folder that 'storebench bench' wrote."
            raise NotComparableError(f"no baseline: {error.what}", where=error.where, hint=hint) from None
        hint = "Find out why the run before this check wrote no figures."
        raise IntegrityError(f"nothing was measured: {error.what}", where=error.where, hint=hint) from None
    grouped: dict[str, list[Record]] = {}
    quickest: dict[str, dict[int, float]] = {}
    for record, file in read:
        grouped.setdefault(record.cell.cell_id, []).append(record)
        if (quick := _quickest_s(record, file.parent)) is not None:
            rounds = quickest.setdefault(record.cell.cell_id, {})
            rounds[record.replicate] = min(quick, rounds.get(record.replicate, quick))
    about = read_pairing(path)
    return Side(
        cells={
            cell_id: _cell(of_cell, about.code, quickest.get(cell_id, {}))
            for cell_id, of_cell in grouped.items()
        },
        pairing=about.pairing,
        ended=frozenset(about.ended),
    )


def read_pairing(folder: Path) -> Pairing:
    """Return the pairing of a side's folder; an empty one for any other run."""
    path = folder / PAIRING_NAME
    if not path.is_file():
        return Pairing()
    try:
        return Pairing.model_validate(parse_json(read_small_file(path), path))
    except pydantic.ValidationError:
        raise CorruptDataError(
            "not what 'bench --against' writes", where=path, hint="Run it again."
        ) from None


def same_code(baseline: Path, contender: Path) -> bool:
    """Whether ``bench --against`` made these two folders and found nothing to compare."""
    first, second = read_pairing(baseline), read_pairing(contender)
    return first.same and first.pairing == second.pairing


def label_of(cell: Cell) -> str:
    """Return a readable label of a cell."""
    compute = cell.compute if cell.compute.kind is ComputeKind.NONE else f"{cell.model}-{cell.compute}"
    parts = [cell.data.name, cell.backend.name, cell.cache, f"{cell.loader}-{cell.workers}"]
    parts += [f"batch-{cell.batch_size}", compute, *([cell.device] if cell.device != "cpu" else [])]
    others = {row.name: row.asked_default for row in AXES if row.name not in _LABELLED}
    parts += [f"{name}-{getattr(cell, name)}" for name in others if getattr(cell, name) != others[name]]
    parts += [] if cell.memory_bytes is None else [f"memory-{cell.memory_bytes >> 20}MiB"]
    return "/".join(parts)


def name_of(cell: Cell, among: Sequence[Cell]) -> str:
    """Return a cell in words: its backend, and the settings by which it differs from its other cells."""
    alike = [other for other in among if other.backend.name == cell.backend.name]
    rows = [row.name for row in SETTINGS if len({getattr(other, row.name) for other in alike}) > 1]
    # Numbers of steps follow from the other settings.
    words = [setting_word(name, getattr(cell, name), cell) for name in rows if name not in _LENGTHS]
    dataset = cell.data.name if len({other.data for other in alike}) > 1 else ""
    return ", ".join(filter(None, (backend_label(cell.backend.name), dataset, *words)))


def _quickest_s(record: Record, run: Path) -> float | None:
    """Return the seconds per sample from the begin of a batch until it was ready, of the quickest whole batch.

    None for a cell that trains, or whose batches come from a device in part.
    """
    cell = record.cell
    is_alone = cell.compute.kind is ComputeKind.NONE and cell.ranks == 1 and cell.cache not in BOUNDED_STATES
    if record.failed or record.steps_file is None or not is_alone:
        return None
    steps = timed_rows(step_columns(run, record.steps_file))
    took_ns = (steps["ready_ns"] - steps["fetch_start_ns"])[
        steps["samples"] == steps["samples"].max(initial=0)
    ]
    return float(took_ns.min()) / 1e9 / int(steps["samples"].max()) if len(took_ns) else None


def _cell(records: list[Record], code: CodeFacts, quickest: Mapping[int, float]) -> CellData:
    numbers = {record.replicate for record in records}
    left_out = {record.replicate: reason for record in records if (reason := unsound([record]))}
    failure = ""
    if enough(len(numbers) - len(left_out), len(numbers)):
        records = [record for record in records if record.replicate not in left_out]
    else:
        failure = next(iter(left_out.values()))
    rounds: dict[int, list[Record]] = {}
    for record in records:
        if record.failed or (record.samples_per_s or 0.0) <= _SLOWEST_PER_S:
            failure = failure or record.failure or "no step was timed"
        else:
            rounds.setdefault(record.replicate, []).append(record)
    usable = [record for epochs in rounds.values() for record in epochs]
    environments = {record.environment.key: record.environment for record in usable if record.environment}
    store = next((record.store for record in records if record.store), None)
    return CellData(
        cell=records[0].cell,
        # A median of three or four epochs would not show a slow one; an arithmetic mean hides behind a long first one.
        seconds={
            number: statistics.geometric_mean(1 / (record.samples_per_s or 0.0) for record in epochs)
            for number, epochs in rounds.items()
        },
        quickest={number: quickest[number] for number in rounds if number in quickest},
        counters=[_counters(epochs) for epochs in rounds.values()],
        environment=next(iter(environments.values())) if len(environments) == 1 else None,
        samples=(store.samples_digest, store.count) if store else None,
        failure=failure or _code_failure(usable, code) or next(filter(None, map(_unproven, usable)), ""),
        left_out=frozenset(left_out),
    )


def _counters(epochs: Sequence[Record]) -> dict[str, float]:
    """Return the medians of a replicate's counters."""
    counted = [_counters_of_epoch(record) for record in epochs]
    return {
        name: statistics.median(counters[name] for counters in counted)
        for name in set.intersection(*(set(counters) for counters in counted))
    }


def _counters_of_epoch(record: Record) -> dict[str, float]:
    counters: dict[str, float | None] = {
        "samples_served": record.coverage.served if record.coverage else record.samples,
        "payload_bytes": record.payload_bytes,
        "bytes_on_disk": record.store.bytes_on_disk if record.store else None,
        "read_calls": record.counters.read_calls,
        "major_faults": record.counters.major_faults,
        "open_s": record.open_s,
    }
    cache = record.cache
    if cache and cache.requested in BOUNDED_STATES and cache.verdict is CacheVerdict.VERIFIED:
        counters["device_read_bytes"] = record.counters.device_read_bytes
    return {name: value for name, value in counters.items() if value is not None}


def _code_failure(records: Sequence[Record], wanted: CodeFacts) -> str:
    """Return the reason why records are not of one code, or not of that of their side, or ""."""
    digests = {record.code.digest for record in records if record.code}
    plugins = {record.code.plugin.rpartition(" ")[2] for record in records if record.code}
    other = sorted(digests - {wanted.digest}) if wanted.digest else []
    other += sorted(plugins - {"", *wanted.plugin.split()}) if wanted.plugin else []
    if other:
        return f"it ran other code than its side: digest {other[0]}, not {wanted.plugin or wanted.digest}"
    return "its records are of different code" if len(digests) > 1 or len(plugins) > 1 else ""


def _unproven(record: Record) -> str:
    """Return the reason why an epoch was not shown to have its cache state, or ""."""
    cache = record.cache
    if record.cell.cache not in BOUNDED_STATES or (cache and cache.verdict is CacheVerdict.VERIFIED):
        return ""
    return f"the cache was not verified to be {record.cell.cache}: {cache.reason if cache else 'not checked'}"
