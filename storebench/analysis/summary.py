"""Summaries of cells: the records of one cell with their medians over replicates, and keys that match cells."""

import dataclasses
import enum
import functools
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from storebench.analysis.comparison import Estimate, estimate
from storebench.analysis.frame import BACKEND_COLUMNS, CELL_COLUMNS, RECORD_COLUMN, Round, Sourced
from storebench.codecs import any_size
from storebench.errors import NotComparableError
from storebench.formats.registry import PAPER_BACKENDS
from storebench.record.schema import DATA_FIELDS, Cell, Portion, Record, ran_out_of_time, steady
from storebench.run.about import Whole, agreed
from storebench.run.matrix import MODEL_CROPS
from storebench.run.replicates import enough
from storebench.settings.words import BOUNDED_STATES, CacheState, ComputeKind, Fill

MEMORY_FORMAT = "memory"

# Field that belongs to no setting: fast readers are timed for longer by more epochs of the same length.
EPOCHS = "epochs"

DATASET_COLUMNS = tuple(DATA_FIELDS)
SETTING_COLUMNS = tuple(
    name for name in CELL_COLUMNS if name not in {*BACKEND_COLUMNS, *DATASET_COLUMNS, EPOCHS}
)
SHARE_COLUMNS = ("share", "store_fill", "store_memory_bytes")
RANK_COLUMNS = ("ranks", "batch_size", "global_batch_size", "pad", "sync", *SHARE_COLUMNS)
STATE_COLUMNS = ("cache", "memory_bytes", "readahead_kib", "tier")
_LENGTH_COLUMNS = ("max_steps", "warmup_steps", "passes", EPOCHS)

# Prefix of metrics of the whole epoch, whatever part of it is in the requested cache state.
WHOLE = "whole_"

# With fewer timed steps of real training, compute decides the rate: such cells rank no backends.
FEWEST_TRAINING_STEPS = 20

# The doubt about a rate that drifts.
UNSTEADY = "not steady"

# Share of the time above which computing alone decides the rate: without loading it would be 5% higher at most.
COMPUTING_FRAC = 0.95

# Readers of the crop alone read nine tenths of an image, and counters disagree by a few percent.
_FEWER_FRAC, _LESS_FRAC = 0.8, 0.1

# Sums that a record has of its timed steps, and a portion of the steady ones.
_SUMS = (
    *("samples_per_s", "payload_bytes", "data_wait_s", "h2d_s", "compute_s"),
    *("fetch_s", "decode_s", "prep_s", "handover_s"),
)


class LoopWork(enum.StrEnum):
    """The work of the loop besides reading and decoding; cells of different work are never compared."""

    READING = "reading"
    AUGMENTING = "augmenting"
    EMULATED = "emulated"
    TRAINING = "training"


def work_of(cell: Cell) -> LoopWork:
    """Return the work of a cell's loop besides reading and decoding."""
    if cell.compute.kind is ComputeKind.REAL:
        return LoopWork.TRAINING
    if cell.compute.kind is ComputeKind.EMULATED:
        return LoopWork.EMULATED
    return LoopWork.AUGMENTING if cell.model in MODEL_CROPS else LoopWork.READING


@dataclass(frozen=True, kw_only=True, eq=False)
class CellSummary:
    """All records of one cell on one machine.

    Figures are those of the timed steps; those of a limited cell, of the steady steps of the last epoch.
    """

    cell: Cell
    environment_key: str
    rows: tuple[Sourced, ...]
    place: str = ""
    """Words that tell its samples, and where they were read, from others of the same name."""

    @property
    def machine(self) -> str:
        return self.rows[0].machine

    @property
    def invalid(self) -> str:
        """The first finding that questions all of its records, or ""."""
        return self.rows[0].invalid

    def fact(self, name: str) -> Any:
        """Return a column that is equal in all records, from the first that has it."""
        rows = itertools.chain(self.counted, self.rows)
        return next((value for row in rows if (value := row[name]) is not None), None)

    @functools.cached_property
    def fields(self) -> dict[str, Any]:
        """The fields of its cell, with the names that records use."""
        return self.cell.fields()

    @property
    def backend(self) -> str:
        """The backend's full name."""
        return self.cell.backend.name

    @property
    def key(self) -> tuple[str, str]:
        """The key of this cell on this machine."""
        return self.environment_key, self.cell.cell_id

    @property
    def dataset_key(self) -> tuple[Any, ...]:
        """The key of the samples and the machine."""
        return (self.environment_key, *(self.fields[name] for name in DATASET_COLUMNS))

    @property
    def setting(self) -> tuple[Any, ...]:
        """All fields except those of the backend, the samples, and the number of epochs."""
        return tuple(self.fields[name] for name in SETTING_COLUMNS)

    @property
    def is_null(self) -> bool:
        """Whether this is the compute ceiling instead of a storage format."""
        return self.cell.backend.is_null

    @property
    def lossy(self) -> bool:
        """Whether its store is known to have lost pixels of the originals."""
        return self.fact("store_lossless") is False and not any_size(self.cell.backend.codec)

    @functools.cached_property
    def replicates(self) -> frozenset[Round]:
        """All replicates that were measured, in every run."""
        return frozenset(row.round for row in self.rows)

    @functools.cached_property
    def not_held(self) -> dict[Round, str]:
        """The replicates that do not count because they did not hold their state, each with the reason."""
        return {row.round: row.unsound for row in reversed(self.rows) if row.unsound}

    @functools.cached_property
    def sound(self) -> frozenset[Round]:
        """The replicates that count: those that held their state and did not fail."""
        return self.replicates - set(self.not_held) - {row.round for row in self.rows if row.record.failed}

    @functools.cached_property
    def too_few(self) -> bool:
        """Whether too few replicates count for a rate; those that ran out of time are not missed."""
        late = {row.round for row in self.rows if ran_out_of_time(row.record.failure or "")}
        return not enough(len(self.sound), len(self.replicates - late))

    @functools.cached_property
    def usable(self) -> tuple[Sourced, ...]:
        """The records of the replicates that count; none if these are too few."""
        return () if self.too_few else tuple(row for row in self.rows if row.round in self.sound)

    @property
    def failure(self) -> str:
        """The failure of the first record that failed for another reason than its state, or ""."""
        failed = (row.record for row in self.rows if row.record.failed and not row.unsound)
        return next((record.failure or "failed" for record in failed), "")

    @functools.cached_property
    def whole(self) -> Whole | None:
        """The whole dataset, if runs that agree on it chose to measure a part of it."""
        return agreed(row.whole for row in self.rows if row.whole is not None)

    @functools.cached_property
    def counted(self) -> tuple[Sourced, ...]:
        """The records whose figures hold for the requested cache state; a limited cell's are of its steady steps."""
        rows = (_of_steady_steps(row) if self._bounded(row) else row for row in self._last)
        return tuple(row for row in rows if row is not None)

    @functools.cached_property
    def _last(self) -> tuple[Sourced, ...]:
        """All usable records, or the last epoch of each replicate where earlier ones fill a cache or a data store."""
        if self.cell.cache != CacheState.LIMITED and self.cell.store_fill is not Fill.FIRST_EPOCH:
            return self.usable
        return last_epochs(self.usable)

    def _bounded(self, row: Sourced) -> bool:
        return self.cell.cache == CacheState.LIMITED and fills_cache(row.record)

    @property
    def whole_only(self) -> bool:
        """Whether no record has steady steps with a limited page cache, so that it has no rate in that state."""
        return bool(self.usable) and not self.counted

    @functools.cached_property
    def at_most(self) -> bool:
        """Whether its rate is an upper bound, because the slower replicates ran out of time."""
        return any(ran_out_of_time(row.record.failure or "") for row in self.rows)

    @property
    def cold_start(self) -> bool:
        """Whether its epochs fill the page cache from a cold start, so that its rate depends on their length."""
        return self.cell.cache == CacheState.COLD and any(fills_cache(row.record) for row in self.usable)

    def cold_rate(self, share: float) -> tuple[float, float | None, float | None] | None:
        """Return rate, resident share and excess until a share of the store was read from a cold start."""
        rates = [rate for row in self.usable for rate in row.record.cold_rates if rate.read_frac == share]
        if not rates:
            return None
        resident = [rate.resident_frac for rate in rates if rate.resident_frac is not None]
        excess = [rate.excess_frac for rate in rates if rate.excess_frac is not None]
        return (
            statistics.median(rate.samples_per_s for rate in rates),
            statistics.median(resident) if resident else None,
            statistics.median(excess) if excess else None,
        )

    @property
    def held_elsewhere(self) -> bool:
        """Whether fewer bytes came from the device, or less of the store was resident, than must have been read.

        The store is compressed on the disk, or a copy of it answered that no page count shows.
        """
        reading = [row.record for row in self.usable if fills_cache(row.record)]
        fewer = [self._fewer_bytes(record) or self._less_resident(record) for record in reading]
        return 2 * sum(fewer) > len(fewer)

    def _fewer_bytes(self, record: Record) -> bool:
        read = record.counters.device_read_bytes
        before = record.cache.resident_frac_before if record.cache else None
        if read is None or before is None:
            return False
        # Several passes request the same bytes again, which a cold store serves once.
        requested = min(record.payload_bytes, record.store.payload_bytes if record.store else 0)
        held = self.cell.memory_bytes or requested * before
        return read < _FEWER_FRAC * (requested - held)

    def _less_resident(self, record: Record) -> bool:
        store, cache = record.store, record.cache
        if self.cell.cache != CacheState.COLD or store is None or not store.count or cache is None:
            return False
        begun = self.cell.ranks * (1 + self.cell.workers) * self.cell.batch_size / store.count
        return any(min(p.asked_frac, 1.0) - p.resident_frac > _LESS_FRAC + begun for p in cache.curve)

    @functools.cached_property
    def unsteady_replicates(self) -> tuple[int, int]:
        """The replicates of a limited cell whose steady part drifts or is missing, and all of them."""
        portions = [_steady_part(row) for row in self._last if self._bounded(row)]
        return sum(not (part and steady(part.drift)) for part in portions), len(portions)

    @property
    def unsteady(self) -> bool:
        """Whether the rate of a limited cell drifts in most replicates, or a drift is unknown."""
        moving, of = self.unsteady_replicates
        return bool(self.counted) and 2 * moving > of

    @property
    def doubt(self) -> str:
        """Why its rate ranks nothing, in a few words; "" if it does."""
        if self.invalid:
            return "invalid"
        failed = (row.record.coverage for row in self.rows if row.record.failed)
        if any(coverage and not coverage.complete for coverage in failed):
            return "wrong samples"
        if self.cold_start:
            return "cold start"
        if self.unsteady:
            return UNSTEADY
        return "too few steps" if self.short_training else ""

    @property
    def computes_only(self) -> bool:
        """Whether computing takes nearly all of the time, so that no store can be told to train faster."""
        return (self.median("accelerator_util_frac") or 0.0) > COMPUTING_FRAC

    @property
    def short_training(self) -> bool:
        """Whether it trained for real, in too few timed steps for its rate to rank backends."""
        steps = min((count for _, count in self._figures("timed_steps")), default=0)
        return (
            self.cell.compute.kind is ComputeKind.REAL
            and steps < FEWEST_TRAINING_STEPS
            and not self.computes_only
        )

    def _figures(self, metric: str) -> list[tuple[Sourced, float]]:
        rows = self.usable if metric.startswith(WHOLE) else self.counted
        figures = [(row, row[metric.removeprefix(WHOLE)]) for row in rows]
        return [(row, float(value)) for row, value in figures if not (value is None or math.isnan(value))]

    @functools.cached_property
    def _values(self) -> dict[str, dict[Round, float]]:
        return {}

    def values(self, metric: str) -> dict[Round, float]:
        """Return a metric for each replicate in which it was measured, the median over its epochs."""
        if metric not in self._values:
            self._values[metric] = _by_round(self._figures(metric))
        return self._values[metric]

    def interval(self, metric: str) -> Estimate | None:
        """Return the median over replicates with its interval, or None if nothing was measured."""
        values = list(self.values(metric).values())
        return estimate(values) if values else None

    def median(self, metric: str) -> float | None:
        """Return the median over replicates, or None if nothing was measured."""
        values = list(self.values(metric).values())
        return statistics.median(values) if values else None

    @property
    def requests_per_s(self) -> float | None:
        """Read calls and major page faults per second of an epoch; at a server its requests, None if unseen."""
        rates = []
        for row in self.counted:
            record = row.record
            count = record.counters.read_calls
            if self.cell.place.remote:
                seen = record.requests if record.requests and record.requests.count else record.served
                count = seen.count if seen else None
            elif count is not None:
                count += record.counters.major_faults or 0
            if count is not None and record.epoch_s:
                rates.append(count / record.epoch_s)
        return statistics.median(rates) if rates else None

    def rounds_per(self, metric: str, counter: str) -> dict[Round, float]:
        """Return a sum of time over a counter ("timed_steps", "timed_samples") for each replicate, in seconds."""
        return _by_round(
            (row, value / count) for row, value in self._figures(metric) if (count := row[counter])
        )

    def per_sample(self, metric: str) -> float:
        """Return a sum of time as seconds per timed sample, the median over replicates; 0 if unknown."""
        values = list(self.rounds_per(metric, "timed_samples").values())
        return statistics.median(values) if values else 0.0

    def per_step(self, metric: str) -> float:
        """Return a sum of time as seconds per timed step, the median over replicates; 0 if unknown."""
        values = list(self.rounds_per(metric, "timed_steps").values())
        return statistics.median(values) if values else 0.0


def _steady_part(row: Sourced) -> Portion | None:
    part = row.record.portion
    return part if part is not None and part.seconds else None


def _of_steady_steps(row: Sourced) -> Sourced | None:
    """Return a record whose figures are those of its steady steps; None if it has none."""
    part = _steady_part(row)
    if part is None:
        return None
    busy_s = part.data_wait_s + part.h2d_s + part.compute_s
    figures: dict[str, Any] = {name: getattr(part, name) for name in _SUMS}
    record = dataclasses.replace(
        row.record,
        timed_s=part.seconds,
        timed_samples=part.samples,
        timed_steps=part.steps,
        overhead_s=part.seconds - busy_s,
        data_wait_frac=part.data_wait_s / (busy_s or 1.0),
        accelerator_util_frac=part.compute_s / part.seconds,
        payload_bytes_per_s=part.payload_bytes / part.seconds,
        **figures,
    )
    return dataclasses.replace(row, record=record)


def fills_cache(record: Record) -> bool:
    """Whether the page cache fills while an epoch reads its store, from a cold start or up to a limit."""
    cell, cache = record.cell, record.cache
    by_opening = cache is not None and cache.applies_to == "open"
    return cell.cache in BOUNDED_STATES and not cell.backend.is_null and not by_opening


def last_epochs(rows: Iterable[Sourced]) -> tuple[Sourced, ...]:
    """Return the last epoch of each replicate."""
    last: dict[Round, Sourced] = {}
    for row in rows:
        before = last.setdefault(row.round, row)
        last[row.round] = row if row.record.epoch > before.record.epoch else before
    return tuple(last.values())


def _by_round(figures: Iterable[tuple[Sourced, float]]) -> dict[Round, float]:
    by_round: dict[Round, list[float]] = {}
    for row, value in figures:
        by_round.setdefault(row.round, []).append(value)
    return {key: statistics.median(epochs) for key, epochs in by_round.items()}


def summarise(results: pd.DataFrame | Iterable[Sourced]) -> list[CellSummary]:
    """Return one summary per cell of records, or of the table that `load_results` returned, in the paper's order.

    Raises NotComparableError if a cell was measured with different code.
    """
    grouped: dict[tuple[str, str], list[Sourced]] = {}
    for row in results[RECORD_COLUMN] if isinstance(results, pd.DataFrame) else results:
        grouped.setdefault((row.environment_key, row.record.cell.cell_id), []).append(row)
    for rows in grouped.values():
        measured = [row.record for row in rows if row.record.code and not row.record.failed]
        codes = {record.code.digest: record.run_id for record in measured if record.code}
        if len(codes) > 1:
            (digest, first), (other, second), *_ = codes.items()
            raise NotComparableError(
                f"{rows[0].record.cell.backend}: run {first} measured other code (digest {digest[:8]})"
                f" than run {second} ({other[:8]})",
                hint="Report them one by one; 'storebench bench --against' compares two revisions.",
            )
    places = _places([rows[0] for rows in grouped.values()])
    cells = [
        CellSummary(
            cell=rows[0].record.cell,
            environment_key=key,
            rows=tuple(rows),
            place=places[_data_key(rows[0])],
        )
        for (key, _), rows in grouped.items()
    ]
    return sorted(cells, key=lambda cell: (backend_rank(cell.backend), str(cell.setting)))


def as_cells(results: pd.DataFrame | Sequence[CellSummary]) -> list[CellSummary]:
    """Return the summaries of a table of records; summaries are returned unchanged."""
    return summarise(results) if isinstance(results, pd.DataFrame) else list(results)


# Column -> the words by which it tells samples of one name, or the places where they were read, apart.
_PLACE_WORDS = {
    "machine": "machine {}",
    "dataset": "from {}",
    "size": "grown to {}",
    "limit": "the first {}",
    "data_seed": "data seed {}",
    "synthetic": "synthetic: {}",
    "image_size": "at {} pixels a side",
    "skip_unreadable": "unreadable files left out: {}",
    "filesystem": "on {}",
    "storage_device": "device {}",
    "machine_readahead_kib": "read-ahead {} KiB",
    "environment_key": "environment {}",
}


def _data_key(row: Sourced) -> tuple[Any, ...]:
    return row.environment_key, row.record.cell.data


def _places(rows: Iterable[Sourced]) -> dict[tuple[Any, ...], str]:
    """Return for each dataset and machine the fewest words that tell it from others of the same name."""
    sources = {_data_key(row): row for row in rows}
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key, row in sources.items():
        count = min((number for number in (row["size"], row["limit"]) if number), default=None)
        groups.setdefault((str(row["dataset"]).rpartition("/")[2], row["split"], count), []).append(key)
    words: dict[tuple[Any, ...], str] = {}
    for keys in groups.values():
        chosen: list[str] = []
        for column in _PLACE_WORDS:
            if len({tuple(sources[key][name] for name in chosen) for key in keys}) == len(keys):
                break
            if len({sources[key][column] for key in keys}) > 1:
                chosen.append(column)
        for key in keys:
            values = {name: sources[key][name] for name in chosen}
            words[key] = ", ".join(_PLACE_WORDS[n].format(v) for n, v in values.items() if v is not None)
    return words


def backend_rank(backend: str) -> tuple[int, str]:
    """Return a key that sorts backends as the paper lists them, then the others by name, numbers in it by value."""
    place = PAPER_BACKENDS.index(backend) if backend in PAPER_BACKENDS else len(PAPER_BACKENDS)
    return place, re.sub(r"\d+", lambda number: number[0].zfill(8), backend)


def key_without(cell: CellSummary, *names: str) -> tuple[Any, ...]:
    """Return the key that a cell shares with its siblings: the machine, and every field but those named."""
    omitted = {*names, *(name for name in BACKEND_COLUMNS if name != "backend")}
    return (cell.environment_key, *(cell.fields[name] for name in CELL_COLUMNS if name not in omitted))


def ceiling_key(cell: CellSummary) -> tuple[Any, ...]:
    """Return the key shared with the null cell of the same work."""
    return key_without(cell, "backend", EPOCHS, *SHARE_COLUMNS, *STATE_COLUMNS)


def work_key(cell: CellSummary) -> tuple[Any, ...]:
    """Return the key shared by cells with the same work, whatever their length and the state of the store."""
    return key_without(cell, "backend", *STATE_COLUMNS, *_LENGTH_COLUMNS)


def varying_fields(cells: Iterable[CellSummary]) -> frozenset[str]:
    """Return the fields of a setting that differ between these cells; the epochs only if nothing else differs."""
    summaries = list(cells)
    settings = [cell.setting for cell in summaries]
    varying = frozenset(
        name
        for position, name in enumerate(SETTING_COLUMNS)
        if len({setting[position] for setting in settings}) > 1
    )
    alike = {(cell.dataset_key, cell.setting, cell.backend) for cell in summaries}
    return varying if len(alike) == len({cell.key for cell in summaries}) else varying | {EPOCHS}
