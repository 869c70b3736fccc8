"""Summaries of cells: the records of one cell with their medians over replicates, and keys that match cells."""

import enum
import functools
import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from storebench.analysis.comparison import Estimate, estimate
from storebench.analysis.frame import BACKEND_COLUMNS, CELL_COLUMNS, Row, rows_of
from storebench.codecs import any_size
from storebench.errors import NotComparableError
from storebench.formats.registry import PAPER_BACKENDS
from storebench.record.schema import DATA_FIELDS, Cell, Status, ran_out_of_time, steady
from storebench.run.about import Whole, agreed
from storebench.run.matrix import MODEL_CROPS
from storebench.run.replicates import enough
from storebench.settings.words import BOUNDED_STATES, CacheState, ComputeKind, Fill

Round = tuple[str, int]
"""Run and replicate: cells of one round were measured side by side."""

MEMORY_FORMAT = "memory"
EPOCHS = "epochs"
"""Field that belongs to no setting: fast readers are timed for longer by more epochs of the same length."""

DATASET_COLUMNS = tuple(DATA_FIELDS)
SETTING_COLUMNS = tuple(
    name for name in CELL_COLUMNS if name not in {*BACKEND_COLUMNS, *DATASET_COLUMNS, EPOCHS}
)
SHARE_COLUMNS = ("share", "store_fill", "store_memory_bytes")
RANK_COLUMNS = ("ranks", "batch_size", "global_batch_size", "pad", "sync", *SHARE_COLUMNS)
STATE_COLUMNS = ("cache", "memory_bytes", "readahead_kib", "tier")
_LENGTH_COLUMNS = ("max_steps", "warmup_steps", "passes", EPOCHS)

WHOLE = "whole_"
"""Prefix of metrics of the whole epoch, whatever part of it is in the requested cache state."""

FEWEST_TRAINING_STEPS = 20
"""With fewer timed steps of real training, compute decides the rate: such cells rank no backends."""

COMPUTING_FRAC = 0.95
"""Share of the time above which computing alone decides the rate: without loading it would be 5% higher at most."""

_FEWER_FRAC, _LESS_FRAC = 0.8, 0.1
"""Readers of the crop alone read nine tenths of an image, and counters disagree by a few percent."""

_LOOP_PARTS = ("data_wait_s", "h2d_s", "compute_s")
_PORTION = {
    "samples_per_s": "portion_samples_per_s",
    "timed_s": "portion_seconds",
    "timed_samples": "portion_samples",
    "timed_steps": "portion_steps",
} | {
    name: f"portion_{name}"
    for name in (*_LOOP_PARTS, "payload_bytes", "fetch_s", "decode_s", "prep_s", "handover_s")
}
"""Metric -> the column that holds it for the steady steps of a limited cell."""


def _busy(row: Row) -> float:
    return sum(float(row[f"portion_{name}"]) for name in _LOOP_PARTS)


_DERIVED: dict[str, Callable[[Row], float]] = {
    "overhead_s": lambda row: row["portion_seconds"] - _busy(row),
    "data_wait_frac": lambda row: row["portion_data_wait_s"] / (_busy(row) or 1.0),
    "accelerator_util_frac": lambda row: row["portion_compute_s"] / row["portion_seconds"],
    "payload_bytes_per_s": lambda row: row["portion_payload_bytes"] / row["portion_seconds"],
}


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
    rows: tuple[Row, ...]
    invalid: str = ""
    """The first finding that questions all of its records, or ""."""
    place: str = ""
    """Words that tell its samples, and where they were read, from others of the same name."""

    def fact(self, name: str) -> Any:
        """Return a column that is equal in all records, from the first that has it."""
        rows = itertools.chain(self.counted, self.rows)
        return next((row[name] for row in rows if row[name] is not None), None)

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
        return frozenset(_round_of(row) for row in self.rows)

    @functools.cached_property
    def not_held(self) -> dict[Round, str]:
        """The replicates that do not count because they did not hold their state, each with the reason."""
        return {_round_of(row): str(row["unsound"]) for row in reversed(self.rows) if row["unsound"]}

    @functools.cached_property
    def sound(self) -> frozenset[Round]:
        """The replicates that count: those that held their state and did not fail."""
        return self.replicates - set(self.not_held) - {_round_of(r) for r in self.rows if r["status"] != "ok"}

    @functools.cached_property
    def too_few(self) -> bool:
        """Whether too few replicates count for a rate; those that ran out of time are not missed."""
        late = {_round_of(row) for row in self.rows if ran_out_of_time(str(row["failure"] or ""))}
        return not enough(len(self.sound), len(self.replicates - late))

    @functools.cached_property
    def usable(self) -> tuple[Row, ...]:
        """The records of the replicates that count; none if these are too few."""
        return () if self.too_few else tuple(row for row in self.rows if _round_of(row) in self.sound)

    @property
    def failure(self) -> str:
        """The failure of the first record that failed for another reason than its state, or ""."""
        failed = (row for row in self.rows if row["status"] != "ok" and not row["unsound"])
        return next((str(row["failure"] or "failed") for row in failed), "")

    @functools.cached_property
    def whole(self) -> Whole | None:
        """The whole dataset, if runs that agree on it chose to measure a part of it."""
        return agreed(row["whole"] for row in self.rows if row.get("whole") is not None)

    @functools.cached_property
    def counted(self) -> tuple[Row, ...]:
        """The records whose figures hold for the requested cache state."""
        return tuple(row for row in self._last if not self._bounded(row) or row["portion_seconds"])

    @functools.cached_property
    def _last(self) -> tuple[Row, ...]:
        """All usable records, or the last epoch of each replicate where earlier ones fill a cache or a data store."""
        if self.cell.cache != CacheState.LIMITED and self.cell.store_fill is not Fill.FIRST_EPOCH:
            return self.usable
        return last_epochs(self.usable)

    def _bounded(self, row: Row) -> bool:
        return self.cell.cache == CacheState.LIMITED and fills_cache(row, self.cell)

    @property
    def whole_only(self) -> bool:
        """Whether no record has steady steps with a limited page cache, so that it has no rate in that state."""
        return bool(self.usable) and not self.counted

    @functools.cached_property
    def at_most(self) -> bool:
        """Whether its rate is an upper bound, because the slower replicates ran out of time."""
        return any(ran_out_of_time(str(row["failure"] or "")) for row in self.rows)

    @property
    def cold_start(self) -> bool:
        """Whether its epochs fill the page cache from a cold start, so that its rate depends on their length."""
        return self.cell.cache == CacheState.COLD and any(fills_cache(row, self.cell) for row in self.usable)

    def cold_rate(self, share: float) -> tuple[float, float | None, float | None] | None:
        """Return rate, resident share and excess until a share of the store was read from a cold start."""
        rates = [rate for row in self.usable for rate in row["cold_rates"] or () if rate.read_frac == share]
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
        reading = [row for row in self.usable if fills_cache(row, self.cell)]
        fewer = [self._fewer_bytes(row) or self._less_resident(row) for row in reading]
        return 2 * sum(fewer) > len(fewer)

    def _fewer_bytes(self, row: Row) -> bool:
        read, before = row["device_read_bytes"], row["resident_frac_before"]
        if read is None or before is None:
            return False
        # Several passes request the same bytes again, which a cold store serves once.
        requested = min(float(row["payload_bytes"]), float(row["store_payload_bytes"] or 0))
        held = float(self.cell.memory_bytes or 0) or requested * float(before)
        return float(read) < _FEWER_FRAC * (requested - held)

    def _less_resident(self, row: Row) -> bool:
        if self.cell.cache != CacheState.COLD or not row["store_count"]:
            return False
        begun = self.cell.ranks * (1 + self.cell.workers) * self.cell.batch_size / int(row["store_count"])
        points = row["cache_curve"] or ()
        return any(min(p.asked_frac, 1.0) - p.resident_frac > _LESS_FRAC + begun for p in points)

    @functools.cached_property
    def unsteady_replicates(self) -> tuple[int, int]:
        """The replicates of a limited cell whose steady part drifts or is missing, and all of them."""
        judged = [row for row in self._last if self._bounded(row)]
        moving = (not (row["portion_seconds"] and steady(row["portion_drift"])) for row in judged)
        return sum(moving), len(judged)

    @functools.cached_property
    def unsteady(self) -> bool:
        """Whether a limited cell's rate drifts in most replicates, or a drift is unknown."""
        drifts = [row["portion_drift"] for row in self.counted if self._bounded(row)]
        if not drifts:
            return False
        if None in drifts:
            return True
        moved = [abs(math.log(drift)) if drift > 0 else math.inf for drift in drifts]
        return not steady(math.exp(statistics.median(moved)))

    @property
    def doubt(self) -> str:
        """Why its rate ranks nothing, in a few words; "" if it does."""
        if self.invalid:
            return "invalid"
        figures = ("coverage_timed_wrong", "coverage_missing", "coverage_duplicates")
        if any(row[name] for row in self.rows if row["status"] != "ok" for name in figures):
            return "wrong samples"
        if self.cold_start:
            return "cold start"
        if self.unsteady:
            return "not steady"
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

    def _figures(self, metric: str) -> list[tuple[Row, float]]:
        rows = self.usable if metric.startswith(WHOLE) else self.counted
        figures = [(row, _figure(row, metric, portion=self._bounded(row))) for row in rows]
        return [(row, value) for row, value in figures if value is not None]

    def values(self, metric: str) -> dict[Round, float]:
        """Return a metric for each replicate in which it was measured, the median over its epochs."""
        return _by_round(self._figures(metric))

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
        """Read calls, and page faults that waited for the device, per second of an epoch; requests at a server, None if unseen."""
        rates = []
        for row in self.counted:
            count = row["read_calls"]
            if self.cell.place.remote:
                count = row["remote_count"] or row["served_count"]
            elif count is not None:
                count += row["major_faults"] or 0
            if count is not None and row["epoch_s"]:
                rates.append(count / row["epoch_s"])
        return statistics.median(rates) if rates else None

    def rounds_per(self, metric: str, counter: str) -> dict[Round, float]:
        """Return a sum of time over a counter ("timed_steps", "timed_samples") for each replicate, in seconds."""
        prefix = WHOLE if metric.startswith(WHOLE) else ""
        return _by_round(
            (row, value / count)
            for row, value in self._figures(metric)
            if (count := _figure(row, prefix + counter, portion=self._bounded(row)))
        )

    def per_sample(self, metric: str) -> float:
        """Return a sum of time as seconds per timed sample, the median over replicates; 0 if unknown."""
        values = list(self.rounds_per(metric, "timed_samples").values())
        return statistics.median(values) if values else 0.0

    def per_step(self, metric: str) -> float:
        """Return a sum of time as seconds per timed step, the median over replicates; 0 if unknown."""
        values = list(self.rounds_per(metric, "timed_steps").values())
        return statistics.median(values) if values else 0.0


def _figure(row: Row, metric: str, *, portion: bool) -> float | None:
    """Return a metric of one record: of its steady steps if `portion`, of its timed steps otherwise."""
    if metric.startswith(WHOLE):
        value = row[metric.removeprefix(WHOLE)]
    elif portion and metric in _DERIVED:
        value = _DERIVED[metric](row) if row["portion_seconds"] else None
    else:
        value = row[_PORTION[metric] if portion and metric in _PORTION else metric]
    return None if value is None or math.isnan(value) else float(value)


def fills_cache(row: Row, cell: Cell) -> bool:
    """Whether the page cache fills while the epoch reads its store, from a cold start or up to a limit."""
    return cell.cache in BOUNDED_STATES and not cell.backend.is_null and row["cache_applies_to"] != "open"


def _round_of(row: Row) -> Round:
    return row["run_id"], row["replicate"]


def last_epochs(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the row of the last epoch of each replicate."""
    last: dict[Round, Row] = {}
    for row in rows:
        known = last.setdefault(_round_of(row), row)
        last[_round_of(row)] = row if row["epoch"] > known["epoch"] else known
    return tuple(last.values())


def _by_round(figures: Iterable[tuple[Row, float]]) -> dict[Round, float]:
    by_round: dict[Round, list[float]] = {}
    for row, value in figures:
        by_round.setdefault(_round_of(row), []).append(value)
    return {key: statistics.median(epochs) for key, epochs in by_round.items()}


def summarise(
    results: pd.DataFrame | Iterable[Row], findings: Mapping[str, str] | None = None
) -> list[CellSummary]:
    """Return one summary per cell of rows, or of the table that `load_results` returned, in the paper's order.

    `findings` is cell_id -> a finding that questions the cell. Raises NotComparableError if a cell was measured with different code.
    """
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows_of(results) if isinstance(results, pd.DataFrame) else results:
        grouped.setdefault((row["environment_key"], row["cell_id"]), []).append(row)
    for rows in grouped.values():
        measured = [row for row in rows if row["code_digest"] is not None and row["status"] != Status.FAILED]
        codes = {row["code_digest"]: row["run_id"] for row in measured}
        if len(codes) > 1:
            (one, first), (other, second), *_ = codes.items()
            raise NotComparableError(
                f"{rows[0]['backend']}: run {first} measured other code (digest {one[:8]}) than run {second} ({other[:8]})",
                hint="Report them one by one; 'storebench bench --against' compares two revisions.",
            )
    invalid, places = findings or {}, _places([rows[0] for rows in grouped.values()])
    cells = [
        CellSummary(
            cell=Cell.of_fields(**{name: rows[0][name] for name in CELL_COLUMNS}),
            environment_key=key,
            rows=tuple(rows),
            invalid=invalid.get(cell_id, ""),
            place=places[_data_key(rows[0])],
        )
        for (key, cell_id), rows in grouped.items()
    ]
    return sorted(cells, key=lambda cell: (backend_rank(cell.backend), str(cell.setting)))


def as_cells(results: pd.DataFrame | Sequence[CellSummary]) -> list[CellSummary]:
    """Return the summaries of a table of records; summaries are returned unchanged."""
    return summarise(results) if isinstance(results, pd.DataFrame) else list(results)


_PLACE_WORDS = {
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
    "environment_key": "machine {}",
}
"""Column -> the words by which it tells samples of one name, or the places where they were read, apart."""


def _data_key(row: Row) -> tuple[Any, ...]:
    return (row["environment_key"], *(row[name] for name in DATASET_COLUMNS))


def _places(rows: Iterable[Row]) -> dict[tuple[Any, ...], str]:
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
    known = PAPER_BACKENDS.index(backend) if backend in PAPER_BACKENDS else len(PAPER_BACKENDS)
    return known, re.sub(r"\d+", lambda number: number[0].zfill(8), backend)


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
