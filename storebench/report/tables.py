"""Tables of results: text for people, raw values for programs; each column is declared once."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from storebench.accelerators import Accelerator
from storebench.analysis.bottleneck import Bottleneck, inflation
from storebench.analysis.codec_frontier import Coded
from storebench.analysis.comparison import Estimate, Ratio, Verdict
from storebench.analysis.labels import (
    backend_label,
    common_setting,
    dataset_label,
    duration,
    mark,
    number,
    percent,
    place_words,
    rate_words,
    setting_label,
    size,
    state_label,
    verdict_words,
    with_interval,
)
from storebench.analysis.ladder import LadderStep
from storebench.analysis.panels import Panel, rate_ratio
from storebench.analysis.roofline import Curve, Point, Roofline, model_errors
from storebench.analysis.summary import CellSummary, backend_rank, key_without, varying_fields
from storebench.analysis.table import Column, Table, make_table
from storebench.plain_text import plain
from storebench.record.schema import COLD_SHARES
from storebench.report.ranks import (
    EXPOSED,
    Corners,
    TournamentResult,
    alone_of,
    corners,
    job_name,
    sharing_base,
    tournaments,
)
from storebench.settings.words import CacheState

T = TypeVar("T")

# Tables of one dataset on the page or the terminal; a matrix of hundreds of settings is read from the CSV files.
MOST_TABLES = 40

BRACKETS = "Brackets are 95% intervals; ratios are paired by round."

_COLD_NOTE = (
    "A resident share beside a rate means that more of the store was in memory than had been requested,"
    " by read-ahead or because samples share pages: it is no cold rate. A cold start ranks nothing."
)
_FRONTIER_NOTE = (
    "On the frontier: no other codec is both smaller and faster."
    " A lossless one is compared with lossless ones only."
)
_FED_NOTE = (
    "An accelerator starves if it is busy less than 90% of its time."
    " With workers the delivered rate is min(F, 1 / (1/G + c)),"
    " without them 1 / (1/G + 1/F + c): F is supplied, G what the accelerator takes, c the handoff per image."
)
_OWN_CLIENT_NOTE = "Without p50: the library's own client makes the requests, which are not seen here."
_SENT_NOTE = (
    "Sent / used: bytes that the server sent during the epoch, by its own counters,"
    " over those of the samples served."
)
_READS_NOTE = (
    "Device reads: all of the block device. Apart from the cells, once: read p50 and p99 are of one read"
    " of an image's bytes at a time, past this machine's page cache; opens/s, of the store's files by 16 threads,"
    " their names in memory unless cold."
)

# A rate is no cold one if the resident share of the store exceeded the requested one by more.
_WARMED = 0.1


def to_csv(tables: Sequence[Table]) -> str:
    """Return the raw values of tables of one kind as comma-separated text with one header; None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(tables[0].raw_head)
    for line in (line for table in tables for line in table.raw):
        writer.writerow(plain(value) if isinstance(value, str) else value for value in line)
    return text.getvalue()


_cell = Column[CellSummary]

Value = Callable[[CellSummary], float | None]


def _median(name: str, factor: float = 1.0) -> Value:
    return lambda cell: None if (value := cell.median(name)) is None else value * factor


def _over(name: str, divisor: str, factor: float = 1.0) -> Value:
    """Return one median over another, where there are both."""

    def ratio(cell: CellSummary) -> float | None:
        value, by = cell.median(name), cell.median(divisor)
        return value * factor / by if value is not None and by else None

    return ratio


def _cells_table(
    kind: str,
    caption: str,
    columns: Sequence[Column[T]],
    items: Sequence[T],
    cell_of: Callable[[T], CellSummary],
    **more: Any,
) -> Table:
    """Return a table whose rows are cells: marked for people, identified for programs."""
    identity = [
        Column[T]("", "environment_key", lambda item: cell_of(item).environment_key),
        Column[T]("", "cell_id", lambda item: cell_of(item).cell.cell_id),
    ]
    marks = tuple(mark(cell_of(item)) for item in items)
    return make_table(kind, caption, [*columns, *identity], items, marks=marks, **more)


def _itself(cell: CellSummary) -> CellSummary:
    return cell


def io_table(
    panels: Sequence[Panel],
    limits: Mapping[tuple[str, str], Bottleneck],
    varying: frozenset[str] = frozenset(),
    anchor: str = "",
) -> Table:
    """Return the table of the storage below the stores of panels of one dataset; `varying` fields are named."""
    cells = [cell for panel in panels for cell in panel.measured]
    cells.sort(key=lambda cell: backend_rank(cell.backend))
    varying |= varying_fields(cells)
    words = {cell: setting_label(cell, varying).split(", ") for cell in cells}

    def store(cell: CellSummary) -> str:
        differing = [word for word in words[cell] if not all(word in other for other in words.values())]
        return ", ".join([backend_label(cell.backend), *(differing if len(panels) > 1 else ())])

    def single(name: str) -> Callable[[CellSummary], float | None]:
        return lambda cell: (cell.fact("single_requests") or {}).get(name)

    columns = [
        _cell("store", "", store),
        _cell("", "setting", lambda c: setting_label(c, varying)),
        _cell("", "backend", lambda c: c.backend),
        _cell("samples, MiB/s", "payload_bytes_per_s", _median("payload_bytes_per_s"), _mebibytes),
        _cell("limited by", "bottleneck", lambda c: limits[c.key].limit if c.key in limits else None),
        _cell("device, MiB/s", "", _over("device_read_bytes", "epoch_s", 2.0**-20)),
        _cell("", "device_read_bytes", _median("device_read_bytes")),
        _cell("device reads/s", "device_reads_per_s", _over("block_device_reads", "epoch_s")),
        _cell("bytes each", "request_bytes", _over("block_device_read_bytes", "block_device_reads"), size),
        _cell("read p50", "read_1_p50_s", single("read_1_p50_s"), duration),
        _cell("read p99", "read_1_p99_s", single("read_1_p99_s"), duration),
        _cell("", "read_16_p50_s", single("read_16_p50_s")),
        _cell("", "read_16_p99_s", single("read_16_p99_s")),
        _cell("", "open_1_per_s", single("open_1_per_s")),
        _cell("opens/s", "open_16_per_s", single("open_16_per_s")),
        _cell("amplification", "read_amplification", _median("read_amplification")),
        _cell("", "requests_per_s", lambda c: c.requests_per_s),
        _cell("", "data_wait_p50_s", _median("data_wait_p50_ns", 1e-9)),
        _cell("", "data_wait_p99_s", _median("data_wait_p99_ns", 1e-9)),
    ]
    # An empty column stays in the file, whose columns are those of all such tables.
    columns = [column if any(map(column.shown, cells)) else replace(column, head="") for column in columns]
    caption = f"{common_setting(cells)}. What the storage delivers"
    return _cells_table("io", caption, columns, cells, _itself, anchor=anchor, notes=(_READS_NOTE,))


def _mebibytes(value: float | None) -> str:
    return "" if value is None else number(value * 2.0**-20)


def limit_words(limit: Bottleneck | None) -> str:
    """Return the limit of a cell with its share of the time; "" if it is not known."""
    return f"{limit.limit} {percent(limit.share)}" if limit else ""


def order_table(cells: Sequence[CellSummary]) -> Table | None:
    """Return the table of the orders that readers choose themselves, and how random they are; None without any."""
    reading = {cell.backend: cell for cell in cells if cell.cell.backend.native_order and cell.usable}
    columns = [
        _cell("store", "backend", lambda c: c.backend, backend_label),
        _cell("samples in the buffer", "order_buffer_samples", _median("order_buffer_samples")),
        _cell("displacement", "order_displacement", _median("order_displacement")),
        _cell("neighbours kept", "order_neighbours_kept", _median("order_neighbours_kept"), percent),
    ]
    caption = (
        f"{dataset_label(cells[0])}. Own orders; a uniform shuffle has displacement 1 and keeps no neighbours"
    )
    return make_table("order", caption, columns, list(reading.values())) if reading else None


def request_table(cells: Sequence[CellSummary], limits: Mapping[tuple[str, str], Bottleneck]) -> Table | None:
    """Return the requests that servers answered; None without such cells."""
    there = [cell for cell in cells if cell.cell.place.remote and cell.usable and not cell.is_null]
    asked = sorted(there, key=lambda cell: cell.cell.place)
    if not asked:
        return None

    def an_epoch(cell: CellSummary) -> float | None:
        requests, read, images = (
            cell.median("remote_count"),
            cell.median("samples"),
            cell.fact("store_count"),
        )
        return round(images * requests / read) if images and requests and read else None

    sent_over_used = _over("served_sent_bytes", "payload_bytes")
    columns = [
        _cell("store", "backend", lambda c: c.backend, backend_label),
        _cell("place", "place", lambda c: place_words(c.cell.place)),
        _cell("workers", "workers", lambda c: c.cell.workers),
        _cell("images/s", "samples_per_s", _median("samples_per_s")),
        _cell("limited by", "bottleneck", lambda c: limit_words(limits.get(c.key))),
        _cell("first byte", "first_byte_ms", lambda c: c.fact("place_first_byte_ms"), _milliseconds_of),
        _cell("p50", "request_p50_ms", _median("remote_p50_ms"), _milliseconds_of),
        _cell("p99", "request_p99_ms", _median("remote_p99_ms"), _milliseconds_of),
        _cell("in flight", "in_flight", _median("remote_in_flight")),
        _cell("MB/s", "received_mb_per_s", _over("remote_received_bytes", "epoch_s", 1e-6)),
        _cell("sent / used", "server_amplification", sent_over_used),
        _cell("", "requests_per_s", lambda c: c.requests_per_s),
        _cell("requests an epoch", "requests_per_epoch", an_epoch),
    ]
    caption = f"{dataset_label(asked[0])}: requests to servers"
    seen = [] if all(cell.median("remote_count") for cell in asked) else [_OWN_CLIENT_NOTE]
    counted = [_SENT_NOTE] if any(map(sent_over_used, asked)) else []
    notes = (*copies_pay(cells), *seen, *counted)
    return _cells_table("requests", caption, columns, asked, _itself, notes=notes)


def _milliseconds_of(value: float | None) -> str:
    return "" if value is None else duration(value / 1e3)


def panel_table(
    panel: Panel,
    limits: Mapping[tuple[str, str], Bottleneck],
    varying: Iterable[str] = (),
    anchor: str = "",
) -> Table:
    """Return the table of one panel: every backend under the same conditions."""
    setting = setting_label(panel.speaker, frozenset(varying))
    base, null = panel.base, panel.null
    limited = panel.first.cell.cache == CacheState.LIMITED
    inflated = any(inflation(cell, null) for cell in panel.cells)

    def times(cell: CellSummary) -> str:
        return "1" if cell is base else with_interval(panel.ratio(cell))

    def told(cell: CellSummary) -> str:
        if cell is base:
            return "base"
        return "" if base is None or cell.is_null else verdict_words(panel.ratio(cell), cell, base)

    def stored(name: str) -> Callable[[CellSummary], Any]:
        """Return a fact of a cell's store; the null cell has none."""
        return lambda cell: None if cell.is_null else cell.fact(name)

    columns = [
        _cell("store", "backend", lambda c: c.backend, backend_label),
        _cell("", "setting", lambda _: setting),
        _cell("", "cache", lambda c: c.cell.cache),
        _cell("images/s", "", lambda c: rate_words(c, with_interval)),
        _cell("", "samples_per_s", lambda c: c.interval("samples_per_s"), interval=True),
        _cell(f"times {backend_label(base.backend) if base else ''}", "", times),
        _cell("", "ratio", panel.ratio, interval=True),
        _cell("verdict", "verdict", told),
        _cell("", "rounds", lambda c: ratio.rounds if (ratio := panel.ratio(c)) else None),
        _cell("data wait", "data_wait_frac", _median("data_wait_frac"), percent),
        _cell("bottleneck", "bottleneck", lambda c: limit_words(limits.get(c.key))),
        _cell("CPU per sample", "cpu_s_per_sample", _median("whole_cpu_s_per_sample"), duration),
        _cell("on disk", "bytes_on_disk", stored("bytes_on_disk"), size),
        _cell("build", "build_s", stored("build_s"), duration),
        _cell("whole epoch" * limited, "whole_samples_per_s", _median("whole_samples_per_s")),
        _cell("compute inflation" * inflated, "", lambda c: inflation(c, null)),
        _cell("", "compute_inflation", lambda c: getattr(inflation(c, null), "mid", None)),
        _cell("", "replicates", lambda c: len(c.values("whole_samples_per_s"))),
        _cell("", "status", lambda c: "failed" if c.failure else "ok" if c.usable else "no rate"),
        _cell("", "upper_bound", lambda c: c.at_most),
    ]
    ratios = map(panel.ratio, panel.listed)
    verdicts = tuple("" if r is None or r.verdict is Verdict.UNDECIDED else str(r.verdict) for r in ratios)
    caption = f"{dataset_label(panel.first)}: {setting}"
    return _cells_table("table", caption, columns, panel.listed, _itself, anchor=anchor, verdicts=verdicts)


def codec_table(codecs: Sequence[Coded]) -> Table:
    """Return the table of the codecs of one container: size, loss and rate."""
    first = codecs[0].cell
    column = Column[Coded]
    columns = [
        column("codec", "codec", lambda c: c.name),
        column("bytes per image", "bytes_per_image", lambda c: c.bytes_per_image),
        column("of raw pixels", "raw_frac", _raw_frac, percent),
        column("PSNR, dB", "", lambda c: "lossless" if c.lossless else number(c.psnr_db)),
        column("", "psnr_db", lambda c: c.psnr_db),
        column("images/s", "samples_per_s", lambda c: c.images_per_s),
        column("frontier", "frontier", lambda c: c.frontier, lambda frontier: "yes" * frontier),
    ]
    caption = f"{dataset_label(first)}: {setting_label(first)}. Codecs in {first.cell.backend.format}"
    return _cells_table("codecs", caption, columns, codecs, lambda c: c.cell, notes=(_FRONTIER_NOTE,))


def _raw_frac(codec: Coded) -> float:
    height, width, channels = map(int, str(codec.cell.fact("store_image_shape")).split("x"))
    return codec.bytes_per_image / (height * width * channels)


_OF_A_WAY = ("backend", "workers", "place")


def copies_pay(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Yield, for each store that was copied first, from which epoch on that beats the fastest way without a copy."""
    for cell in cells:
        copy_s, local_s = cell.fact("place_copy_s"), cell.median("epoch_s")
        there, key = str(cell.cell.place).removeprefix("copy:"), key_without(cell, *_OF_A_WAY)
        ways = [way for way in cells if way.cell.place == there and key_without(way, *_OF_A_WAY) == key]
        times = [(took_s, way.backend) for way in ways if (took_s := way.median("epoch_s"))]
        if cell.cell.place.copies and copy_s and local_s and times:
            remote_s, best = min(times)
            epochs = math.ceil(copy_s / (remote_s - local_s)) if remote_s > local_s else None
            pays = f"pays from epoch {epochs} on" if epochs else "does not pay"
            name, fastest = backend_label(cell.backend), backend_label(best)
            yield f"Copying {name} first takes {duration(copy_s)} and {pays}, beside {fastest} in place."


def cold_table(panel: Panel) -> Table | None:
    """Return the rates of a panel's cells by the share of the store that was read from a cold start."""
    cells = [cell for cell in panel.cells if cell.cold_start]
    shares = [share for share in COLD_SHARES if any(cell.cold_rate(share) for cell in cells)]
    if not shares:
        return None
    return Table(
        kind="cold",
        caption=f"{dataset_label(panel.first)}: {setting_label(panel.speaker)}."
        " Samples/s until a share of the store was read",
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
    named = [(profile.title, profile.images_per_s) for profile in accelerators]
    curves = [curve for roofline in roofs for curve in roofline.curves]
    loaders = [curve.loader for curve in curves]
    varying = varying_fields(loaders)
    column = Column[Curve]
    columns = [
        column("backend", "backend", lambda c: c.backend, backend_label),
        column("setting" * (len(roofs) > 1), "setting", lambda c: setting_label(c.loader, varying)),
        column("supplies, images/s", "", lambda c: ("at most " * c.at_most) + with_interval(c.supply)),
        column("", "supply_samples_per_s", lambda c: c.supply, interval=True),
        column("starves above", "starving_samples_per_s", lambda c: c.starving, interval=True),
        column("", "upper_bound", lambda c: c.at_most),
        column("", "decided", lambda c: c.decided),
        column("", "replicates", lambda c: c.starving.n),
        *(_feeding_column(name, rate) for name, rate in named),
    ]
    sources = tuple(
        f"{profile.title}: {number(profile.images_per_s)} images/s in training, {profile.precision}."
        f" {profile.source}, {profile.source.url}"
        for profile in accelerators
        if profile.source
    )
    caption = f"{common_setting(loaders)}. The fastest accelerator that each store feeds"
    return _cells_table("roofline", caption, columns, curves, lambda c: c.loader, notes=(_FED_NOTE, *sources))


def _feeding_column(name: str, rate: float) -> Column[Curve]:
    def told(curve: Curve) -> str:
        return f"{curve.feeding(rate)}, {percent(min(1.0, curve.delivered(rate) / rate))} busy"

    return Column(f"feeds {name}, {number(rate)}/s?", "", told)


def point_table(roofs: Sequence[Roofline]) -> Table | None:
    """Return the measured points of the rooflines beside the formula's predictions; None without points."""
    points = [point for roofline in roofs for point in roofline.points]
    errors = model_errors(points)
    if errors is None:
        return None
    column = Column[Point]
    columns = [
        column("setting", "setting", lambda p: setting_label(p.cell)),
        column("backend", "backend", lambda p: p.cell.backend, backend_label),
        column("takes, images/s", "ingestion_samples_per_s", lambda p: p.ingestion.mid),
        column("delivered", "delivered_samples_per_s", lambda p: p.delivered, interval=True),
        column("predicted", "predicted_samples_per_s", lambda p: p.predicted),
        column("error", "error_frac", lambda p: p.error, lambda error: f"{error:+.0%}"),
    ]
    caption = f"{dataset_label(points[0].cell)}: the formula against {len(points)} measured points"
    note = f"Errors of the formula: {percent(errors[0])} at the median, {percent(errors[1])} at most."
    return _cells_table("roofline-points", caption, columns, points, lambda p: p.cell, notes=(note,))


def ladder_table(ladder: Sequence[LadderStep]) -> Table:
    """Return the rungs of one ladder with their gains."""
    column = Column[LadderStep]
    columns = [
        column("rung", "rung", lambda s: s.rung.label),
        column("", "backend", lambda s: s.cell.backend),
        column("removes", "", lambda s: s.rung.trouble),
        column("samples/s", "samples_per_s", lambda s: s.rate, interval=True),
        column("times the rung below", "gain", lambda s: s.gain, interval=True),
        column("times LMDB's own map", "over_plain", lambda s: s.over_plain, interval=True),
    ]
    caption = f"{common_setting([step.cell for step in ladder])}: LMDBIO's ladder"
    return _cells_table("ladder", caption, columns, ladder, lambda s: s.cell)


def rank_tables(cells: Sequence[CellSummary]) -> list[Table]:
    """Return the tables of jobs: rates, communication, the interaction of loading and exchange, tournaments."""
    jobs = [
        cell for cell in cells if cell.cell.ranks > 1 and not cell.is_null and cell.median("samples_per_s")
    ]
    exchanging = [
        cell
        for cell in cells
        if cell.cell.ranks > cell.cell.trainers and cell.median("job_barrier_s") is not None
    ]
    made = [_job_table(jobs, cells)] if jobs else []
    made += [_communication_table(exchanging)] if exchanging else []
    made += [_corner_table(effects)] if (effects := corners(cells)) else []
    return made + ([_tournament_table(games)] if (games := tournaments(cells)) else [])


def _job_table(jobs: Sequence[CellSummary], cells: Sequence[CellSummary]) -> Table:
    varying = varying_fields(jobs)

    def gain(job: CellSummary) -> Ratio | None:
        alone = alone_of(job, cells)
        return None if alone is None else rate_ratio(job, alone)

    def efficiency(job: CellSummary) -> float | None:
        ratio = gain(job)
        return None if ratio is None or ratio.mid is None else ratio.mid / job.cell.ranks

    def shared(job: CellSummary) -> Ratio | None:
        separate = sharing_base(job, cells)
        return None if separate is None or separate is job else rate_ratio(job, separate)

    columns = [
        _cell("setting", "setting", lambda job: setting_label(job, varying)),
        _cell("job", "job", job_name),
        _cell("samples/s", "samples_per_s", lambda job: job.interval("samples_per_s"), interval=True),
        _cell("times one process", "over_one_process", gain, interval=True),
        _cell("efficiency", "efficiency_frac", efficiency, percent),
        _cell("times without sharing", "over_separate", shared, interval=True),
        _cell("wait for slowest", "", lambda job: job.per_step("whole_job_wait_for_slowest_s"), duration),
    ]
    return _cells_table("ranks", f"{dataset_label(jobs[0])}: jobs of ranks", columns, jobs, _itself)


def _communication_table(jobs: Sequence[CellSummary]) -> Table:
    varying = varying_fields(jobs)
    columns = [
        _cell("setting", "setting", lambda job: setting_label(job, varying)),
        _cell("job", "job", job_name),
        _cell("step without it", "step_without_sync_s", _median("job_step_without_sync_s"), duration),
        _cell("exposed", "exposed_s", lambda job: job.interval(EXPOSED), _milliseconds, interval=True),
        _cell("bytes per rank", "gradient_bytes", _median("job_gradient_bytes"), size),
        _cell("link", "link", lambda job: job.fact("job_link"), lambda link: str(link or "")),
        _cell("bandwidth", "link_bytes_per_s", _median("job_link_bytes_per_s"), lambda s: f"{size(s)}/s"),
        _cell("ideal ring", "ring_bound_s", _median("job_ring_bound_s"), duration),
        _cell("exposed / ideal", "exposed_over_bound", _median("job_exposed_over_bound")),
    ]
    caption = f"{dataset_label(jobs[0])}: what the exchange of gradients costs"
    return _cells_table("ranks-communication", caption, columns, jobs, _itself)


def _milliseconds(seconds: Estimate | None) -> str:
    return "" if seconds is None else f"{with_interval(seconds.scaled(1000))} ms"


def _corner_table(effects: Sequence[Corners]) -> Table:
    varying = varying_fields(row.cell for row in effects)
    column = Column[Corners]
    columns = [
        column("setting", "", lambda row: setting_label(row.cell, varying)),
        column("job", "job", lambda row: job_name(row.cell)),
        column("part of a step", "part", lambda row: row.part),
        column("loading alone", "loading_s", lambda row: row.loading, _milliseconds, interval=True),
        column("exchange alone", "exchange_s", lambda row: row.exchange, _milliseconds, interval=True),
        column(
            "both, beyond the sum", "interaction_s", lambda row: row.interaction, _milliseconds, interval=True
        ),
    ]
    caption = f"{dataset_label(effects[0].cell)}: what loading and exchanging cost each other"
    return _cells_table("ranks-interference", caption, columns, effects, lambda row: row.cell)


def _tournament_table(games: Sequence[TournamentResult]) -> Table:
    column = Column[TournamentResult]
    columns = [
        column("setting", "", lambda row: setting_label(row.cell)),
        column("seed", "seed", lambda row: row.cell.fields["seed"]),
        column("best trainer", "test_accuracy", lambda row: row.accuracy, percent),
        column("without games", "test_accuracy_without", lambda row: row.control, percent),
        column("games", "games", lambda row: row.games),
        column("networks that moved", "moved", lambda row: row.moved),
    ]
    caption = f"{dataset_label(games[0].cell)}: trainers with tournaments beside the same trainers without"
    return _cells_table("tournaments", caption, columns, games, lambda row: row.cell)


# Head, metric and factor of each figure in the table of every cell.
_FIGURES = (
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


def every_cell(cells: Sequence[CellSummary]) -> Table:
    """Return the raw figures of every cell, medians over replicates."""
    columns = [
        _cell("dataset", "", dataset_label),
        _cell("backend", "", lambda cell: backend_label(cell.backend)),
        _cell("cache", "", state_label),
        _cell("setting", "", setting_label),
        *(_cell(head, "", _median(name, factor), _five_digits) for head, name, factor in _FIGURES),
        _cell("replicates", "", lambda cell: len(cell.values("whole_samples_per_s"))),
        _cell("state", "", lambda cell: mark(cell) or "ok"),
    ]
    marks = tuple(map(mark, cells))
    return make_table("cells", f"{len(cells)} cells, medians over replicates", columns, cells, marks=marks)


def _five_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
