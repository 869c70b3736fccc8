"""Tables of results: text for people, raw values for programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from storebench.accelerators import Accelerator
from storebench.comparison import Estimate, Ratio, Verdict
from storebench.plain_text import csv_cell, markdown
from storebench.report.bottleneck import Bottleneck, inflation
from storebench.report.cells import CellSummary, LoopWork, backend_rank, varying_fields, work_of
from storebench.report.labels import (
    MODELS,
    backend_label,
    common_setting,
    condition_label,
    dataset_label,
    duration,
    mark,
    number,
    percent,
    setting_label,
    size,
    state_label,
    verdict_words,
    with_interval,
)
from storebench.report.ladder import Ladder
from storebench.report.panels import Panel, rate_ratio
from storebench.report.ranks import EXPOSED, alone_of, corners, job_name, sharing_base, tournaments
from storebench.report.roofline import Roofline, model_errors
from storebench.results import COLD_SHARES
from storebench.settings.words import CacheState
from storebench.units import number_of

MOST_TABLES = 40
"""Tables of one dataset on the page or the terminal; a matrix of hundreds of settings is read from the CSV files."""

BRACKETS = "Brackets are 95% intervals; ratios are paired by round."

WARM = (
    "In memory: the files were read in a row beforehand. The first epoch of a training leaves single pages, and reading"
    " a mapped file from those takes longer."
)

_COLD_NOTE = (
    "A resident share beside a rate means that more of the store was in memory than had been requested, by read-ahead or"
    " because samples share pages: it is no cold rate. A cold start ranks nothing."
)
_FED_NOTE = (
    "An accelerator starves if it is busy less than 90% of its time. With workers the delivered rate is min(F, 1 / (1/G + c)),"
    " without them 1 / (1/G + 1/F + c): F is supplied, G what the accelerator takes, c the handoff per image."
)
_RING_NOTE = (
    "Exposed is what the exchange adds to a step, from pairs of steps on the same batch after the last epoch. The ideal ring is"
    " 2 (R - 1) (bytes / R / bandwidth + latency) at the measured link. The link loopback is memory and cores of one machine."
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table for people (`head`, `rows`) and for programs (`raw_head`, `raw`); `marks` say which rows not to trust."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    raw_head: tuple[str, ...]
    raw: tuple[tuple[Any, ...], ...]
    marks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    kind: str = "table"
    """Name of the CSV file that tables of this kind share."""
    verdicts: tuple[str, ...] = ()
    """For each row "faster", "slower", "equal" or "", for its colour."""

    def to_markdown(self) -> str:
        """Return the table as Markdown, its caption above."""
        lines = [self.head, ("---", *("---:" for _ in self.head[1:])), *self.rows]
        body = "\n".join("| " + " | ".join(map(markdown, line)) + " |" for line in lines)
        notes = "".join(f"- {markdown(note)}\n" for note in self.notes)
        return f"**{markdown(self.caption)}**\n\n{body}\n" + (f"\n{notes}" if notes else "")


def to_csv(tables: Sequence[Table]) -> str:
    """Return the raw values of tables of one kind as comma-separated text with one header; None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(tables[0].raw_head)
    for line in (line for table in tables for line in table.raw):
        writer.writerow(
            "" if value is None else csv_cell(value) if isinstance(value, str) else value for value in line
        )
    return text.getvalue()


RAW_HEAD = (
    "setting",
    "cache",
    "workers",
    "backend",
    "samples_per_s",
    "samples_per_s_lo",
    "samples_per_s_hi",
    "base",
    "ratio",
    "ratio_lo",
    "ratio_hi",
    "verdict",
    "rounds",
    "data_wait_frac",
    "bottleneck",
    "bottleneck_gain",
    "bytes_on_disk",
    "build_s",
    "replicates",
    "status",
    "cache_verdict",
    "upper_bound",
    "whole_samples_per_s",
    "cpu_s_per_sample",
    "cores_used",
    "compute_inflation",
    "memory_bytes",
    "readahead_kib",
    "filesystem",
    "storage_device",
    "environment_key",
    "cell_id",
    "unsteady_replicates",
    *(f"cold_{100 * share:.0f}_percent_samples_per_s" for share in COLD_SHARES),
)


def panel_table(
    panel: Panel, limits: dict[tuple[str, str], Bottleneck], varying: Iterable[str] = ()
) -> Table:
    """Return the table of one panel: every backend under the same conditions."""
    setting = setting_label(panel.speaker, frozenset(varying))
    base = panel.base
    limited = panel.first.cell.cache == CacheState.LIMITED
    inflated = any(inflation(cell, panel.null) for cell in panel.cells)
    head = ["backend", "samples/s", f"times {backend_label(base.backend)}" if base else "times", "verdict"]
    head += ["data wait", "bottleneck", "CPU per sample", "on disk", "build"]
    head += ["whole epoch"] if limited else []
    head += ["compute inflation"] if inflated else []
    rows, raw, verdicts = [], [], []
    for cell in panel.listed:
        found, limit = panel.ratio(cell), limits.get(cell.key)
        told = "" if base is None or cell.is_null else verdict_words(found, cell, base)
        told, ratio = ("base", "1") if cell is base else (told, with_interval(found))
        stored = not cell.is_null
        row = [backend_label(cell.backend), _rate(cell), ratio, told, percent(cell.median("data_wait_frac"))]
        row += ["" if limit is None else f"{limit.bound} {percent(limit.share)}"]
        row += [duration(cell.median("whole_cpu_s_per_sample"))]
        row += [size(cell.fact("bytes_on_disk")), duration(cell.fact("build_s"))] if stored else ["", ""]
        row += [number(cell.median("whole_samples_per_s"))] if limited else []
        row += [with_interval(inflation(cell, panel.null))] if inflated else []
        rows.append(tuple(row))
        verdicts.append(str(found.verdict) if found and found.verdict is not Verdict.UNDECIDED else "")
        raw.append(_raw(cell, panel, found, told, limit, setting))
    return Table(
        caption=f"{dataset_label(panel.first)}: {setting}",
        head=tuple(head),
        rows=tuple(rows),
        raw_head=RAW_HEAD,
        raw=tuple(raw),
        marks=tuple(mark(cell) for cell in panel.listed),
        verdicts=tuple(verdicts),
        notes=(WARM,) if panel.first.cell.cache == CacheState.WARM else (),
    )


def _rate(cell: CellSummary) -> str:
    text = with_interval(cell.interval("samples_per_s"))
    if text:
        return f"at most {text}" if cell.at_most else text
    return "failed" if not cell.usable else "not steady" if cell.whole_only else "too short"


def _raw(
    cell: CellSummary, panel: Panel, found: Ratio | None, told: str, limit: Bottleneck | None, setting: str
) -> tuple[Any, ...]:
    inflated = inflation(cell, panel.null)
    stored = not cell.is_null
    return (
        setting,
        cell.cell.cache,
        cell.cell.workers,
        cell.backend,
        *ends(cell.interval("samples_per_s")),
        panel.base.backend if panel.base else None,
        *ends(found),
        told,
        found.rounds if found else None,
        cell.median("data_wait_frac"),
        str(limit.bound) if limit else None,
        limit.gain if limit else None,
        cell.fact("bytes_on_disk") if stored else None,
        cell.fact("build_s") if stored else None,
        len(cell.values("whole_samples_per_s")),
        "failed" if cell.failure else "ok",
        cell.rows[0]["cache_verdict"],
        cell.at_most,
        cell.median("whole_samples_per_s"),
        cell.median("whole_cpu_s_per_sample"),
        cell.median("whole_cores_used"),
        inflated.mid if inflated else None,
        cell.cell.memory_bytes,
        cell.cell.readahead_kib,
        *(cell.fact(name) for name in ("filesystem", "storage_device")),
        cell.environment_key,
        cell.cell.cell_id,
        cell.unsteady_replicates[0],
        *((cell.cold_rate(share) or (None,))[0] for share in COLD_SHARES),
    )


def ends(found: Estimate | Ratio | None) -> tuple[float | None, float | None, float | None]:
    """Return a figure and the ends of its interval; None for unknown ones."""
    return (found.mid, found.low, found.high) if found else (None, None, None)


_WARMED = 0.1
"""A rate is no cold one if the resident share of the store exceeded the requested one by more."""


def cold_table(panel: Panel) -> Table | None:
    """Return the rates of a panel's cells by the share of the store that was read from a cold start."""
    cells = [cell for cell in panel.cells if cell.cold_start]
    shares = [share for share in COLD_SHARES if any(cell.cold_rate(share) for cell in cells)]
    if not shares:
        return None
    return Table(
        kind="cold",
        caption=f"{dataset_label(panel.first)}: {setting_label(panel.speaker)}. Samples/s until a share of the store was read",
        head=("backend", *(percent(share) for share in shares)),
        rows=tuple(
            (backend_label(cell.backend), *(_cold_rate(cell, share) for share in shares)) for cell in cells
        ),
        raw_head=("setting", "backend", "read_frac", "samples_per_s", "resident_frac"),
        raw=tuple(
            (setting_label(cell), cell.backend, share, rate[0], rate[1])
            for cell in cells
            for share in shares
            if (rate := cell.cold_rate(share)) is not None
        ),
        marks=tuple(mark(cell) for cell in cells),
        notes=(_COLD_NOTE,),
    )


def _cold_rate(cell: CellSummary, share: float) -> str:
    rate = cell.cold_rate(share)
    if rate is None:
        return "not reached" if cell.cold_rate(min(COLD_SHARES)) else "within one batch"
    samples_per_s, resident, excess = rate
    if excess is None or resident is None:
        return f"{number(samples_per_s)} (not counted)"
    return number(samples_per_s) + (f" ({percent(resident)} resident)" if excess > _WARMED else "")


def feeding_table(roofs: Sequence[Roofline], accelerators: Sequence[Accelerator] = ()) -> Table:
    """Return the supply rate and the starving point of every store, and whether named accelerators are fed."""
    trained = roofs[0].trained
    names = [
        f"{MODELS.get(n.cell.cell.model, n.cell.cell.model)} here, {number(n.rate.mid)}/s" for n in trained
    ]
    rates = [network.rate.mid for network in trained] + [one.images_per_s for one in accelerators]
    names += [f"{one.title}, {number(one.images_per_s)}/s" for one in accelerators]
    listed = [(roofline, curve) for roofline in roofs for curve in roofline.curves]
    loaders = [curve.loader for _, curve in listed]
    varying = varying_fields(loaders)
    rows = tuple(
        (
            setting_label(curve.loader, varying),
            backend_label(curve.backend),
            ("at most " if curve.at_most else "") + with_interval(curve.supply),
            with_interval(curve.starving),
            *(
                f"{curve.feeding(rate)}, {percent(min(1.0, curve.delivered(rate) / rate))} busy"
                for rate in rates
            ),
        )
        for _, curve in listed
    )
    return Table(
        kind="roofline",
        caption=f"{dataset_label(loaders[0])}: the fastest accelerator that each store feeds",
        head=(
            "setting",
            "backend",
            "supplies, images/s",
            "starves above",
            *(f"feeds {name}?" for name in names),
        ),
        rows=rows,
        raw_head=(
            "cache",
            "workers",
            "loader",
            "batch_size",
            "memory_bytes",
            "readahead_kib",
            "backend",
            "supply_samples_per_s",
            "supply_samples_per_s_lo",
            "supply_samples_per_s_hi",
            "constant_s_per_sample",
            "starving_samples_per_s",
            "starving_samples_per_s_lo",
            "starving_samples_per_s_hi",
            "upper_bound",
            "decided",
            "replicates",
            "environment_key",
            "cell_id",
        ),
        raw=tuple(
            (
                *_setting_raw(curve.loader),
                *ends(curve.supply),
                curve.constant_s,
                *ends(curve.starving),
                curve.at_most,
                curve.decided,
                curve.starving.n,
                *curve.loader.key,
            )
            for _, curve in listed
        ),
        marks=tuple(mark(cell) for cell in loaders),
        notes=(
            _FED_NOTE,
            *(
                f"{one.title}: {number(one.images_per_s)} images/s in training, {one.precision}. {one.source}, {one.source.url}"
                for one in accelerators
                if one.source
            ),
        ),
    )


def point_table(roofs: Sequence[Roofline]) -> Table | None:
    """Return the measured points of the rooflines beside the formula's predictions; None without points."""
    points = [point for roofline in roofs for point in roofline.points]
    errors = model_errors(points)
    if errors is None:
        return None
    return Table(
        kind="roofline-points",
        caption=f"{dataset_label(points[0].cell)}: the formula against {len(points)} measured points",
        head=("setting", "backend", "takes, images/s", "delivered", "predicted", "error"),
        rows=tuple(
            (
                setting_label(point.cell),
                backend_label(point.cell.backend),
                number(point.ingestion.mid),
                with_interval(point.delivered),
                number(point.predicted),
                f"{point.error:+.0%}",
            )
            for point in points
        ),
        raw_head=(
            "cache",
            "workers",
            "loader",
            "batch_size",
            "memory_bytes",
            "readahead_kib",
            "backend",
            "compute",
            "ingestion_samples_per_s",
            "delivered_samples_per_s",
            "delivered_samples_per_s_lo",
            "delivered_samples_per_s_hi",
            "predicted_samples_per_s",
            "error_frac",
            "environment_key",
            "cell_id",
        ),
        raw=tuple(
            (
                *_setting_raw(point.cell),
                str(point.cell.fields["compute"]),
                point.ingestion.mid,
                *ends(point.delivered),
                point.predicted,
                point.error,
                *point.cell.key,
            )
            for point in points
        ),
        notes=(f"Errors of the formula: {percent(errors[0])} at the median, {percent(errors[1])} at most.",),
    )


def _setting_raw(cell: CellSummary) -> tuple[Any, ...]:
    own = cell.cell
    return (
        own.cache,
        own.workers,
        own.loader,
        own.batch_size,
        own.memory_bytes,
        own.readahead_kib,
        cell.backend,
    )


def ladder_table(ladder: Ladder) -> Table:
    """Return the rungs of one ladder with their gains."""
    return Table(
        kind="ladder",
        caption=f"{common_setting([step.cell for step in ladder.steps])}: LMDBIO's ladder",
        head=("rung", "removes", "samples/s", "times the rung below", "times LMDB's own map"),
        rows=tuple(
            (
                step.rung.label,
                step.rung.trouble,
                with_interval(step.rate),
                with_interval(step.gain),
                with_interval(step.over_plain),
            )
            for step in ladder.steps
        ),
        raw_head=(
            "rung",
            "backend",
            "samples_per_s",
            "samples_per_s_lo",
            "samples_per_s_hi",
            "gain",
            "gain_lo",
            "gain_hi",
            "over_plain",
            "over_plain_lo",
            "over_plain_hi",
            "cell_id",
        ),
        raw=tuple(
            (
                step.rung.key,
                step.cell.backend,
                *ends(step.rate),
                *ends(step.gain),
                *ends(step.over_plain),
                step.cell.cell.cell_id,
            )
            for step in ladder.steps
        ),
        marks=tuple(mark(step.cell) for step in ladder.steps),
    )


def rank_tables(cells: Sequence[CellSummary]) -> list[Table]:
    """Return the tables of jobs of ranks: rates, communication, the interaction of loading and exchange, tournaments."""
    jobs = [
        cell for cell in cells if cell.cell.ranks > 1 and not cell.is_null and cell.median("samples_per_s")
    ]
    communicating = [
        cell
        for cell in cells
        if cell.cell.ranks > cell.cell.trainers and cell.median("job_barrier_s") is not None
    ]
    made = [_job_table(jobs, cells)] if jobs else []
    made += [_communication_table(communicating)] if communicating else []
    made += [table for table in (_corner_table(cells), _tournament_table(cells)) if table]
    return made


def _job_table(jobs: Sequence[CellSummary], cells: Sequence[CellSummary]) -> Table:
    varying = varying_fields(jobs)
    rows, raw = [], []
    for job in jobs:
        alone, separate = alone_of(job, cells), sharing_base(job, cells)
        gain = None if alone is None else rate_ratio(job, alone)
        shared = None if separate is None or separate is job else rate_ratio(job, separate)
        efficiency = None if gain is None or gain.mid is None else gain.mid / job.cell.ranks
        rows.append(
            (
                setting_label(job, varying),
                job_name(job),
                with_interval(job.interval("samples_per_s")),
                with_interval(gain),
                percent(efficiency),
                with_interval(shared),
                duration(job.per_step("whole_job_wait_for_slowest_s")),
            )
        )
        raw.append(
            (
                setting_label(job, varying),
                job.backend,
                job.cell.ranks,
                str(job.cell.share),
                *ends(job.interval("samples_per_s")),
                *ends(gain),
                efficiency,
                *ends(shared),
                *job.key,
            )
        )
    return Table(
        kind="ranks",
        caption=f"{dataset_label(jobs[0])}: jobs of ranks",
        head=(
            "setting",
            "job",
            "samples/s",
            "times one process",
            "efficiency",
            "times without sharing",
            "wait for slowest",
        ),
        rows=tuple(rows),
        raw_head=(
            "setting",
            "backend",
            "ranks",
            "share",
            "samples_per_s",
            "samples_per_s_lo",
            "samples_per_s_hi",
            "over_one_process",
            "over_one_process_lo",
            "over_one_process_hi",
            "efficiency_frac",
            "over_separate",
            "over_separate_lo",
            "over_separate_hi",
            "environment_key",
            "cell_id",
        ),
        raw=tuple(raw),
        marks=tuple(mark(job) for job in jobs),
    )


def _communication_table(jobs: Sequence[CellSummary]) -> Table:
    columns = (
        "job_step_without_sync_s",
        EXPOSED,
        "job_gradient_bytes",
        "job_link_bytes_per_s",
        "job_link_latency_s",
        "job_ring_bound_s",
        "job_exposed_over_bound",
        "job_barrier_s",
    )
    varying = varying_fields(jobs)
    return Table(
        kind="ranks-communication",
        caption=f"{dataset_label(jobs[0])}: what the exchange of gradients costs",
        head=(
            "setting",
            "job",
            "step without it",
            "exposed",
            "bytes per rank",
            "link",
            "bandwidth",
            "ideal ring",
            "exposed / ideal",
        ),
        rows=tuple(
            (
                setting_label(cell, varying),
                job_name(cell),
                duration(cell.median("job_step_without_sync_s")),
                _milliseconds(cell.interval(EXPOSED)),
                size(cell.median("job_gradient_bytes")),
                str(cell.fact("job_link") or ""),
                f"{size(cell.median('job_link_bytes_per_s'))}/s",
                duration(cell.median("job_ring_bound_s")),
                number(cell.median("job_exposed_over_bound")),
            )
            for cell in jobs
        ),
        raw_head=("setting", "backend", "ranks", "sync", *columns, "environment_key", "cell_id"),
        raw=tuple(
            (
                setting_label(cell, varying),
                cell.backend,
                cell.cell.ranks,
                str(cell.cell.sync),
                *(cell.median(name) for name in columns),
                *cell.key,
            )
            for cell in jobs
        ),
        marks=tuple(mark(cell) for cell in jobs),
        notes=(_RING_NOTE,),
    )


def _corner_table(cells: Sequence[CellSummary]) -> Table | None:
    found = corners(cells)
    if not found:
        return None
    varying = varying_fields(corner.cell for corner in found)
    return Table(
        kind="ranks-interference",
        caption=f"{dataset_label(found[0].cell)}: what loading and exchanging cost each other",
        head=("setting", "job", "part of a step", "loading alone", "exchange alone", "both, beyond the sum"),
        rows=tuple(
            (
                setting_label(one.cell, varying),
                job_name(one.cell),
                one.part,
                *(_milliseconds(figure) for figure in (one.loading, one.exchange, one.interaction)),
            )
            for one in found
        ),
        raw_head=(
            "backend",
            "part",
            "loading_s",
            "loading_s_lo",
            "loading_s_hi",
            "exchange_s",
            "exchange_s_lo",
            "exchange_s_hi",
            "interaction_s",
            "interaction_s_lo",
            "interaction_s_hi",
            "environment_key",
            "cell_id",
        ),
        raw=tuple(
            (
                one.cell.backend,
                one.part,
                *ends(one.loading),
                *ends(one.exchange),
                *ends(one.interaction),
                *one.cell.key,
            )
            for one in found
        ),
    )


def _milliseconds(found: Estimate | None) -> str:
    return "" if found is None else f"{with_interval(found.scaled(1000))} ms"


def _tournament_table(cells: Sequence[CellSummary]) -> Table | None:
    found = tournaments(cells)
    if not found:
        return None
    return Table(
        kind="tournaments",
        caption=f"{dataset_label(found[0].cell)}: trainers with tournaments beside the same trainers without",
        head=("setting", "seed", "best trainer", "without games", "games", "networks that moved"),
        rows=tuple(
            (
                setting_label(one.cell),
                str(one.cell.fields["seed"]),
                percent(one.accuracy),
                percent(one.control),
                str(one.games),
                str(one.moved),
            )
            for one in found
        ),
        raw_head=(
            "seed",
            "test_accuracy",
            "test_accuracy_without",
            "games",
            "moved",
            "environment_key",
            "cell_id",
        ),
        raw=tuple(
            (one.cell.fields["seed"], one.accuracy, one.control, one.games, one.moved, *one.cell.key)
            for one in found
        ),
    )


CELL_COLUMNS = (
    ("samples/s", "samples_per_s", 1.0),
    ("data wait, s", "data_wait_s", 1.0),
    ("copy, s", "h2d_s", 1.0),
    ("compute, s", "compute_s", 1.0),
    ("overhead, s", "overhead_s", 1.0),
    ("timed, s", "timed_s", 1.0),
    ("fetch, s", "fetch_s", 1.0),
    ("decode, s", "decode_s", 1.0),
    ("prep, s", "prep_s", 1.0),
    ("handoff, s", "handover_s", 1.0),
    ("wait p99, ms", "data_wait_p99_ns", 1e-6),
    ("first batch, s", "time_to_first_batch_s", 1.0),
    ("open, s", "open_s", 1.0),
    ("device reads, MiB", "device_read_bytes", 2.0**-20),
    ("resident before", "resident_frac_before", 1.0),
    ("resident after", "resident_frac_after", 1.0),
    ("test accuracy", "test_accuracy", 1.0),
)
"""Head, metric and factor of each figure in the table of every cell."""


def every_cell(cells: Sequence[CellSummary]) -> Table:
    """Return the raw figures of every cell, medians over replicates."""
    rows = tuple(
        (
            dataset_label(cell),
            backend_label(cell.backend),
            state_label(cell),
            setting_label(cell),
            *(
                "" if (value := cell.median(name)) is None else f"{value * factor:.5g}"
                for _, name, factor in CELL_COLUMNS
            ),
            str(len(cell.values("whole_samples_per_s"))),
            mark(cell) or "ok",
        )
        for cell in cells
    )
    head = (
        "dataset",
        "backend",
        "cache",
        "setting",
        *(name for name, *_ in CELL_COLUMNS),
        "replicates",
        "state",
    )
    return Table(
        caption=f"{len(cells)} cells, medians over replicates",
        head=head,
        rows=rows,
        raw_head=head,
        raw=rows,
        marks=tuple(mark(cell) for cell in cells),
    )


def matrix(panels: Sequence[Panel]) -> Table:
    """Return stores by settings: the rate of each store in each panel, and in brackets times the base."""
    backends = list(dict.fromkeys(cell.backend for panel in panels for cell in panel.stored))
    several = len({panel.first.dataset_key for panel in panels}) > 1
    labels = [_matrix_head(panel, named=several) for panel in panels]
    columns = [{cell.backend: _matrix_cell(panel, cell) for cell in panel.stored} for panel in panels]
    rows = tuple(
        (backend_label(name), *(column.get(name, "") for column in columns))
        for name in sorted(backends, key=backend_rank)
    )
    return Table(
        caption="Samples/s of every store, and times the base: + faster, - slower, = within 10%, ? undecided",
        head=("store", *labels),
        rows=rows,
        raw_head=("store", *labels),
        raw=rows,
    )


def _matrix_head(panel: Panel, *, named: bool) -> str:
    cell = panel.first.cell
    words = [dataset_label(panel.first).partition(",")[0]] if named else []
    words += [condition_label(panel.speaker)]
    words += ["training" if work_of(cell) is LoopWork.TRAINING else "loading"]
    words += [number_of(cell.workers, "worker")] if cell.workers else []
    words += [number_of(cell.ranks, "rank")] if cell.ranks > 1 else []
    return ", ".join(words)


def _matrix_cell(panel: Panel, cell: CellSummary) -> str:
    rate, found = number(cell.median("samples_per_s")), panel.ratio(cell)
    if found is None or found.mid is None:
        return rate
    sign = {Verdict.FASTER: "+", Verdict.SLOWER: "-", Verdict.EQUAL: "="}.get(found.verdict, "?")
    return f"{rate} ({number(found.mid, 2)}{sign})"
