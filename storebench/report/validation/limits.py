"""The limits of one record: rates below every ceiling, and page caches within their limits."""

from collections.abc import Hashable, Iterator, Sequence

from storebench.matrix import MODEL_CROPS
from storebench.probes.cgroup import LIMIT_HEADROOM
from storebench.probes.residency import SAMPLING_ERROR_FRAC
from storebench.report.texts.labels import size
from storebench.report.validation.findings import Finding, Rule, finding
from storebench.results import Record
from storebench.settings.words import CacheState, Share
from storebench.units import number_of

_HEADROOM = 1.25
"""A ceiling is measured for half a second, in which the machine may have been slower than during the epoch."""

_CPU_HEADROOM = 1.1
"""The timed steps may need less CPU time per sample than the epoch that is counted: 1.04 was seen with two workers on two cores."""

_CPU_BESIDE_S = 0.1
"""CPU seconds of each process that may belong to the begin and the end of an epoch instead of its samples."""

_WARM_MOST_FRAC = 0.05
_WARM_MOST_BYTES = 16 << 20
_WARM_OTHER_BYTES = 2 << 20
"""What a warm epoch may take from a device: a share of the requested bytes or the first number of bytes, and at most the same share
of the store, which several passes request again, and the second number. The machine may reclaim pages, and read its libraries."""


def memory_rates(records: Sequence[Record]) -> list[float | None]:
    """Return the bytes per second of the fastest memory that any replicate of each record's cell found; None where unknown.

    Other work slows single measurements down, and a ceiling is the best that a machine can do.
    """
    best: dict[Hashable, float] = {}
    for record in records:
        if rate := record.ceilings.memory_bytes_per_s:
            best[_cell_of(record)] = max(rate, best.get(_cell_of(record), 0.0))
    return [best.get(_cell_of(record)) for record in records]


def _cell_of(record: Record) -> Hashable:
    return record.environment and record.environment.key, record.cell.cell_id


def check_limits(record: Record, memory: float | None = None) -> Iterator[Finding]:
    """Yield a finding for each figure of a usable record that is impossibly high or low.

    Parameters
    ----------
    record
        A record of a cell that ended.
    memory
        The rate of memory that counts for it (`memory_rates`); None for the record's own.
    """
    if not record.cell.backend.is_null:
        yield from _cpu_ceiling(record)
        yield from _memory_ceiling(record, memory or record.ceilings.memory_bytes_per_s)
        yield from _warm_reads(record)
        yield from _limit(record)
    yield from _portion(record)


def _cpu_ceiling(record: Record) -> Iterator[Finding]:
    """Find a rate at which the epoch's CPU seconds per sample would need more cores than there are."""
    cores, spent_s = _cores(record), record.counters.cpu_s
    if cores is None or spent_s is None:
        return
    cpu_s = spent_s - _CPU_BESIDE_S * record.cell.ranks * (1 + record.cell.workers)
    if cpu_s <= 0:
        return
    nodes = record.job.nodes if record.job else 1
    most = nodes * cores * record.samples / cpu_s
    if record.samples_per_s > most * _CPU_HEADROOM:
        message = f"{record.samples_per_s:.4g}, but {number_of(nodes * cores, 'core')} do {most:.4g} at {1000 * cpu_s / record.samples:.3g} ms each"
        yield finding(Rule.CEILING, record, "samples_per_s", message)


def _memory_ceiling(record: Record, ceiling: float | None) -> Iterator[Finding]:
    """Find more bytes per second of fetching and decoding than a thread can copy into memory."""
    busy_s = (record.fetch_s + record.decode_s) * _readers(record)
    if ceiling is None:
        return
    copiers = max(1, record.cell.workers) * record.cell.threads * record.cell.ranks
    together = ceiling * _HEADROOM * min(copiers, _cores(record) or copiers)
    if record.payload_bytes_per_s * _rows_frac(record) * _columns_frac(record) > together:
        message = (
            f"{size(record.payload_bytes_per_s)} per second, above the {size(together)} that memory can give"
        )
        yield finding(Rule.CEILING, record, "payload_bytes_per_s", message)
    if not busy_s:
        return
    most = ceiling * _HEADROOM * _copying_s(record, busy_s)
    copied = record.payload_bytes * _rows_frac(record) * _columns_frac(record)
    if copied > most:
        message = (
            f"{size(copied / busy_s)} per second of fetching and decoding, above the {size(most / busy_s)} that memory"
            " can give there"
        )
        yield finding(Rule.CEILING, record, "payload_bytes_per_s", message)


def _readers(record: Record) -> int:
    """Return the number of ranks that read. With one reader per node, the other ranks repeat its times."""
    if record.cell.share is Share.NODE and record.job is not None:
        return record.job.nodes
    return record.cell.ranks


def _cores(record: Record) -> int | None:
    cores = record.environment.match.get("cores") if record.environment else None
    return cores if isinstance(cores, int) else None


def _rows_frac(record: Record) -> float:
    """Return the share of each image's rows that a reader must touch at least: some copy only the crop."""
    return _crop_frac(record, 0)


def _columns_frac(record: Record) -> float:
    return _crop_frac(record, 1)


def _crop_frac(record: Record, axis: int) -> float:
    side = MODEL_CROPS.get(record.cell.model)
    return 1.0 if side is None or record.store is None else min(1.0, side / record.store.image_shape[axis])


def _copying_s(record: Record, busy_s: float) -> float:
    """Return the seconds for which all threads together may have copied while producers were busy for `busy_s`.

    Several threads copy at once only on as many cores, and only in CPU time that was counted.
    """
    threads = min(record.cell.threads, _cores(record) or record.cell.threads)
    cpu_s = record.counters.cpu_s
    side_by_side = busy_s * max(1, threads)
    return side_by_side if cpu_s is None else min(side_by_side, max(cpu_s, busy_s))


def _warm_reads(record: Record) -> Iterator[Finding]:
    read, store = record.counters.device_read_bytes, record.store
    most = max(_WARM_MOST_BYTES, _WARM_MOST_FRAC * record.payload_bytes)
    if store is not None:
        nodes = record.job.nodes if record.job else 1
        on_disk = max(store.bytes_on_disk, store.file_bytes)
        most = min(most, nodes * (_WARM_OTHER_BYTES + _WARM_MOST_FRAC * on_disk))
    if record.cell.cache == CacheState.WARM and read is not None and read > most:
        message = f"called warm, but the device delivered {size(read)}, and {size(most)} are permitted"
        yield finding(Rule.CACHE, record, "device_read_bytes", message)


def _limit(record: Record) -> Iterator[Finding]:
    """Find moments at which a limited page cache held more than its limit."""
    cache, store, limit = record.cache, record.store, record.cell.memory_bytes
    if record.cell.cache != CacheState.LIMITED or cache is None or store is None or limit is None:
        return
    held = [point.resident_frac for point in cache.curve]
    most = max([*held, cache.resident_max_frac or 0.0]) * store.file_bytes
    error = min(cache.sampling_error_frac, SAMPLING_ERROR_FRAC) * store.file_bytes
    if most > LIMIT_HEADROOM * limit + error:
        message = f"{size(most)} of the store were resident, above the limit of {size(limit)}"
        yield finding(Rule.CACHE, record, "resident_max_frac", message)


def _portion(record: Record) -> Iterator[Finding]:
    """Find a steady portion where none belongs; its figures are compared with the steps (`validation.portion`)."""
    if record.portion is not None and record.cell.cache != CacheState.LIMITED:
        message = f"a steady portion in a cell whose cache state is {record.cell.cache}"
        yield finding(Rule.CACHE, record, "portion", message)
